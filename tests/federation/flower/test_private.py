"""Private federations: the sampler, the noise and the accountant of the simulator at a trusted server."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import generate_latest
from safetensors.torch import load_file

from fedflat.core.errors import InputError
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower.directory import FederationDirectory
from fedflat.federation.flower.export import export
from fedflat.federation.flower.metrics import FederationCollector
from fedflat.federation.flower.settings import RunSettings
from fedflat.reports.federation import FederationData, write_federation_page
from fedflat.rounds.accountant import epsilon
from fedflat.rounds.private_rounds import logs_in, read_log
from support.files import refused
from support.flower_fixtures import GridFederation, simulated, study_of
from support.local_grid import ServerEnded, ending_in

pytest.importorskip("dp_accounting")
RATE, NOISE, DELTA, ROUNDS = 0.6, 2.0, 1e-3, 4


def private(method: str = "fedavg", noise: str = "seeded-not-private", **changes: Any) -> RunSpec:
    privacy = {"epsilon": 50.0, "delta": DELTA, "clip": 0.5, "rate": RATE, "noise_multiplier": NOISE, "noise": noise}
    how = {"client": {"steps": 2, "batch_size": 8}, "rounds": ROUNDS, "method": method, "participation": None}
    given = {key: value for key, value in (how | changes).items() if value is not None}
    made = study_of(**{**given, "participation": 0.2, "privacy": privacy | changes.pop("privacy", {})})
    return made


@pytest.mark.parametrize("method", ["fedavg", "fedsmoo", "scaffold"])
def test_it_has_the_bits_of_the_private_simulation(tmp_path: Path, method: str) -> None:
    """In the mode for tests, in which the noise follows from the seed."""
    spec = private(method)
    federation = GridFederation(spec, tmp_path / "federation")
    assert federation.serve() == simulated(spec, tmp_path / "simulation")
    rounds = federation.events("round")
    spent = epsilon(RATE, NOISE, ROUNDS, DELTA)
    assert rounds[-1]["epsilon"] == pytest.approx(spent)
    assert federation.events("finished")[0]["epsilon"] == pytest.approx(spent)
    result = json.loads((federation.out / "result.json").read_text())
    assert result["privacy"]["epsilon"] == pytest.approx(spent)
    assert not {"drift", "clients", "train_loss"} & rounds[-1].keys()
    data = FederationData.read(federation.out)
    assert f" at epsilon {spent:.3g}. " in data.headline
    page = write_federation_page(data, tmp_path / "page").read_text()
    assert "this page names who took part" in page
    served = generate_latest(FederationCollector(federation.out)).decode()
    assert f"fedflat_epsilon {rounds[-1]['epsilon']}" in served
    assert not re.search(r"client-\d|replies|bytes|last_round_clients", served), "nothing tells who took part"


@pytest.mark.parametrize("noise", ["seeded-not-private", "system"])
def test_a_stopped_server_goes_on_with_its_key_and_its_account(tmp_path: Path, noise: str) -> None:
    """Stopped in the middle of round 2: its cohort is asked again, and no round is released twice."""
    spec = private("fedsmoo", noise, privacy={"rate": 1.0})
    federation = GridFederation(spec, tmp_path / "federation")
    with pytest.raises(ServerEnded):
        federation.serve(grid=ending_in(2))
    assert federation.events("round")[-1]["t"] == 1
    model = federation.serve()
    assert federation.events("finished")[-1]["epsilon"] == pytest.approx(epsilon(1.0, NOISE, ROUNDS, DELTA))
    if noise == "system":
        (log,) = logs_in(federation.out / "checkpoint")
        assert sorted(t for t, _ in read_log(log)) == list(range(ROUNDS))
    else:
        assert model == simulated(spec, tmp_path / "simulation")


def test_a_rolled_back_federation_keeps_what_it_has_spent(tmp_path: Path) -> None:
    """The same rounds again have the same sums, and so the same noise: nothing is released a second time."""
    federation = GridFederation(private("fedavg", "system"), tmp_path / "federation")
    kept: list[Path] = []

    def keep(group: str, contents: Any) -> Any:
        states = FederationDirectory(federation.out).states
        if len(states) == 2 and not kept:
            kept.append(tmp_path / "copy")
            shutil.copytree(federation.out / "checkpoint", kept[0])
        return contents

    for node in federation.nodes.values():
        node.tamper = keep
    model = federation.serve()
    if not kept:
        pytest.skip("no client was asked in that round")
    for path in FederationDirectory(federation.out).states.values():
        path.unlink()
    for path in kept[0].glob("*"):
        if path.suffix != ".log":
            shutil.copy(path, federation.out / "checkpoint")
    for name in ("model.safetensors", "result.json"):
        (federation.out / name).unlink()
    assert federation.serve() == model
    assert federation.events("finished")[-1]["epsilon"] == pytest.approx(epsilon(RATE, NOISE, ROUNDS, DELTA))


def model_of(folder: Path, replying: set[int]) -> dict[str, torch.Tensor]:
    """Return the model after one round to which only these of five clients reply; the noise is always the same."""
    federation = GridFederation(private(rounds=1, privacy={"rate": 1.0}), folder, goal=len(replying) / 5, quorum=0.01)
    for number in set(range(5)) - replying:
        federation.nodes[100 + number].tamper = lambda group, contents: None if federation.events("begun") else contents
    federation.serve()
    event = federation.events("round")[-1]
    assert len(event["counted"]) == len(replying)
    assert event["epsilon"] == pytest.approx(epsilon(1.0, NOISE, 1, DELTA)), "however many have replied"
    return load_file(federation.out / "model.safetensors")


def test_clients_that_vanish_are_zeros_and_not_a_smaller_divisor(tmp_path: Path) -> None:
    """Every model is w + (sum of the records that came + noise) / 5, so these five fit together."""
    cases = {"all": {0, 1, 2, 3, 4}, "two": {0, 1}, "others": {2, 3, 4}, "first": {0}, "second": {1}}
    found = {name: model_of(tmp_path / name, who) for name, who in cases.items()}
    for name, whole in found["all"].items():
        parts = {case: model[name].double() for case, model in found.items()}
        expected = parts["others"] - parts["first"] - parts["second"] + 2 * parts["two"]
        assert torch.allclose(whole.double(), expected, atol=1e-5)
        assert not torch.allclose(whole.double(), parts["two"], atol=1e-5)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("vanishing", range(ROUNDS))
def test_a_third_of_the_clients_may_vanish_in_any_round_and_the_account_holds(tmp_path: Path, vanishing: int) -> None:
    spec = private(noise="system", privacy={"rate": 1.0})  # so that never those two alone are asked
    federation = GridFederation(spec, tmp_path / "federation", deadline=2.0)
    gone = 0

    def vanished(group: str, contents: Any) -> Any:
        nonlocal gone
        is_due = bool(federation.events("begun")) and len(federation.events("round")) == vanishing
        gone += is_due
        return None if is_due else contents

    for number in (100, 101):
        federation.nodes[number].tamper = vanished
    federation.serve()
    (log,) = logs_in(federation.out / "checkpoint")
    assert sorted(t for t, _ in read_log(log)) == list(range(ROUNDS)), "one release for each round"
    assert federation.events("finished")[-1]["epsilon"] == pytest.approx(epsilon(1.0, NOISE, ROUNDS, DELTA))
    missing = [len(event["missing"]) for event in federation.events("round")]
    assert missing[vanishing] == gone


def test_keys_are_the_systems_and_differ_between_federations(tmp_path: Path) -> None:
    one, other = (GridFederation(private(noise="system"), tmp_path / name) for name in "ab")
    assert one.serve() != other.serve()
    states = FederationDirectory(one.out).states
    assert list(states) == [ROUNDS], "older ones have the key of the noise in the final model"
    assert states[ROUNDS].stat().st_mode & 0o077 == 0
    assert logs_in(one.out / "checkpoint") != []


def test_rounds_beyond_the_budget_are_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    spec = private(privacy={"epsilon": 1.0})
    with refused("privacy: 4 rounds with noise_multiplier = 2 spend epsilon"):
        export(spec, RunSettings(clients=5), tmp_path / "app")
    assert not (tmp_path / "app").exists()
    federation = GridFederation(spec, tmp_path / "federation")
    with pytest.raises(InputError, match="spend epsilon"):
        federation.serve()
    assert federation.events("round") == []


@pytest.mark.parametrize(
    ("changes", "settings", "words"),
    [
        ({"weights": "samples"}, {}, "does not go with privacy: weights tell clients' numbers of samples"),
        ({"guard": {"bound": 1.0}}, {}, "privacy does not go with guard"),
        ({}, {"secure_sum": 0.6}, "secure-sum does not go with privacy"),
        ({"client": {"epochs": 1, "batch_size": 8}}, {}, "privacy needs client.steps"),
    ],
)
def test_what_cannot_be_private_is_one_line(tmp_path: Path, changes: dict, settings: dict, words: str) -> None:
    with refused(words):
        export(private(**changes), RunSettings(clients=5, **settings), tmp_path / "app")
