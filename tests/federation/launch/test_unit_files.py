"""The units that systemd runs a federation's programs by."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sysconfig
from collections import defaultdict
from pathlib import Path

import pytest

from fedflat.core.errors import InputError
from fedflat.federation.launch.unit_files import NAMES, unit_text, write_units
from support.effort import in_test_all
from support.flower_fixtures import failing

ANALYSE = shutil.which("systemd-analyze")
SANDBOX = {
    "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict", "ProtectHome": "yes",
    "PrivateTmp": "yes", "PrivateDevices": "yes", "ProtectKernelModules": "yes", "ProtectKernelTunables": "yes",
    "ProtectControlGroups": "yes", "RestrictNamespaces": "yes", "RestrictSUIDSGID": "yes", "LockPersonality": "yes",
    "SystemCallArchitectures": "native", "User": "fedflat", "UMask": "0077", "StateDirectoryMode": "0700",
    "Restart": "always",
}  # fmt: skip


def service(name: str) -> dict[str, list[str]]:
    """The directives of a unit's [Service], with all values of each."""
    section, found = "", defaultdict(list)
    for line in unit_text(name).replace("\\\n", " ").splitlines():
        if line.startswith("["):
            section = line
        elif "=" in line and not line.startswith("#") and section == "[Service]":
            key, _, value = line.partition("=")
            found[key].append(value.strip())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_program_is_in_a_sandbox(name: str) -> None:
    directives = service(name)
    assert {key: directives[key] for key in SANDBOX} == {key: [value] for key, value in SANDBOX.items()}
    assert re.fullmatch(r"\d+G", directives["MemoryMax"][0])
    assert directives["SystemCallFilter"] == ["@system-service", "~@privileged"]
    assert "ReadWritePaths" not in directives, "the folder of the state is the only one that can be written"


@pytest.mark.parametrize("name", NAMES)
def test_every_program_is_one_that_asks_for_a_secret_or_checks_the_app(name: str) -> None:
    """Flower's own programs run what anybody sends who reaches them, every user of the machine among them."""
    [command] = service(name)["ExecStart"]
    guards = {"superlink": "--control-secret-file", "superexec": "--app-digest", "node": "--policy"}
    program, room, guard, *words = shlex.split(command)
    assert (Path(program).name, room) == ("fedflat", "flower")
    assert guards[guard] in words


@pytest.mark.parametrize("name", NAMES[:2])
def test_the_page_starts_the_servers_programs_by_hand_as_the_units_do(name: str) -> None:
    """With files of one folder in place of those of the system."""
    page = (Path(__file__).parents[3] / "docs" / "deploy.md").read_text().replace("\\\n", " ")
    [command] = service(name)["ExecStart"]
    expected = [Path(word).name if word.startswith("/") else word for word in shlex.split(command)]
    beginning = f"fedflat flower {expected[2]} {expected[3]} "
    [by_hand] = [line for line in page.splitlines() if line.startswith(beginning)]
    digest = {"${APP_DIGEST}": "$(fedflat flower digest app)"}
    assert shlex.split(by_hand) == [digest.get(word, word) for word in expected]


def test_the_network_of_the_server_is_this_machines_alone() -> None:
    for name in NAMES[:2]:
        directives = service(name)
        assert (directives["IPAddressDeny"], directives["IPAddressAllow"]) == (["any"], ["localhost"])


@in_test_all
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_programs_take_these_arguments(name: str) -> None:
    """Every option of the command is one that the program lists: the guard's own, or one of Flower's program."""
    [command] = service(name)["ExecStart"]
    program, *words = shlex.split(command)
    options = {word for word in words if word.startswith("--")}
    flowers = f"flower-{'supernode' if words[1] == 'node' else words[1]}"
    listed = ""
    scripts = Path(sysconfig.get_path("scripts"))
    for one in ([scripts / Path(program).name, *words[:2]], [scripts / flowers]):
        listed += subprocess.run([*one, "--help"], capture_output=True, text=True, check=True).stdout
    assert {option for option in options if option not in listed} == set()


@pytest.mark.slow
@pytest.mark.skipif(ANALYSE is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", NAMES)
def test_systemd_finds_no_mistake_and_little_exposure(name: str, tmp_path: Path) -> None:
    """But that the programs are not installed here; exposure is 10 for a service without a sandbox."""
    write_units(tmp_path)
    verified = subprocess.run([ANALYSE, "verify", tmp_path / name], capture_output=True, text=True, check=False)
    lines = [line for line in verified.stderr.splitlines() if "is not executable: No such file" not in line]
    assert [line for line in lines if name in line] == []
    found = subprocess.run([ANALYSE, "security", "--offline=yes", "--no-pager", tmp_path / name],
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert float(re.search(r"exposure level for .*: (\S+)", found.stdout)[1]) <= 2.0


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    assert [path.name for path in write_units(tmp_path / "units")] == list(NAMES)
    (tmp_path / "units" / NAMES[0]).unlink()
    (tmp_path / "units" / NAMES[1]).write_text("mine")
    with failing(InputError, f"{NAMES[1]} is there already"):
        write_units(tmp_path / "units")
    assert not (tmp_path / "units" / NAMES[0]).exists()
    assert (tmp_path / "units" / NAMES[1]).read_text() == "mine"
