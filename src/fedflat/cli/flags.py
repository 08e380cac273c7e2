"""Dotted flags on top of a TOML file."""

from __future__ import annotations

import re
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsError
from rich.table import Table

from ..core.errors import InputError, printable, shortened
from ..core.object_references import is_reference
from ..experiments.config_errors import LINE, validated
from ..experiments.schema import Section, sections_of
from ..experiments.spec import Experiment, from_flag
from ..methods import plain
from ..reports.literal import literal

Spec = TypeVar("Spec", bound=Experiment)
UNREAD = re.compile(r'(?:error parsing value for field "|Parsing error encountered for )(\w+)')  # by pydantic-settings
AS_JSON = """'["FedAvg", {"name": "FedSAM", "rho": 0.1}]'"""


def split_file(words: list[str]) -> tuple[Path | None, list[str]]:
    """The TOML file that may stand first, and the flags after it."""
    if words and not words[0].startswith("-"):
        return Path(words[0]), words[1:]
    return None, words


def resolve(model: type[Spec], words: list[str]) -> Spec:
    """The configuration in the file that stands first, if any, overridden by flags such as `--method.rho 0.1`.

    Raises InputError, naming file, flag or field.
    """
    file, flags = split_file(words)
    table = Experiment.read(file) if file else {}
    return validated(model, _merged(model, table, _parsed(model, flags, table)))


def override(spec: Spec, flags: list[str]) -> Spec:
    """`spec` with the settings changed that `flags` give. Raises InputError, naming flag or field."""
    if not flags:
        return spec
    kind, table = type(spec), spec.table()
    return validated(kind, _merged(kind, table, _parsed(kind, flags, table)))


