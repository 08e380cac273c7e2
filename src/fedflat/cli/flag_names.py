"""Names of flags: completion by the shell, and suggestions for a mistyped flag.

The names come from files and `listing.json`, without slow imports, so that a mistyped flag is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Literal

from click import Context
from click.shell_completion import CompletionItem
from typer.core import TyperCommand

from ..core.errors import InputError, printable, shortened
from ..core.registry import matching
from ..reports.listing import listing, modules

Kind = Literal["run", "study", "search"]  # of configuration
LISTS = ("flatness", "methods", "probes")  # settings that are lists of tables, each with a `name`
TABLES = ("client_of", "grid", "participation")  # settings whose flag takes a table as JSON
LONGEST = 1500  # characters of an error message


def method_names(incomplete: str = "") -> list[str]:
    """Return the names of methods, in lower case unless `incomplete` has capital letters; commands accept both."""
    names = [entry["name"] for entry in listing()["methods"]["facts"]]
    return [name.lower() for name in names] if incomplete.islower() or not incomplete else names


def source_names() -> list[str]:
    """Return the names of the data sets."""
    return [row[0] for row in listing()["sources"]]


def model_names() -> list[str]:
    """Return the names of the models."""
    return [name.replace("_", "-") for name in modules("models")]


def partition_names() -> list[str]:
    """Return the names of the partition schemes."""
    names: list[str] = listing()["partitions"]
    return names


def setting_names(kind: Kind = "run") -> list[str]:
    """Return the dotted keys of a kind of configuration; a list of sections, such as `probes`, has one key."""
    names: list[str] = listing()["settings"][kind]
    return names


NAMES: dict[str, Callable[[str], list[str]]] = {  # functions that return the names a flag accepts
    "--method": method_names,
    "--methods": method_names,
    "--data": lambda _: source_names(),
    "--model": lambda _: model_names(),
    "--partition": lambda _: partition_names(),
}


class SettingsCommand(TyperCommand):
    """A command that takes settings as flags, which `flags.resolve` reads.

    The shell completes a name after `--method`, `--method.name`, `--data`, ..., and the flags of all settings.
    """

    allow_extra_args = True
    ignore_unknown_options = True

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Offer the names that the last flag accepts, or else the command's own options and settings."""
        flag = ctx.args[-1].removesuffix(".name") if ctx.args else ""
        if flag in NAMES:
            return [CompletionItem(name) for name in NAMES[flag](incomplete) if name.startswith(incomplete)]
        offered = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("--"):
            flags = (f"--{name}" for name in setting_names(_kind(ctx)))
            offered += [CompletionItem(flag) for flag in flags if flag.startswith(incomplete)]
        return offered


def _kind(ctx: Context) -> Kind:
    """Return the kind of configuration that a command takes."""
    if ctx.info_name == "tune":
        return "search"
    is_study = ctx.info_name == "compare" or (ctx.parent is not None and ctx.parent.info_name == "recipes")
    return "study" if is_study else "run"


def key_of(word: str) -> str:
    """Return the key of a flag, with `_` in place of `-`."""
    return word[2:].partition("=")[0].replace("-", "_")


def check_flags(words: Sequence[str], kind: Kind = "run") -> None:
    """Raise InputError for a flag that no configuration of this kind can have.

    A method or partition scheme outside this package may have any field, so flags of its section are not checked.
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
    """Tell whether `key` is one of the `known` keys, or a section that has some of them."""
    return any(name == key or name.startswith(f"{key}.") for name in known)


def _may_be_outside(section: str, words: Sequence[str]) -> bool:
    """Tell whether the class that `words` choose for `section` may be outside this package.

    The answer is true if `words` begin with a TOML file, because the file is not read and may name any class.
    """
    text = " ".join(words).replace("=", " ").split()
    given = [name for flag, name in pairwise(text) if flag in (f"--{section}", f"--{section}.name")]
    in_file = bool(words) and not words[0].startswith("-")
    inside = method_names() if section == "method" else partition_names()
    return in_file or any(":" in word for word in words) or not all(matching(name, inside) for name in given)


def unknown_flag(word: str, words: Sequence[str], known: Sequence[str]) -> InputError:
    """Return the error for the unknown flag `word` among `words`: one line, with a suggestion."""
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
    if key == "methods":
        return "unknown flag; did you mean --method? `fedflat compare` takes --methods"
    meant = _meant(key, words, [*known, *lists])
    name, dot, _ = meant[0].partition(".") if meant else ("", "", "")
    if dot and name in lists:
        return f"unknown flag; a field of an entry of {name} is written as {_entry(name, field or key)}"
    return "unknown flag" + (f"; did you mean --{' or --'.join(meant)}?" if meant else "; `--keys` lists them all")


def _meant(key: str, words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the keys that the user probably meant: several keys if several sections in `words` have the field."""
    owner, dot, field = key.rpartition(".")
    initials = "".join(word[:1] for word in field.split("_")) if "_" in field else field
    ends = ([name for name in known if name.endswith(f".{end}")] for end in (field, initials))
    named = next(filter(None, ends), [])
    if dot:
        fields = [name for name in known if name.startswith(f"{owner}.")]
        inside = [name for name in named if name in fields and name.count(".") == key.count(".")]
        return (inside or get_close_matches(key, fields, n=1) or get_close_matches(key, known, n=1))[:1]
    # A field without a section probably belongs to a given section, or else to the method.
    given = {key_of(word).partition(".")[0] for word in words}
    named.sort(key=lambda name: (not name.startswith("method"), name.count(".")))
    by_section = {name.partition(".")[0]: name for name in reversed(named)}
    chosen = [name for section, name in by_section.items() if section in given]
    return chosen[::-1] or named[:1] or get_close_matches(key, known, n=1)


def _entry(name: str, field: str = "FIELD") -> str:
    """Return the flag that adds an entry to the list `name`."""
    return f'--{name} NAME, or --{name} \'{{"name": "NAME", "{field}": VALUE}}\''


def _nested_text(key: str) -> str:
    """Return a table with a value at the dotted `key`, as JSON."""
    first, dot, rest = key.partition(".")
    return f'{{"{first}": {_nested_text(rest) if dot else "VALUE"}}}'
