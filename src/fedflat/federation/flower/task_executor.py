"""Starts the processes of a SuperExec: those of approved apps alone, with tokens that no other user can see.

Flower's own executor starts any app, and writes the token of a task, with which its model can be read and its result be
written, on the command line of the process, where every user of the machine can read it.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from flwr.supercore.constant import TASK_TYPE_TO_APPIO_API_ADDRESS_ARG, TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

from ...core.errors import InputError

TASKS = frozenset({TaskType.SERVER_APP, TaskType.CLIENT_APP})
MAKER = "get_executor"  # the function of Flower that is replaced


class ApprovedExecutor(SubprocessExecutor):
    """Flower's executor, for approved apps. Which app a client's task is of, its SuperNode has checked."""

    def __init__(self, approved: frozenset[str]) -> None:
        """approved: digests of apps whose server's part may run."""
        self._approved = approved

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], *, insecure: bool = False, root_certificates_path: str | None = None
    ) -> tuple[set[TaskType], set[str]]:
        return supported_task_types & TASKS, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        found = f"sha256:{spec.fab_hash}"
        if spec.task_type is TaskType.SERVER_APP and found not in self._approved:
            return LaunchResult.failed(f"this server was sent the app {found}, and runs only "
                                       f"{' or '.join(sorted(self._approved))}")  # fmt: skip
        output = subprocess.DEVNULL if spec.suppress_output else None
        with private_file(spec.token.encode()) as token:
            subprocess.Popen(  # noqa: S603 (Flower's own programs)
                [*_program(spec), "--token-file", f"/dev/fd/{token}"], stdout=output, stderr=output, pass_fds=[token]
            )
        return LaunchResult.accepted()


def _program(spec: ExecutionSpec) -> list[str]:
    """The command of a task, without its token."""
    name = TASK_TYPE_TO_COMMAND[spec.task_type]
    path = Path(sysconfig.get_path("scripts")) / name
    words = [str(path) if path.exists() else name, TASK_TYPE_TO_APPIO_API_ADDRESS_ARG[spec.task_type]]
    words += [spec.runtime_api_address, *["--insecure"] * spec.insecure]
    if spec.root_certificates_path and not spec.insecure:
        words += ["--root-certificates", spec.root_certificates_path]
    return words if spec.parent_pid is None else [*words, "--parent-pid", str(spec.parent_pid)]


@contextmanager
def private_file(content: bytes) -> Iterator[int]:
    """A file without a name, as the handle by which a process that is started with it reads it once, /dev/fd/N."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def run_superexec(approved: frozenset[str], arguments: Sequence[str]) -> None:
    """Be `flower-superexec` with these arguments, for approved apps; it ends the process.

    Raises InputError if this version of Flower cannot be given the executor.
    """
    program = import_module("flwr.supercore.superexec.run_superexec")
    if not hasattr(program, MAKER):
        raise InputError("this version of Flower starts apps in another way; install flwr 1.41")
    make: Callable[..., ApprovedExecutor] = lambda *_, **__: ApprovedExecutor(approved)  # noqa: E731
    setattr(program, MAKER, make)
    sys.argv = ["flower-superexec", *arguments]
    import_module("flwr.supercore.cli.flower_superexec").flower_superexec()
