"""How much the tests do: a covering share in `make test`, all of it in `make test-all`, which sets FEDFLAT_TEST_ALL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import TypeVar

import pytest

from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.methods import all_methods

T = TypeVar("T")
U = TypeVar("U")
ALL = bool(os.environ.get("FEDFLAT_TEST_ALL"))
# What can go wrong between a method and an engine, and a method that has it; `tests/test_effort.py` holds that they do.
COVERING = {
    "no state but the model": "FedAvg",
    "a field for one round, a field with equal weights": "FedSMOO",
    "the server averages another record than it receives": "FedCM",
    "a field whose width depends on an option": "FedLESAM",
    "a teacher": "FedGMT",
    "gradients by the inputs": "FedRobust",
    "the gradient on all samples": "MimeLite",
    "a step size that changes within the round": "FedMoSWA",
    "a teacher without the task loss": "FedSOL",
    "the evaluated model is another one than the trained one": "FedExP",
    "another method inside it, and a number of planned rounds": "SWA",
}

# Fields with which one round, too, can be planned, and a model of one weight tensor be trained.
FEW_ROUNDS = {"SWA": {"begin": 0.0, "cycle": 1}, "FedFSA": {"top_c": 1}}

in_test_all = pytest.mark.skipif(not ALL, reason="in `make test-all` alone")


def effort(usual: int, everything: int) -> int:
    """`usual`, or `everything` in `make test-all`."""
    return everything if ALL else usual


def chosen(usual: T, everything: T) -> T:
    """The cases of a test: `usual`, or `everything` in `make test-all`."""
    return everything if ALL else usual


def in_turns(cases: Iterable[T], others: Sequence[U]) -> list[tuple[T, U]]:
    """Each case with one of the others, in turns, or in `make test-all` with all of them."""
    listed = list(cases)
    return chosen([(case, others[i % len(others)]) for i, case in enumerate(listed)], list(product(listed, others)))


def covering_methods() -> dict[str, type[Method]]:
    """The methods that are tried on every axis of the engines, by name: eleven, in `make test-all` every federated one.

    The two baselines that are no federation have tests of their own.
    """
    methods = {name: cls for name, cls in all_methods().items() if cls.training == "federated"}
    return methods if ALL else {name: methods[name] for name in COVERING.values()}


def few_methods() -> list[str]:
    """Four of the covering methods, in `make test-all` all: for what hardly depends on the method."""
    return chosen(["FedAvg", "FedSMOO", "FedGMT", "MimeLite"], list(covering_methods()))


def skip_refused(make: Callable[[], object]) -> None:
    """Skip a test of settings that do not go with its method; the grid of methods and settings has the reasons."""
    try:
        make()
    except InputError as error:
        if " does not go with " in str(error):
            pytest.skip(str(error))
        raise


def for_few_rounds(cls: type[Method]) -> Method:
    """A method with its defaults, or if those need many rounds, with fields that do not."""
    return cls(**FEW_ROUNDS.get(cls.__name__, {}))
