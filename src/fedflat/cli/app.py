"""The `fedflat` command."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from .. import __version__
from ..core.errors import InputError, NonFiniteError
from ..deploy.federation import FederationError
from ..engine.allocator import tune_allocator
from ..engine.ranks import RankError, speaks
from ..engine.workers import WorkerError
from ..experiments.interrupt import Interrupted
from . import bench, compare, data, doctor, flatness, flower, landscape, methods, recipes, report, resume, run

app = typer.Typer(
    help="Federated learning that looks for flat minima: run methods, compare them fairly, see how flat they end.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for module in (run, compare, resume, report, flatness, landscape, methods, doctor, bench):
    module.register(app)
app.add_typer(data.app, name="data")
app.add_typer(recipes.app, name="recipes")
app.add_typer(flower.app, name="flower")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedflat {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Holds the options that stand before a command; every command runs with the tuned allocator."""
    tune_allocator()


def main() -> None:
    """Run the command line; a user's mistake ends with one line and a non-zero exit."""
    try:
        app()
    except (InputError, NonFiniteError, WorkerError, RankError, FederationError) as error:
        _fail(str(error), 2 if isinstance(error, InputError) else 1)
    except Interrupted as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("stopped at once", 130)


def _fail(message: str, code: int) -> None:
    """End with one line; of several ranks, which fail together, the first one says it."""
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False, quiet=not speaks()).print(f"fedflat: {message}")
    sys.exit(code)
