"""A SuperExec that runs approved apps only, and keeps the tokens of their tasks from other users of the machine.

Flower's own executor starts any app. It also puts the token of a task on the command line of the process, where every
user of the machine can read it; the token suffices to read the task's model and to write its result. Here the process
reads the token from a file without a name.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .approved_apps import checked_digests, refusal
from .client_process import ClientProcesses
from .internals import Task, run_program, start_tasks_by
from .json_logs import launcher


def run_superexec(approved: Sequence[str], arguments: Sequence[str]) -> None:
    """Run `flower-superexec` with these arguments, for approved apps only, until the process ends.

    Raises InputError for a malformed digest, and if the check cannot be added to this version of Flower.
    """
    start_tasks_by(ApprovedTasks(checked_digests(approved)))
    run_program("flower-superexec", arguments)


class ApprovedTasks:
    """Starts servers of approved apps, and clients, whose apps the SuperNode has checked."""

    def __init__(self, approved: frozenset[str]) -> None:
        self._approved, self._clients = approved, ClientProcesses()

    def start(self, task: Task) -> str | None:
        """Start a task, unless it is the server of an app that is not approved: then return the reason."""
        if not task.is_server:
            self._clients.run(task.command[1:], task.token)
            return None
        if task.app not in self._approved:
            return refusal("server", task.app, self._approved)
        with private_file(task.token.encode()) as token:
            subprocess.Popen(  # noqa: S603 (Flower's own programs)
                [*launcher(task.command[0]), *task.command, "--token-file", f"/dev/fd/{token}"], stdout=task.output,
                stderr=task.output, pass_fds=[token],
            )  # fmt: skip
        return None

    def prepare(self) -> None:
        """Start the process of the next message of a client, if the last one has ended."""
        self._clients.prepare()

    def close(self) -> None:
        """End the process that waits."""
        self._clients.close()


@contextmanager
def private_file(content: bytes) -> Iterator[int]:
    """Write `content` to a file without a name, and yield its handle N.

    A process that inherits the handle can read the file once, as /dev/fd/N.
    """
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()
