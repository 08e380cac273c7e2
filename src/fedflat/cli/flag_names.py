"""Flags by their names: which ones there are, and what a mistyped one was probably meant to be.

Nothing is imported that takes long, so that a mistyped flag is refused at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise

from ..core.errors import InputError, printable, shortened
from ..core.registry import plain
from .completion import Kind, method_names, partition_names, setting_names

LISTS = ("flatness", "methods", "probes")  # of tables with a name
TABLES = ("client_of", "grid", "participation")  # fields that take a table as one text
LONGEST = 1500  # characters of a message


def key_of(word: str) -> str:
    """Return the key of a flag, with `_` for `-`, as keys are written."""
    return word[2:].partition("=")[0].replace("-", "_")


def check_flags(words: Sequence[str], kind: Kind = "run") -> None:
    """Raise InputError for a flag that no configuration of this kind can have.

    A class outside this package may have any flag.
    """
    known = setting_names(kind)
    open_sections = {name for name in ("method", "partition") if _may_be_outside(name, words)}
    for word in filter(lambda word: word.startswith("--"), words):
        key = key_of(word)
        section = key.partition(".")[0]
        if not (is_known(key, known) or key.startswith("model.options.") or section in open_sections):
            fields = [f"methods.{name[7:]}" for name in setting_names() if kind != "run" and name.startswith("method.")]
            raise unknown_flag(word, words, known + fields)


def is_known(key: str, known: Iterable[str]) -> bool:
    """Tell whether a key, or a section of keys, is one of `known`."""
    return any(name == key or name.startswith(f"{key}.") for name in known)


def _may_be_outside(section: str, words: Sequence[str]) -> bool:
    """Tell whether a method, or partition, may be a class outside this package: in a file, or by its name."""
    text = " ".join(words).replace("=", " ").split()
    given = [name for flag, name in pairwise(text) if flag in (f"--{section}", f"--{section}.name")]
    inside = {plain(name) for name in (method_names() if section == "method" else partition_names())}
    in_file = bool(words) and not words[0].startswith("-")
    return in_file or any(":" in word for word in words) or any(plain(name) not in inside for name in given)


def unknown_flag(word: str, words: Sequence[str], known: Sequence[str]) -> InputError:
    """Return the error for the unknown flag `word` among `words`: one line, with the flag that was probably meant."""
    return InputError(printable(shortened(f"--{key_of(word)}: {_problem(key_of(word), words, known)}", LONGEST)))


def _problem(key: str, words: Sequence[str], known: Sequence[str]) -> str:
    """Say what is wrong with an unknown key."""
    owner, _, field = key.partition(".")
    lists = [name for name in LISTS if is_known(name, known)]
    for name in lists:
        if owner in (name, name.removesuffix("s")):
            return f"{name} is a list; write {_entry(name)} for each entry"
    if field and owner in TABLES and is_known(owner, known):
        return f"{owner} takes a table as one text; write --{owner} '{_nested_text(field)}'"
    meant = _meant(key, words, [*known, *lists])
    name, dot, _ = meant[0].partition(".") if meant else ("", "", "")
    if dot and name in lists:
        return f"unknown flag; a field of an entry of {name} is written as {_entry(name, field or key)}"
    return "unknown flag" + (f"; did you mean --{' or --'.join(meant)}?" if meant else "; `--keys` lists them all")


def _meant(key: str, words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the keys that were probably meant; several, if sections that are given have the field."""
    owner, dot, field = key.rpartition(".")
    initials = "".join(word[:1] for word in field.split("_")) if "_" in field else field
    ends = ([name for name in known if name.endswith(f".{end}")] for end in (field, initials))
    named = next(filter(None, ends), [])
    if dot:
        fields = [name for name in known if name.startswith(f"{owner}.")]
        inside = [name for name in named if name in fields and name.count(".") == key.count(".")]
        return (inside or get_close_matches(key, fields, n=1) or get_close_matches(key, known, n=1))[:1]
    # A field without its section is of a section that is given, or else most likely of the method.
    given = {key_of(word).partition(".")[0] for word in words}
    named.sort(key=lambda name: (not name.startswith("method"), name.count(".")))
    by_section = {name.partition(".")[0]: name for name in reversed(named)}
    chosen = [name for section, name in by_section.items() if section in given]
    return chosen[::-1] or named[:1] or get_close_matches(key, known, n=1)


def _entry(name: str, field: str = "FIELD") -> str:
    """Write an entry of a list of sections as a flag."""
    return f'--{name} NAME, or --{name} \'{{"name": "NAME", "{field}": VALUE}}\''


def _nested_text(key: str) -> str:
    """Write a value at a dotted key as JSON."""
    first, dot, rest = key.partition(".")
    return f'{{"{first}": {_nested_text(rest) if dot else "VALUE"}}}'
