"""The commands on finished runs: `report`, `flatness`, `verify`, `predict` and `export`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from ..core.errors import InputError, shortened
from ..core.object_references import allow_code
from .console import Console
from .run import AllowCodeOption

if TYPE_CHECKING:
    from ..experiments.run_directory import StoredRun
    from ..experiments.verification import Verdict
    from ..metrics.protocols import Protocol
    from ..reports.comparison_data import ComparisonData

MAX_SAMPLES = 2000  # as in `metrics.flatness`, which takes seconds to import


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of studies and finished runs, or of one federation.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to; default that of a single study, else runs/report-HASH."),
    ] = None,
    targets: Annotated[
        list[float] | None,
        typer.Option("--target", help="Accuracy in (0, 1) for a column with the rounds to reach it; may repeat."),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Accuracy to show: last, final, best-validation or best-test; default that of the study."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write figures for a paper, and the table in LaTeX, to DIR.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", help="Title of a column of the LaTeX table; may repeat; default all columns."),
    ] = None,
) -> None:
    """Write the comparison table and page from finished runs; nothing is trained.

    The report of a study has every finished run in its folder and is written there; the report of several studies or
    runs is written to runs/report-HASH, where HASH identifies the runs. Runs may differ in any setting: labels of rows
    show the differences, and each row is compared with the row of the baseline method whose other settings are equal.

    fedflat report runs/digits

    fedflat report runs/FedAvg-seed0-1a2b3c4d5e6f7081 runs/FedSAM-seed0-2b3c4d5e6f708192 --target 0.9 --out runs/two

    fedflat report runs/digits --figures figures --column "test accuracy %" --column "MB sent"

    Each figure is written as PDF and SVG, in the width of a column (3.35 inches) and of a page (6.9 inches).

    The report of a federation, also while it runs, lists participating, missing and refused clients and all events.
    """
    from ..experiments.run_directory import StoredRun
    from ..experiments.studies import load_study, runs_in_folder
    from ..reports.comparison import compare
    from ..reports.page import Chapter
    from .execution import show

    console = Console()
    if columns and figures is None:
        raise InputError("--column needs --figures DIR, the folder of the LaTeX table")
    if any(is_federation(folder) for folder in folders):
        if figures is not None:
            raise InputError("--figures: the report of a federation has no figures for papers")
        return _report_federation(console, folders, out)
    chosen = cast("Protocol | None", protocol)  # `compare` refuses an unknown one
    specs = {folder: load_study(folder) for folder in folders if (folder / "study.toml").exists()}
    only = specs.get(folders[0]) if len(folders) == 1 else None  # the study, if nothing else is given
    runs: list[StoredRun] = []
    for folder in folders:
        finished, missing = runs_in_folder(specs[folder], folder) if folder in specs else ([StoredRun.open(folder)], 0)
        runs += finished
        if missing:
            where = "" if only else f"{folder}: "
            console.say(f"{where}{missing} of {missing + len(finished)} runs are not finished and not shown")
    wanted, shown = targets or (only.targets if only else ()), chosen or (only.protocol if only else "last")
    place = folders[0] if only else Path("runs") / f"report-{_digest(runs)}"
    comparison = compare(runs, targets=wanted, protocol=shown)
    written = _write_for_paper(comparison, figures, columns) if figures is not None else ()
    show(console, [Chapter(comparison)], out or place)
    console.say(*written)


def _write_for_paper(comparison: ComparisonData, folder: Path, columns: list[str] | None) -> list[str]:
    """Write figures and the LaTeX table to `folder`; return the line that says so."""
    from ..reports.paper_figures import write_for_paper  # here, because it imports matplotlib

    return [f"for papers: {len(write_for_paper(comparison, folder, columns or None))} files in {folder}"]


def is_federation(folder: Path) -> bool:
    """Tell whether a folder holds a federation."""
    from ..federation.flower.directory import STUDY  # needs no Flower

    return (folder / STUDY).exists()


def _report_federation(console: Console, folders: list[Path], out: Path | None) -> None:
    """Print and write the report of one federation. Raises InputError if several folders are given."""
    from ..reports.federation import FederationData, clients_table, write_federation_page

    if len(folders) > 1:
        raise InputError("a federation has a report of its own; give one folder")
    data = FederationData.read(folders[0])
    console.say(data.headline, *(f"damaged: {line}" for line in data.damaged))
    console.show(clients_table(data))
    console.say(f"report: {write_federation_page(data, out or folders[0])}")


def _digest(runs: list[StoredRun]) -> str:
    """Return hexadecimal digits that identify these runs, in any order."""
    from ..rounds.settings import digest, settings_key

    return digest(sorted(settings_key([run.settings, run.summary["rounds"]]) for run in runs), 16)


def flatness(
    context: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs or studies; each run's newest checkpoint is used."),
    ] = None,
    measures: Annotated[
        list[str] | None,
        typer.Option(
            "--measure", help="Name of a measure, or a table as JSON; may repeat; default eigenvalues and sharpness."
        ),
    ] = None,
    max_samples: Annotated[int, typer.Option(min=1, help="Number of training samples for the loss.")] = MAX_SAMPLES,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data sets; default $FEDFLAT_DATA.")] = None,
    show_measures: Annotated[bool, typer.Option("--list", help="List the measures with their settings.")] = False,
    code: AllowCodeOption = False,
) -> None:
    """Measure the flatness of the models of runs; show values with error bars, and how each measure was computed.

    fedflat flatness runs/digits --measure eigenvalues --measure trace --measure '{"name": "sharpness", "rho": 0.1}'

    All runs are measured on the same samples. Each result is saved in the run's flatness.json at once, and appears in
    `fedflat report`.
    """
    from ..metrics.flatness import Flatness, all_measures
    from ..reports.catalogue import measure_overview

    console = Console()
    if show_measures:
        return console.show(measure_overview(all_measures()))
    if not runs:
        raise InputError("give the folder of a run or a study, or --list")

    from ..experiments.measuring import build_measures, measure_run, run_directories
    from ..reports.tables import flatness_table

    with allow_code():  # the user's own command line may name code
        chosen = build_measures([_parsed(text) for text in measures or ()])
    if code:
        context.with_resource(allow_code())
    results: dict[str, Flatness] = {}
    for directory in run_directories(runs):
        name = directory.path.name
        with console.bars(f"{name}  ") as progress:
            results[name] = measure_run(directory, chosen, max_samples, data_dir, progress)
    console.show(flatness_table(results))
    for protocol in dict.fromkeys(finding.protocol for each in results.values() for finding in each.findings):
        console.say(protocol, style="dim")


def _parsed(text: str) -> object:
    """Parse the value of --measure: the name of a measure, or a table as JSON."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"--measure {shortened(text)}: {reason}") from error


