"""A comparison as a sentence and as tables: on a terminal, in HTML, LaTeX, CSV and pandas."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.table import Table

from ..core.errors import InputError, printable
from ..experiments.csv_text import without_formula
from ..experiments.statistics import Difference
from ..metrics.flatness import Flatness
from ..metrics.protocols import Score
from .columns import Column, caption, columns, measure_title, target_columns
from .comparison_data import ComparisonData
from .published import published_lines
from .text_table import NOTHING, text_table

NAMED = 4  # most methods that the headline names
MINUS = re.compile(r"(?<![\w)])-(?=\d)")  # the sign of a number, and no hyphen
FLATNESS = "flatness: ± sample standard deviation over seeds; of one seed half of a 95 % interval, or the residual"
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\N{NO-BREAK SPACE}": "~", "±": r"$\pm$", "Δ": r"$\Delta$",
    "λ": r"$\lambda$", "ρ": r"$\rho$", "–": "--", "−": "$-$", "≥": r"$\geq$", "…": r"\dots{}", "<": r"$<$", ">": r"$>$",
}  # fmt: skip


def headline(comparison: ComparisonData) -> str:
    """Return a report's first sentence: which method is ahead of the baseline, by how much, and how reliably.

    A method is reliably ahead if the 95 % interval of its gain is above zero. Intervals are not corrected for
    multiple comparisons: of forty methods as good as the baseline, about one has an interval above zero by chance.
    """
    rows = {row.label: row.gain for row in comparison.rows if row.gain is not None}
    shown = {row.label: row.difference for row in comparison.rows if row.difference is not None}
    score = comparison.score
    accuracy = score.title + (", chosen on the test set," if comparison.protocol == "best-test" else "")
    if not rows:
        alone = max(comparison.rows, key=lambda row: score.sign * row.accuracy.mean)
        spread = "" if alone.accuracy.std is None else f" ± {score.factor * alone.accuracy.std:.2f}"
        unit = " %" if score.is_share else ""
        reached = f"{score.factor * alone.accuracy.mean:.2f}{spread}{unit} {score.title} ({_seeds(alone.accuracy.n)})"
        return f"{alone.label} has {reached}; there is nothing to compare it with."
    ahead = sorted((label for label, d in rows.items() if d.low is not None and d.low > 0), key=lambda n: -rows[n].mean)
    best = ahead[0] if ahead else max(rows, key=lambda label: rows[label].mean)
    first = shown[best]
    to = next(row.baseline or comparison.baseline for row in comparison.rows if row.label == best)
    if first.low is None:
        side = "higher" if first.mean >= 0 else "lower"
        return (
            f"One seed cannot tell who is ahead of {to}: {best}'s {accuracy} is {_points(first, score)} {side}, "
            "without an interval."
        )
    if ahead:
        others = f"; so {'is' if len(ahead) == 2 else 'are'} {_listed(ahead[1:])}" if len(ahead) > 1 else ""
        return f"{best} is ahead of {to} by {_points(first, score)} of {accuracy} ({_interval(first, score)}){others}."
    if all(d.high is not None and d.high < 0 for d in rows.values()):
        behind = f"the closest, {best}, is {_points(first, score)} of {accuracy} behind"
        return f"{comparison.baseline} is ahead of all others; {behind} ({_interval(first, score)})."
    extreme, points = "highest" if score.larger_is_better else "lowest", " points" if score.is_share else ""
    highest = f"the {extreme} difference is {best}'s, {score.factor * first.mean:+.2f}{points} of {accuracy}"
    return f"No method is reliably ahead of {comparison.baseline}; {highest} ({_interval(first, score)})."


def _points(d: Difference, score: Score) -> str:
    return f"{score.factor * abs(d.mean):.2f}{' points' if score.is_share else ''}"


def _interval(d: Difference, score: Score) -> str:
    low, high = (0.0 if end is None else score.factor * end for end in (d.low, d.high))
    return f"95 % interval {low:+.2f} to {high:+.2f}, {_seeds(d.n)}"


def _seeds(n: int) -> str:
    return "1 seed" if n == 1 else f"{n} seeds"


def _listed(names: Sequence[str]) -> str:
    """Join names for a sentence; after the first `NAMED` names, only the number of further names is given."""
    shown = [*names[:NAMED], *([f"{len(names) - NAMED} more"] if len(names) > NAMED else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def tables(comparison: ComparisonData) -> list[Table]:
    """Return tables for a console: the comparison, a paper's other numbers if it has any, and the cost of targets."""
    shown, first = [_table(comparison, columns(comparison), caption(comparison))], "the paper's other numbers"
    if rows := [(title, *cells) for title, cells in published_lines(comparison).items()]:
        shown.append(text_table((first, *(row.label for row in comparison.rows)), rows, (first,)))
    by_target = (target_columns(comparison, place) for place in range(len(comparison.targets)))
    return shown + [_table(comparison, cells) for cells in by_target if cells]


