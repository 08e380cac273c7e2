"""Flower's programs on this machine: started apart from everything else, and ended without a trace."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from ...files import said_of
from ..membership import FederationError
from . import orphan_reaper

SILENT = {  # nothing outside is called, nothing is installed
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "no_proxy": "127.0.0.1,localhost",
}
MARK = "FEDFLAT_STARTED_BY"  # in the environment of all that was started here, and of what that has started
PRIVATE = 0o077  # umask of programs: what they keep tells of samples
_LIBRARY = ctypes.CDLL(None)  # opened here: in a new process, before its program, little may be done
SHOWN = 300  # characters of what a program says when it fails


class Processes:
    """Programs that share a home, by name; what they print goes to `folder`/logs."""

    def __init__(self, folder: Path) -> None:
        """Nothing is touched before `prepare`."""
        self.home, self._logs = folder / "home", folder / "logs"
        self._token = secrets.token_hex(16)
        self._keeper: subprocess.Popen[bytes] | None = None
        scripts = sysconfig.get_path("scripts")
        search = os.pathsep.join((scripts, os.environ.get("PATH", os.defpath)))
        own = {"FLWR_HOME": str(self.home), "PATH": search, MARK: self._token}
        self._environment: dict[str, str] = {**os.environ, **SILENT, **own}
        self._scripts, self._running = Path(scripts), dict[str, subprocess.Popen[bytes]]()

    def prepare(self) -> None:
        """Make the folders, and end what a killed process has left; the caller holds the folder's lock, so that all
        who have started something with this home are gone."""
        with said_of(self.home, "written"):
            for path in (self.home, self._logs):
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
        orphan_reaper.end(f"FLWR_HOME={self.home}", f"{MARK}=")
        self._keeper = subprocess.Popen(  # noqa: S603 (our own program)
            [sys.executable, "-I", orphan_reaper.__file__, f"{MARK}={self._token}"],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal is not for it
        )

    def start(self, name: str, program: str, *arguments: str) -> None:
        """Start a program, which ends with this process, on Linux with this thread, at the latest."""
        with open(self._logs / f"{name}.log", "ab", opener=_private) as log:
            self._running[name] = subprocess.Popen(  # noqa: S603 (Flower's own programs)
                [str(self._scripts / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                umask=PRIVATE,
                start_new_session=True,  # Ctrl-C in a terminal is for us; we end them
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 (one system call)
            )

    def call(self, program: str, *arguments: str, seconds: float = 60.0) -> str:
        """What a program prints. Raises FederationError if it fails, or takes longer."""
        try:
            done = subprocess.run(  # noqa: S603 (Flower's own programs)
                [str(self._scripts / program), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
                env=self._environment,
                umask=PRIVATE,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise FederationError(f"{program} {arguments[0]} took more than {seconds:g} seconds") from error
        if done.returncode:
            raise FederationError(f"{program} {arguments[0]}: {' '.join((done.stderr + done.stdout).split())[-SHOWN:]}")
        return done.stdout

    def check(self) -> None:
        """Raise FederationError if a program has ended, with the last that it said."""
        for name, process in self._running.items():
            if process.poll() is not None:
                said = " ".join((self._logs / f"{name}.log").read_text(errors="replace").split())[-SHOWN:]
                raise FederationError(f"{name} has ended with code {process.returncode}: {said}")

    def lives(self, name: str) -> bool:
        """Whether a program has been started and has not ended."""
        return name in self._running and self._running[name].poll() is None

    def kill(self, name: str) -> None:
        """End a program at once, as a crash would."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self, patience: float = 3.0) -> None:
        """End all, the last first, and what they have started."""
        for process in reversed(self._running.values()):
            process.terminate()
        end = monotonic() + patience
        for process in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(end - monotonic(), 0.1))
            _kill_group(process.pid)
            process.wait()
        self._running.clear()
        while self.left() and monotonic() < end + patience:
            sleep(0.1)
        orphan_reaper.end(f"{MARK}={self._token}", polite=0.0)
        if self._keeper:
            self._keeper.communicate()  # it sees that nothing is left, and ends
            self._keeper = None

    def left(self) -> list[int]:
        """The numbers of the processes that were started here, or by those; only Linux tells."""
        return orphan_reaper.marked(f"{MARK}={self._token}")


def _end_with_parent() -> None:
    """In a new process: have the system end it with this one."""
    _LIBRARY.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _kill_group(number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
