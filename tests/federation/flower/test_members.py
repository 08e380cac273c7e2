"""Who may take part, with how many samples: by their operator's word, or by their own, bounded."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedflat.core.errors import InputError
from fedflat.federation.flower.client_app import client_app
from fedflat.federation.flower.settings import MOST_SAMPLES, RunSettings
from fedflat.federation.flower.transport import GatheringError
from support.flower_fixtures import Tried, failing, hurried, study_of  # noqa: F401 (a fixture)
from support.local_grid import Node

OWN = {"clients": 2, "shape": "6", "classes": 3}
MEMBERS = "clinic-a=9 clinic-b=4"


def samples_of(n: int):
    rng = np.random.default_rng(n)
    return rng.normal(0, 1, (n, 6)).astype("float32"), rng.integers(3, size=n)


def tried_with(folder: Path, sizes: dict[str, int], **settings) -> tuple[Tried, dict[int, Node]]:
    """A federation of clients with so many samples."""
    spec = study_of(model={"name": "mlp", "options": {"hidden": [5]}}, participation=1.0, rounds=2)
    tried = Tried(spec, folder, **{**OWN, "wait": 1.0} | settings)
    app = client_app(tried.folder, lambda node: samples_of(sizes[node["name"]]))
    return tried, {i: Node(app, tried.own_node(name).config) for i, name in enumerate(sizes, start=7)}


def test_members_are_those_that_the_operator_names(tmp_path: Path) -> None:
    """One comes first that is not named; it is refused, and the two that are named train."""
    tried, nodes = tried_with(tmp_path, {"stranger": 9, "clinic-a": 9, "clinic-b": 4}, members=MEMBERS)
    tried.serve(nodes)
    assert [event["client"] for event in tried.events("client")] == ["clinic-a", "clinic-b"]
    reasons = [event["reason"] for event in tried.events("node refused")]
    assert reasons == ["stranger: is not one of the run-config members"]
    assert [event["missing"] for event in tried.events("round")] == [{}, {}]


def test_a_member_has_the_samples_that_the_operator_says(tmp_path: Path) -> None:
    tried, nodes = tried_with(tmp_path, {"clinic-a": 9, "clinic-b": 5}, members=MEMBERS)
    with failing(GatheringError, "clinic-b: has 5 samples, and the run-config members say 4"):
        tried.serve(nodes)


def test_a_claim_of_a_thousand_million_samples_is_refused(tmp_path: Path) -> None:
    """It is its weight, where clients are weighed with their samples."""
    rounds = tried_with(tmp_path / "usual", {"clinic-a": 9, "clinic-b": 4})
    rounds[0].serve(rounds[1])
    tried, nodes = tried_with(tmp_path / "lying", {"clinic-a": 9, "clinic-b": 4})
    honest = nodes[8].app

    def lying(message, context):
        reply = honest(message, context)
        if message.metadata.message_type == "query":
            reply.content["introduction"]["samples"] = 10**9
        return reply

    nodes[8] = Node(lying, nodes[8].config)
    with failing(GatheringError, "clinic-b: says 1000000000 samples, max-samples is 1000000"):
        tried.serve(nodes)
    tried, nodes = tried_with(tmp_path / "few", {"clinic-a": 9, "clinic-b": 4}, **{"max-samples": 8})
    with failing(GatheringError, "clinic-a: says 9 samples, max-samples is 8"):
        tried.serve(nodes)
    assert MOST_SAMPLES == 10**6


def test_a_federation_that_has_begun_keeps_its_members(tmp_path: Path) -> None:
    """Whoever names them afterwards must name the same; a bound on claims that comes too late refuses nobody."""
    tried, nodes = tried_with(tmp_path, {"clinic-a": 9, "clinic-b": 4})
    tried.serve(nodes)
    tried.config["members"] = "clinic-a=9 clinic-b=5"
    with failing(InputError, "has begun with other run-config members: clinic-b is 4 there and 5 here"):
        tried.serve(nodes)
    tried.config["members"] = ""
    tried.config["max-samples"] = 3
    tried.serve(nodes)
    tried.config["members"] = MEMBERS
    tried.serve(nodes)


@pytest.mark.parametrize(
    ("members", "line"),
    [("a=1", "run-config: members names 1 clients, and clients is 2: not equal"),
     ("a=1 a=2", "run-config: members must be such as clinic-a=1200 clinic-b=800, each once, got 'a=2'"),
     ("a=1 b", "each once, got 'b'"), ("a=1 b=0", "each once, got 'b=0'"), ("a=1 ../b=3", "each once, got '../b=3'"),
     ("a=1 b=1e3", "each once, got 'b=1e3'"), ("a=1 b=" + "9" * 5000, "each once, got 'b=999")],
)  # fmt: skip
def test_members_that_make_no_sense(members: str, line: str) -> None:
    with failing(InputError, line):
        RunSettings.of("run-config", {**OWN, "members": members})


@pytest.mark.parametrize(
    ("setting", "line"),
    [({"max-samples": 0}, "run-config: max-samples"), ({"max-samples": 2**53}, "run-config: max-samples"),
     ({"norm-multiple": 0.5}, "run-config: norm-multiple"), ({"norm-multiple": float("nan")}, "run-config: norm-mult")],
)  # fmt: skip
def test_bounds_that_make_no_sense(setting, line: str) -> None:
    with failing(InputError, line):
        RunSettings.of("run-config", {**OWN, **setting})


def test_the_command_takes_them(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from fedflat.cli.app import app

    (tmp_path / "run.toml").write_text(study_of().to_toml())
    words = ["flower", "export", str(tmp_path / "run.toml"), str(tmp_path / "app"), "--shape", "6", "--classes", "3"]
    done = CliRunner().invoke(app, [*words, "--members", MEMBERS, "--max-samples", "50", "--norm-multiple", "20"])
    assert done.exit_code == 0, done.output
    table = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    found = {key: table[key] for key in ("members", "clients", "max-samples", "norm-multiple")}
    assert found == {"members": MEMBERS, "clients": 2, "max-samples": 50, "norm-multiple": 20.0}
