"""`fedflat run`: one method, one seed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from ..experiments.change_warnings import is_first_rank
from .console import Console
from .options import KeysOption, StrictOption

GRACE = 60  # seconds
PATIENCE = 1800.0  # seconds, as in `engine.ranks`, which takes seconds to import
OutOption = Annotated[Path | None, typer.Option(help="Folder for the results; default runs/METHOD-seedN-HASH.")]
RanksOption = Annotated[
    int,
    typer.Option(
        "--ranks", help="Processes, started by torchrun, that share the clients of every round; no bit depends on them."
    ),
]
RestartsOption = Annotated[
    int, typer.Option("--max-restarts", help="With --ranks: how often torchrun starts all of them again when one ends.")
]
GraceOption = Annotated[
    int,
    typer.Option("--grace", help="With --ranks: seconds for a rank to end after a signal; more than a round takes."),
]
PatienceOption = Annotated[
    float, typer.Option("--patience", help="Seconds that a rank waits for the others; more than a round takes.")
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        help="Print the resolved configuration and its cost, memory from a few steps on trial; train nothing."
    ),
]


def run(
    context: typer.Context,
    out: OutOption = None,
    ranks: RanksOption = 0,
    max_restarts: RestartsOption = 0,
    grace: GraceOption = GRACE,
    patience: PatienceOption = PATIENCE,
    strict: StrictOption = False,
    dry_run: DryRunOption = False,
    show_keys: KeysOption = False,
) -> None:
    """Run one method and keep everything about the run in a folder.

    Settings come from a TOML file that stands first, and from dotted flags, which override it; `--keys` lists them all.

    fedflat run --data.name digits --data.clients 50 --partition.name dirichlet --partition.alpha 0.1
    --method.name fedsmoo --method.rho 0.05 --client.epochs 5 --client.batch_size 10 --rounds 50 --out runs/smoo

    A run that was stopped goes on from its last checkpoint when started again with the same settings.

    fedflat run study.toml --ranks 4 --max-restarts 3, or torchrun --nproc-per-node 4 -m fedflat run study.toml,
    shares the clients of every round among processes, on GPUs one each.
    """
    from ..engine.ranks import joined
    from ..experiments.spec import RunSpec
    from .execution import carry_out_run, prepare_data, print_plan, warn_of_doubtful_settings
    from .flags import key_table, resolve
    from .ranks import launch

    console = Console(quiet=not is_first_rank())
    if show_keys:
        return console.show(key_table(RunSpec))
    spec = resolve(RunSpec, context.args)
    prepare_data(console, spec)
    warn_of_doubtful_settings(console, spec)
    if dry_run:
        return print_plan(console, spec)
    if patience <= 0:
        raise InputError(f"--patience {patience} must be more than 0")
    path = out or Path("runs") / f"{spec.label}-{spec.digest()}"
    if ranks:
        words = ["run", *context.args, "--out", str(path), "--patience", str(patience), *["--strict"] * strict]
        return launch(ranks, max_restarts, grace, words)
    with joined(patience) as all_ranks:
        carry_out_run(console, spec, path, all_ranks, strict)
