"""`fedflat tune` and `fedflat best`: choose every method's settings by validation samples."""

from __future__ import annotations

from functools import partial
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
    from ..experiments.selection import RankedSettings
    from ..experiments.tuning import Tuned
    from ..experiments.tuning_spec import TuningSpec

OutOption = Annotated[Path | None, typer.Option(help="Folder for the search; default runs/NAME-OF-THE-FILE.")]
ChosenOption = Annotated[
    Path | None,
    typer.Option(
        help="Write a study of the best settings to this TOML file; one for each problem of the grid, numbered."
    ),
]


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
    """List what would be tried, and for how many rounds."""
    from ..reports.text_table import text_table

    steps = ", ".join(map(str, [0, *spec.tune.rounds[:-1]]))
    return text_table(
        ("method", "chosen from", "configurations", "rounds"),
        [_planned(spec, method) for method in spec.methods],
        ("method", "chosen from"),
        caption=f"configurations after {steps} rounds; rounds in all, with {len(spec.tune.seeds)} seed(s)",
    )


def _planned(spec: TuningSpec, method: Named) -> tuple[str, str, str, str]:
    """Return what would be tried of one method, as a row of the table."""
    from ..experiments.ledger import described

    rounds = spec.tune.rounds
    sizes = spec.sizes(len(spec.configurations_of(method)))
    total = sum(size * (t - before) for size, t, before in zip(sizes, rounds, [0, *rounds], strict=False))
    choices = described({key: f"[{choice}]" for key, choice in spec.box_of(method).items()})
    return method.label, choices, ", ".join(map(str, sizes)), f"{total * len(spec.tune.seeds):,}"


def _table(found: list[Tuned]) -> Table:
    """Return the winner of each method, and what it gained over the settings of the file."""
    from ..reports.text_table import text_table

    return text_table(
        ("method", "winner", "validation %", "gain", "tried"),
        [_found(one) for one in found],
        ("method", "winner"),
        caption="validation accuracy in the last fifth of the rounds, mean over the seeds; "
        "gain: over the settings of the file, after the last step that they reached (rounds)",
    )


def _tied(one: Tuned) -> str:
    """Explain that ties were broken by the numbers of configurations, and what avoids ties."""
    steps = f"{'rounds' if len(one.ties) > 1 else 'round'} {' and '.join(map(str, one.ties))}"
    return (
        f"after {steps} configurations with the same accuracy went on and were cut, by their numbers; "
        "more rounds in the first step, or a box of settings that learn, lets accuracies decide"
    )


def _found(one: Tuned) -> tuple[str, str, str, str, str]:
    """Return the winner of one method, as a row of the table."""
    from ..experiments.ledger import described

    given, winner = (tried.score for tried in one.given)
    gain = "–" if not isfinite(given) else f"{100 * (winner - given):+.2f} ({one.given[0].rounds})"
    return one.label, described(one.winner.values), f"{100 * one.winner.score:.2f}", gain, str(len(one.steps[0]))


def best(
    folder: Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of a study with a grid.")],
    out: ChosenOption = None,
) -> None:
    """Choose each method's settings by the accuracy on validation samples; the test set is not looked at.

    fedflat best runs/sweep --out chosen.toml

    Settings of methods and of local training (client.*) are chosen, for each partition, model, ... of the grid: if
    there are several of these, their studies are chosen-1.toml, chosen-2.toml, ... The accuracy is the mean over the
    last evaluations of a run and over the seeds. The study needs data.validation; the chosen settings are then compared
    with `fedflat compare chosen.toml --seeds 10 --seeds 11 --seeds 12`, with seeds that nothing was chosen by.
    """
    from ..experiments.selection import choices, chosen_study
    from ..experiments.studies import stored_study
    from ..files import write_atomically

    console, (spec, runs) = Console(), stored_study(folder)
    missing = len(spec.runs()) - len(runs)
    if missing:
        console.say(f"{missing} of {len(spec.runs())} runs are not finished and not considered")
    found = choices(runs)
    problems = list(dict.fromkeys(choice.problem for choice in found))
    paths = [] if out is None else _paths(out, len(problems))
    for number, problem in enumerate(problems):
        own = [choice for choice in found if choice.problem == problem]
        console.show(_best_table(own))
        if paths:
            write_atomically(paths[number], partial(Path.write_text, data=chosen_study(own).to_toml()))
            console.say(f"study of the best settings{f' for {problem}' if problem else ''}: {paths[number]}")
    if len(paths) > 1:
        console.say(
            f"{out} itself is not written: the grid has {len(paths)} problems, and each has a study of its own, for "
            f"`fedflat compare {paths[0]}` and so on"
        )


def _paths(out: Path, number: int) -> list[Path]:
    """Return the files of `number` studies: `out` itself, or several with a number."""
    return [out] if number == 1 else [out.with_stem(f"{out.stem}-{i}") for i in range(1, number + 1)]


def _best_table(choices: list[RankedSettings]) -> Table:
    """List the best settings of each method, and by how much they are ahead of the next ones."""
    from ..experiments.settings_tables import variants
    from ..reports.text_table import text_table

    labels = [variants([candidate.spec.decisive() for candidate in choice.candidates])[0] for choice in choices]
    return text_table(
        ("method", "best settings", "validation %", "ahead", "settings"),
        [
            (choice.best.spec.method.label, label or "the only ones", *_numbers(choice))
            for choice, label in zip(choices, labels, strict=True)
        ],
        ("method", "best settings"),
        title=choices[0].problem or None,
        caption="validation accuracy: mean ± standard deviation over the seeds; ahead: of the second best setting",
    )


def _numbers(choice: RankedSettings) -> tuple[str, str, str]:
    """Validation accuracy of the best settings in percent, its lead in points, and how many settings there are."""
    first, *others = [candidate.validation for candidate in choice.candidates]
    spread = "" if first.std is None else f" ± {100 * first.std:.2f}"
    lead = f"{100 * (first.mean - others[0].mean):+.2f}" if others else "–"
    return f"{100 * first.mean:.2f}{spread}", lead, str(len(choice.candidates))
