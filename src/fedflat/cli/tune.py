"""`fedflat tune` and `fedflat best`: choose the settings of methods by accuracy on validation samples."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import InputError
from ..core.object_references import allow_code
from .console import Console
from .flag_names import check_flags
from .run import DryRunOption, JobsOption, JobsPerGpuOption, KeysOption, StrictOption, parse_jobs

if TYPE_CHECKING:
    from rich.table import Table

    from ..experiments.tuning import RankedSettings, Tuned
    from ..experiments.tuning_spec import TuningSpec


def tune(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="Folder for the search; default runs/NAME-OF-THE-FILE.")] = None,
    jobs: JobsOption = "1",
    jobs_per_gpu: JobsPerGpuOption = 1,
    strict: StrictOption = False,
    dry_run: DryRunOption = False,
    show_keys: KeysOption = False,
) -> None:
    r"""Choose the hyper-parameters of several methods, with equal budgets, by accuracy on validation samples.

    fedflat tune examples/tune_digits.toml --jobs auto

    The file describes a study and has a section \[tune]: numbers of configurations and rounds, seeds, and each method's
    box, the values to choose from. Every method tries the same number of configurations; after each number of rounds
    the worse configurations are dropped. The test set is not used. The folder gets ledger.json and curves.csv, with
    every configuration and its validation curve, and winners.toml: `fedflat compare FOLDER/winners.toml --out ...`
    compares the winners with other seeds.

    The same command resumes a stopped search.
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
    context.with_resource(allow_code())  # the user's own command line and file may name code
    file, _ = split_file(context.args)
    if file is None:
        raise InputError("tune needs a TOML file with a section [tune]; see `fedflat tune --help`")
    spec, path = resolve(TuningSpec, context.args), out or Path("runs") / file.stem
    if dry_run:
        return console.show(_plan(spec))
    prepare_data(console, spec)
    with watcher(console, tuning.planned_runs(spec, path)) as watching:
        results = tuning.tune(spec, path, watching, parse_jobs(jobs, jobs_per_gpu), strict)
    console.show(_table(results, tuning.worst_tenths(spec, path, results)))
    for tuned in results:
        if tuned.ties:
            console.caution(f"{tuned.label}:", _tied(tuned))
    console.say(
        f"every configuration: {path / LEDGER}, its curves: {path / CURVES}",
        f"compare the winners: fedflat compare {path / tuning.WINNERS} --out {path}-winners",
    )


def _plan(spec: TuningSpec) -> Table:
    """Return a table of the configurations and rounds of a search."""
    from ..experiments.ledger import described
    from ..reports.text_table import text_table

    rounds, rows = spec.tune.rounds, []
    for method in spec.methods:
        sizes = spec.sizes(len(spec.configurations_of(method)))
        total = sum(size * (t - before) for size, t, before in zip(sizes, rounds, [0, *rounds], strict=False))
        choices = described({key: f"[{choice}]" for key, choice in spec.box_of(method).items()})
        rows.append((method.label, choices, ", ".join(map(str, sizes)), f"{total * len(spec.tune.seeds):,}"))
    steps = ", ".join(map(str, [0, *rounds[:-1]]))
    return text_table(
        ("method", "chosen from", "configurations", "rounds"),
        rows,
        ("method", "chosen from"),
        caption=f"configurations after {steps} rounds; total rounds, with {len(spec.tune.seeds)} seed(s)",
    )


def _table(results: list[Tuned], worst: list[float | None]) -> Table:
    """Return a table of the winner of each method, and its gain over the settings of the file.

    worst: the accuracy of the worst tenth of the clients, of each winner.
    """
    from ..experiments.ledger import described
    from ..reports.text_table import text_table

    rows = []
    for tuned, tenth in zip(results, worst, strict=True):
        given, winner = (tried.score for tried in tuned.given)
        gain = "–" if not isfinite(given) else f"{100 * (winner - given):+.2f} ({tuned.given[0].rounds})"
        score, tried = f"{100 * tuned.winner.score:.2f}", str(len(tuned.steps[0]))
        rows.append((tuned.label, described(tuned.winner.values), score, _in_percent(tenth), gain, tried))
    return text_table(
        ("method", "winner", "validation %", "worst tenth", "gain", "tried"),
        rows,
        ("method", "winner"),
        caption="validation accuracy in the last fifth of the rounds, mean over the seeds, and at the end that of the "
        "worst tenth of the clients (of own models, where a part stays with the clients); gain: over the settings of "
        "the file, at the last step that they reached (rounds)",
    )


