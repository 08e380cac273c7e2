"""Completion of names by the shell. The names are those of files and of `listing.json`: no library is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from click import Context
from click.shell_completion import CompletionItem
from typer.core import TyperCommand

from ..reports.listing import listing, modules

Kind = Literal["run", "study", "search"]  # of configuration


def method_names(incomplete: str = "") -> list[str]:
    """Return the methods, in lower case unless `incomplete` is not; commands accept both."""
    names = [row[0] for row in listing()["methods"]["rows"]]
    return [name.lower() for name in names] if incomplete.islower() or not incomplete else names


def source_names() -> list[str]:
    """Return the data sets."""
    return [row[0] for row in listing()["sources"]]


def model_names() -> list[str]:
    """Return the models."""
    return [name.replace("_", "-") for name in modules("models")]


def partition_names() -> list[str]:
    """Return the partition schemes."""
    names: list[str] = listing()["partitions"]
    return names


def setting_names(kind: Kind = "run") -> list[str]:
    """Return the dotted keys of a kind of configuration; a list of sections, such as probes, is one key."""
    names: list[str] = listing()["settings"][kind]
    return names


NAMES: dict[str, Callable[[str], list[str]]] = {  # by setting
    "--method": method_names,
    "--methods": method_names,
    "--data": lambda _: source_names(),
    "--model": lambda _: model_names(),
    "--partition": lambda _: partition_names(),
}


class SettingsCommand(TyperCommand):
    """A command that takes settings as flags, which `flags.resolve` reads.

    The shell completes a name after `--method`, `--method.name`, `--data`, ..., and the settings themselves.
    """

    allow_extra_args = True
    ignore_unknown_options = True

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """The names that the last flag before `incomplete` accepts, or else the command's own options and settings."""
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
