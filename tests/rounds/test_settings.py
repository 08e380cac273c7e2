"""Settings are tables of plain values, and compared field by field."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from math import inf
from operator import eq

import pytest

import fedflat as ff
from fedflat.methods import all_methods
from fedflat.rounds.participation import Explicit, Share, Unreliable
from fedflat.rounds.settings import fields_by_name, first_difference, table_of, text_of_table


@dataclass(frozen=True)
class Example:
    rho: float = 0.1
    bound: float = inf
    name: str | None = None


THINGS = [cls() for cls in all_methods().values()] + [ff.Client(steps=3), ff.LoRA(targets=("q", "v")), Example(0.2)]


@pytest.mark.parametrize("thing", THINGS)
def test_a_table_is_what_json_makes_of_it(thing: object) -> None:
    table = table_of(thing)
    assert json.loads(json.dumps(table)) == table
    assert first_difference(json.loads(json.dumps(table)), table) is None


@pytest.mark.parametrize("thing", [cls() for cls in all_methods().values()] + [ff.Client(), Explicit([[0, 1], [2]]),
                                   Unreliable(Share(0.5), dropouts=0.1)])  # fmt: skip
def test_the_text_of_a_table_is_that_of_the_dataclass(thing: object) -> None:
    """Without fields that came later and have their defaults."""
    assert repr(thing).startswith(text_of_table(table_of(thing)).removesuffix(")"))


def test_a_later_field_is_in_the_table_once_it_is_used() -> None:
    """So settings of before the field are those of today, and a checkpoint of before is continued."""
    before = {f.name for f in fields(ff.Client) if not f.metadata["later"]}
    assert set(table_of(ff.Client())) - {"class"} == before
    assert set(table_of(ff.Client(optimizer="adamw"))) - {"class"} == before | {"optimizer"}


def test_the_first_field_that_differs_is_named() -> None:
    before = {"method": table_of(Example(rho=0.2, name="a"))}
    assert first_difference(before, {"method": table_of(Example(rho=0.3, name="b"))}) == ("method.rho", 0.2, 0.3)
    assert first_difference(table_of(Example()), table_of(Example(bound=2.0))) == ("bound", inf, 2.0)
    assert first_difference(table_of(Share(0.5)), None, key="rule") == ("rule", "Share(share=0.5)", None)


def test_another_class_is_the_difference() -> None:
    before, now = ({"method": table_of(one)} for one in (ff.methods.FedSAM(), ff.methods.FedAvg()))
    assert first_difference(before, now) == ("method", "FedSAM", "FedAvg")
    inside = table_of(ff.methods.SWA(base=ff.methods.FedSAM()))
    assert first_difference(inside, table_of(ff.methods.SWA())) == ("base", "FedSAM", "FedAvg")


def test_one_and_one_point_zero_are_the_same_only_where_that_is_asked_for() -> None:
    assert first_difference({"lr": 1}, {"lr": 1.0}) == ("lr", 1, 1.0)
    assert first_difference({"lr": 1}, {"lr": 1.0}, eq) is None


def test_fields_inside_a_field_are_named_with_a_dot() -> None:
    found = fields_by_name(table_of(ff.methods.SWA(base=ff.methods.FedSAM(rho=0.3))))
    assert (found["base"], found["base.rho"]) == ("FedSAM", 0.3)
    assert "class" not in found
