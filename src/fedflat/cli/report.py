"""`fedflat report`: table and page from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from .console import Console

if TYPE_CHECKING:
    from ..metrics.protocols import Protocol


def report(
    folders: Annotated[list[Path], typer.Argument(help="One study, or any number of finished runs.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; default the study's, or the current one.")
    ] = None,
    targets: Annotated[
        list[float] | None, typer.Option("--target", help="Accuracy in (0, 1) for a column 'rounds to'; may repeat.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Accuracy shown: last, final, best-validation or best-test; default the study's.")
    ] = None,
) -> None:
    """Make the comparison table and page again from what is on disk; nothing is trained."""
    from ..experiments.run_directory import StoredRun
    from ..experiments.studies import stored_study
    from ..reports.comparison import compare
    from ..reports.page import Chapter
    from .execution import show

    console = Console()
    chosen = cast("Protocol | None", protocol)  # an unknown one is refused by `compare`
    if len(folders) == 1 and (folders[0] / "study.toml").exists():
        spec, runs = stored_study(folders[0])
        missing = len(spec.runs()) - len(runs)
        if missing:
            console.say(f"{missing} of {len(spec.runs())} runs are not finished and not shown")
        comparison = compare(runs, targets=targets or spec.targets, protocol=chosen or spec.protocol)
        return show(console, [Chapter(comparison)], out or folders[0])
    runs = [StoredRun.open(folder) for folder in folders]
    show(console, [Chapter(compare(runs, targets=targets or (), protocol=chosen or "last"))], out or Path())
