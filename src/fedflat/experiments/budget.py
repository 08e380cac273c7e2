"""Estimates what runs will cost before anything is trained: minibatch gradients, bytes sent, memory and hours.

`run_budget` needs only a configuration. `simulation_budget` needs a built simulation, which knows the clients' real
numbers of samples and can run some trial steps. `speed_of` measures the seconds of a gradient and of an evaluation,
from which `Speed.seconds` computes the time of runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError

from ..core.errors import InputError
from ..core.method import Method
from ..core.model_check import randomness_of
from ..core.objective import Batch, Objective
from ..core.own_model import own_field
from ..core.partial_model import sent_width
from ..core.torch_module import Space
from ..core.wrapper import serves_another
from ..data import prepare
from ..data.sources import is_folder
from ..data.types import Index
from ..engine.choice import Trial
from ..engine.simulation import Simulation
from ..files import SPEEDS, cache_folder, make_folder, read_json, write_atomically
from ..metrics.accuracy import SAMPLES_AT_ONCE, score
from ..models import build, parameter_count
from ..rounds.aggregation import RunningMean
from ..rounds.cost import (
    FULL,
    UNCOMPRESSED,
    MethodCost,
    compared_messages,
    depends_on_shapes,
    full_passes_per_round,
    gradients_per_step,
    method_cost,
    upload_bytes,
)
from ..rounds.device import device_name, usable_device
from ..rounds.local_training import Client
from ..rounds.model_parts import method_of_run
from ..rounds.randomness import Purpose, generator
from .spec import RunSpec, participation_of

# The cost of all rounds is estimated from the cohorts of the first ones.
SIMULATION_ROUNDS = 1000  # cohorts that are drawn for a simulation
SPEC_ROUNDS = 100  # cohorts that are drawn for a configuration; `fedflat recipes list` estimates hundreds
HEADROOM = 1.3  # factor on memory: freed blocks cannot always be reused, and the client store's threads add to it
SERVER_COPIES = 4  # vectors as large as the server's state: the old state, the new one, the message and the mean
TIMED_STEPS = 20  # calls; their median time is used
MOST_SECONDS = 20.0  # stop after this time, even with fewer calls
LARGEST_BATCH = 512  # most samples of the batch that is timed

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class RunBudget:
    """Expected cost of one run; a field is a sum over all clients and rounds unless its comment says otherwise."""

    parameters: int  # of one model, without those that an adapter freezes
    clients_per_round: float  # mean size of a cohort
    gradients: float  # minibatch gradients
    evaluated_samples: float  # samples on which the global model is evaluated
    bytes_down: float
    bytes_up: float
    client_state_bytes: int  # size of all clients' records, once every client has taken part
    peak_bytes: int | None = None  # largest memory of this process; None if it was not measured
    message: str | None = None  # sent by a client in a round, beside what is without an adapter or compression

    def lines(self) -> list[str]:
        """Return the budget as text, one quantity per line."""
        return [
            f"model parameters      {self.parameters:,}",
            f"clients per round     {self.clients_per_round:g}",
            f"minibatch gradients   {self.gradients:,.0f}",
            f"sent to clients       {self.bytes_down / 1e6:,.1f} MB",
            f"sent to the server    {self.bytes_up / 1e6:,.1f} MB",
            *([] if self.message is None else [f"by a client a round   {self.message}"]),
            f"kept for all clients  {self.client_state_bytes / 1e6:,.1f} MB",
            *([] if self.peak_bytes is None else [f"peak of memory        {self.peak_bytes / 1e6:,.0f} MB"]),
        ]


@dataclass(frozen=True)
class Budget:
    """Expected cost of several runs."""

    runs: int = 0
    gradients: float = 0.0
    evaluated_samples: float = 0.0
    bytes: float = 0.0  # sent in both directions

    def __add__(self, other: Budget) -> Budget:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Budget(*map(sum, pairs))


@dataclass(frozen=True)
class Speed:
    """The time a device takes for one model, in seconds."""

    gradient: Seconds  # for one minibatch gradient
    evaluation: Seconds  # for evaluating one sample

    def seconds(self, budget: Budget | RunBudget) -> float:
        """Return the seconds of all gradients and evaluations, one after another; other work is not included."""
        return budget.gradients * self.gradient + budget.evaluated_samples * self.evaluation


_SPEEDS = TypeAdapter(dict[str, Speed])


def total(budgets: Iterable[Budget]) -> Budget:
    """Return the sum of budgets."""
    return sum(budgets, Budget())


def budget_of_runs(runs: Iterable[RunSpec]) -> Budget:
    """Return the total cost of several runs."""
    costs = map(run_budget, runs)
    return total(Budget(1, one.gradients, one.evaluated_samples, one.bytes_down + one.bytes_up) for one in costs)


def run_budget(spec: RunSpec) -> RunBudget:
    """Return the cost of one run, as if all clients had the same number of samples.

    No data is read unless `data.partial` is set.
    """
    train, test = _sample_counts(spec)
    clients, share = spec.data.clients, spec.data.validation
    sizes = np.full(clients, max(1, round((1 - share) * train / clients)), dtype=np.int64)
    method, client = spec.method.object, spec.client
    evaluated = -(-spec.rounds // spec.eval_every) * (_models(method, clients) * test + share * train) + train
    rule = spec.participation if spec.privacy is None else {"bernoulli": spec.privacy.rate}
    cohorts = _cohorts(json.dumps(rule), clients, spec.seed, min(spec.rounds, SPEC_ROUNDS))
    model = spec.model
    if model.keep or method.keeps_head or own_field(method):  # the clients' own models are evaluated, too
        evaluated += -(-spec.rounds // spec.eval_every) * train
    if (
        model.keep
        or method.keeps_head
        or model.buffers
        or client.optimizer_state == "kept"
        or spec.compress is not None
        or depends_on_shapes(method)
    ):
        objective = Objective(spec.module(), buffers=spec.model.buffers)
        d = objective.space.d
        method = method_of_run(method, objective, client, None, model.buffers, model.keep, None, spec.compress)
    elif _is_made_for_real(spec):
        d = Space(spec.module()).d  # without parameters that an adapter freezes
    else:
        options = json.dumps({name: value for name, value in spec.model.options.items() if name != "pretrained"})
        d = _parameters(spec.model.name, *spec.classes_and_shape(), options)
    cost, number_bytes = method_cost(method, sent_width(method, d)), spec.torch_dtype.itemsize
    upload = upload_bytes(method, sent_width(method, d), number_bytes)
    return _budget(method, cost, upload, client, sizes, cohorts, spec.rounds, d, number_bytes, evaluated)


def simulation_budget(sim: Simulation) -> RunBudget:
    """Return the cost of a simulation for its real clients and cohorts, with the peak memory of some trial steps."""
    data, rounds = sim.data, range(min(sim.rounds, SIMULATION_ROUNDS))
    test = 0 if data.test is None else len(data.test[1])
    validation = 0 if data.validation is None else len(data.validation.members)
    evaluated = -(-sim.rounds // sim.eval_every) * (_models(sim.method, data.clients) * test + validation) + len(data.y)
    cohorts = [sim.participation.cohort(t, data.clients, generator(sim.seed, Purpose.COHORT, t)) for t in rounds]
    d, number_bytes = sim.objective.space.d, sim.w.element_size()
    evaluated += 0 if not sim.has_own_models else -(-sim.rounds // sim.eval_every) * len(data.y)
    budget = _budget(
        sim.method, sim.cost, sim.upload_bytes, sim.client, data.sizes, cohorts, sim.rounds, d, number_bytes, evaluated
    )
    of = UNCOMPRESSED if sim.adapter is None else FULL
    message = None if sim.message_bytes is None else compared_messages(*sim.message_bytes, of)
    return replace(budget, peak_bytes=peak_bytes(sim), message=message)


def _budget(
    method: Method,
    cost: MethodCost,
    upload: int,
    client: Client,
    sizes: Index,
    cohorts: Sequence[Index],
    rounds: int,
    parameters: int,
    number_bytes: int,
    evaluated_samples: float,
) -> RunBudget:
    """Return the cost of `rounds` rounds with cohorts like `cohorts`, for clients with `sizes` samples.

    upload: the bytes that a client sends in a round.
    """
    scale = rounds / len(cohorts)
    sampled = sizes[np.concatenate(cohorts)]  # of every client of every cohort
    messages = scale * len(sampled)
    steps = scale * int(client.local_steps(sampled).sum())
    batches = scale * int(client.batches_per_epoch(sampled).sum())
    return RunBudget(
        parameters=parameters,
        clients_per_round=float(np.mean([len(cohort) for cohort in cohorts])),
        gradients=float(steps * gradients_per_step(method) + batches * full_passes_per_round(method)),
        evaluated_samples=evaluated_samples,
        bytes_down=float(messages * cost.down * number_bytes),
        bytes_up=float(messages * upload),
        client_state_bytes=len(sizes) * cost.client * number_bytes,
    )


def _models(method: Method, clients: int) -> int:
    """Return the number of models that are evaluated on the test set."""
    return clients if method.training == "local" else 2 if serves_another(method) else 1


@cache
def _cohorts(participation: str, clients: int, seed: int, rounds: int) -> list[Index]:
    """Return the first cohorts of a run; cached, because the methods of a study share them."""
    rule = participation_of(json.loads(participation))
    return [rule.cohort(t, clients, generator(seed, Purpose.COHORT, t)) for t in range(rounds)]


def _sample_counts(spec: RunSpec) -> tuple[int, int]:
    """Return the numbers of training and test samples.

    If one domain is held out for testing, all domains are assumed to have the same number of samples.
    """
    known = spec.known_data
    if spec.data.partial:  # then files may be missing
        loaded = prepare(
            spec.data.name, spec.data_dir, partial=True, image_size=spec.data.image_size,
            text_length=spec.data.text_length, tokenizer=spec.tokenizer,
        )  # fmt: skip
        train, test = len(loaded.train.y), 0 if loaded.test is None else len(loaded.test.y)
    else:
        train, test = (known.sizes.get(part, 0) for part in ("train", "test"))
    if spec.data.test_domain is not None:
        test = (train + test) // len(known.domains)
        train = test * (len(known.domains) - 1)
    return spec.data.train_samples or train, spec.data.test_samples or test


def _is_made_for_real(spec: RunSpec) -> bool:
    """Tell whether the model must be built to know its size, because it is read from files or has an adapter."""
    return spec.adapter is not None or "path" in spec.model.options


@cache
def _parameters(model: str, classes: int, shape: tuple[int, ...], options: str) -> int:
    """Return the number of parameters of a model; its options are given as JSON."""
    return parameter_count(model, classes, shape, **json.loads(options))


def peak_bytes(sim: Simulation) -> int | None:
    """Estimate the peak memory in bytes of this process over all rounds; None where the system does not report it.

    Some steps with the largest clients and one evaluation are measured, and the records of all clients are added. The
    number of rounds and the size of a cohort do not matter, because clients are trained a few at a time.
    """
    if not sys.platform.startswith("linux"):
        return None
    Trial(sim.executor, sim.trial_cohort).run()
    if sim.data.test is not None:
        x, y = (part[:SAMPLES_AT_ONCE] for part in sim.data.test)
        score(sim.objective, sim.served_model(), x, y, sim.data.preparation)
    server = sim.server.w.nbytes + sum(x.nbytes for x in sim.server.tensors().values())  # and the last direction
    sums = sum(x.sums.nbytes for x in RunningMean(sim.method, sim.server.w).sums())
    status = Path("/proc/self/status").read_text().splitlines()
    so_far = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
    return int(HEADROOM * (so_far + SERVER_COPIES * server + sums + sim.store_bytes))


def speed_of(spec: RunSpec, measure: bool = True) -> Speed | None:
    """Return the speed of the model of `spec` on its device: from the user's cache, or else measured and then cached.

    None if the speed is not in the cache and `measure` is false.
    """
    device = usable_device(spec.device)
    machine = (device_name(device), torch.get_num_threads(), torch.__version__)
    key = " ".join(map(str, (timed_model(spec), *machine)))
    file, known = cache_folder() / SPEEDS, dict[str, Speed]()
    with suppress(InputError, ValidationError):  # missing or damaged: the speeds can be measured again
        known = _SPEEDS.validate_python(read_json(file))
    if key not in known and measure:
        known[key] = _measured_speed(spec, device)
        with suppress(InputError):  # a cache that cannot be written must not end the command
            make_folder(file.parent)
            write_atomically(file, lambda path: path.write_bytes(_SPEEDS.dump_json(known, indent=2)))
    return known.get(key)


def timed_model(spec: RunSpec) -> str:
    """Return the part of a speed's key that is the same on all machines: data, model, batch size, dtype, adapter."""
    batch_size = spec.client.samples_per_step
    name = spec.data.name
    if is_folder(name):  # folders of the same shape are equally fast
        name = f"{name} {spec.known_data.sample_shape()} {spec.known_data.classes}"
    further = (spec.data.text_length, spec.model.options, spec.adapter and spec.adapter.values())
    facts = (name, spec.data.image_size, spec.model.name, batch_size, spec.dtype, *filter(None, further))
    return " ".join(map(str, facts))


