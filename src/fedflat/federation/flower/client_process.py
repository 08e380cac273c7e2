"""The process of one message at a client. It is started before the message arrives, and imports what it will need.

Flower starts `flwr-clientapp` when a message has arrived, and the process then imports torch, which takes seconds. Here
the process of the next message is started when the last one has ended. Each message has a process of its own, as with
Flower, and no process knows the token of a task before the task is its own.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path

from .json_logs import set_up_logs

PACKAGES = ("fedflat", "flwr", "torch")
CLIENT = "flwr-clientapp"
PROGRAM = ("-P", "-m", __name__)  # arguments of the interpreter


class ClientProcess:
    """A process that runs `flwr-clientapp` with the arguments `words` once it has received a token."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._token = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (without a name; open and empty until `run`)
        handle = self._token.fileno()
        command = [sys.executable, *PROGRAM, *words, "--token-file", f"/dev/fd/{handle}"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[handle])  # noqa: S603 (this module)

    def run(self, token: str) -> None:
        """Give the process the token of its task."""
        self._token.write(token.encode())
        self.close()

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def close(self) -> None:
        """Let the process continue: with its token, or to its end if it has none."""
        self._token.close()
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        self._process.stdin.close()


class ClientProcesses:
    """The processes of a client's messages: those that run, and at most one that waits for the next message."""

    def __init__(self) -> None:
        self._running: list[ClientProcess] = []
        self._waiting: ClientProcess | None = None

    def run(self, words: Sequence[str], token: str) -> None:
        """Run a task in the process that waits, or in a new one if none waits that has these arguments."""
        process, self._waiting = self._waiting, None
        if process is None or process.words != tuple(words) or process.has_ended():
            if process is not None:
                process.close()
            process = ClientProcess(words)
        process.run(token)
        self._running.append(process)

    def prepare(self) -> None:
        """Start the process of the next message if the last one has ended, so that they do not share the processor."""
        if self._running and all(process.has_ended() for process in self._running):
            self._waiting = self._waiting or ClientProcess(self._running[-1].words)
            self._running.clear()

    def close(self) -> None:
        """End the process that waits."""
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None


def main() -> None:
    """Import modules, wait until the standard input ends, and run `flwr-clientapp` with this process's arguments.

    If there is no token then, the process that starts tasks has ended, and so does this one. If packages have been
    updated in the meantime, this process begins again, with their new versions.
    """
    gc.disable()  # importing torch with it takes half as long again
    set_up_logs()
    run = _imported()
    gc.freeze()
    gc.enable()
    imported = _installed()
    sys.stdin.read()
    if _installed() != imported:
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 (this program)
    if Path(sys.argv[-1]).stat().st_size:
        sys.argv[0] = CLIENT
        run()


def _imported() -> Callable[[], None]:
    """Import what a message will need; return the function that runs Flower's program."""
    import_module(f"{__package__}.client_app")  # imports torch, which the executor that starts this process does not
    from .internals import load_program

    return load_program(CLIENT)


def _installed() -> list[str]:
    """Return the installed versions of the packages whose code a waiting process has imported."""
    return [found.version for name in PACKAGES for found in distributions(name=name)]


if __name__ == "__main__":
    main()
