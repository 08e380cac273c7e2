"""The `fedflat` command."""

from __future__ import annotations

import typer

from .. import __version__
from ..engine.allocator import tune_allocator
from ..experiments.change_warnings import changes_in_one_line
from . import compare, data, doctor, flatness, flower, landscape, methods, recipes, report, resume, run, verify
from .console import Console
from .ending import in_one_line

app = typer.Typer(
    help="Federated learning that looks for flat minima: run methods, compare them fairly, see how flat they end.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for module in (run, compare, resume, verify, report, flatness, landscape, methods, doctor):
    module.register(app)
app.add_typer(data.app, name="data")
app.add_typer(recipes.app, name="recipes")
app.add_typer(flower.app, name="flower")


def _version(asked: bool) -> None:
    if asked:
        Console().say(f"fedflat {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Holds the options that stand before a command; every command runs with the tuned allocator."""
    tune_allocator()


def main() -> None:
    """Run the command line; what cannot be done ends with one line and a non-zero exit, see `ending`."""
    with in_one_line(), changes_in_one_line():
        app()
