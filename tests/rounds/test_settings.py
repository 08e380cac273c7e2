"""Settings are compared field by field, and checkpoints outlive a new field with a default."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf

import pytest

import fedflat as ff
from fedflat.methods import all_methods
from fedflat.rounds.settings import described, first_difference


@dataclass(frozen=True)
class Example:
    rho: float = 0.1
    bound: float = inf
    name: str | None = None


@pytest.mark.parametrize("thing", [cls() for cls in all_methods().values()] + [ff.Client(steps=3), Example(0.2)])
def test_a_thing_does_not_differ_from_itself(thing: object) -> None:
    """Neither from its description as JSON keeps it, nor from the text that older checkpoints have."""
    assert first_difference(json.loads(json.dumps(described(thing))), thing) is None
    assert first_difference(repr(thing), thing) is None


@pytest.mark.parametrize("form", [described, repr])
def test_the_first_field_that_differs_is_named(form) -> None:
    found = first_difference(form(Example(rho=0.2, name="a")), Example(rho=0.3, name="b"))
    assert found == ".rho was 0.2, now it is 0.3"
    assert first_difference(form(Example()), Example(bound=2.0)) == ".bound was inf, now it is 2.0"


@pytest.mark.parametrize("before", ["Example(rho=0.1, name=None)", {"class": "Example", "rho": 0.1}])
def test_a_field_that_is_newer_than_the_checkpoint_had_its_default(before: object) -> None:
    assert first_difference(before, Example()) is None
    assert first_difference(before, Example(bound=5.0)) == ".bound was inf, now it is 5.0"


def test_another_class_and_an_unknown_field_differ() -> None:
    assert "Other" in str(first_difference({"class": "Other"}, Example()))
    assert "unreadable(" in str(first_difference("unreadable(", Example()))
    assert first_difference(None, Example()) is not None
    assert first_difference("Example(old=1)", Example()) == ".old was 1, this version has no such field"
