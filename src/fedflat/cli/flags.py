"""Dotted flags on top of a TOML file."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, CliApp, PydanticBaseSettingsSource, SettingsError
from rich.table import Table

from ..core.errors import InputError
from ..experiments.mistakes import in_one_line, validated
from ..experiments.schema import Section
from ..experiments.spec import Experiment

Spec = TypeVar("Spec", bound=Experiment)
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def split_file(words: list[str]) -> tuple[Path | None, list[str]]:
    """The TOML file that may stand first, and the flags after it."""
    if words and not words[0].startswith("-"):
        return Path(words[0]), words[1:]
    return None, words


def resolve(model: type[Spec], words: list[str]) -> Spec:
    """The configuration in the file that stands first, if any, overridden by flags such as `--method.rho 0.1`.

    Raises InputError, naming file, flag or field.
    """
    config, flags = split_file(words)
    table = Experiment.read(config) if config else {}
    try:
        parsed = CliApp.run(_settings(model), cli_args=_spelled(flags), cli_exit_on_error=False, **table)
    except ValidationError as error:
        raise InputError(in_one_line(error, model)) from error
    except SettingsError as error:
        raise InputError(_unknown_flag(str(error), model)) from error
    return validated(model, parsed.model_dump(exclude_unset=True))


def keys(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Every dotted key of a configuration with its meaning, defaults in brackets."""
    found: dict[str, str] = {}
    for name, info in model.model_fields.items():
        members = _sections(info.annotation)
        for member in members:
            for key, meaning in keys(member, f"{prefix}{name}.").items():
                found.setdefault(key, meaning)
        if not members:
            default = "" if info.default is None or info.default_factory else f" [{info.default}]"
            found[prefix + name] = f"{info.description or ''}{default}".strip()
    return found


def key_table(model: type[BaseModel]) -> Table:
    """The dotted keys, for a console."""
    table = Table(box=None, show_header=False, padding=(0, 1), caption="Each method's own keys: fedflat methods NAME")
    for key, meaning in keys(model).items():
        table.add_row(f"[cyan]--{key}[/]", meaning.replace("[", r"\["))
    return table


def _settings(model: type[BaseModel]) -> type[BaseSettings]:
    """`model` as settings read from flags and a table only: an environment variable never changes a run."""

    class Flags(BaseSettings, model):  # type: ignore[misc, valid-type]
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, **others: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings,)

    return Flags


def _spelled(flags: list[str]) -> list[str]:
    """Flags with `_` for `-` in their names, as the keys are written."""
    return [
        "--" + flag[2:].partition("=")[0].replace("-", "_") + "".join(flag[2:].partition("=")[1:])
        if flag.startswith("--") else flag
        for flag in flags
    ]  # fmt: skip


def _sections(kind: Any) -> list[type[BaseModel]]:
    """The sections a field may hold: itself, or the members of a union."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return [kind]
    return [member for argument in getattr(kind, "__args__", ()) for member in _sections(argument)]


def _unknown_flag(message: str, model: type[BaseModel]) -> str:
    """pydantic-settings' complaint as one line that suggests the flag that was meant."""
    complaint = message.removeprefix("error parsing CLI: ")
    _, found, words = complaint.partition("unrecognized arguments: ")
    if not found:
        return complaint
    word = words.split()[0]
    if not word.startswith("--"):
        return f"{word}: unexpected word; a TOML file stands first, before the flags"
    close = get_close_matches(word.lstrip("-").partition("=")[0], list(keys(model)), n=1)
    return f"{word}: unknown flag" + (f"; did you mean --{close[0]}?" if close else "; `--keys` lists them all")
