"""A Slurm cluster on this machine: daemons of its own, which listen on the loopback, and a node for each name."""

from __future__ import annotations

import getpass
import os
import platform
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.processes import PATIENCE, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue", "sinfo", "scontrol")
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])  # Debian's daemons are not on a user's path
CONFIGURATION = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/linear
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
"""


@dataclass(frozen=True)
class Cluster:
    """A cluster whose daemons run."""

    folder: Path

    def call(self, *command: str, **variables: str) -> str:
        """What a command of Slurm's prints. Raises CalledProcessError."""
        environment = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": SEARCH} | variables
        return subprocess.run(
            command, env=environment, cwd=self.folder.parent, check=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
        ).stdout  # fmt: skip

    def tasks(self, job: str) -> dict[str, dict[str, str]]:
        """The fields of every task of an array, by its number."""
        lines = self.call("scontrol", "show", "job", "--oneliner", job).splitlines()
        found = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
        return {one["ArrayTaskId"]: one for one in found}


@contextmanager
def slurm(folder: Path, nodes: Sequence[str]) -> Iterator[Cluster]:
    """A cluster with files in `folder` and one processor in each of `nodes`; its daemons and jobs end with the block.

    Skips the test where Slurm is not installed.
    """
    if missing := [name for name in PROGRAMS if shutil.which(name, path=SEARCH) is None]:
        pytest.skip(f"Slurm is not installed (slurm-wlm and munge of Debian): there is no {missing[0]}")
    folder.mkdir(mode=0o755)
    cluster = Cluster(folder)
    _configure(folder, nodes)
    with ExitStack() as stack:
        stack.enter_context(_daemon(folder, "munged", "--foreground", "--force", *(
            f"--{option}={folder / name}" for option, name in [("key-file", "munge.key"), ("socket", "munge.socket"),
                ("pid-file", "munged.pid"), ("log-file", "munged.log"), ("seed-file", "munge.seed")])))  # fmt: skip
        wait_until((folder / "munge.socket").exists, "munged")
        stack.enter_context(_daemon(folder, "slurmctld", "-D"))
        for node in nodes:
            stack.enter_context(_daemon(folder, "slurmd", "-D", "-N", node))
        wait_until(lambda: cluster.call("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(len(nodes)), "nodes")
        try:
            yield cluster
        finally:
            cluster.call("scancel", "--user", getpass.getuser())
            wait_until(lambda: not cluster.call("squeue", "-h"), "the end of all jobs")


def _configure(folder: Path, nodes: Sequence[str]) -> None:
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o600)
    host = platform.node().partition(".")[0]
    controller, *ports = _free_ports(len(nodes) + 1)
    text = CONFIGURATION.format(folder=folder, host=host, user=getpass.getuser(), controller=controller)
    for node, port in zip(nodes, ports, strict=True):
        text += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=1000\n"
    text += f"PartitionName=all Nodes={','.join(nodes)} Default=YES\n"
    (folder / "slurm.conf").write_text(text)
    for name in ("state", *(f"spool-{node}" for node in nodes)):
        (folder / name).mkdir()


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def _daemon(folder: Path, program: str, *words: str) -> Iterator[None]:
    """A daemon in the foreground, which is ended by its number; what it prints is in `folder`."""
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    with (folder / f"{program}-{words[-1].rpartition('/')[2]}.out").open("w") as file:
        path = shutil.which(program, path=SEARCH)
        process = subprocess.Popen([str(path), *words], stdout=file, stderr=subprocess.STDOUT, env=environment)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