def verify(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders of runs, studies, searches, federations, or cached data sets."),
    ],
) -> None:
    """Check every file of a folder against its SHA-256; report damaged files and which can be recovered.

    Nothing is written. The exit code is 0 if nothing is damaged, 1 if a file is damaged, and 2 for a folder of another
    kind.

    fedflat verify runs/digits
    """
    console, damaged = Console(), 0
    for folder in folders:
        for verdict in verdicts(folder):
            if verdict.problem:
                damaged += 1
                remedy = f"; {verdict.remedy}" if verdict.remedy else ""
                console.say(f"damaged  {verdict.path}: {verdict.problem}{remedy}", style="red")
            else:
                console.say(f"intact   {verdict.path}" + (f"  ({verdict.note})" if verdict.note else ""))
    console.say(f"{damaged} damaged" if damaged else "nothing is damaged")
    if damaged:
        raise typer.Exit(code=1)


def verdicts(folder: Path) -> Iterator[Verdict]:
    """Check the files of a folder; yield a verdict on each. Raises InputError for a folder of an unknown kind."""
    from ..data import cache
    from ..experiments.tuning import SETTINGS
    from ..experiments.verification import Verdict, verify_run, verify_search, verify_study
    from ..federation.flower import directory as federation
    from ..files import cache_folder
    from ..rounds.checksums import Checksums

    checksums = Checksums(folder)
    if checksums.knows("study.toml"):
        yield from verify_study(folder)
    elif checksums.knows(SETTINGS):
        yield from verify_search(folder)
    elif checksums.knows(federation.STUDY):
        again = "the server restores it from the newest undamaged checkpoint when it resumes"
        older = "an older undamaged checkpoint is used, if any; `fedflat flower rollback` returns to a chosen one"
        for name, problem in federation.check(folder):
            remedy = older if name.startswith("checkpoint/") else again if name == federation.METRICS else ""
            head = federation.check_log(folder / name, {}) if name == federation.EVENTS and not problem else None
            note = f"{head.lines} lines, SHA-256 {head.sha256}: keep this elsewhere" if head else ""
            yield Verdict(folder / name, problem, remedy if problem else "", note)
    elif any((folder / name).exists() for name in ("config.toml", "checkpoint", "summary.json")):
        yield from verify_run(folder)
    elif any(folder.glob(f"*/{cache.DESCRIPTION}")) or folder.resolve() == cache_folder().resolve():
        for name, problem in cache.check(folder):
            yield Verdict(folder / name, problem, "it is converted again at its next use" if problem else "")
    else:
        raise InputError(f"{folder} holds neither a run, a study, a search, a federation nor a cache of data sets")


