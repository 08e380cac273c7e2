"""Checks of the arguments of a simulation, and of the settings of a checkpoint that it continues from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from inspect import isroutine
from numbers import Integral
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np

from ..adapters import LoRA
from ..core.errors import InputError, shortened
from ..core.method import Method
from ..core.structure import telling_apart
from ..core.task import Task, task_of
from ..core.user_code import check_hook, class_title
from ..core.wrapper import label_of
from ..data.federated import FederatedData
from ..rounds.attack import Attack
from ..rounds.guard import Guard
from ..rounds.local_training import Client
from ..rounds.participation import Explicit, Participation
from ..rounds.privacy.accountant import Privacy
from ..rounds.settings import first_difference
from .callbacks import Callback, History

DEFAULT_ROUNDS = 100
DEFAULT_PARTICIPATION = 1.0
CALLBACK_HOOKS = ("should_stop", "round_ended", "run_ended")
MISSPELT = 0.73  # similarity in [0, 1] from which a method is taken for a misspelt hook, e.g. `on_run_end`
PROCESSES = 4096  # most workers: each takes a third of a gigabyte, and no machine has more cores
BF16 = (
    "gradients in training are bfloat16: what a perturbation changes in them was wrong by 12 % with rho = 0.05 and "
    "by 41 % with rho = 0.01 in a measurement; take single precision for claims about small radii"
)


def check_weights(method: Method, weights: str) -> None:
    """Raise InputError if `method` does not allow `weights` of the clients."""
    if weights not in ("uniform", "samples"):
        raise InputError(f"weights must be 'uniform' or 'samples', got {weights!r}")
    if weights == "samples" and method.needs_equal_weights:
        raise InputError(f"weights = 'samples' does not fit {label_of(method)}, whose derivation needs 'uniform'")


def check_workers(workers: Any) -> None:
    """Raise InputError unless `workers` is a valid number of worker processes."""
    is_integer = isinstance(workers, Integral) and not isinstance(workers, bool)
    if workers != "auto" and not (is_integer and 1 <= workers <= PROCESSES):
        raise InputError(f"workers must be 'auto' or a whole number in [1, {PROCESSES}], got {workers!r}")


def check_ranks(number: int, workers: Any, probes: Sequence[Any], method: Method) -> None:
    """Raise InputError for settings that several ranks do not support."""
    if number > 1 and method.training == "local":
        raise InputError(f"{type(method).__name__} evaluates every client's own model, which one process must have, "
                         f"and there are {number} ranks; use workers")  # fmt: skip
    if number > 1 and workers not in ("auto", 1):
        raise InputError(f"workers = {workers}: each of {number} ranks trains in one process; set workers = 1, or auto")
    if number > 1 and probes:
        raise InputError(f"probes are taken in one process, and there are {number} ranks; set probes = [], and measure "
                         "checkpoints with `fedflat flatness`")  # fmt: skip


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
    """Raise InputError for a hook with other arguments, and for a method whose name is almost that of a hook."""
    for hook in CALLBACK_HOOKS:
        check_hook(cls, Callback, hook)
    missing = [hook for hook in CALLBACK_HOOKS if getattr(cls, hook) is getattr(Callback, hook)]
    for name in sorted(set(dir(cls)) - set(dir(Callback))):
        close = get_close_matches(name, CALLBACK_HOOKS, n=1, cutoff=MISSPELT)
        if close and close[0] in missing and isroutine(getattr(cls, name)):
            raise InputError(f"{class_title(cls)}.{name} would never be called; did you mean {close[0]}?")


def wants_to_stop(callback: Callback, history: History) -> bool:
    """Call the callback's `should_stop`. Raises InputError unless it returns True, False or None."""
    answer = callback.should_stop(history)
    if answer is not None and not isinstance(answer, bool | np.bool_):
        raise InputError(f"callbacks: {class_title(type(callback))}.should_stop must return True or False, "
                         f"it returned {shortened(repr(answer))}")  # fmt: skip
    return bool(answer)


