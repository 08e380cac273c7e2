"""The state of a client between the steps of a secure sum, stored in files, as each step runs in its own process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter
from safetensors.numpy import load, save

from ...core.errors import InputError
from ...files import create_folder, flush_folder, locked, read_bytes, sweep, system_errors, write_atomically
from ...rounds.checksums import read_checked, write_checked
from ..messages import RefusedError
from .keys import digest
from .messages import Integers, MaskRequest, SharesRequest

OWNER_ONLY = 0o700
SESSION, SUMMAND, UNMASKED, LOCK = "session.json", "summand.safetensors", "unmasked.json", ".lock"
HEADER = 2**16  # bytes that the file of the sums may have in addition to its numbers
MOST = 2**26  # bytes of the file of a session, or of the file of unmasked rounds


@dataclass(frozen=True)
class Session:
    """A client's part in one attempt at a sum. Whoever reads it can remove this client's masks."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex", strict=True, extra="forbid")
    name: str
    about: str  # study, federation and round, to which every message is bound
    number: int  # of the client
    threshold: int  # at least this many clients must take part
    channel_secret: bytes
    mask_secret: bytes
    seed: bytes
    names: tuple[str, ...]  # of the sums
    places: tuple[int, ...]  # the highest place of each sum
    numbers: int  # count of integers in all sums
    model: bytes  # SHA-256 of the broadcast from which the client trained
    sums_digest: bytes = b""  # SHA-256 of the file of the sums, once it is written
    shares_request: SharesRequest | None = None  # the request of step 2, once it is answered
    mask_request: MaskRequest | None = None  # the request of step 3, once it is answered


Rounds = dict[str, tuple[str, Annotated[tuple[int, ...], Field(min_length=1)]]]
STORED_SESSION, STORED_ROUNDS = TypeAdapter(Session), TypeAdapter(Rounds)


class SessionFolder:
    """The files of a client's session; a client has at most one session. Only their owner can read the files.

    Methods that write or remove files, except `begin`, must be called inside a `locked` block.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` is created at the first `begin`."""
        self._folder = folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the session's lock inside the block.

        Raises InputError if another process holds the lock, or if there is no session.
        """
        if not self._folder.is_dir():
            raise InputError("there is no session of a secure sum")
        with locked(self._folder / LOCK, f"{self._folder} is in use by another process"):
            yield

    def begin(self, session: Session, summand: Mapping[str, Integers]) -> None:
        """Begin a session, and remove any earlier one.

        Raises InputError if the files cannot be written, or if another process is in a step of the earlier session.
        """
        with system_errors(self._folder, "written"):
            create_folder(self._folder, OWNER_ONLY)
            self._folder.chmod(OWNER_ONLY)
        content = save({name: np.ascontiguousarray(x) for name, x in summand.items()})
        with self.locked():
            sweep(self._folder)
            self.end()
            write_atomically(self._folder / SUMMAND, lambda path: path.write_bytes(content), private=True)
            self.save(replace(session, sums_digest=digest(content)))

    def save(self, session: Session) -> None:
        """Write the session after a step. Raises InputError if it cannot be written."""
        write_checked(self._folder / SESSION, STORED_SESSION.dump_python(session, mode="json"), private=True)

    def load(self, name: str) -> Session:
        """Read the session called `name`. Raises RefusedError if it is over or unknown, InputError if it is damaged."""
        path = self._folder / SESSION
        if not path.exists():
            raise RefusedError("this session of a secure sum is over")
        table = read_checked(path, MOST)
        try:
            session = STORED_SESSION.validate_json(json.dumps(table))
        except ValueError as error:
            raise InputError(f"{path} is damaged") from error
        if session.name != name:
            raise RefusedError("this session of a secure sum is over")
        return session

    def summand(self, session: Session) -> dict[str, Integers]:
        """Read the client's sums (places, width), in the session's order. Raises InputError if they are damaged."""
        path = self._folder / SUMMAND
        content = read_bytes(path, HEADER + 8 * session.numbers)
        if digest(content) != session.sums_digest:
            raise InputError(f"{path} is damaged: it does not have the SHA-256 of its session")
        found = load(content)
        return {name: found[name] for name in session.names}

    def end(self) -> None:
        """Remove secrets and sums. They do not reappear after a power failure."""
        with system_errors(self._folder, "removed"):
            for name in (SESSION, SUMMAND):
                (self._folder / name).unlink(missing_ok=True)
            flush_folder(self._folder)


class UnmaskedRounds:
    """The survivors for whom a client has disclosed shares, by round. All federations of a study share one file."""

    def __init__(self, folder: Path) -> None:
        """`folder` is created at the first `claim`."""
        self._folder = folder

    def of(self, t: int, federation: str, study: str) -> tuple[int, ...]:
        """Return the survivors of round `t` for whom this client has disclosed shares; empty if it has not.

        study: the study's digest, for the error message. Raises RefusedError if this client has disclosed shares of the
        round in another federation, and InputError if the file is damaged.
        """
        before, survivors = self._rounds().get(str(t), (federation, ()))
        if before != federation:
            raise RefusedError(
                f"round {t} of study {study} has been unmasked in federation {before}, and this is {federation}: take "
                "another seed, or see unmask-again in docs/secure_sum.md"
            )
        return survivors

    def claim(self, t: int, federation: str, survivors: tuple[int, ...]) -> None:
        """Record that round `t` is unmasked for `survivors`. Raises InputError if the file cannot be written."""
        write_checked(self._folder / UNMASKED, self._rounds() | {str(t): (federation, survivors)}, private=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the file inside the block. Raises InputError if another process holds it."""
        with system_errors(self._folder, "written"):
            create_folder(self._folder, OWNER_ONLY)
            self._folder.chmod(OWNER_ONLY)
        if not (self._folder / LOCK).exists() and not (self._folder / UNMASKED).exists():
            write_checked(self._folder / UNMASKED, {}, private=True)
        with locked(self._folder / LOCK, f"{self._folder} is in use by another process"):
            yield

    def _rounds(self) -> Rounds:
        """Read federation and survivors by round. Raises InputError if the file is missing or damaged."""
        path = self._folder / UNMASKED
        if not path.exists():
            if (self._folder / LOCK).exists():
                raise InputError(f"{path} is missing: rounds that were unmasked could be unmasked for others")
            return {}
        table = read_checked(path, MOST)
        try:
            return STORED_ROUNDS.validate_json(json.dumps(table), strict=True)
        except ValueError as error:
            raise InputError(f"{path} is damaged") from error
