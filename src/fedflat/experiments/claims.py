"""The claim on a run's folder: of all processes on the machines that share the folder, one writes it at a time.

The process that writes a folder has a file there, `.claim`, and counts up a number in it every few seconds: the
heartbeat. Another process takes the folder over if the number stands still for the claim's lease, by its own clock, or
if the file is of this machine and no longer locked, because its process has ended. So nothing depends on the clocks of
other machines, or on locks that reach other machines.

A process that was stopped for longer may believe that the folder is still its own. It does no damage: before each file
is renamed into its place, it reads the claim again, and ends with a ClaimLostError.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from ..core.errors import InputError, printable
from ..files import PUBLIC, fenced, system_errors
from ..operating_system import IS_POSIX, NO_WAITING, lock, open_no_link
from .jobs import VISIBLE

NAME = ".claim"
LEASE = 60.0  # seconds
BEATS = 6  # heartbeats in a lease
SIZE = 1024  # bytes of the file, so that a heartbeat does not change its length
LONGEST = 86_400.0  # seconds; the longest lease

Text = Annotated[str, Field(max_length=200)]
Count = Annotated[int, Field(ge=0)]


class BusyError(InputError):
    """Another process writes the folder."""


class ClaimLostError(BusyError):
    """Another process has taken the folder over, because this one was silent for longer than its lease."""


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Claim:
    """What the file says about the process that writes the folder."""

    token: Text  # of the process and this folder, random
    host: Text
    machine: Text  # as `machine_name` returns it
    pid: Count
    gpus: Text | None  # CUDA_VISIBLE_DEVICES of the process
    lease: Annotated[float, Field(gt=0, le=LONGEST)]  # seconds of silence after which others may take the folder over
    began: Annotated[float, Field(ge=0)]  # seconds since 1970 by the clock of the host
    beat: Count = 0  # the heartbeat
    done: Count = 0  # finished rounds
    rounds: Count = 0  # planned rounds
    seconds: Annotated[float, Field(ge=0)] | None = None  # per round of this process

    @classmethod
    def new(cls, lease: float) -> Claim:
        """Make a claim of this process. Raises InputError as `check_lease` does."""
        check_lease(lease)
        gpus = os.environ.get(VISIBLE, "")[:200] or None
        host = platform.node()[:200]
        return cls(secrets.token_hex(16), host, machine_name(), os.getpid(), gpus, lease, time.time())

    @property
    def holder(self) -> str:
        """The process, in words."""
        return f"process {self.pid} on {printable(self.host) or 'a machine without a name'}"

    def content(self) -> bytes:
        """Return the content of the file."""
        return json.dumps(asdict(self)).encode().ljust(SIZE - 1) + b"\n"


def check_lease(lease: float) -> None:
    """Raise InputError unless 0 < `lease` <= `LONGEST`."""
    if not 0 < lease <= LONGEST:
        raise InputError(f"lease must be more than 0 and at most {LONGEST:.0f} seconds, got {lease}")


@cache
def machine_name() -> str:
    """Return a name that no other machine has: on Linux of its last start, elsewhere of its network address.

    Containers of one machine have different names, because locks in one may not be seen in another: each may have a
    mount of its own.
    """
    with suppress(OSError):
        started = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")[:64].strip()
        return f"{started} {os.readlink('/proc/self/ns/pid')}"
    return f"{platform.node()[:180]}-{uuid.getnode():012x}"


def read_claim(folder: Path) -> tuple[bytes, Claim | None] | None:
    """Return the content of the claim on `folder`, and what it says, None if it is damaged; None without a claim.

    Raises InputError if it cannot be read.
    """
    path = folder / NAME
    with system_errors(path, "read"):
        try:
            handle = open_no_link(path, os.O_RDONLY | NO_WAITING)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with os.fdopen(handle, "rb") as file:
            content = file.read(SIZE)
    try:
        return content, TypeAdapter(Claim).validate_json(content)
    except ValidationError:
        return content, None


@dataclass(frozen=True)
class Observation:
    """What a process knows about the claim on a folder."""

    content: bytes | None  # of the claim's file; None without a claim
    claim: Claim | None  # None without a claim, and for a damaged file
    is_free: bool  # whether this process may claim the folder
    is_alive: bool = False  # whether the heartbeat continued while it was observed
    is_locked: bool = False  # whether a process of this machine holds the lock
    has_ended: bool = False  # whether the process was one of this machine, and has ended

    def busy(self, folder: Path) -> BusyError:
        """Return the error for a folder that is not free."""
        who = self.claim.holder if self.claim else "another process"
        lease = self.claim.lease if self.claim else LEASE
        ends = "" if self.is_alive or self.is_locked else (
            f"; if that has ended, `fedflat resume` takes the run over after {lease:.0f} s")  # fmt: skip
        return BusyError(f"--out {folder} is being written by {who}{ends}")


class ClaimObserver:
    """Observes claims, by the clock of this process."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[bytes, float, bool]] = {}  # content, since when, whether it has changed

    def look(self, folder: Path) -> Observation:
        """Return what is known about the claim on `folder`. Raises InputError if it cannot be read."""
        found = read_claim(folder)
        if found is None:
            self._seen.pop(folder, None)
            return Observation(None, None, is_free=True)
        content, claim = found
        before, since, is_alive = self._seen.get(folder, (content, time.monotonic(), False))
        if content != before:
            since, is_alive = time.monotonic(), True
        self._seen[folder] = content, since, is_alive
        is_silent = time.monotonic() - since >= (claim.lease if claim else LEASE)
        is_locked = claim is not None and claim.machine == machine_name() and _is_locked(folder)
        has_ended = claim is not None and claim.machine == machine_name() and not is_locked
        is_alive = is_alive and not is_silent
        return Observation(content, claim, has_ended or is_silent, is_alive, is_locked, has_ended)


