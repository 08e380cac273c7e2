"""The settings of every cell of every recipe as they are built, to compare two versions of the package.

    python -m benchmarks.recipe_settings --out after.json [--before before.json]

The file has a row for the partition, the client and each method of a cell, and for the cell as a file and as runs.
With --before the rows that are not the same there are printed.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.compared_rows import write_rows
from fedflat.experiments.recipe import all_recipes
from fedflat.experiments.spec import StudySpec

Row = tuple[str, str, str]  # the cell, what is described, and how it is built


def rows() -> Iterator[Row]:
    """Describe all cells."""
    for name, recipe in all_recipes().items():
        for cell in recipe.cells():
            yield from ((f"{name} {cell.name}", what, text) for what, text in _described(cell.study()))


def _described(study: StudySpec) -> Iterator[tuple[str, str]]:
    yield "partition", repr(study.partition.object)
    yield "client", repr(study.client)
    yield "file", study.to_toml()
    for method in study.methods:
        yield method.full_name, repr(method.object)
    for run in study.runs():
        yield f"run {run.title} {run.digest()}", repr(run.client)


def main() -> None:
    """Write all rows, and print those that differ."""
    found, before = write_rows(__doc__, rows())
    print(f"{len(found)} rows")
    if before is not None:
        old = [tuple(row) for row in before]
        differing = sorted({*old} ^ {*found})
        print(f"{len(differing)} of {len(old)} and {len(found)} rows are on one side alone", *differing[:20], sep="\n")


if __name__ == "__main__":
    main()
