"""Rounds that close before their deadline, when enough clients have replied."""

from __future__ import annotations

from math import inf
from pathlib import Path
from time import monotonic

import pytest

from fedflat.core.errors import InputError
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.flower.study import Study
from fedflat.federation.terms import RoundTerms
from fedflat.federation.update_aggregator import CLOSED
from support.flower_fixtures import GridFederation, failing, simulated, study_of
from support.virtual_time import passing_at_once


@pytest.mark.parametrize("settings", [{}, {"secure-sum": 0.6, "norm-multiple": inf}], ids=["plain", "secure sum"])
def test_a_round_closes_when_enough_have_replied(settings: dict[str, float], tmp_path: Path) -> None:
    """Client 4 never replies; the deadline is an hour away. The model is that of a simulation without client 4."""
    spec = study_of(method="scaffold", participation=1.0, rounds=2)
    federation = GridFederation(spec, tmp_path / "federation", deadline=3600.0, goal=0.8, **settings)
    federation.nodes[104].tamper = lambda number, contents: None if federation.events("begun") else contents
    begin = monotonic()
    model = federation.serve()
    assert monotonic() - begin < 600
    missing = [event["missing"] for event in federation.events("round")]
    assert [list(one) for one in missing] == [["client-4"]] * 2
    assert all(CLOSED in one["client-4"] for one in missing)
    expected = study_of(method="scaffold", participation=[[0, 1, 2, 3]] * 2, rounds=2)
    assert model != simulated(expected, tmp_path / "simulation"), "S/N is that of all who were asked"
    quorum = GridFederation(spec, tmp_path / "quorum", deadline=2.0, quorum=0.8, **settings)
    quorum.nodes[104].tamper = lambda number, contents: None if quorum.events("begun") else contents
    with passing_at_once():
        assert quorum.serve() == model, "as if it had been missing at the deadline"


@pytest.mark.parametrize(("goal", "asked", "enough"), [(0.8, 5, 4), (0.55, 20, 11), (1.0, 7, 7), (0.01, 3, 1)])
def test_the_goal_is_rounded_up(goal: float, asked: int, enough: int) -> None:
    assert RoundTerms(goal=goal, quorum=0.01).enough(asked) == enough


def test_a_goal_below_the_quorum_is_refused() -> None:
    with failing(InputError, "goal is 0.4, and quorum 0.5"):
        RoundTerms(goal=0.4)
    settings = RunSettings.parse("run-config", {"clients": 5, "goal": 0.4})
    with failing(InputError, "goal is 0.4, and quorum 0.5"):
        Study(study_of(), settings)
