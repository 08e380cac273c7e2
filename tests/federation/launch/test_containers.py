"""The files of containers: privileges, programs that check who asks them, and no file beyond what the image needs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
GUARDS = {"superlink": "--control-secret-file", "superexec": "--app-digest", "node": "--app-digest"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_has_no_privilege(name: str) -> None:
    service = SERVICES[name]
    assert (service["user"], service["read_only"], service["cap_drop"]) == ("10001:10001", True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"privileged", "cap_add", "devices", "pid", "ipc"} & service.keys() == set()
    assert all(not volume.startswith("/") for volume in service.get("volumes", []))


@pytest.mark.parametrize("name", SERVICES)
def test_every_program_asks_for_a_secret_or_checks_the_app(name: str) -> None:
    command = SERVICES[name].get("command", "proxy")
    program, *words = shlex.split(command) if isinstance(command, str) else command
    if guard := GUARDS.get(program):
        assert any(word.partition("=")[0] == guard for word in words)
    else:
        assert program in ("metrics", "proxy")


def test_only_the_proxys_port_is_open_and_all_else_is_on_the_loopback() -> None:
    assert {name: one["ports"] for name, one in SERVICES.items() if "ports" in one} == {"superlink": ["8443:8443"]}
    assert "--host 127.0.0.1" in SERVICES["superlink"]["command"]
    sharing = {name for name, one in SERVICES.items() if one.get("network_mode") == "service:superlink"}
    assert sharing == {"proxy", "superexec", "metrics"}
    proxy = (DEPLOY / "nginx.conf").read_text()
    assert re.findall(r"listen (\S+)", proxy) == ["8443"]
    assert re.findall(r"location (\S+)", proxy) == ["/v1/fleet/", "/"]


def test_every_secret_that_is_used_is_a_file() -> None:
    used = {secret for one in SERVICES.values() for secret in one.get("secrets", [])}
    assert used == COMPOSE["secrets"].keys()
    assert all(set(secret) == {"file"} for secret in COMPOSE["secrets"].values())
    for name, service in SERVICES.items():
        words = re.findall(r"/run/secrets/([\w.-]+)", f"{service}")
        assert set(words) <= set(service.get("secrets", [])), name
    assert [name for name, one in SERVICES.items() if "clinic-a" in one.get("secrets", [])] == ["node-a"]


def test_the_image_runs_as_a_user_and_takes_only_what_it_installs() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    steps = [line.split(maxsplit=1) for line in text.replace("\\\n", " ").splitlines() if line and line[0] not in "# "]
    assert [words for step, words in steps if step == "USER"] == ["10001:10001"]
    assert [step for step, _ in steps][-5:] == ["USER", "WORKDIR", "VOLUME", "ENTRYPOINT", "CMD"]
    copied = {name for step, words in steps if step == "COPY" for name in words.split()[:-1]}
    ignore = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    assert ignore[1] == "*"
