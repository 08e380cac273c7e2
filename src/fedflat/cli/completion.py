"""Completion of names by the shell. The names are read off files, and nothing is imported, so that it is quick."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click import Context
from click.shell_completion import CompletionItem
from typer.core import TyperCommand

PACKAGE = Path(__file__).parent.parent


def method_names(incomplete: str = "") -> list[str]:
    """The methods, in lower case unless `incomplete` is not; commands accept both."""
    names = []
    for file in _modules("methods"):
        for text in file.read_text().split("\nclass ")[1:]:
            if "\n    paper = " in text and "@abstractmethod" not in text:  # others hold what methods share
                names.append(text[: text.index("(")])
    return [name.lower() for name in names] if incomplete.islower() or not incomplete else names


def source_names() -> list[str]:
    """The data sets."""
    return [file.stem for file in _modules("data/sources")]


def model_names() -> list[str]:
    """The models."""
    return [file.stem.replace("_", "-") for file in _modules("models")]


def partition_names() -> list[str]:
    """The partition schemes; other modules of their folder hold what they share."""
    files = [file for file in _modules("data/partition") if "(Partition)" in file.read_text()]
    return [file.stem.replace("_", "-") for file in files]


def recipe_names() -> list[str]:
    """The recipes, e.g. fedgf/table1."""
    files = sorted((PACKAGE / "experiments" / "recipes").glob("*/*.toml"))
    return [f"{file.parent.name}/{file.stem}" for file in files if file.stem != "base"]


def paper_names() -> list[str]:
    """The papers that recipes are from."""
    return sorted({name.partition("/")[0] for name in recipe_names()})


def _modules(folder: str) -> list[Path]:
    """The files of the modules in a folder of the package."""
    return [file for file in sorted((PACKAGE / folder).glob("*.py")) if file.stem != "__init__"]


NAMES: dict[str, Callable[[str], list[str]]] = {  # by setting
    "--method": method_names,
    "--methods": method_names,
    "--data": lambda _: source_names(),
    "--model": lambda _: model_names(),
    "--partition": lambda _: partition_names(),
}


class SettingsCommand(TyperCommand):
    """A command that takes settings as flags, which `flags.resolve` reads.

    The shell completes a name after `--method`, `--method.name`, `--data`, ...
    """

    allow_extra_args = True
    ignore_unknown_options = True

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """The names that the last flag before `incomplete` accepts, or else the command's own options."""
        flag = ctx.args[-1].removesuffix(".name") if ctx.args else ""
        if flag in NAMES:
            return [CompletionItem(name) for name in NAMES[flag](incomplete) if name.startswith(incomplete)]
        return super().shell_complete(ctx, incomplete)
