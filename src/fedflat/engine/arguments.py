"""What a simulation is given: checked, and made into what it works with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from inspect import isroutine
from numbers import Integral
from typing import Any

import numpy as np

from ..core.errors import InputError, shortened
from ..core.method import Method
from ..core.task import Task, task_of
from ..core.user_code import check_hook, class_title
from ..core.wrapper import label_of
from ..data.federated import FederatedData
from ..rounds.local_training import Client
from ..rounds.participation import Explicit, Participation
from .callbacks import Callback, History

DEFAULT_ROUNDS = 100
CALLBACK_HOOKS = ("should_stop", "round_ended", "run_ended")
MISSPELT = 0.73  # a method that is so like a hook, from 0 to 1, is taken for a misspelt one: `on_run_end` is
PROCESSES = 4096  # each takes a third of a gigabyte, and no machine has more cores


def check_weights(method: Method, weights: str) -> None:
    """Raise InputError if the clients of `method` cannot be weighted like this."""
    if weights not in ("uniform", "samples"):
        raise InputError(f"weights must be 'uniform' or 'samples', got {weights!r}")
    if weights == "samples" and method.needs_equal_weights:
        raise InputError(f"weights = 'samples' does not fit {label_of(method)}, whose derivation needs 'uniform'")


def check_workers(workers: Any) -> None:
    """Raise InputError if that is no number of worker processes."""
    whole = isinstance(workers, Integral) and not isinstance(workers, bool)
    if workers != "auto" and not (whole and 1 <= workers <= PROCESSES):
        raise InputError(f"workers must be 'auto' or a whole number in [1, {PROCESSES}], got {workers!r}")


def check_ranks(number: int, workers: Any, probes: Sequence[Any], method: Method) -> None:
    """Raise InputError for what several ranks cannot do."""
    if number > 1 and method.training == "local":
        raise InputError(f"{type(method).__name__} evaluates every client's own model, which one process must have, "
                         f"and there are {number} ranks; use workers")  # fmt: skip
    if number > 1 and workers not in ("auto", 1):
        raise InputError(f"workers = {workers}: each of {number} ranks trains in one process; set workers = 1, or auto")
    if number > 1 and probes:
        raise InputError(f"probes are taken in one process, and there are {number} ranks; set probes = [], and measure "
                         "checkpoints with `fedflat flatness`")  # fmt: skip


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """The callbacks. Raises InputError if they are no list of callbacks, or if one has a hook that cannot be called."""
    if not isinstance(callbacks, Iterable):
        raise InputError(f"callbacks must be a list, such as [fedflat.EarlyStopping()], got {callbacks!r}")
    found = tuple(callbacks)
    for one in found:
        if not isinstance(one, Callback):
            raise InputError(f"callbacks must be objects of classes over fedflat.Callback, got {one!r}")
        try:
            _check_callback_class(type(one))
        except InputError as error:
            raise InputError(f"callbacks: {error}") from error
    return found


def _check_callback_class(cls: type[Callback]) -> None:
    """Raise InputError for a hook with other arguments, and for a method that has nearly the name of a hook."""
    for hook in CALLBACK_HOOKS:
        check_hook(cls, Callback, hook)
    missing = [hook for hook in CALLBACK_HOOKS if getattr(cls, hook) is getattr(Callback, hook)]
    for name in sorted(set(dir(cls)) - set(dir(Callback))):
        close = get_close_matches(name, CALLBACK_HOOKS, n=1, cutoff=MISSPELT)
        if close and close[0] in missing and isroutine(getattr(cls, name)):
            raise InputError(f"{class_title(cls)}.{name} would never be called; did you mean {close[0]}?")


def wants_to_stop(callback: Callback, history: History) -> bool:
    """What the callback's `should_stop` answers. Raises InputError unless that is true, false or None."""
    answer = callback.should_stop(history)
    if answer is not None and not isinstance(answer, bool | np.bool_):
        raise InputError(f"callbacks: {class_title(type(callback))}.should_stop must return True or False, "
                         f"it returned {shortened(repr(answer))}")  # fmt: skip
    return bool(answer)


BF16 = (
    "gradients in training are bfloat16: what a perturbation changes in them was wrong by 12 % with rho = 0.05 and "
    "by 41 % with rho = 0.01 in a measurement; take single precision for claims about small radii"
)


def check_precision(precision: str) -> None:
    """Raise InputError for a precision that does not exist."""
    if precision not in ("fp32", "bf16"):
        raise InputError(f"precision = {precision!r} is unknown; known are fp32, bf16")


def check_arguments(
    method: Method, data: FederatedData, client: Client | None, weights: str, **counts: int | None
) -> None:
    """Raise InputError, naming the argument, for what is of the wrong kind or out of range."""
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
    """The task with this `loss` on `data`. Raises InputError if they do not fit, or if data for it do not."""
    task = task_of(loss, data.task)
    if task.kind == "regression" and data.validation is not None:
        raise InputError("validation samples measure accuracy, which regression has not; set validation = 0")
    return task


def check_tokenizer(model: Any, options: Mapping[str, Any], data: FederatedData) -> None:
    """Raise InputError if a pretrained model would read the numbers of a set's own words as those of its tokenizer."""
    if model == "transformer" and "path" in options and data.vocabulary:
        raise InputError(
            "model 'transformer' has a tokenizer of its own, and the data have numbers of words; load them with "
            "tokenizer=FOLDER, e.g. fedflat.data.load('ag-news', 20, tokenizer=FOLDER)"
        )


def default_rounds(rule: Participation) -> int:
    """As many as an explicit participation lists, else 100."""
    return len(rule.cohorts) if isinstance(rule, Explicit) else DEFAULT_ROUNDS