def flatness_table(flatness_of: Mapping[str, Flatness]) -> Table:
    """Return a table with a row per run and a column per value.

    Values of single layers, whose names contain a slash, are left out.
    """
    names = dict.fromkeys(name for flatness in flatness_of.values() for name in flatness if "/" not in name)
    titles = ("run", *map(measure_title, names))
    rows = [
        (run, *(str(flatness[name]) if name in flatness else NOTHING for name in names))
        for run, flatness in flatness_of.items()
    ]
    caption = "± half of a 95 % interval, or the residual of an eigenvalue; in brackets, on how many of all samples"
    return text_table(titles, rows, ("run",), unbroken=titles, caption=caption)


def _table(comparison: ComparisonData, cells: list[Column], caption: str | None = None) -> Table:
    titles = [column.title for column in cells]
    rows = [[column.cell(row) for column in cells] for row in comparison.rows]
    return text_table(titles, rows, titles[:1], caption=caption)


def environment() -> Environment:
    """Return the environment with the templates of this package; it escapes all values."""
    return Environment(loader=PackageLoader("fedflat.reports"), autoescape=True, undefined=StrictUndefined)


def latex_table(comparison: ComparisonData, chosen: Sequence[str] | None = None) -> str:
    """Return the table as a `tabular` with booktabs' rules; the best is bold.

    Comments before it are the caption and the meaning of each column, which says what ± and [ ] are.

    chosen: titles of the columns besides the method; by default all columns, but those titled "rounds to" only if
    targets were given.
    Raises InputError for a column that the table does not have.
    """
    shown = _chosen_columns(comparison, chosen)
    best = [column.best(comparison.rows) for column in shown]
    lines = [
        f"% {printable(caption(comparison))}",
        *(f"% {printable(f'{column.title}: {column.meaning}')}" for column in shown[1:]),
        f"% {FLATNESS}",
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * (len(shown) - 1)}}}",
        "\\toprule",
        " & ".join(_latex(column.title) for column in shown) + r" \\",
        "\\midrule",
    ]
    for row in comparison.rows:
        cells = [_latex(MINUS.sub("−", column.cell(row))) for column in shown]
        bold = [
            f"\\textbf{{{cell}}}" if row.label in labels else cell for cell, labels in zip(cells, best, strict=True)
        ]
        lines.append(" & ".join(bold) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _chosen_columns(comparison: ComparisonData, chosen: Sequence[str] | None) -> list[Column]:
    first, *others = columns(comparison)
    if chosen is None:
        return [first, *(c for c in others if comparison.has_own_targets or not c.title.startswith("rounds to"))]
    by_title = {column.title.replace("\N{NO-BREAK SPACE}", " "): column for column in others}
    if unknown := [title for title in chosen if title not in by_title]:
        raise InputError(f"columns: {unknown[0]!r} is not in the table; it has {', '.join(map(repr, by_title))}")
    return [first, *(by_title[title] for title in chosen)]


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in printable(text))


def csv_text(comparison: ComparisonData) -> str:
    """Return all numbers, to all digits, as CSV with a header; one row per method."""
    import pyarrow as pa
    import pyarrow.csv  # here, because tables on a terminal and on a page need none

    table = comparison.table()
    columns = [[without_formula(cell) for cell in column.to_pylist()] if pa.types.is_string(column.type) else column
               for column in table.columns]  # fmt: skip
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(columns, [str(without_formula(name)) for name in table.column_names]), buffer)
    return buffer.getvalue().decode()
