"""A site's policy: no run has less protection than it requires, and a refusal names the line."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args

from fedflat import models
from fedflat.core.errors import InputError
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.flower.site_policy import SitePolicy, node_arguments
from fedflat.federation.flower.study import Study
from fedflat.federation.flower.transport import GatheringError
from fedflat.federation.membership import RoundFailedError
from support.flower_fixtures import GridFederation, failing, study_of

SECURE = {"secure-sum": 0.7, "norm-multiple": inf}
PRIVACY = {"epsilon": 8.0, "delta": 1e-3, "clip": 0.5, "rate": 0.6}
STEPS = {"steps": 2, "batch_size": 8}


def policy_of(folder: Path, text: str) -> SitePolicy:
    """Write a policy file; return the policy."""
    path = folder / "policy.toml"
    path.write_text(f"# the site's limits\n\n{text}\n")
    return SitePolicy.load(path)


def study(run: dict[str, Any] | None = None, **changes: Any) -> Study:
    """Return a study of five clients with these settings of the run."""
    return Study(study_of(**changes), RunSettings.parse("run-config", {"clients": 5, **(run or {})}))


@pytest.mark.parametrize(
    ("text", "app", "run", "line"),
    [
        ("secure_sum = 0.9", {}, {"secure-sum": 0.51}, "secure-sum is 0.51, at least 0.9 is required by policy.toml, "
         "line 3 (secure_sum = 0.9)"),
        ("min_clients = 2\nsecure_sum = 0.9", {}, {}, "secure-sum is missing, at least 0.9 is required by policy.toml, "
         "line 4 (secure_sum = 0.9)"),
        ("", {"secure-sum": 0.9}, {"secure-sum": 0.51}, "is required by the app's pyproject.toml (secure-sum = 0.9)"),
        ("secure_sum = 0.6", {"secure-sum": 0.9}, {"secure-sum": 0.7}, "at least 0.9 is required by the app's"),
        ("secure_sum = 0.9", {"secure-sum": 0.6}, {"secure-sum": 0.7}, "at least 0.9 is required by policy.toml"),
        ("", {}, {"secure-sum": 0.7, "unmask-again": 10**9}, "unmask-again is 1000000000, at most 0 is allowed by"),
        ("'unmask_again' = 3", {}, {"secure-sum": 0.7, "unmask-again": 4}, "at most 3 is allowed by policy.toml, line"),
        ("", {"unmask-again": 3}, {"secure-sum": 0.7, "unmask-again": 4}, "at most 3 is allowed by the app's"),
        ("secure_sum = 0.6\nunmask_again = 1", {}, {"secure-sum": 0.7, "unmask-again": 1}, None),
        ("", {}, {"secure-sum": 0.51, "clients": 3}, None),
    ],
)  # fmt: skip
def test_no_run_takes_from_what_the_site_and_the_app_require(
    text: str, app: dict[str, Any], run: dict[str, Any], line: str | None, tmp_path: Path
) -> None:
    """Under one approved digest: the server sends the app with another configuration of the run."""
    policy, own = policy_of(tmp_path, text), RunSettings.parse("app", {"clients": 5, **app})
    asked = RunSettings.parse("run-config", {"clients": 5, **run})
    if line is None:
        return policy.check_settings(asked, own)
    with failing(InputError, line):
        policy.check_settings(asked, own)


@pytest.mark.parametrize(
    ("text", "privacy", "line"),
    [
        ("privacy = true", None, "has no [privacy], which is required by policy.toml, line 3 (privacy = true)"),
        ("max_epsilon = 9", None, "the study has no [privacy], which is required by policy.toml, line 3 (max_epsilon"),
        ("privacy = true", {"noise": "seeded-not-private"}, "'system' is required by policy.toml, line 3"),
        ("max_epsilon = 9", {"noise": "seeded-not-private"}, "'system' is required by policy.toml, line 3"),
        ("max_epsilon = 7.9", {}, "privacy.epsilon is 8, at most 7.9 is allowed by policy.toml, line 3"),
        ("privacy = true\nmax_epsilon = 8", {}, None),
        ("privacy = true", {}, None),
        ("privacy = false", None, None),
    ],
)  # fmt: skip
def test_privacy_is_required(text: str, privacy: dict[str, Any] | None, line: str | None, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    changes = {} if privacy is None else {"privacy": PRIVACY | privacy, "client": STEPS, "participation": 0.2}
    policy, found = policy_of(tmp_path, text), study(**changes)
    if line is None:
        return policy.check_study(found)
    with failing(InputError, line):
        policy.check_study(found)


def test_a_large_model_is_refused_before_any_memory_is_taken(tmp_path: Path) -> None:
    """The number of classes is in the configuration of the run, which the server sends."""
    shape = {"shape": "64", "classes": 10**7}
    policy, mlp = policy_of(tmp_path, "max_parameters = 20_000_000"), {"name": "mlp", "options": {"hidden": [10]}}
    with failing(InputError, f"the model has {64 * 10 + 10 + 11 * 10**7:,} parameters, at most 20,000,000"):
        policy.check_study(study(shape, model=mlp))
    policy.check_study(study({"shape": "64", "classes": 10}, model=mlp))


@pytest.mark.parametrize("name", ["cnn", "lenet5", "emnist-cnn", "fedgmt-cnn", "resnet18-gn-cifar", "wrn28-4-gn"])
def test_the_counted_model_is_the_one_that_is_built(name: str, tmp_path: Path) -> None:
    shape = (1, 28, 28) if name == "emnist-cnn" else (3, 32, 32)
    exact = sum(p.numel() for p in models.build(name, classes=10, shape=shape).parameters())
    found = study({"shape": "x".join(map(str, shape)), "classes": 10}, model={"name": name})
    policy_of(tmp_path, f"max_parameters = {exact}").check_study(found)
    with failing(InputError, f"the model has {exact:,} parameters, at most {exact - 1:,} are allowed"):
        policy_of(tmp_path, f"max_parameters = {exact - 1}").check_study(found)


@pytest.mark.parametrize(
    ("text", "settings", "reason"),
    [
        ("", {}, None),  # three by default, for secure sums alone
        ("min_clients = 3", {}, "the round is of 2 clients, at least 3 are required by policy.toml, line 3"),
        ("", SECURE, "the sum may be of 2 clients, at least 3 are required by the default of a site's policy"),
        ("min_clients = 2", SECURE, None),
    ],
)
def test_a_round_of_too_few_clients_is_refused_before_it_is_trained(
    text: str, settings: dict[str, Any], reason: str | None, tmp_path: Path
) -> None:
    policy = policy_of(tmp_path, text)
    federation = GridFederation(study_of(participation=2, rounds=1), tmp_path / "federation", **settings)
    for node in federation.nodes.values():
        node.config |= {"policy": str(policy.path)}
    if reason is None:
        return federation.serve() and None
    with pytest.raises(RoundFailedError):
        federation.serve()
    assert reason in federation.events("round failed")[0]["reason"]
    assert not list((federation.folder / "state").rglob("round-*"))


@pytest.mark.usefixtures("no_waiting")
def test_the_server_learns_the_line_that_refuses_its_run(tmp_path: Path) -> None:
    federation = GridFederation(study_of(), tmp_path / "federation", wait=0.5)
    policy = policy_of(tmp_path, "secure_sum = 0.8")
    for node in federation.nodes.values():
        node.config |= {"policy": str(policy.path)}
    with pytest.raises(GatheringError, match=r"required by policy.toml, line 3 \(secure_sum = 0.8\)"):
        federation.serve()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("secure_sum = 0.5", "policy.toml: secure_sum"), ("secure-sum = 0.8", "policy.toml: secure-sum"),
        ("min_clients = 1", "policy.toml: min_clients"), ("max_parameters = 0", "policy.toml: max_parameters"),
        ("privacy = 3.0", "policy.toml: privacy"), ("apps = ['sha256:12']", "policy.toml: apps"),
        ("secure_sum", "policy.toml"), ("max_epsilon = nan", "policy.toml: max_epsilon"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_read_is_refused(text: str, line: str, tmp_path: Path) -> None:
    with failing(InputError, line):
        policy_of(tmp_path, text)


@pytest.mark.usefixtures("no_waiting")
def test_a_missing_policy_refuses_every_run(tmp_path: Path) -> None:
    federation = GridFederation(study_of(), tmp_path / "federation", wait=0.5)
    for node in federation.nodes.values():
        node.config |= {"policy": str(tmp_path / "none.toml")}
    with pytest.raises(GatheringError, match=r"none\.toml"):
        federation.serve()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--node-config", 'name="a b" partition-id=0', "--insecure"], ["--insecure", "--node-config=partition-id=0"],
        ["--insecure"], ["--node-config", "partition-id=0"], ["--node-config", 'name="policy"'],
    ],
)  # fmt: skip
def test_the_policy_is_added_to_the_configuration_of_the_node(arguments: list[str], tmp_path: Path) -> None:
    """Flower's own parser reads the configuration."""
    found = node_arguments(tmp_path / "policy.toml", arguments)
    words = " ".join(found).partition("--node-config")[2].lstrip(" =").partition(" --")[0]
    given = " ".join(arguments).partition("--node-config")[2].lstrip(" =").partition(" --")[0]
    expected = parse_config_args([given]) | {"policy": str(tmp_path / "policy.toml")}
    assert parse_config_args([words]) == expected
    assert ("--insecure" in found) == ("--insecure" in arguments)