def _tied(tuned: Tuned) -> str:
    """Return a text that says which ties were broken by draw order, and how to avoid ties."""
    steps = f"{'rounds' if len(tuned.ties) > 1 else 'round'} {' and '.join(map(str, tuned.ties))}"
    return (
        f"after {steps} a tie between configurations with the same accuracy was broken by draw order; "
        "more rounds in the first step, or a box of settings that learn, avoids ties"
    )


def best(
    folder: Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of a study with a grid.")],
    out: Annotated[
        Path | None,
        typer.Option(help="TOML file for a study of the best settings; numbered if the grid has several problems."),
    ] = None,
) -> None:
    """Choose each method's settings by accuracy on validation samples; the test set is not used.

    fedflat best runs/sweep --out chosen.toml

    Settings of methods and of local training (client.*) are chosen separately for each problem, such as a partition or
    model of the grid; with several problems, their studies are chosen-1.toml, chosen-2.toml, ... The accuracy is the
    mean over the last evaluations of a run and over the seeds. The study needs data.validation. Compare the chosen
    settings with seeds that were not used to choose: `fedflat compare chosen.toml --seeds 10 --seeds 11 --seeds 12`.
    """
    from ..experiments.studies import stored_study
    from ..experiments.tuning import choices, chosen_study
    from ..files import write_text

    console, (spec, runs) = Console(), stored_study(folder)
    missing = len(spec.runs()) - len(runs)
    if missing:
        console.say(f"{missing} of {len(spec.runs())} runs are not finished and not considered")
    rankings = choices(runs)
    problems = list(dict.fromkeys(ranking.problem for ranking in rankings))
    paths = [] if out is None else [out]
    if out is not None and len(problems) > 1:
        paths = [out.with_stem(f"{out.stem}-{i}") for i in range(1, len(problems) + 1)]
    for number, problem in enumerate(problems):
        own = [ranking for ranking in rankings if ranking.problem == problem]
        console.show(_best_table(own))
        if paths:
            write_text(paths[number], chosen_study(own).to_toml())
            console.say(f"study of the best settings{f' for {problem}' if problem else ''}: {paths[number]}")
    if len(paths) > 1:
        console.say(
            f"{out} itself is not written: the grid has {len(paths)} problems with a study each; compare each by "
            f"`fedflat compare {paths[0]}` and so on"
        )


def _best_table(choices: list[RankedSettings]) -> Table:
    """Return a table of the best settings of each method, and their lead over the second best settings."""
    from ..experiments.settings_tables import variants
    from ..experiments.tuning import worst_tenth
    from ..reports.text_table import text_table

    rows = []
    for choice in choices:
        label = variants([candidate.spec.decisive() for candidate in choice.candidates])[0] or "the only ones"
        first, *others = [candidate.validation for candidate in choice.candidates]
        score = f"{100 * first.mean:.2f}" + ("" if first.std is None else f" ± {100 * first.std:.2f}")
        lead = f"{100 * (first.mean - others[0].mean):+.2f}" if others else "–"
        tenth = _in_percent(worst_tenth(choice.best.runs))
        rows.append((choice.best.spec.method.label, label, score, tenth, lead, str(len(choice.candidates))))
    return text_table(
        ("method", "best settings", "validation %", "worst tenth", "ahead", "settings"),
        rows,
        ("method", "best settings"),
        title=choices[0].problem or None,
        caption="validation accuracy: mean ± standard deviation over the seeds; at the end of the worst tenth of the "
        "clients (of own models, where a part stays with the clients); ahead: of the second best setting",
    )


def _in_percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}"