def _measured_speed(spec: RunSpec, device: torch.device) -> Speed:
    """Measure the median times of a gradient and of an evaluation, on a random batch of the clients' batch size."""
    known = spec.known_data
    shape, dtype = known.sample_shape(spec.sample_format), spec.torch_dtype
    module = (spec.module() if _is_made_for_real(spec) else build(spec.model.name, known.classes, shape)).to(
        device, dtype
    )
    size = min(spec.client.samples_per_step or LARGEST_BATCH, LARGEST_BATCH)
    pixels = torch.randint(0, 256, (size, *shape), device=device)
    x = pixels if known.vocabulary_size else (pixels / 255).to(dtype)
    batch = Batch(x, torch.zeros(size, dtype=torch.int64, device=device))
    randomness_of(module, x[:4], known.classes)  # refuses a model that cannot take the data
    objective = Objective(module, buffers=spec.model.buffers)
    w = objective.space.flatten(module)
    gradient = median_seconds(lambda: objective.gradient(w, batch), device)
    with torch.inference_mode(), objective.evaluating():
        evaluation = median_seconds(lambda: objective.logits(w, batch.x), device)
    return Speed(gradient, evaluation / size)


def median_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of at most 20 calls of `work`, after one that is not counted; stop after 20 seconds."""
    seconds: list[float] = []
    start = perf_counter()
    while len(seconds) <= TIMED_STEPS and (len(seconds) < 2 or perf_counter() - start < MOST_SECONDS):
        started = perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(perf_counter() - started)
    return median(seconds[1:])
