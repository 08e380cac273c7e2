"""A secure sum over a real network, with TLS and keys: five clients, of which two are killed between its steps."""

from __future__ import annotations

import sys
from math import inf
from pathlib import Path

import pytest

from fedflat.federation.flower.approved_apps import app_digest
from fedflat.federation.flower.export import export
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.launch.local_federation import LocalFederation
from fedflat.federation.secure_sum.session import SESSION
from fedflat.rounds.checksums import read_checked
from support.effort import in_test_all
from support.flower_fixtures import GridFederation, events_of, study_of, wait_for

CLIENTS = 5
KILLED = ("client-1", "client-3")
DEADLINE = 100.0  # seconds for a step; machines are busy
LIMIT = 900.0  # seconds for all of it


def has_answered(state: Path, client: str, request: str) -> bool:
    """Whether a client has answered a step of the session that it is in."""
    found = [read_checked(path, 2**24) for path in state.glob(f"*/{client}/secure-sum/{SESSION}")]
    return any(session[request] is not None for session in found)


@in_test_all
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes and their environments are read from /proc")
def test_two_of_five_clients_vanish_and_the_model_is_that_of_the_other_three(tmp_path: Path) -> None:
    """In round 1, once both have shared their keys: what they were to send is missing, and their masks come off.

    The reference is a federation without masks whose server does not get these replies.
    """
    spec = study_of(method="scaffold", participation=1.0, rounds=2)
    settings = RunSettings(clients=CLIENTS, out=str(tmp_path / "out"), wait=LIMIT, deadline=DEADLINE,
                           secure_sum=0.6, norm_multiple=inf)  # fmt: skip
    export(spec, settings, tmp_path / "app")
    state = tmp_path / "state"
    nodes = {f"client-{i}": {"partition-id": i, "state": str(state)} for i in range(CLIENTS)}
    with LocalFederation(tmp_path / "flower", nodes, approved=lambda: [app_digest(tmp_path / "app")]) as federation:
        federation.submit(tmp_path / "app", tmp_path / "out")
        wait_for("the first round", lambda: events_of(tmp_path / "out", "round"), LIMIT)
        for name in KILLED:
            wait_for("shared keys", lambda name=name: has_answered(state, name, "shares_request"), LIMIT)
        wait_for("a masked sum", lambda: any(has_answered(state, name, "mask_request") for name in nodes), LIMIT)
        for name in KILLED:
            federation.processes.kill(name)
        wait_for(
            "the end", lambda: events_of(tmp_path / "out", "finished") or events_of(tmp_path / "out", "failed"), LIMIT
        )
    rounds = events_of(tmp_path / "out", "round")
    assert [set(event["missing"]) for event in rounds] == [set(), set(KILLED)]
    assert {reason.split(":")[0] for reason in rounds[1]["missing"].values()} == {"masking"}
    assert not list(state.glob("*/client-0/secure-sum/s*")), "secrets of those that stayed are gone"

    plain = GridFederation(spec, tmp_path / "plain", deadline=3.0)
    for i in (1, 3):
        plain.nodes[100 + i].tamper = lambda number, contents: None if plain.events("round") else contents
    assert plain.serve() == (tmp_path / "out" / "model.safetensors").read_bytes()
