"""A comparison for other programs: CSV, LaTeX, an HTML table and pandas."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..core.errors import InputError, MissingPackageError, printable
from ..experiments.csv_text import without_formula
from ..files import write_atomically
from .columns import Column, caption, columns
from .comparison_data import ComparisonData

if TYPE_CHECKING:
    import pandas as pd

LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\N{NO-BREAK SPACE}": "~", "±": r"$\pm$", "Δ": r"$\Delta$",
    "λ": r"$\lambda$", "ρ": r"$\rho$", "–": "--", "−": "$-$", "≥": r"$\geq$", "…": r"\dots{}", "<": r"$<$", ">": r"$>$",
}  # fmt: skip


def environment() -> Environment:
    """The templates of this package; whatever stands in them is escaped."""
    return Environment(loader=PackageLoader("fedflat.reports"), autoescape=True, undefined=StrictUndefined)


def html_table(comparison: ComparisonData) -> str:
    """The table alone, as HTML."""
    module = environment().get_template("table.html.j2").module
    table: str = str(module.comparison_table(comparison.rows, columns(comparison), caption(comparison)))  # type: ignore[attr-defined]
    return table


def latex_table(comparison: ComparisonData, chosen: Sequence[str] | None = None) -> str:
    """Write the table as a `tabular` with booktabs' rules; bold as on the page, the caption as a comment.

    chosen: the titles of the columns besides the method; default all but rounds to a target that nobody asked for.
    Raises InputError for a column that the table does not have.
    """
    shown = _chosen_columns(comparison, chosen)
    best = [column.best(comparison.rows) for column in shown]
    lines = [
        f"% {printable(caption(comparison))}",
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * (len(shown) - 1)}}}",
        "\\toprule",
        " & ".join(_latex(column.title) for column in shown) + r" \\",
        "\\midrule",
    ]
    for row in comparison.rows:
        cells = [_latex(column.cell(row)) for column in shown]
        bold = [f"\\textbf{{{cell}}}" if row.label in some else cell for cell, some in zip(cells, best, strict=True)]
        lines.append(" & ".join(bold) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _chosen_columns(comparison: ComparisonData, chosen: Sequence[str] | None) -> list[Column]:
    first, *others = columns(comparison)
    if chosen is None:
        return [first, *(one for one in others if comparison.has_own_targets or not one.title.startswith("rounds to"))]
    by_title = {one.title.replace("\N{NO-BREAK SPACE}", " "): one for one in others}
    if unknown := [title for title in chosen if title not in by_title]:
        raise InputError(f"columns: {unknown[0]!r} is not in the table; it has {', '.join(map(repr, by_title))}")
    return [first, *(by_title[title] for title in chosen)]


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in printable(text))


def csv_text(comparison: ComparisonData) -> str:
    """All numbers, to all digits, as CSV with a head; one row per method."""
    import pyarrow as pa
    import pyarrow.csv  # here, because tables on a terminal and on a page need none

    table = comparison.table()
    columns = [[without_formula(cell) for cell in column.to_pylist()] if pa.types.is_string(column.type) else column
               for column in table.columns]  # fmt: skip
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(columns, [str(without_formula(name)) for name in table.column_names]), buffer)
    return buffer.getvalue().decode()


def write_csv(comparison: ComparisonData, path: Path) -> Path:
    """Write `csv_text` to `path`, atomically. Raises InputError if it cannot be written."""
    write_atomically(path, lambda file: file.write_text(csv_text(comparison)))
    return path


def data_frame(comparison: ComparisonData) -> pd.DataFrame:
    """The numbers as a pandas DataFrame. Raises MissingPackageError, an InputError, without pandas."""
    try:
        import pandas  # noqa: F401  # not one of our dependencies
    except ImportError as error:
        raise MissingPackageError(
            "to_pandas needs pandas: `pip install pandas`, or use `.table()` (pyarrow)"
        ) from error
    frame: Any = comparison.table().to_pandas()
    return frame
