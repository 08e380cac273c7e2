"""Flatness of a model: measures with a stated protocol and, if they are random, an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from ...adapters import adapted_network
from ...core.errors import InputError
from ...core.hyper import takes_numbers
from ...core.native_libraries import fix_product_rounding
from ...core.objective import Objective
from ...core.progress import Progress, no_progress
from ...core.running_statistics import all_statistics
from ...core.task import SampleLoss, task_of
from ...core.torch_module import copied
from ...data.federated import FederatedData
from .measure import Curve, Finding, LossMeasure, Measure, Measured
from .measures import all_measures, find
from .subject import MAX_SAMPLES, Subject

__all__ = [
    "Curve", "Finding", "Flatness", "LossMeasure", "Measure", "Measured", "Subject", "all_measures",
    "check_measures", "check_names", "find", "flatness", "measure",
]  # fmt: skip

LIGHT = ("eigenvalues", "sharpness")


@dataclass(frozen=True)
class Flatness(Mapping[str, Measured]):
    """The results of all measures on one model: values by name, and the findings with curves and protocols."""

    findings: tuple[Finding, ...]

    @property
    def _values(self) -> dict[str, Measured]:
        return {name: value for finding in self.findings for name, value in finding.values.items()}

    @property
    def curves(self) -> dict[str, Curve]:
        """Measured functions by name."""
        return {name: curve for finding in self.findings for name, curve in finding.curves.items()}

    def __getitem__(self, name: str) -> Measured:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __str__(self) -> str:
        """Return a text with one line for each value."""
        return "\n".join(f"{name:<28} {value}" for name, value in self.items())


@takes_numbers
def flatness(
    model: nn.Module,
    data: FederatedData,
    measures: Sequence[str | Measure] = LIGHT,
    max_samples: int = MAX_SAMPLES,
    progress: Progress = no_progress,
    loss: str | SampleLoss | None = None,
) -> Flatness:
    """Measure the flatness of `model` on the training samples of the clients of `data`.

    The loss is that of a `Simulation` with the same `loss`, by default the mean cross-entropy, without weight decay.
    The model is in evaluation mode. At most `max_samples` samples are used, evenly spaced over all samples, so that
    every model is measured on the same samples.
    measures: names (see `all_measures()`) or measures with settings of their own, e.g. `Sharpness(rho=0.1)`.

    Raises ValueError for an unknown name, a value out of range, a measure that needs a method and its
    round, or a model with NaN in it.
    """
    if not isinstance(max_samples, int) or max_samples < 1:
        raise InputError(f"flatness needs a whole number max_samples >= 1, got {max_samples!r}")
    fix_product_rounding()
    module = copied(model)
    objective = Objective(module, task=task_of(loss, data.task), buffers="frozen" if all_statistics(module) else None)
    w = objective.space.flatten(objective.module)
    return measure(Subject(objective, w, data.to(objective.device, w.dtype), max_samples), measures, progress)


def measure(subject: Subject, measures: Sequence[str | Measure], progress: Progress = no_progress) -> Flatness:
    """Take all `measures` of one subject. Raises InputError as `flatness` does."""
    chosen = check_measures(measures, subject.objective.module)
    for one in chosen:
        if one.needs_round and subject.dry_round is None:
            raise InputError(f"{type(one).__name__} looks at a round of training; measure a run, not a model alone")
    if not torch.isfinite(subject.w).all():
        raise InputError("flatness cannot be measured: the model has parameters that are NaN or infinite")
    findings = []
    for one in chosen:
        name = type(one).__name__
        try:
            findings.append(one.measure(one.of(subject), partial(progress, name)))
        except ArithmeticError as error:  # the round that it looks at diverges
            findings.append(Finding(name, f"{name}: not measured, {error}", {}))
    return check_names(findings)


def check_names(findings: Sequence[Finding]) -> Flatness:
    """Join the findings. Raises InputError if two findings use the same name for a value or a curve."""
    owners: dict[str, str] = {}
    for finding in findings:
        for name in {*finding.values, *finding.curves}:
            if name in owners:
                raise InputError(f"{owners[name]} and {finding.measure} both measure {name!r}; give one another name")
            owners[name] = finding.measure
    return Flatness(tuple(findings))


def check_measures(measures: Sequence[str | Measure], module: nn.Module) -> list[Measure]:
    """Return the measures, each once.

    Raises InputError for an unknown name, two measures whose values would have the same name, such as traces with
    different seeds, or a measure that needs adapters if `module` has none.
    """
    if isinstance(measures, str):
        raise InputError(f"measures must be a list of names, got {measures!r}")
    found = [find(one) if isinstance(one, str) else one for one in measures]
    for one in found:
        if not isinstance(one, Measure):
            raise InputError(f"measures must be names, or measures such as Sharpness(rho=0.1), got {one!r}")
    chosen = list({(type(one), repr(one)): one for one in found}.values())
    known: dict[tuple[type[Measure], str], Measure] = {}
    for one in chosen:
        other = known.setdefault((type(one), one.suffix), one)
        if other is not one:
            raise InputError(f"{other!r} and {one!r} are one quantity and have one name; leave one of them out")
    for one in chosen:
        if one.needs_adapter and adapted_network(module) is None:
            raise InputError(
                f"{one!r} needs a model with adapters, which this one has not; set adapter, or leave it out"
            )
    return chosen