def check_precision(precision: str) -> None:
    """Raise InputError for an unknown precision."""
    if precision not in ("fp32", "bf16"):
        raise InputError(f"precision = {precision!r} is unknown; known are fp32, bf16")


def check_arguments(
    method: Method, data: FederatedData, client: Client | None, weights: str, **counts: int | None
) -> None:
    """Raise InputError, naming the argument, for a wrong type or a value out of range.

    counts: arguments that must be positive integers, or None; seed and store_budget may be 0.
    """
    kinds = {"method": (method, Method, "a method such as fedflat.methods.FedAvg()"),
             "data": (data, FederatedData, "FederatedData"),
             "client": (client or Client(), Client, "Client(...)")}  # fmt: skip
    for name, (value, kind, words) in kinds.items():
        if not isinstance(value, kind):
            raise InputError(f"{name} must be {words}, got {value!r}")
    for name, count in counts.items():
        least = 0 if name in ("seed", "store_budget") else 1
        if count is not None and (isinstance(count, bool) or not isinstance(count, Integral) or count < least):
            raise InputError(f"{name} must be a whole number of at least {least}, got {count!r}")
    check_weights(method, weights)


def check_task(loss: Any, data: FederatedData) -> Task:
    """Return the task with this `loss` on `data`. Raises InputError if loss and data do not fit."""
    task = task_of(loss, data.task)
    if task.kind == "regression" and data.validation is not None:
        raise InputError("validation samples measure accuracy, which regression does not have; set validation = 0")
    return task


def check_tokenizer(model: Any, options: Mapping[str, Any], data: FederatedData) -> None:
    """Raise InputError if the data have token numbers of another vocabulary than the model's tokenizer."""
    if model == "transformer" and "path" in options and data.vocabulary:
        raise InputError(
            "model 'transformer' has a tokenizer of its own, and the data have numbers of words; load them with "
            "tokenizer=FOLDER, e.g. fedflat.data.load('ag-news', 20, tokenizer=FOLDER)"
        )


def default_rounds(rule: Participation) -> int:
    """Return the number of rounds that an explicit participation lists, else 100."""
    return len(rule.cohorts) if isinstance(rule, Explicit) else DEFAULT_ROUNDS


def check_privacy(
    privacy: Any, participation: Any, weights: str, adapter: LoRA | None, screening: Guard | Attack | None
) -> None:
    """Raise InputError, naming the setting, for settings that a private run cannot have."""
    if not isinstance(privacy, Privacy):
        raise InputError(f"privacy must be fedflat.Privacy(...), got {privacy!r}")
    if participation != DEFAULT_PARTICIPATION:
        raise InputError(f"participation = {participation!r} does not go with privacy, whose clients take part "
                         "independently with the chance privacy.rate; leave participation out")  # fmt: skip
    if weights != "uniform":
        raise InputError(f"weights = {weights!r} does not go with privacy: weights tell clients' numbers of samples")
    if adapter is not None and adapter.mode == "alternate":
        raise InputError("adapter.mode = 'alternate' does not go with privacy: the factor at rest would get noise; "
                         "set mode = 'both' or 'freeze_a'")  # fmt: skip
    if screening is not None:
        raise InputError("privacy does not go with guard or attack: what is refused depends on single records, which "
                         "no accountant counts; privacy.clip bounds every record")  # fmt: skip


def check_same_settings(before: Mapping[str, Any], now: Mapping[str, Any], path: Path, label: str) -> None:
    """Raise InputError, naming the first difference, unless the checkpoint `path` has the present settings.

    before: the checkpoint's settings. now: the present ones. label: the method's.
    """
    difference = first_difference(before, now, eq)
    if difference is None:
        return
    name, then, value = difference
    if name == "rounds":
        raise InputError(f"checkpoint {path}: {label} depends on the number of rounds, which was {then} and is {value}")
    if name == "layers" and isinstance(then, str):
        then, value = telling_apart([then, value])
        raise InputError(f"checkpoint {path}: the model is another one: it had {then}, now it has {value}")
    raise InputError(f"checkpoint {path}: {name} was {then}, now it is {value}")