@pytest.mark.parametrize(
    ("file", "config", "line"),
    [
        ("policy.toml", "node.toml", "--node-config must be keys and values"),
        ("policy.toml", 'name="a" policy="/other"', "--node-config must be keys and values without policy"),
        ('a"b.toml', 'name="a"', "cannot hold this path"),
    ],
)
def test_a_configuration_that_cannot_hold_the_policy_is_refused(
    file: str, config: str, line: str, tmp_path: Path
) -> None:
    with failing(InputError, line):
        node_arguments(tmp_path / file, ["--node-config", config])


def test_the_command_needs_apps_from_one_place(fedflat: Any, tmp_path: Path) -> None:
    (policy := tmp_path / "policy.toml").write_text("min_clients = 3\n")
    line = f"flower node --policy {policy}"
    assert fedflat(line) == (2, "", "fedflat: --app-digest or `apps` in the policy is missing\n")
    policy.write_text(f"apps = ['sha256:{'0' * 64}']\n")
    assert "give one of them" in fedflat(f"{line} --app-digest sha256:{'1' * 64}")[2]


@pytest.mark.usefixtures("no_waiting")
def test_a_nodes_device_replaces_that_of_the_study(tmp_path: Path) -> None:
    """It is no part of the study: the server accepts the node, and no setting of the algorithm changes."""
    federation = GridFederation(study_of(rounds=1, participation=1.0, device="auto"), tmp_path / "federation", wait=0.5)
    federation.nodes[100].config |= {"device": "cpu"}
    assert federation.serve()
    federation = GridFederation(study_of(device="auto"), tmp_path / "other", wait=0.5)
    federation.nodes[100].config |= {"device": "none-of-these"}
    with pytest.raises(GatheringError, match="device = 'none-of-these' cannot be used"):
        federation.serve()
