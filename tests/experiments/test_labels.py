"""Labels: the method and whatever differs, and never one label for two different settings."""

from __future__ import annotations

import hashlib
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedflat.experiments.settings_tables import identities, labels

VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(0, 1), st.text(max_size=60))
SETTINGS = st.dictionaries(st.sampled_from(["method.rho", "client.lr", "partition.alpha", "rounds"]), VALUES)


def test_a_setting_of_the_method_is_told_where_its_own_runs_differ() -> None:
    settings = [{"method.rho": 0.1, "method.c": 1}, {"method.rho": 0.2, "method.c": 1}, {"method.rho": 0.3}]
    assert labels(["FedSAM", "FedSAM", "FedGF"], settings) == ["FedSAM(rho=0.1)", "FedSAM(rho=0.2)", "FedGF"]


def test_local_training_is_told_for_all_once_runs_of_one_method_differ_in_it() -> None:
    lrs = [{"client.lr": lr} for lr in (0.1, 0.05, 0.1)]
    assert labels(["A", "A", "B"], lrs) == ["A(lr=0.1)", "A(lr=0.05)", "B(lr=0.1)"]
    assert labels(["A", "B"], lrs[:2]) == ["A", "B"], "a method may have local training of its own"


def test_the_experiment_is_told_as_soon_as_any_two_runs_differ_in_it() -> None:
    assert labels(["A", "B"], [{"rounds": 5}, {"rounds": 9}]) == ["A(rounds=5)", "B(rounds=9)"]


def test_what_is_not_set_is_left_out_and_equal_numbers_are_one_value() -> None:
    assert labels(["A", "A"], [{"client.batch_size": None}, {"client.batch_size": 10}]) == ["A", "A(batch_size=10)"]
    assert labels(["A", "A"], [{"client.lr": 1}, {"client.lr": 1.0}]) == ["A", "A"]
    assert labels(["A"] * 3, [{"method.rho": rho} for rho in (1, 1.0, 2)])[:2] == ["A(rho=1.0)"] * 2


def test_a_name_that_two_settings_share_says_whose_it_is() -> None:
    grid = [{"method.alpha": a, "partition.alpha": b} for a, b in product((0.1, 0.5), (1.0, 2.0))]
    assert labels(["FedDyn"] * 4, grid)[0] == "FedDyn(alpha=0.1, partition.alpha=1.0)"


def test_long_values_are_cut_and_still_told_apart() -> None:
    made = labels(["A", "A"], [{"method.x": "y" * 500 + end} for end in "ab"])
    assert len(set(made)) == 2
    assert max(map(len, made)) < 60


def test_runs_belong_together_by_their_settings_and_not_by_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long values are cut in labels, and two of them may look alike."""
    monkeypatch.setattr(hashlib, "sha256", lambda _: SimpleNamespace(hexdigest=lambda: "0" * 64))
    settings = [{"method.x": "y" * 500 + end} for end in "aba"]
    assert len(set(labels(["A"] * 3, settings))) == 1
    one, other, again = identities(["A"] * 3, settings)
    assert one == again != other
    same = [{"client.lr": 1}, {"client.lr": 1.0, "client.steps": None}]
    assert len(set(identities(["A", "A", "B"], [*same, same[0]]))) == 2


@given(st.lists(SETTINGS, min_size=1, max_size=6))
def test_one_label_for_each_set_of_settings(settings: list[dict]) -> None:
    """With one method everything that differs is told. Texts stand for values: the text `0.5` is the number."""
    is_float = {name for one in settings for name, value in one.items() if isinstance(value, float)}

    def text(name: str, value: object) -> str:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return str(float(value) if name in is_float and whole else value)

    keys = [frozenset((n, text(n, v)) for n, v in one.items() if v is not None) for one in settings]
    made = labels(["A"] * len(settings), settings)
    assert len(set(made)) == len(set(keys))
    assert len({*zip(made, keys, strict=True)}) == len(set(keys))
