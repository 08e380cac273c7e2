"""`fedflat run`: one method, one seed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from ..engine.ranks import PATIENCE, Ranks, joined, speaks
from ..experiments import distributed
from ..experiments.budget import simulation_budget
from ..experiments.spec import RunSpec
from .caution import caution
from .console import Console
from .conversion import convert_for
from .flags import CONTEXT, key_table, resolve
from .jobs import StrictFlag
from .progress import watcher
from .ranks import GRACE, GraceFlag, PatienceFlag, RanksFlag, RestartsFlag, launch


def register(app: typer.Typer) -> None:
    app.command("run", context_settings=CONTEXT, options_metavar="[FILE.toml] [--KEY VALUE]...")(run)


def run(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default runs/METHOD-seedN-HASH.")] = None,
    ranks: RanksFlag = 0,
    max_restarts: RestartsFlag = 0,
    grace: GraceFlag = GRACE,
    patience: PatienceFlag = PATIENCE,
    strict: StrictFlag = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            help="Print the resolved configuration and its cost, memory from a few steps on trial; train nothing."
        ),
    ] = False,
    show_keys: Annotated[
        bool, typer.Option("--keys", help="List every setting that a flag or the file may give.")
    ] = False,
) -> None:
    """Run one method and keep everything about the run in a folder.

    Settings come from a TOML file that stands first, and from dotted flags, which override it; `--keys` lists them all.

    fedflat run --data.name digits --data.clients 50 --partition.name dirichlet --partition.alpha 0.1
    --method.name fedsmoo --method.rho 0.05 --client.epochs 5 --client.batch_size 10 --rounds 50 --out runs/smoo

    A run that was stopped goes on from its last checkpoint when started again with the same settings.

    fedflat run study.toml --ranks 4 --max-restarts 3, or torchrun --nproc-per-node 4 -m fedflat run study.toml,
    shares the clients of every round among processes, on GPUs one each.
    """
    console = Console(quiet=not speaks())
    if show_keys:
        return console.show(key_table(RunSpec))
    spec = resolve(RunSpec, context.args)
    convert_for(console, spec)
    caution(console, spec)
    if dry_run:
        return print_plan(console, spec)
    if patience <= 0:
        raise InputError(f"--patience {patience} must be more than 0")
    path = out or Path("runs") / f"{spec.label}-{spec.digest()}"
    if ranks:
        words = ["run", *context.args, "--out", str(path), "--patience", str(patience), *["--strict"] * strict]
        return launch(ranks, max_restarts, grace, words)
    with joined(patience) as together:
        carry_out(console, spec, path, together, strict)


def carry_out(console: Console, spec: RunSpec, path: Path, ranks: Ranks, strict: bool = False) -> None:
    """Run what is left of a run, alone or as one of several ranks."""
    with watcher(console, spec.rounds) as watching:
        distributed.run(spec, path, watching, ranks, strict)
    console.say(f"results in {path}")


def print_plan(console: Console, spec: RunSpec) -> None:
    """The resolved configuration and what it will cost."""
    console.say(*spec.to_toml().split("\n"))
    console.say(*simulation_budget(spec.build()).lines())
