"""A disk that forgets: what nobody has asked it to keep may be gone after a crash."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedflat.engine import slot_file

OPERATIONS = ("open", "fsync", "replace", "rename", "unlink", "rmdir", "mkdir", "ftruncate", "pwrite", "pwritev")
Names = dict[int, dict[str, int]]  # inode of a folder -> its names, with the inode of each
Contents = dict[int, bytes]  # inode of a file -> its bytes
State = dict[str, bytes]  # path below the folder -> bytes


class ForgetfulDisk:
    """Watches one folder, and says what a crash may leave of it.

    The bytes of a file are safe when that file was synced, a name when the folder that it is in was synced. Names that
    are not safe are lost, or kept in one folder, or kept in all; bytes that are not safe are lost, or kept in the first
    half of every file, or kept. What is there at the beginning is safe. Files are told apart by their inodes, so it
    does not matter which library writes them.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.crashes: list[list[State]] = []  # what a crash before each operation may leave
        self._folder, self._one, self._open, self._held = folder, threading.RLock(), os.open, list[int]()
        self._has_ended, self._root = False, folder.stat().st_ino
        self._safe_names, self._safe_contents = self._now()
        self._hold({*self._safe_names, *self._safe_contents})
        for name in OPERATIONS:
            patch.setattr(os, name, self._watched(getattr(os, name), name == "fsync"))
        patch.setattr(slot_file, "_flush", self._watched(slot_file._flush, True))

    def __enter__(self) -> ForgetfulDisk:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._held:
            os.close(handle)

    def begin(self) -> None:
        """Note crashes from here on."""
        self.crashes.clear()
        self._has_ended = False

    def end(self) -> None:
        """Note the crash that comes after everything, and none that comes later."""
        self.crashes.append(self.after_a_crash())
        self._has_ended = True

    @property
    def last(self) -> int:
        """The number of the last crash."""
        return len(self.crashes) - 1

    def after_a_crash(self) -> list[State]:
        """What a crash at this moment may leave."""
        names, contents = self._now()
        never_synced: Names = {folder: {} for folder in names}
        safe = never_synced | self._safe_names
        one_more = [safe | {folder: names[folder]} for folder in names if names[folder] != safe[folder]]
        found = [
            dict(_files(self._root, some_names, some_contents, ""))
            for some_names in (safe, *one_more, names)
            for some_contents in (self._safe_contents, self._torn(contents), self._safe_contents | contents)
        ]
        return [state for place, state in enumerate(found) if state not in found[:place]]

    def during(self, act: Callable[[], object]) -> list[State]:
        """Do `act`; every different state that a crash in it may leave."""
        self.begin()
        act()
        found: list[State] = []
        for state in (state for crash in self.crashes for state in crash):
            if state not in found:
                found.append(state)
        return found

    def _torn(self, contents: Contents) -> Contents:
        """The bytes of every file, if only the first half of what is not safe was written."""
        torn = dict(self._safe_contents)
        for inode, new in contents.items():
            half = len(new) // 2
            torn[inode] = new[:half] + torn.get(inode, b"")[half:]
        return torn

    def _watched(self, function: Callable[..., Any], syncs: bool) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if self._has_ended:
                return function(*arguments, **named)
            with self._one:
                self.crashes.append(self.after_a_crash())
                done = function(*arguments, **named)
                if syncs:
                    self._sync(arguments[0])
                return done

        return watched

    def _sync(self, handle: int) -> None:
        """What the open file or folder has now is safe."""
        names, contents = self._now()
        inode = os.fstat(handle).st_ino
        if inode in names:
            self._safe_names[inode] = names[inode]
        elif inode in contents:
            self._safe_contents[inode] = contents[inode]
        self._hold({inode})

    def _hold(self, inodes: set[int]) -> None:
        """Keep what is safe open: the system gives the inode of a file that was removed to a new one."""
        for path in (self._folder, *self._folder.rglob("*")):
            if path.lstat().st_ino in inodes:
                self._held.append(self._open(path, os.O_RDONLY))

    def _now(self) -> tuple[Names, Contents]:
        """The folder as it is for a process that does not crash."""
        names: Names = {}
        contents: Contents = {}
        for place, _, _ in os.walk(self._folder):
            found = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(place)}
            names[os.stat(place).st_ino] = {name: status.st_ino for name, status in found.items()}
            for name, status in found.items():
                if stat.S_ISREG(status.st_mode):
                    contents[status.st_ino] = Path(place, name).read_bytes()
        return names, contents


def _files(folder: int, names: Names, contents: Contents, above: str) -> Iterator[tuple[str, bytes]]:
    """The files below a folder; one whose bytes are not safe is empty."""
    for name, inode in names.get(folder, {}).items():
        if inode in names:
            yield from _files(inode, names, contents, f"{above}{name}/")
        else:
            yield above + name, contents.get(inode, b"")
