"""The `fedflat` command."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import typer

from .. import __version__
from ..core.errors import changes_in_one_line
from ..core.native_libraries import fix_product_rounding, tune_allocator
from . import flower, recipes
from .console import Console, in_one_line
from .flag_names import SettingsCommand
from .installation import check_method, doctor, new
from .landscape import landscape
from .methods import methods
from .preparation import data_app, prepare_model, pretrain
from .results import export, flatness, predict, report, verify
from .run import compare, resume, run
from .tune import best, tune
from .work import status, work

app = typer.Typer(
    help="Federated learning that looks for flat minima: run methods, compare them fairly, measure their flatness.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
WITH_SETTINGS: list[Callable[..., None]] = [run, compare, work, tune]
WITHOUT_SETTINGS: list[Callable[..., None]] = [
    resume,
    status,
    best,
    verify,
    report,
    flatness,
    landscape,
    export,
    predict,
    pretrain,
    prepare_model,
    methods,
    new,
    check_method,
    doctor,
]
for command in WITH_SETTINGS:
    app.command(cls=SettingsCommand, options_metavar="[FILE.toml] [--KEY VALUE]...")(command)
for command in WITHOUT_SETTINGS:
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(recipes.app, name="recipes")
app.add_typer(flower.app, name="flower")


def print_version(wanted: bool) -> None:
    """If `wanted`, print the version and end the program."""
    if wanted:
        Console().say(f"fedflat {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: bool = typer.Option(False, "--version", callback=print_version, is_eager=True, help="Print the version."),
) -> None:
    """Read the options that precede a command, and tune the memory allocator."""
    tune_allocator()


def main() -> None:
    """Run the command line. After an error of the user or the system, print one line and exit with a non-zero code."""
    gc.set_threshold(10_000)  # objects; with Python's 700, importing torch and Flower takes a sixth longer
    fix_product_rounding()
    with in_one_line(), changes_in_one_line():
        sys.exit(app(standalone_mode=False))  # the exit code of a command that ends early
