"""Completion of names by the shell, from the names of files: nothing is imported, so that it is quick."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click import Context
from click.shell_completion import CompletionItem
from typer.core import TyperCommand

PACKAGE = Path(__file__).parent.parent


def method_names() -> list[str]:
    """The methods, as on the command line."""
    return _modules("methods")


def source_names() -> list[str]:
    """The data sets."""
    return [name.replace("-", "_") for name in _modules("data/sources")]


def partition_names() -> list[str]:
    """The partition schemes; other modules beside them hold what they share."""
    return [name for name in _modules("data/partition") if name not in ("draws", "scheme")]


def model_names() -> list[str]:
    """The models."""
    return _modules("models")


def recipe_names() -> list[str]:
    """The recipes, e.g. fedgf/table1."""
    files = sorted((PACKAGE / "experiments" / "recipes").glob("*/*.toml"))
    return [f"{file.parent.name}/{file.stem}" for file in files if file.stem != "base"]


def paper_names() -> list[str]:
    """The papers that recipes are from."""
    return sorted({name.partition("/")[0] for name in recipe_names()})


def _modules(folder: str) -> list[str]:
    """The names of the modules in a folder of the package, with `-` for `_`."""
    files = sorted((PACKAGE / folder).glob("*.py"))
    return [file.stem.replace("_", "-") for file in files if not file.stem.startswith("__")]


NAMES: dict[str, Callable[[], list[str]]] = {  # by setting
    "--method": method_names,
    "--methods": method_names,
    "--data": source_names,
    "--model": model_names,
    "--partition": partition_names,
}


class SettingsCommand(TyperCommand):
    """A command that takes settings as flags: completes a name after `--method`, `--method.name`, `--data`, ..."""

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """The names that the last flag before `incomplete` accepts, or else the command's own options."""
        flag = ctx.args[-1].removesuffix(".name") if ctx.args else ""
        if flag in NAMES:
            return [CompletionItem(name) for name in NAMES[flag]() if name.startswith(incomplete)]
        return super().shell_complete(ctx, incomplete)
