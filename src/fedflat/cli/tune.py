"""`fedflat tune`: choose every method's hyper-parameters with one budget for all, by validation samples."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import InputError
from ..core.object_references import allow_code
from .console import Console
from .flag_names import check_flags
from .run import DryRunOption, JobsOption, KeysOption, StrictOption, number_of_jobs

if TYPE_CHECKING:
    from rich.table import Table

    from ..experiments.schema import Named
    from ..experiments.tuning import Tuned
    from ..experiments.tuning_spec import TuningSpec

OutOption = Annotated[Path | None, typer.Option(help="Folder for the search; default runs/NAME-OF-THE-FILE.")]


def tune(
    context: typer.Context,
    out: OutOption = None,
    jobs: JobsOption = "1",
    strict: StrictOption = False,
    dry_run: DryRunOption = False,
    show_keys: KeysOption = False,
) -> None:
    r"""Choose the hyper-parameters of several methods, with equal budgets, by the accuracy on validation samples.

    fedflat tune examples/tune_digits.toml --jobs auto

    The file is a study's with a section \[tune]: how many configurations, for how many rounds, which seeds, and the box
    of values of each method. Every method tries equally many; after each number of rounds the best of them go on. The
    test set is not looked at. The folder gets ledger.json and curves.csv, with every configuration and its validation
    curve, and winners.toml: `fedflat compare FOLDER/winners.toml --out ...` compares the winners, by other seeds.

    A search that was stopped goes on when the same command is given again.
    """
    check_flags(context.args, "search")
    from ..experiments import tuning
    from ..experiments.ledger import CURVES, LEDGER
    from ..experiments.tuning_spec import TuningSpec
    from .execution import prepare_data
    from .flags import key_table, resolve, split_file
    from .progress import watcher

    console = Console()
    if show_keys:
        return console.show(key_table(TuningSpec))
    context.with_resource(allow_code())  # what the user's own command line and file name
    file, _ = split_file(context.args)
    if file is None:
        raise InputError("tune needs a TOML file with a section [tune]; see `fedflat tune --help`")
    spec, path = resolve(TuningSpec, context.args), out or Path("runs") / file.stem
    if dry_run:
        return console.show(_plan(spec))
    prepare_data(console, spec)
    with watcher(console, tuning.planned_runs(spec, path)) as watching:
        found = tuning.tune(spec, path, watching, number_of_jobs(jobs), strict)
    console.show(_table(found))
    for one in found:
        if one.ties:
            console.caution(f"{one.label}:", _tied(one))
    console.say(
        f"every configuration: {path / LEDGER}, its curves: {path / CURVES}",
        f"compare the winners: fedflat compare {path / tuning.WINNERS} --out {path}-winners",
    )


def _plan(spec: TuningSpec) -> Table:
    """What would be tried, and for how many rounds."""
    from ..reports.text_table import text_table

    steps = ", ".join(map(str, [0, *spec.tune.rounds[:-1]]))
    return text_table(
        ("method", "chosen from", "configurations", "rounds"),
        [_planned(spec, method) for method in spec.methods],
        ("method", "chosen from"),
        caption=f"configurations after {steps} rounds; rounds in all, with {len(spec.tune.seeds)} seed(s)",
    )


def _planned(spec: TuningSpec, method: Named) -> tuple[str, str, str, str]:
    """What would be tried of one method, as a row of the table."""
    from ..experiments.ledger import described

    rounds = spec.tune.rounds
    sizes = spec.sizes(len(spec.configurations_of(method)))
    total = sum(size * (t - before) for size, t, before in zip(sizes, rounds, [0, *rounds], strict=False))
    choices = described({key: f"[{choice}]" for key, choice in spec.box_of(method).items()})
    return method.label, choices, ", ".join(map(str, sizes)), f"{total * len(spec.tune.seeds):,}"


def _table(found: list[Tuned]) -> Table:
    """The winner of each method, and what it gained over the settings of the file."""
    from ..reports.text_table import text_table

    return text_table(
        ("method", "winner", "validation %", "gain", "tried"),
        [_found(one) for one in found],
        ("method", "winner"),
        caption="validation accuracy in the last fifth of the rounds, mean over the seeds; "
        "gain: over the settings of the file, after the last step that they reached (rounds)",
    )


def _tied(one: Tuned) -> str:
    """That numbers decided, and what helps."""
    steps = f"{'rounds' if len(one.ties) > 1 else 'round'} {' and '.join(map(str, one.ties))}"
    return (
        f"after {steps} configurations with the same accuracy went on and were cut, by their numbers; "
        "more rounds in the first step, or a box of settings that learn, lets accuracies decide"
    )


def _found(one: Tuned) -> tuple[str, str, str, str, str]:
    """The winner of one method, as a row of the table."""
    from ..experiments.ledger import described

    given, winner = (tried.score for tried in one.given)
    gain = "–" if not isfinite(given) else f"{100 * (winner - given):+.2f} ({one.given[0].rounds})"
    return one.label, described(one.winner.values), f"{100 * one.winner.score:.2f}", gain, str(len(one.steps[0]))
