"""Callbacks, called after every round and at the end of a run: the base class, early stopping, and the best model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import isroutine
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..core.errors import InputError, shortened
from ..core.hyper import plain_fields
from ..core.running_statistics import all_statistics
from ..core.user_code import check_hook, class_title
from ..files import make_folder, write_atomically

if TYPE_CHECKING:
    from .run import Run
    from .simulation import Round, Simulation

History = Sequence[Mapping[str, float]]
HOOKS = ("should_stop", "round_ended", "run_ended")
MISSPELT = 0.73  # similarity in [0, 1] from which a method is taken for a misspelt hook, e.g. `on_run_end`

HIGHER_IS_BETTER = ("accuracy", "f1", "r2", "iou")  # endings of metrics
LOWER_IS_BETTER = ("loss", "rmse", "mae", "perplexity")


class Callback:
    """Base class of callbacks. Its methods are called during a run and do nothing.

    An exception raised by a method ends the run; the rounds until then stay complete. With several ranks, only rank 0
    calls the methods.
    """

    def should_stop(self, history: History) -> bool:
        """Tell whether to end the run; `history` has the metrics of each completed round.

        This is called before every round, also before the first round after resuming, so the answer should depend on
        `history` alone.
        """
        return False

    def round_ended(self, sim: Simulation, round: Round) -> None:
        """React to a complete round; in a run with a folder, a due checkpoint is already saved."""

    def run_ended(self, run: Run) -> None:
        """React to the end of the run; in a run with a folder, its results are already written."""


@dataclass(frozen=True)
class EarlyStopping(Callback):
    """Ends a run when a metric has not improved for `patience` evaluations.

    A value is an improvement if it is better than the best so far by more than `min_delta`. Accuracies, F1 and R2 are
    better when higher; losses, RMSE and MAE when lower. Other metrics raise InputError.
    """

    metric: str = "validation_accuracy"  # rounds without it do not count
    patience: int = 10  # evaluations in a row without an improvement, at least 1
    min_delta: float = 0.0  # at least 0

    def __post_init__(self) -> None:
        """Raise InputError, naming the argument, for a value out of range."""
        plain_fields(self)
        direction(self.metric, "EarlyStopping")
        if isinstance(self.patience, bool) or not isinstance(self.patience, int) or self.patience < 1:
            raise InputError(f"EarlyStopping.patience must be a whole number of at least 1, got {self.patience!r}")
        if not 0 <= self.min_delta < inf:
            raise InputError(f"EarlyStopping.min_delta must be a number of at least 0, got {self.min_delta!r}")

    def should_stop(self, history: History) -> bool:
        best, without = -inf, 0
        for value in goodness(history, self.metric):
            improved = value > best + self.min_delta
            best, without = (value, 0) if improved else (best, without + 1)
        return without >= self.patience

    def round_ended(self, sim: Simulation, round: Round) -> None:
        """Raise InputError if rounds do not have the metric."""
        check_metric(sim, self.metric, "EarlyStopping")


class BestModel(Callback):
    """Keeps the parameters of the model after the round with the best value of a metric; on a tie, the earliest round.

    Running statistics are among them.

    A resumed run compares new rounds with all rounds before it was resumed. If one of these stays the best,
    `parameters` stays None; the model of that round is in the file `path`, if `path` was set.
    """

    def __init__(self, path: str | Path | None = None, metric: str = "validation_accuracy") -> None:
        """Watch `metric`. path: a safetensors file for the parameters, by name; an old file is overwritten.

        Accuracies, F1 and R2 are better when higher; losses, RMSE and MAE when lower. Other metrics raise InputError.
        """
        direction(metric, "BestModel")
        self.path, self.metric = None if path is None else Path(path), metric
        self.t: int | None = None  # the round, from 0
        self.parameters: dict[str, Tensor] | None = None  # by name, on the CPU

    def round_ended(self, sim: Simulation, round: Round) -> None:
        """Keep the model if the round is the best so far.

        Raises InputError if rounds do not have the metric, if clients have models of their own, or if the file cannot
        be written.
        """
        check_metric(sim, self.metric, "BestModel")
        if sim.has_own_models:
            raise InputError("BestModel: each client has a model of its own; save checkpoints instead")
        value = goodness([round.metrics], self.metric)
        if not value or value[0] <= max(goodness(sim.history[:-1], self.metric), default=-inf):
            return
        self.t = round.t
        model = sim.model
        tensors = dict(model.named_parameters()) | all_statistics(model)
        self.parameters = {name: p.detach().cpu().contiguous() for name, p in tensors.items()}
        if self.path is not None:
            self._write(self.path, self.parameters)

    def _write(self, path: Path, parameters: dict[str, Tensor]) -> None:
        from safetensors.torch import save

        make_folder(path.parent)
        # A single metadata entry: several would be written in random order, and equal runs must write equal files.
        content = save(parameters, {"fedflat": json.dumps({"t": self.t, "metric": self.metric})})
        write_atomically(path, lambda temporary: temporary.write_bytes(content))


def goodness(history: History, metric: str) -> list[float]:
    """Return the values of a metric in the rounds that have it, negated if lower values of the metric are better."""
    sign = direction(metric, "callback")
    return [sign * row[metric] for row in history if row.get(metric) is not None]


def direction(metric: str, who: str) -> float:
    """Return 1.0 for a metric that is better when higher, -1.0 for one that is better when lower.

    Raises InputError for other metrics, such as `drift`: neither direction is better.
    """
    quantity = metric.removesuffix("_iterate") if isinstance(metric, str) else ""
    for sign, endings in ((1.0, HIGHER_IS_BETTER), (-1.0, LOWER_IS_BETTER)):
        if quantity.endswith(endings):
            return sign
    raise InputError(
        f"{who}.metric = {metric!r} is neither better when higher ({', '.join(HIGHER_IS_BETTER)}) nor when lower "
        f"({', '.join(LOWER_IS_BETTER)})"
    )


def check_metric(sim: Simulation, metric: str, who: str) -> None:
    """Raise InputError if no round has `metric` after the first evaluation and the first probe."""
    first = max(sim.eval_every, sim.probe_every if sim.probes else 1)
    if sim.t != min(first, sim.rounds) or goodness(sim.history, metric):
        return
    known = sorted({name for row in sim.history for name in row} - {"t"})
    wish = "; data with validation samples have it" if metric == "validation_accuracy" else ""
    raise InputError(f"{who}: no round has metric = {metric!r}{wish}; there are {', '.join(known)}")


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return the callbacks. Raises InputError for other objects, and for a hook that cannot be called."""
    if not isinstance(callbacks, Iterable):
        raise InputError(f"callbacks must be a list, such as [fedflat.EarlyStopping()], got {callbacks!r}")
    checked = tuple(callbacks)
    for callback in checked:
        if not isinstance(callback, Callback):
            raise InputError(f"callbacks must be objects of classes over fedflat.Callback, got {callback!r}")
        try:
            _check_callback_class(type(callback))
        except InputError as error:
            raise InputError(f"callbacks: {error}") from error
    return checked


def _check_callback_class(cls: type[Callback]) -> None:
    """Raise InputError for a hook with wrong arguments, and for a method whose name is almost that of a hook."""
    for hook in HOOKS:
        check_hook(cls, Callback, hook)
    missing = [hook for hook in HOOKS if getattr(cls, hook) is getattr(Callback, hook)]
    for name in sorted(set(dir(cls)) - set(dir(Callback))):
        close = get_close_matches(name, HOOKS, n=1, cutoff=MISSPELT)
        if close and close[0] in missing and isroutine(getattr(cls, name)):
            raise InputError(f"{class_title(cls)}.{name} would never be called; did you mean {close[0]}?")


def wants_to_stop(callback: Callback, history: History) -> bool:
    """Call the callback's `should_stop`. Raises InputError unless it returns True, False or None."""
    answer = callback.should_stop(history)
    if answer is not None and not isinstance(answer, bool | np.bool_):
        raise InputError(f"callbacks: {class_title(type(callback))}.should_stop must return True or False, "
                         f"it returned {shortened(repr(answer))}")  # fmt: skip
    return bool(answer)