def keys(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Every dotted key of a configuration with its meaning, defaults in brackets."""
    found: dict[str, str] = {}
    for name, info in model.model_fields.items():
        members = sections_of(info.annotation)
        if len(members) > 1:
            found |= _alternatives(members, f"{prefix}{name}.")
        elif members:
            found |= keys(members[0], f"{prefix}{name}.")
        else:
            default = "" if info.default is None or info.default_factory else f" [{info.default}]"
            found[prefix + name] = f"{info.description or ''}{default}".strip()
    return found


def _alternatives(members: list[type[Section]], prefix: str) -> dict[str, str]:
    """The keys of sections of which `name` chooses one; a key may mean something else in each."""
    meanings: dict[str, dict[str, list[str]]] = {}
    for member in members:
        for key, meaning in keys(member, prefix).items():
            meanings.setdefault(key, {}).setdefault(meaning, []).append(member.__name__)
    names = ", ".join(member.__name__ for member in members)
    texts = {key: _in_words(by_meaning) for key, by_meaning in meanings.items()}
    chosen = {f"{prefix}name": f"one of {names}"}
    return chosen | texts | chosen  # the name first


def _in_words(sections_by_meaning: dict[str, list[str]]) -> str:
    """What a key means; if that depends on the section, each meaning with the names of its sections."""
    if len(sections_by_meaning) == 1:
        return next(iter(sections_by_meaning))
    if len(sections_by_meaning) > 3:
        return f"of {sum(map(len, sections_by_meaning.values()))} of them, each with its own meaning and default"
    return "; ".join(f"{', '.join(names)}: {meaning}" for meaning, names in sections_by_meaning.items())


def key_table(model: type[BaseModel]) -> Table:
    """Every dotted key with its meaning, for a console."""
    table = Table(box=None, show_header=False, padding=(0, 1), caption="Each method's own keys: fedflat methods NAME")
    for key, meaning in keys(model).items():
        table.add_row(literal(f"--{key}", "cyan"), literal(meaning))
    return table


def _parsed(model: type[BaseModel], flags: list[str], table: dict[str, Any]) -> dict[str, Any]:
    """The flags, which override `table`, as a table; environment variables are not read."""
    settings = type("Flags", (BaseSettings, model), {})
    words = _with_names(model, flags)
    _refuse_repeated(model, words)
    words, outside = _without_outside_fields(model, words, table)
    words, options = _without_model_options(words, table)
    try:
        parsed = CliSettingsSource(settings, cli_parse_args=words, cli_exit_on_error=False, cli_parse_none_str="none")()
    except SettingsError as error:
        if unread := UNREAD.match(str(error)):
            raise InputError(
                f"--{unread[1]}: a list or a table is JSON on the command line, such as {AS_JSON}"
            ) from error
        raise InputError(printable(shortened(_unknown_flag(str(error), model), LINE))) from error
    except RecursionError as error:
        raise InputError("a flag is nested too deep") from error
    for key, value in [*outside.items(), *options.items()]:
        parsed[key] = {**parsed.get(key, {}), **value}
    return parsed


def _refuse_repeated(model: type[BaseModel], words: list[str]) -> None:
    """Raise InputError for a flag that is given twice, unless it is of a list."""
    seen: set[str] = set()
    for word in words:
        flag = word.partition("=")[0]
        info = model.model_fields.get(flag[2:].partition(".")[0]) if flag.startswith("--") else None
        if info is None or _is_list(info) or getattr(info.annotation, "__origin__", None) is dict:
            continue
        if flag in seen:
            raise InputError(f"{printable(flag)} is given twice")
        seen.add(flag)


def _is_list(info: FieldInfo) -> bool:
    """Whether a flag may be given several times."""
    return getattr(info.annotation, "__origin__", None) is list


def _without_outside_fields(
    model: type[BaseModel], words: list[str], table: dict[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """The flags without those of sections whose class is outside this package, and these as tables.

    The fields of such a class are not known before it is loaded.
    """
    left, found = list(words), dict[str, Any]()
    for key in _keys_of_alternatives(model):
        given, value = _flags_of(key, left), _at(table, key)
        name = given.get("name", value.get("name") if isinstance(value, dict) else value)
        if given and is_reference(name):
            outer, _, inner = key.partition(".")
            fields = {field: text if field == "name" else from_flag(text) for field, text in given.items()}
            found[outer] = {inner: fields} if inner else fields
            left = [
                word for place in _places(left) if not left[place.start].startswith(f"--{key}.") for word in left[place]
            ]
    return left, found


def _without_model_options(words: list[str], table: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The flags without those like `--model.options.path FOLDER`, and these as a table, over the options in `table`.

    Which options there are depends on the model. Those of another model than the one in `table` are dropped.
    """
    given = _flags_of("model.options", words)
    if not given:
        return words, {}
    left = [word for place in _places(words) if not words[place.start].startswith("--model.options.")
            for word in words[place]]  # fmt: skip
    old = {} if _flags_of("model", left).get("name") else _at(table, "model.options")
    return left, {"model": {"options": {**(old or {}), **{name: from_flag(text) for name, text in given.items()}}}}


def _keys_of_alternatives(model: type[BaseModel]) -> list[str]:
    """The keys of method and partition, where `name` chooses a class, and of what may be inside."""
    found = []
    for key in ("method", "partition"):
        members = sections_of(model.model_fields[key].annotation) if key in model.model_fields else []
        inside = {
            name: None for one in members for name, info in one.model_fields.items() if sections_of(info.annotation)
        }
        found += [*([key] if members else []), *(f"{key}.{name}" for name in inside)]
    return found


def _at(table: Any, key: str) -> Any:
    """The value at a dotted key; None if there is none."""
    for name in key.split("."):
        table = table.get(name) if isinstance(table, dict) else None
    return table


def _flags_of(key: str, words: list[str]) -> dict[str, str]:
    """The texts of the flags `--KEY.FIELD`, by field."""
    found = {}
    for place in _places(words):
        flag, equals, value = words[place.start].partition("=")
        if flag.startswith(f"--{key}."):
            found[flag.removeprefix(f"--{key}.")] = value if equals else " ".join(words[place][1:])
    return found


def _places(words: list[str]) -> list[slice]:
    """Where each flag and its value are in `words`."""
    starts = [i for i, word in enumerate(words) if word.startswith("--") or i == 0]
    return [slice(start, end) for start, end in pairwise([*starts, len(words)])]


def _merged(model: type[BaseModel], table: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """`flags` over `table`, section by section; of another method or partition, the keys of the old one are dropped."""
    members = {key: sections_of(info.annotation) for key, info in model.model_fields.items()}
    return {**table, **{key: _over(table.get(key), value, members.get(key, [])) for key, value in flags.items()}}


def _over(old: Any, new: Any, members: list[type[Section]]) -> Any:
    """The value `new` over `old`, of a key whose sections are `members`."""
    old = {"name": old} if isinstance(old, str) else old
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    if len(members) > 1 and "name" in new and plain(new["name"]) != plain(str(old.get("name", ""))):
        return new
    inside = {key: sections_of(info.annotation) for one in members for key, info in one.model_fields.items()}
    both = {key: _over(old[key], value, inside[key]) for key, value in new.items() if key in old and inside.get(key)}
    return {**old, **new, **both}


def _with_names(model: type[BaseModel], flags: list[str]) -> list[str]:
    """The flags with `_` for `-`, as keys are written, and `--method.name fedsam` for `--method fedsam`.

    So it is with every section, or choice of sections, that has a name; not with a list of them.
    """
    named = {
        f"--{key}"
        for key, info in model.model_fields.items()
        if getattr(info.annotation, "__origin__", None) is not list
        and any("name" in member.model_fields for member in sections_of(info.annotation))
    }
    words = []
    for i, flag in enumerate(flags):
        key, equals, value = flag.partition("=")
        if key.startswith("--"):
            key = f"--{key[2:].replace('-', '_')}"
        following = value if equals else "".join(flags[i + 1 : i + 2])
        if key in named and following and not following.startswith("{"):
            key += ".name"
        words.append(f"{key}{equals}{value}")
    return words


def _unknown_flag(message: str, model: type[BaseModel]) -> str:
    """The error of pydantic-settings as one line, with the flag that was probably meant."""
    text = message.removeprefix("error parsing CLI: ")
    _, found, words = text.partition("unrecognized arguments: ")
    if not found:
        return text
    word = words.split()[0]
    if not word.startswith("--"):
        return f"{word}: unexpected word; a TOML file stands first, before the flags"
    key = word.lstrip("-").partition("=")[0]
    owner, _, field = key.partition(".")
    for name, info in model.model_fields.items():
        if _is_list(info) and sections_of(info.annotation) and owner in (name, name.removesuffix("s")):
            return f"{word}: {name} is a list; write {_entry(name)} for each entry"
        if field and owner == name and _takes_a_table(name, info):
            return f"{word}: {name} takes a table as one text; write --{name} '{_nested(field)}'"
    lists = [name for name, info in model.model_fields.items() if _is_list(info) and sections_of(info.annotation)]
    known = [*keys(model), *lists]
    # A field without its section is most likely one of a method, or of the first section that has it.
    ends = (one for one in known if one.endswith(f".{key}"))
    same = sorted(ends, key=lambda one: (not one.startswith("method"), one.count(".")))
    close = (same or get_close_matches(key, known, n=1))[:1]
    name, dot, _ = close[0].partition(".") if close else ("", "", "")
    if dot and name in lists:
        return f"{word}: unknown flag; a field of an entry of {name} is written as {_entry(name, field or key)}"
    return f"{word}: unknown flag" + (f"; did you mean --{close[0]}?" if close else "; `--keys` lists them all")


def _entry(name: str, field: str = "FIELD") -> str:
    """How an entry of a list of sections is written as a flag."""
    return f'--{name} NAME, or --{name} \'{{"name": "NAME", "{field}": VALUE}}\''


def _nested(key: str) -> str:
    """A value at a dotted key, as JSON."""
    first, dot, rest = key.partition(".")
    return f'{{"{first}": {_nested(rest) if dot else "VALUE"}}}'


def _takes_a_table(name: str, info: FieldInfo) -> bool:
    """Whether a field that is no section may be given as a table."""
    return name == "participation" or getattr(info.annotation, "__origin__", None) is dict
