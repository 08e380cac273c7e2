"""What a study will cost, from its description: nothing is trained, and no data read but where a part will do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from .. import models
from ..data import prepare
from ..data.federated import Index
from ..data.sources import source
from ..rounds.local_training import Client
from ..rounds.randomness import Purpose, generator
from .forecast import predicted
from .spec import RunSpec, StudySpec, build_method, participation_of

SAMPLED_ROUNDS = 100


@dataclass(frozen=True)
class Estimate:
    """Expected totals of some runs."""

    runs: int = 0
    gradients: float = 0.0  # minibatch gradients of all clients
    evaluated: float = 0.0  # samples the global model is evaluated on
    bytes: float = 0.0  # sent both ways

    def __add__(self, other: Estimate) -> Estimate:
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Estimate(*(mine + theirs for mine, theirs in both))


def study_estimate(study: StudySpec) -> Estimate:
    """The cost of all runs of a study."""
    return total(run_estimate(run) for run in study.runs())


def total(estimates: Iterable[Estimate]) -> Estimate:
    """The sum of estimates."""
    return sum(estimates, Estimate())


def run_estimate(spec: RunSpec) -> Estimate:
    """The cost of one run, for clients of equal sizes and cohorts drawn as the run draws them."""
    train, test = samples(spec)
    clients, kept = spec.data.clients, 1 - spec.data.validation
    sizes = np.full(clients, max(1, round(kept * train / clients)), dtype=np.int64)
    cohorts = _cohorts(json.dumps(spec.participation), clients, spec.seed, min(spec.rounds, SAMPLED_ROUNDS))
    number_bytes = getattr(torch, spec.dtype).itemsize
    client = Client(**spec.client.values())
    cost = predicted(build_method(spec.method), client, sizes, cohorts, spec.rounds, parameters(spec), number_bytes)
    evaluated = -(-spec.rounds // spec.eval_every) * (test + spec.data.validation * train) + train
    return Estimate(1, cost.gradients, evaluated, cost.bytes_down + cost.bytes_up)


@cache
def _cohorts(participation: str, clients: int, seed: int, rounds: int) -> list[Index]:
    """The first cohorts of a run; the methods of a study share them."""
    rule = participation_of(json.loads(participation))
    return [rule.cohort(t, clients, generator(seed, Purpose.COHORT, t)) for t in range(rounds)]


def samples(spec: RunSpec) -> tuple[int, int]:
    """Training and test samples that a run uses; a held-out domain counts as one part in the number of domains."""
    known = source(spec.data.name)
    train, test = (
        _part_of_a_set(spec) if spec.data.partial else (known.sizes.get(part, 0) for part in ("train", "test"))
    )
    if spec.data.test_domain is not None:
        test = (train + test) // len(known.domains)
        train = test * (len(known.domains) - 1)
    return spec.data.train_samples or train, spec.data.test_samples or test


def _part_of_a_set(spec: RunSpec) -> tuple[int, int]:
    """The samples that the files hold, where they need not be the whole set."""
    loaded = prepare(spec.data.name, spec.data_dir, partial=True, image_size=spec.data.image_size)
    return len(loaded.train.y), 0 if loaded.test is None else len(loaded.test.y)


def parameters(spec: RunSpec) -> int:
    """How many parameters the model of a run has."""
    known = source(spec.data.name)
    options = json.dumps({name: value for name, value in spec.model.options.items() if name != "pretrained"})
    return _parameters(spec.model.name, known.classes, known.sample_shape(spec.data.image_size), options)


@cache
def _parameters(model: str, classes: int, shape: tuple[int, ...], options: str) -> int:
    return models.parameter_count(model, classes, shape, **json.loads(options))