def predict(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    source: Annotated[
        Path,
        typer.Option(
            "--input",
            help="An npz, parquet or txt file (a text per line), a picture, or a folder of pictures; for a run on "
            "tables a csv, tsv or jsonl file.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="New file to write, .csv or .parquet.")] = Path("predictions.csv"),
    scores: Annotated[bool, typer.Option("--scores", help="Also write a column for each score of the model.")] = False,
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities", help="Also write a column for each probability: softmax, or sigmoid for multiple labels."
        ),
    ] = False,
    code: AllowCodeOption = False,
) -> None:
    """Predict new samples with a run's model; the training data are not needed.

    Samples have the format of training: an npz has the array x, a parquet file the column image or text, and pictures
    are decoded, resized and scaled in the same way. For a run on tables give a csv, tsv or jsonl file: its rows are
    scaled and encoded as those of training were, and it needs no labels. Samples of another shape or type are refused.
    The table has a row for each sample: its path in the folder or its number, and the predicted class, labels or
    numbers.

    fedflat predict runs/cats --input pictures --out predictions.csv

    fedflat predict runs/digits --input new.npz --out predictions.parquet --probabilities
    """
    from ..experiments.export import predict_file  # here, because it imports torch
    from ..experiments.run_directory import StoredRun

    if code:
        context.with_resource(allow_code())
    _refuse_federation(run)
    console = Console()
    with console.bars(counted=True) as progress:
        number = predict_file(StoredRun.open(run), source, out, scores, probabilities, progress)
    console.say(f"{number:,} predictions: {out}")


def _refuse_federation(folder: Path) -> None:
    """Raise InputError if the folder holds a federation: its server does not know what a sample is."""
    if is_federation(folder):
        raise InputError(
            f"{folder} holds a federation, whose server does not know the kind of its clients' samples; in Python load "
            f"{folder / 'model.safetensors'} into a model, see docs/howto/use_the_model.md"
        )


def export(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    folder: Annotated[Path, typer.Argument(help="New folder for the files.")],
    format: Annotated[str, typer.Option(help="safetensors; or onnx, for programs without torch.")] = "safetensors",
    code: AllowCodeOption = False,
) -> None:
    """Write a run's model for other programs: an adapter as peft reads it, any other model as safetensors.

    The file load.py shows how to load it, and README.md is its model card. Another run can start from an
    adapter: --adapter.start FOLDER.

    fedflat export runs/news adapters/news

    fedflat export runs/digits digits --format onnx
    """
    from ..experiments import export as writing  # here, because it imports torch
    from ..experiments.run_directory import Format, StoredRun

    if code:
        context.with_resource(allow_code())
    _refuse_federation(run)
    if format not in get_args(Format):
        raise InputError(f"--format must be {' or '.join(get_args(Format))}, got {shortened(format)!r}")
    for name in writing.export(StoredRun.open(run), folder, cast("Format", format)):
        Console().say(f"wrote {folder / name}")
