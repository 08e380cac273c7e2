"""Shakespeare by role, for predicting the next character: LEAF's files, or one text in which roles speak.

A sample has 80 characters of a line, filled up with spaces at the front; its class is the character that follows, as in
LEAF (Caldas et al., 2018). Or it has 80 characters of what a role says, filled up at the end, and the label of each is
the character that follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.task import IGNORED
from .file_search import plain_files
from .layouts import Part, Shape
from .leaf_files import leaf_users
from .site_files import of_parts, site_files
from .untrusted_files import MAX_SAMPLES, expect, listed, read_regular

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's, in its order
LENGTH = 80  # characters of a sample
FIRST = 2  # token number of the first letter; 0 is padding, 1 any other character
TEST = 10  # the last 1/10 of the lines of a role are for test
ROLE = re.compile(r"(?:\A|\n\n)([^\n:]{1,80}):\n")  # the first line of a piece, which names the role that speaks
SPACES = re.compile("  +")
_NUMBER = {letter: i for i, letter in enumerate(LETTERS)}


@dataclass
class Characters:
    """Samples as they are collected: token numbers in pieces, classes and roles."""

    x: list[NDArray[np.int8]] = field(default_factory=list)
    y: list[NDArray[np.int64]] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)

    def add(self, x: NDArray[np.int8], following: str, role: str) -> None:
        """Add samples (n, 80) with the characters that follow, except those that are no class."""
        known = np.array([letter in _NUMBER for letter in following], dtype=bool)
        self.x.append(x[known])
        self.y.append(np.array([_NUMBER[letter] for letter in following if letter in _NUMBER], dtype=np.int64))
        self.roles += [role] * int(known.sum())

    def add_pieces(self, text: str, role: str) -> None:
        """Add `text` in pieces of 80 characters, with the token that follows each; what is no letter is ignored."""
        numbers = tokens(text).astype(np.int64)
        pieces = -(-(len(numbers) - 1) // LENGTH)
        x, y = np.zeros((pieces, LENGTH), np.int8), np.full((pieces, LENGTH), IGNORED)
        x.reshape(-1)[: len(numbers) - 1] = numbers[:-1]
        y.reshape(-1)[: len(numbers) - 1] = np.where(numbers[1:] < FIRST, IGNORED, numbers[1:])
        counts = (y != IGNORED).any(1)
        self.x.append(x[counts])
        self.y.append(y[counts])
        self.roles += [role] * int(counts.sum())

    def part(self, file: str) -> Part:
        """Return the samples. Raises InputError, naming the file, if there are none."""
        expect(0 < len(self.roles) <= MAX_SAMPLES, file, f"{len(self.roles):,} samples; 1 to {MAX_SAMPLES:,} are read")
        return Part(np.concatenate(self.y), self.x, user=self.roles)


@dataclass(frozen=True)
class LeafPlays:
    """LEAF's `train/*.json` and `test/*.json` with texts of 80 characters."""

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        files = site_files(folder, (".json",), of_clients=False)
        if not files:
            return None
        found = {}
        for part, some in of_parts(files, folder).items():
            characters = Characters()
            for file in some:
                for user, x, y in leaf_users(file.path):
                    _check(str(file.path), user, x, y)
                    if x:
                        characters.add(np.stack([tokens(text) for text in x]), "".join(y), user)
            found[part] = characters.part(str(some[0].path))
        return found

    def __str__(self) -> str:
        return "train/*.json and test/*.json of LEAF"


@dataclass(frozen=True)
class RoleText:
    """One text, `input.txt`: a role's name and a colon, what it says, a line without text. Each role is a user.

    The last tenth of a role's lines is for test. No sample is from lines of both parts.
    """

    name: str = "input.txt"
    in_pieces: bool = False  # whether a sample is a piece of a role's text, with the token that follows each
    most: int | None = None  # roles; of more, those with the most lines

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        path = next((path for path in plain_files(folder) if path.name == self.name), None)
        if path is None:
            return None
        lines = lines_by_role(read_regular(path).decode("utf-8", errors="replace"))
        expect(bool(lines), str(path), "has no line such as 'First Citizen:', after which a role speaks")
        train, test = Characters(), Characters()
        largest = sorted(lines, key=lambda role: -len(lines[role]))[: self.most]
        for role, spoken in ((role, lines[role]) for role in lines if role in largest):
            last = len(spoken) // TEST
            for part, some in ((train, spoken[: len(spoken) - last]), (test, spoken[len(spoken) - last :])):
                if self.in_pieces and some:
                    part.add_pieces("".join(some), role)
                for line in () if self.in_pieces else some:
                    part.add(windows(line), line, role)
        return {"train": train.part(str(path)), "test": test.part(str(path))}

    def __str__(self) -> str:
        return f"{self.name} with roles that speak"


def lines_by_role(text: str) -> dict[str, list[str]]:
    """Return the lines that each role says, with their ends, in the order of the text."""
    _, *pieces = ROLE.split(text)
    lines: dict[str, list[str]] = {}
    for role, speech in zip(pieces[::2], pieces[1::2], strict=True):
        said = [f"{SPACES.sub(' ', line)}\n" for line in speech.split("\n") if line.strip()]
        lines.setdefault(role, []).extend(said)
    return {role: said for role, said in lines.items() if said}


def windows(line: str) -> NDArray[np.int8]:
    """Return for each character of `line` the token numbers of the 80 before it, (n, 80)."""
    padded = tokens(" " * LENGTH + line)
    return np.lib.stride_tricks.sliding_window_view(padded, LENGTH)[:-1].copy()


def tokens(text: str) -> NDArray[np.int8]:
    """Return the token number of each character."""
    return np.array([_NUMBER.get(letter, -1) + FIRST for letter in text], dtype=np.int8)


def _check(file: str, user: str, x: Sequence[Any], y: Iterable[Any]) -> None:
    fits = all(isinstance(text, str) and len(text) == LENGTH for text in x)
    expect(fits, file, f"user {listed([user])!r} has samples that are not texts of {LENGTH} characters")
    letters = all(isinstance(letter, str) and len(letter) == 1 for letter in y)
    expect(letters, file, f"user {listed([user])!r} has labels that are not one character each")
