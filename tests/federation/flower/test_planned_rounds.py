"""A method whose rounds depend on how many are planned, in a federation: every node knows the number."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedflat.core.errors import InputError
from fedflat.experiments import runner
from fedflat.methods import find
from fedflat.rounds.local_training import Client
from support.flower_fixtures import GridFederation, simulated, study_of
from support.transports import federated_clients, federated_server

SWA = {"name": "SWA", "base": {"name": "Scaffold"}, "begin": 0.5, "cycle": 2}


@pytest.mark.slow
def test_the_federation_leaves_the_average_and_both_models_numbers(tmp_path: Path) -> None:
    """Four rounds, the last two of which are a cycle; clients divide by their step sizes."""
    spec = study_of(method=SWA)
    federation = GridFederation(spec, tmp_path / "federation")
    assert federation.serve() == simulated(spec, tmp_path / "simulation")
    runner.run(spec, tmp_path / "run")
    ours, theirs = (
        pq.read_table(tmp_path / name / "metrics.parquet").to_pydict() for name in ("federation/out", "run")
    )
    for name in ("lr", "test_accuracy", "test_loss", "test_accuracy_iterate", "test_loss_iterate"):
        assert ours[name] == theirs[name], name
    first = spec.client.lr
    assert ours["lr"] == pytest.approx([first, first, (first + 1e-4) / 2, 1e-4], rel=1e-12)
    assert ours["test_loss"][:3] == ours["test_loss_iterate"][:3]


def test_who_is_not_told_refuses(tmp_path: Path) -> None:
    method = find("SWA")(base=find("Scaffold")(), begin=0.5, cycle=2)
    for make in (
        lambda: federated_server(method, Client(), rounds=0),
        lambda: federated_clients(method, tmp_path, Client(), rounds=0),
    ):
        with pytest.raises(InputError, match=r"^rounds = 0: SWA-Scaffold would average no model"):
            make()
