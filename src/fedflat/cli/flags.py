"""Dotted flags that override a TOML file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.table import Table

from ..core.errors import InputError, printable, shortened
from ..core.object_references import is_outside
from ..data.partition import PARTITIONS
from ..experiments.config_errors import validated
from ..experiments.schema import FieldClass, field_classes
from ..experiments.settings_tables import is_list, merged
from ..experiments.spec import Experiment, RunSpec, StudySpec, from_flag
from ..methods import METHODS
from ..reports.text_table import literal
from .flag_names import key_of, unknown_flag

Spec = TypeVar("Spec", bound=Experiment)
AS_JSON = """'["FedAvg", {"name": "FedSAM", "rho": 0.1}]'"""


def split_file(words: list[str]) -> tuple[Path | None, list[str]]:
    """Split `words` into the TOML file, if the first word is one, and the flags."""
    if words and not words[0].startswith("-"):
        return Path(words[0]), words[1:]
    return None, words


def resolve(model: type[Spec], words: list[str]) -> Spec:
    """Return the configuration that `words` describe: a TOML file, if any, then flags such as `--method.rho 0.1`.

    Flags override the file. Raises InputError, naming file, flag or field.
    """
    file, flags = split_file(words)
    table = Experiment.read(file) if file else {}
    _refuse_other_kind(model, file, table)
    return validated(model, merged(model, table, _parsed(model, flags, table)))


def override(spec: Spec, flags: list[str]) -> Spec:
    """Return `spec`, overridden by `flags`. Raises InputError, naming flag or field."""
    if not flags:
        return spec
    kind, table = type(spec), spec.table()
    return validated(kind, merged(kind, table, _parsed(kind, flags, table)))


def keys(model: type[BaseModel]) -> dict[str, str]:
    """Return every dotted key of a configuration with its meaning; the default is in brackets."""
    return _meanings(model.model_fields, "")


def _meanings(fields: Mapping[str, FieldInfo], prefix: str) -> dict[str, str]:
    meanings: dict[str, str] = {}
    for name, info in fields.items():
        classes = field_classes(info)
        if len(classes) > 1:
            meanings |= _alternatives(classes, f"{prefix}{name}.")
        elif classes:
            meanings |= _meanings(classes[0].fields, f"{prefix}{name}.")
        else:
            has_default = not (info.is_required() or info.default is None or info.default_factory)
            meanings[prefix + name] = f"{info.description or ''}{f' [{info.default}]' if has_default else ''}".strip()
    return meanings


def _alternatives(classes: list[FieldClass], prefix: str) -> dict[str, str]:
    """Return the keys of all `classes`, one of which a `name` chooses, with every meaning that a key has in them."""
    meanings: dict[str, dict[str, list[str]]] = {}
    for cls in classes:
        for key, meaning in _meanings(cls.fields, prefix).items():
            meanings.setdefault(key, {}).setdefault(meaning, []).append(cls.name)
    names = ", ".join(cls.name for cls in classes)
    texts = {key: _in_words(by_meaning) for key, by_meaning in meanings.items()}
    chosen = {f"{prefix}name": f"one of {names}"}
    return chosen | texts | chosen  # puts the name first, with this meaning


def _in_words(sections_by_meaning: dict[str, list[str]]) -> str:
    """Return the meaning of a key; if it differs between sections, each meaning follows the names of its sections."""
    if len(sections_by_meaning) == 1:
        return next(iter(sections_by_meaning))
    if len(sections_by_meaning) > 3:
        return f"a field of {sum(map(len, sections_by_meaning.values()))} of them; meaning and default differ"
    return "; ".join(f"{', '.join(names)}: {meaning}" for meaning, names in sections_by_meaning.items())


def key_table(model: type[BaseModel]) -> Table:
    """Return a table of every dotted key and its meaning, for a console."""
    table = Table(box=None, show_header=False, padding=(0, 1), caption="Each method's own keys: fedflat methods NAME")
    for key, meaning in keys(model).items():
        table.add_row(literal(f"--{key}", "cyan"), literal(meaning))
    return table


def _refuse_other_kind(model: type[Experiment], file: Path | None, table: dict[str, Any]) -> None:
    """Raise InputError if the file describes a study and a run is expected, or a run and a study is expected."""
    for kind, words in ((StudySpec, "a study; use `fedflat compare"), (RunSpec, "a run; use `fedflat run")):
        own = [key for key in table if key in kind.model_fields and key not in model.model_fields]
        if own:
            raise InputError(f"{own[0]}: {printable(str(file))} is the file of {words} {printable(str(file))}`")


def _parsed(model: type[BaseModel], words: list[str], table: dict[str, Any]) -> dict[str, Any]:
    """Parse the flags in `words` into a table, which later overrides `table`; environment variables are not read."""
    parsed, seen = dict[str, Any](), set[str]()
    for word, given, text in _given(words):
        info, key = _named(model, given, text)
        # A list, or a table without fixed fields, may be given in several flags.
        if key in seen and getattr(info and info.annotation, "__origin__", None) not in (list, tuple, dict):
            raise InputError(f"--{printable(key)} is given twice")
        seen.add(key)
        if info is None and not _is_of_outside(key, words, table):
            raise unknown_flag(word, words, list(keys(model)))
        _put(parsed, key, _value(key, info, text))
    return parsed


def _given(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each flag as the user wrote it, its key, and the text of its value."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            raise InputError(
                f"{printable(shortened(word))}: unexpected word; a TOML file stands first, before the flags"
            )
        _, equals, text = word.partition("=")
        if not equals:
            text = next(rest, "--")
            if text.startswith("--"):
                raise InputError(f"{printable(word)}: a value is missing")
        yield word, key_of(word), text


def _named(model: type[BaseModel], key: str, text: str) -> tuple[FieldInfo | None, str]:
    """Return the field at `key`, or None, and the key, with `.name` appended if `text` is the name of a class."""
    info = _field(model, key)
    classes = [] if info is None or is_list(info) else field_classes(info)
    has_name = [cls for cls in classes if "name" in cls.fields]
    if has_name and text != "none" and not text.startswith("{"):
        return has_name[0].fields["name"], f"{key}.name"
    return info, key


def _field(model: type[BaseModel], key: str) -> FieldInfo | None:
    """Return the field at a dotted key, from the first class that has it; None if it is unknown or in a list."""
    owner, _, name = key.rpartition(".")
    kinds: list[Any] = [model]
    for part in owner.split(".") if owner else ():
        fields = [cls.fields[part] for kind in kinds for cls in field_classes(kind) if part in cls.fields]
        kinds = [field for field in fields if not is_list(field)]
    classes = (cls for kind in kinds for cls in field_classes(kind))
    return next((cls.fields[name] for cls in classes if name in cls.fields), None)


def _is_of_outside(key: str, words: list[str], table: dict[str, Any]) -> bool:
    """Tell whether an unknown key may be a field of a class outside this package, or an option of a model."""
    owner, _, field = key.rpartition(".")
    if owner == "model.options" and field:
        return True
    flags = {key: text for _, key, text in _given(words)}
    name = flags.get(f"{owner}.name", flags.get(owner, _at(table, owner)))
    name = name.get("name") if isinstance(name, dict) else name
    point = {"method": METHODS, "partition": PARTITIONS}.get(owner.partition(".")[0])
    return point is not None and is_outside(name, point)


def _at(table: Any, key: str) -> Any:
    """Return the value at a dotted key; None if the key is missing."""
    for name in key.split("."):
        table = table.get(name) if isinstance(table, dict) else None
    return table


def _value(key: str, info: FieldInfo | None, text: str) -> Any:
    """Parse the value of a flag: to a list or a table if the field holds one, None for `none`, else the text itself."""
    if info is None:
        return from_flag(text)
    kind = getattr(info.annotation, "__origin__", None)
    if kind in (list, tuple):
        return _entries(key, text)
    if text == "none":
        return None
    return _json(key, text) if kind is dict or field_classes(info) else text


def _entries(key: str, text: str) -> list[Any]:
    """Parse the entries of a list: JSON, or names and numbers with commas between them; with or without brackets."""
    inside = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not any(character in inside for character in '[]{}"'):
        return [from_flag(entry.strip()) for entry in inside.split(",")] if inside.strip() else []
    entries: list[Any] = _json(key, text if text.startswith("[") else f"[{text}]")
    return entries


def _json(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InputError("a flag is nested too deep") from error
    except ValueError as error:
        raise InputError(
            f"--{printable(key)}: a list or a table is JSON on the command line, such as {AS_JSON}"
        ) from error


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    """Put a value into a table at a dotted key; a list is appended to an older list, and tables are merged."""
    owner, dot, rest = key.partition(".")
    old = table.get(owner)
    if dot:
        old = table.setdefault(owner, {})
        if not isinstance(old, dict):
            raise InputError(f"--{printable(key)}: {owner} is also given as {printable(str(old))}")
        return _put(old, rest, value)
    if isinstance(old, list) and isinstance(value, list):
        value = [*old, *value]
    elif isinstance(old, dict) and isinstance(value, dict):
        value = {**old, **value}
    table[owner] = value
