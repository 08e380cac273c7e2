"""Starts Flower's programs on this machine, and ends them and everything that they have started."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep

from ...files import system_errors
from ..membership import FederationError
from . import orphan_reaper

OFFLINE = {  # no telemetry is sent to the makers of Flower, and nothing is installed
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "no_proxy": "127.0.0.1,localhost",
}
TOKEN_VARIABLE = "FEDFLAT_STARTED_BY"  # in the environment of every process started here, which passes it on  # noqa: S105
UMASK = 0o077  # only the owner can read what the programs write, which reveals gradients on samples
OUTPUT_LENGTH = 300  # characters of a program's output in an error
# After a process has called this, Linux sends it SIGTERM when its parent ends; 1 is PR_SET_PDEATHSIG. The library is
# loaded here, because little is allowed between fork and exec.
END_WITH_PARENT = partial(ctypes.CDLL(None).prctl, 1, signal.SIGTERM) if sys.platform == "linux" else None


class Processes:
    """Flower's programs by name. They share a home folder; their output goes to `folder`/logs."""

    def __init__(self, folder: Path) -> None:
        """Nothing is written before `prepare`."""
        self.home, self._logs = folder / "home", folder / "logs"
        self._token = f"{TOKEN_VARIABLE}={secrets.token_hex(16)}"
        self._reaper: subprocess.Popen[bytes] | None = None
        self._scripts, self._running = Path(sysconfig.get_path("scripts")), dict[str, subprocess.Popen[bytes]]()
        path = os.pathsep.join((str(self._scripts), os.environ.get("PATH", os.defpath)))
        name, value = self._token.split("=")
        self.environment = {**os.environ, **OFFLINE, "FLWR_HOME": str(self.home), "PATH": path, name: value}

    def prepare(self) -> None:
        """Make the folders, end processes left by an earlier run with this home folder, and start the reaper.

        The caller holds the folder's lock, so no other process uses this home folder.
        """
        with system_errors(self.home, "written"):
            for path in (self.home, self._logs):
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
        orphan_reaper.end_processes(f"FLWR_HOME={self.home}", f"{TOKEN_VARIABLE}=")
        self._reaper = subprocess.Popen(  # noqa: S603 (our own program)
            [sys.executable, "-I", orphan_reaper.__file__, self._token],
            stdin=subprocess.PIPE,
            start_new_session=True,  # so that Ctrl-C in a terminal does not end it
        )

    def start(self, name: str, program: str, *arguments: str) -> None:
        """Start a program.

        The program ends at the latest when this process ends; on Linux, at the latest when the calling thread ends.
        """
        with open(self._logs / f"{name}.log", "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
            self._running[name] = subprocess.Popen(  # noqa: S603 (Flower's own programs)
                [str(self._scripts / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                umask=UMASK,
                start_new_session=True,  # Ctrl-C in a terminal ends this process, which then ends the programs in order
                preexec_fn=END_WITH_PARENT,  # noqa: PLW1509 (one system call)
            )

    def run(self, program: str, *arguments: str, seconds: float = 60.0) -> str:
        """Run a program and return its output. Raises FederationError if it fails or takes more than `seconds`."""
        try:
            done = subprocess.run(  # noqa: S603 (Flower's own programs)
                [str(self._scripts / program), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
                env=self.environment,
                umask=UMASK,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise FederationError(f"{program} {arguments[0]} took more than {seconds:g} seconds") from error
        if done.returncode:
            raise FederationError(f"{program} {arguments[0]}: {_end_of(done.stderr + done.stdout)}")
        return done.stdout

    def check(self) -> None:
        """Raise FederationError, with the end of the program's log, if a program has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                output = _end_of((self._logs / f"{name}.log").read_text(errors="replace"))
                raise FederationError(f"{name} has ended with code {process.returncode}: {output}")

    def is_running(self, name: str) -> bool:
        """Return whether a program was started and has not ended."""
        return name in self._running and self._running[name].poll() is None

    def kill(self, name: str) -> None:
        """End a program with SIGKILL, as a crash would."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self, patience: float = 3.0) -> None:
        """End all programs, in reverse order of their start, and the processes that they have started."""
        for process in reversed(self._running.values()):
            process.terminate()
        end = monotonic() + patience
        for process in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(end - monotonic(), 0.1))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._running.clear()
        while self.remaining() and monotonic() < end + patience:
            sleep(0.1)
        orphan_reaper.end_processes(self._token, terminate_seconds=0.0)
        if self._reaper:
            self._reaper.communicate()  # closes the pipe; the reaper finds nothing to do and ends
            self._reaper = None

    def remaining(self) -> list[int]:
        """List the ids of the running processes that this object started, and of their descendants. Linux only."""
        return orphan_reaper.find_processes(self._token)


def _end_of(output: str) -> str:
    return " ".join(output.split())[-OUTPUT_LENGTH:]
