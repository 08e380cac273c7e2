"""Members that are ejected and admitted while a federation runs: who is asked, and what the model is then."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from fedflat.core.errors import InputError
from fedflat.federation.flower.directory import FederationDirectory, check
from fedflat.federation.flower.ejections import FILE, Absence, Ejections
from fedflat.federation.server import RoundFailedError
from support.flower_fixtures import GridFederation, failing, simulated, study_of
from support.local_grid import LocalGrid

EVERYBODY, WITHOUT_3 = [0, 1, 2, 3, 4], [0, 1, 2, 4]


def during(actions: dict[int, Callable[[], None]]) -> type[LocalGrid]:
    """A grid on which the operator does something while a round is under way."""

    class Operated(LocalGrid):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if found and found[0].metadata.group_id:
                actions.pop(int(found[0].metadata.group_id), lambda: None)()
            return found

    return Operated


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn"])
def test_an_ejected_member_is_as_if_it_were_not_drawn(method: str, tmp_path: Path) -> None:
    """Ejected while round 0 runs, admitted while round 2 does: the bits of a simulation with these cohorts."""
    federation = GridFederation(study_of(method=method, participation=1.0), tmp_path / "federation")
    ejections = Ejections(federation.out)
    model = federation.serve(grid=during({
        0: lambda: ejections.eject("client-3", "its scanner\nis replaced"), 2: lambda: ejections.admit("client-3"),
    }))  # fmt: skip
    cohorts = [EVERYBODY, WITHOUT_3, WITHOUT_3, EVERYBODY]
    assert model == simulated(study_of(method=method, participation=cohorts), tmp_path / "simulation")
    assert [event["missing"] for event in federation.events("round")] == [{}] * 4
    [ejected], [admitted] = federation.events("ejected"), federation.events("admitted")
    assert (ejected["client"], ejected["t"], ejected["reason"]) == ("client-3", 1, "its scanner\\x0ais replaced")
    assert (admitted["client"], admitted["t"]) == ("client-3", 3)
    assert {name: problem for name, problem in check(federation.out) if problem} == {}


@pytest.mark.slow
def test_others_take_part_in_the_rounds_in_which_they_would_have(tmp_path: Path) -> None:
    """Whoever goes; and a round in which only ejected members were drawn is drawn again."""
    usual = GridFederation(study_of(participation=0.6, rounds=8), tmp_path / "usual")
    usual.serve()
    federation = GridFederation(usual.spec, tmp_path / "federation")
    federation.serve(grid=during({0: lambda: Ejections(federation.out).eject("client-1")}))
    cohorts = [[event["counted"] for event in one.events("round")] for one in (usual, federation)]
    assert any("client-1" in cohort for cohort in cohorts[0][1:])
    assert cohorts[1][1:] == [[name for name in cohort if name != "client-1"] for cohort in cohorts[0][1:]]
    single = GridFederation(study_of(participation=1, rounds=8), tmp_path / "single")
    single.serve(grid=during({0: lambda: [Ejections(single.out).eject(f"client-{i}") for i in range(4)]}))
    assert [event["counted"] for event in single.events("round")][1:] == [["client-4"]] * 7


def test_the_list_outlives_the_server_and_what_cannot_be_is_refused(fedflat, tmp_path: Path) -> None:
    federation = GridFederation(study_of(participation=1.0, rounds=2), tmp_path)
    federation.serve()
    FederationDirectory(federation.out).roll_back(1)
    assert fedflat("flower eject out client-0 --reason noise")[:2] == (
        0, "client-0 is ejected from the next round on\n"
    )  # fmt: skip
    for line, error in {
        "eject out client-0": "client-0 is ejected already",
        "eject out clinic-z": "clinic-z is no member: members are those that the federation began with, and those that "
        "have joined (client-0, client-1, client-2, client-3, client-4)",
        "admit out client-1": "client-1 is not ejected",
        "admit . client-1": ". holds no federation",
    }.items():
        assert fedflat(f"flower {line}") == (2, "", f"fedflat: {error}\n")
    federation.serve()
    assert federation.events("round")[-1]["counted"] == [f"client-{i}" for i in range(1, 5)]
    assert "client-0 (ejected)" in fedflat("report out")[1]
    assert fedflat("flower admit out client-0")[0] == 0
    for i in range(4):
        Ejections(federation.out).eject(f"client-{i}")
    with failing(InputError, "client-4 is the last member that is not ejected"):
        Ejections(federation.out).eject("client-4")


def test_a_damaged_list_stops_the_federation_rather_than_asking_somebody_ejected(tmp_path: Path) -> None:
    federation = GridFederation(study_of(rounds=2), tmp_path)
    federation.out.mkdir()
    (federation.out / FILE).write_text('["client-0"]')
    with failing(InputError, f"{federation.out / FILE} is damaged"):
        federation.serve()
    assert "is damaged" in federation.events("failed")[0]["reason"]


def test_a_missing_list_stops_it_and_is_written_again_from_the_log(fedflat, tmp_path: Path) -> None:
    """Whoever was ejected must not be asked because a file is gone; what the server has taken note of is in its log."""
    federation = GridFederation(study_of(participation=1.0, rounds=3), tmp_path)
    list_of_ejected = Ejections(federation.out)
    federation.serve(grid=during({0: lambda: list_of_ejected.eject("client-1", "noise")}))
    assert stat.S_IMODE((federation.out / FILE).stat().st_mode) == 0o600
    FederationDirectory(federation.out).roll_back(2)
    (federation.out / FILE).unlink()
    with failing(InputError, f"{federation.out / FILE} is missing; its log says that client-1 is ejected"):
        federation.serve()
    assert fedflat("verify out")[0] == 1
    assert "client-1 is ejected already" in fedflat("flower eject out client-1")[2]
    assert list_of_ejected.read() == {"client-1": Absence("noise")}
    federation.serve()
    assert federation.events("round")[-1]["counted"] == [f"client-{i}" for i in (0, 2, 3, 4)]


def test_cohorts_that_are_listed_by_hand_may_leave_nobody(tmp_path: Path) -> None:
    federation = GridFederation(study_of(participation=[[0], [1], [2], [3]]), tmp_path)
    with failing(RoundFailedError, "round 1: all clients that may be drawn are ejected"):
        federation.serve(grid=during({0: lambda: Ejections(federation.out).eject("client-1")}))
