"""`fedflat best`: the settings of each method that did best on the clients' validation samples."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import Console

if TYPE_CHECKING:
    from rich.table import Table

    from ..experiments.selection import RankedSettings

OutOption = Annotated[
    Path | None,
    typer.Option(
        help="Write a study of the best settings to this TOML file; one for each problem of the grid, numbered."
    ),
]


def best(
    folder: Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of a study with a grid.")],
    out: OutOption = None,
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
        console.show(_table(own))
        if paths:
            write_atomically(paths[number], partial(Path.write_text, data=chosen_study(own).to_toml()))
            console.say(f"study of the best settings{f' for {problem}' if problem else ''}: {paths[number]}")
    if len(paths) > 1:
        console.say(
            f"{out} itself is not written: the grid has {len(paths)} problems, and each has a study of its own, for "
            f"`fedflat compare {paths[0]}` and so on"
        )


def _paths(out: Path, number: int) -> list[Path]:
    """The files of so many studies: `out` itself, or several with a number."""
    return [out] if number == 1 else [out.with_stem(f"{out.stem}-{i}") for i in range(1, number + 1)]


def _table(choices: list[RankedSettings]) -> Table:
    """The best settings of each method, and by how much they are ahead of the next ones."""
    from ..experiments.labels import variants
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