def _is_locked(folder: Path) -> bool:
    """Tell whether a process of this machine has the claim's file locked; True if that cannot be known."""
    try:
        handle = open_no_link(folder / NAME, os.O_RDWR)
    except OSError:
        return True
    try:
        lock(handle)
    except OSError:  # locked, or a file system without locks
        return True
    finally:
        os.close(handle)
    return False


class HeldClaim:
    """The claim of this process on a folder; a thread writes its heartbeat."""

    def __init__(self, folder: Path, claim: Claim, handle: int) -> None:
        """Start the heartbeat of `claim`, whose file in `folder` is open as `handle`."""
        self._folder, self._claim, self._handle = folder, claim, handle
        self._start: tuple[int, float] | None = None  # finished rounds at the first `report`, and when that was
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, name=f"heartbeat of {folder}", daemon=True)
        self._beating.start()

    def report(self, done: int, rounds: int) -> None:
        """Put the progress of the run into the next heartbeat."""
        self._start = self._start or (done, time.monotonic())
        new = done - self._start[0]
        seconds = (time.monotonic() - self._start[1]) / new if new else None
        self._claim = replace(self._claim, done=done, rounds=rounds, seconds=seconds)

    def check(self) -> None:
        """Raise ClaimLostError if another process has taken the folder over, or removed it."""
        found = read_claim(self._folder)
        if found is None or found[1] is None or found[1].token != self._claim.token:
            by = f" by {found[1].holder}" if found and found[1] else ""
            raise ClaimLostError(
                f"--out {self._folder} was taken over{by}, because this process was silent for more than "
                f"{self._claim.lease:.0f} s; what is there is intact"
            )

    def release(self) -> None:
        """End the heartbeat and remove the file, if it is still this process's."""
        self._ended.set()
        self._beating.join()
        try:
            self._remove()
        finally:
            os.close(self._handle)
        if not IS_POSIX:  # Windows removes no open file
            self._remove()

    def _remove(self) -> None:
        with suppress(InputError, OSError):
            self.check()
            (self._folder / NAME).unlink()

    def _beat(self) -> None:
        beat = 0  # counted here alone: `report` replaces the claim in another thread
        while not self._ended.wait(self._claim.lease / BEATS):
            beat += 1
            with suppress(OSError):  # the next one may succeed
                os.lseek(self._handle, 0, os.SEEK_SET)
                os.write(self._handle, replace(self._claim, beat=beat).content())
                os.fsync(self._handle)  # other machines do not see it before


@contextmanager
def claimed(folder: Path, observed: Observation, lease: float = LEASE) -> Iterator[HeldClaim]:
    """Hold the claim on `folder` inside the block, in place of the claim that was `observed` and that may be replaced.

    Inside the block, files are written only while the claim is held. Raises BusyError if the folder is not free, or if
    another process was faster; ClaimLostError if another process takes it over meanwhile.
    """
    if not observed.is_free:
        raise observed.busy(folder)
    claim = Claim.new(lease)
    with system_errors(folder / NAME, "written"):
        held = HeldClaim(folder, claim, _placed(folder, claim, observed))
    try:
        held.check()
        with fenced(held.check):
            yield held
    except InputError:
        held.check()  # the true cause, if another process has removed files of this one
        raise
    finally:
        held.release()


def _placed(folder: Path, claim: Claim, observed: Observation) -> int:
    """Write the file of `claim`, complete or not at all; return its handle, which is locked.

    Raises BusyError if the folder no longer has the observed claim.
    """
    path, temporary = folder / NAME, folder / f".tmp-fedflat-{secrets.token_hex(8)}"
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, PUBLIC)
    try:
        os.write(handle, claim.content())
        os.fsync(handle)
        if not IS_POSIX:  # Windows renames no open file
            os.close(handle)
        else:
            _try_to_lock(handle)
        _publish(temporary, path, observed)
        if not IS_POSIX:
            _try_to_lock(handle := open_no_link(path, os.O_RDWR))
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    except BaseException as error:
        with suppress(OSError):
            os.close(handle)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, FileExistsError | FileNotFoundError):  # another was faster, or swept the temporary file
            raise BusyError(f"--out {folder} is being written by another process") from error
        raise
    return handle


def _try_to_lock(handle: int) -> None:
    """Lock an open file, unless its file system has no locks."""
    with suppress(OSError):
        lock(handle)


def _publish(temporary: Path, path: Path, observed: Observation) -> None:
    """Give the file the name `path`. Raises FileExistsError unless `path` is still as it was observed."""
    if observed.content is None:
        _link(temporary, path)
    elif (found := read_claim(path.parent)) is None or found[0] != observed.content:
        raise FileExistsError
    else:
        os.replace(temporary, path)


def _link(temporary: Path, path: Path) -> None:
    """Give the file the name `path`. Raises FileExistsError if there is a file of this name."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PUBLIC))
        os.replace(temporary, path)
