"""The tables and figures of docs/study.md, from the results of studies/flat-or-tuned alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from benchmarks.tables import MISSING, Table
from docs.study_analysis import (
    MEASURES,
    Contrast,
    Correlation,
    Results,
    Row,
    between,
    by_method,
    contrasts,
    ends,
    searched,
    twice_the_gradients,
    within,
)
from docs.study_figures import contrast_figure, curve_figure, drift_figure, flatness_figure
from fedflat.experiments.statistics import Difference, MeanEstimate
from fedflat.experiments.tuning import Tuned
from fedflat.metrics.flatness.measure import with_error

FIGURES = "_static/study"  # below docs/
NOT_MEASURED = "Not measured yet."
PARTS = {"tuned": "tuned", "published": "as published", "twice": "plain, twice the rounds"}


def chapters(results: Results) -> dict[str, str]:
    """What stands between the marks of the page, by mark."""
    makers: dict[str, Callable[[Results], str]] = {
        "chosen": chosen, "accuracies": accuracy_tables, "contrasts": tuned_contrasts,
        "published contrasts": published_contrasts, "gradient contrasts": gradient_contrasts,
        "contrast figure": contrast_image,
        "curves": curves, "flatness": flatness_tables, "correlations": correlation_table,
        "flatness figure": flatness_image,
        "drift": drift, "cost": cost_table,
    }  # fmt: skip
    return {what: make(results) or NOT_MEASURED for what, make in makers.items()}


def figures(results: Results) -> dict[str, str]:
    """The figures of which there is something to draw, by file name."""
    by_split = {heading(split): kinds(results, split) for split in results.splits("tuned", "published")}
    found = {"contrasts.svg": contrast_figure(by_split)} if by_split else {}
    for split in results.splits("tuned"):
        found[f"curves-{split}.svg"] = curve_figure(results.curves_of("tuned", split), heading(split))
    measured = {heading(split): rows for split in results.splits("tuned") if (rows := _measured(results, split))}
    found |= {"flatness.svg": flatness_figure(measured)} if measured else {}
    return found | ({"drift.svg": drift_figure(results.drift)} if results.drift else {})


def heading(split: str) -> str:
    """`alpha = 0.1` for `alpha-0.1`."""
    return split.replace("-", " = ")


def kinds(results: Results, split: str) -> dict[str, list[Contrast]]:
    """The contrasts of one split by kind of comparison."""
    tuned, published, twice = (results.of(part, split) for part in PARTS)
    return {
        "tuned": contrasts(tuned, tuned),
        "as published": contrasts(published, published),
        "tuned, equal gradients": contrasts(tuned, twice, twice_the_gradients()),
    }


def chosen(results: Results) -> str:
    """What the searches have chosen."""
    splits = dict.fromkeys(row["split"] for row in results.tuning)
    return _by_split(
        {split: chosen_table(searched([row for row in results.tuning if row["split"] == split])) for split in splits}
    )


def chosen_table(found: Sequence[Tuned]) -> Table:
    """A row for each method of one search."""
    titles = ("method", "chosen", "after rounds", "validation accuracy", "over the papers' settings",
              "at an end of what was tried", "diverged")  # fmt: skip
    return Table(titles, [_chosen_row(tuned) for tuned in found])


def _chosen_row(tuned: Tuned) -> tuple[str, ...]:
    given, there = tuned.given
    gain = MISSING if given.diverged else f"{100 * (there.score - given.score):+.2f} after {given.rounds:,}"
    at_ends = ", ".join(f"{_short(key)}: {end}" for key, end in ends(tuned).items())
    diverged = sum(bool(one.diverged) for one in tuned.steps[0])
    settings = ", ".join(f"{_short(key)}={value}" for key, value in tuned.winner.values.items())
    return (
        tuned.label, settings, f"{tuned.winner.rounds:,}", f"{100 * tuned.winner.score:.2f}", gain,
        at_ends or MISSING, f"{diverged} of {len(tuned.steps[0])}",
    )  # fmt: skip


def accuracy_tables(results: Results) -> str:
    """Mean and spread over seeds of every method in every part."""
    return _by_split({split: accuracy_table(results, split) for split in results.splits(*PARTS)})


def accuracy_table(results: Results, split: str) -> Table:
    """A row for each method of one split."""
    found = {part: by_method(results.of(part, split), "accuracy") for part in PARTS}
    methods = dict.fromkeys(method for estimates in found.values() for method in estimates)
    rows = [(method, *(_accuracy(found[part].get(method)) for part in PARTS)) for method in methods]
    return Table(("method", *PARTS.values()), rows)


def tuned_contrasts(results: Results) -> str:
    """The nine contrasts of the tuned methods."""
    return _by_split({split: contrast_table(kinds(results, split)["tuned"]) for split in results.splits("tuned")})


def published_contrasts(results: Results) -> str:
    """The nine contrasts of control 1."""
    splits = results.splits("published")
    return _by_split({split: contrast_table(kinds(results, split)["as published"]) for split in splits})


def gradient_contrasts(results: Results) -> str:
    """The contrasts of control 2."""
    splits = results.splits("twice")
    return _by_split({split: contrast_table(kinds(results, split)["tuned, equal gradients"]) for split in splits})


def contrast_image(results: Results) -> str:
    """The figure of all contrasts."""
    drawn = results.splits("tuned", "published")
    return f"![Flat methods minus their plain bases]({FIGURES}/contrasts.svg)" if drawn else ""


def contrast_table(some: Sequence[Contrast]) -> Table:
    """A row for each contrast, in points of accuracy."""
    titles = ("flat method", "plain base", "pairs", "difference", "95 % interval", "p", "p, corrected", "verdict")
    return Table(titles, [_contrast_row(one) for one in some])


def _contrast_row(one: Contrast) -> tuple[str, ...]:
    numbers = ("0", MISSING, MISSING) if one.difference is None else _difference(one.difference)
    return one.method, one.base, *numbers, _p(one.p), _p(one.corrected), one.verdict if one.difference else MISSING


def _difference(d: Difference) -> tuple[str, str, str]:
    interval = MISSING if d.low is None or d.high is None else f"[{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
    return str(d.n), f"{100 * d.mean:+.2f}", interval


def curves(results: Results) -> str:
    """A figure for each split."""
    splits = results.splits("tuned")
    return "\n\n".join(f"![Test accuracy, {heading(split)}]({FIGURES}/curves-{split}.svg)" for split in splits)


def flatness_tables(results: Results) -> str:
    """The measures of the tuned final models."""
    splits = [split for split in results.splits("tuned") if _measured(results, split)]
    return _by_split({split: flatness_table(_measured(results, split)) for split in splits})


def flatness_table(rows: Sequence[Row]) -> Table:
    """Mean and spread over seeds of each measure, and in brackets the largest error of a single model's."""
    titles = ("method", "models", *MEASURES.values())
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row["method"], []).append(row)
    return Table(titles, [_flatness_row(method, own) for method, own in by_name.items()])


def _flatness_row(method: str, rows: Sequence[Row]) -> tuple[str, ...]:
    cells = []
    for measure in MEASURES:
        estimate = by_method(rows, measure).get(method)
        errors = [row[f"{measure}_error"] for row in rows if row[f"{measure}_error"] is not None]
        error = f" (error {max(errors):.2g})" if errors else ""
        cells.append(f"{_estimate(estimate)}{error}" if estimate else MISSING)
    return method, str(len(rows)), *cells


def flatness_image(results: Results) -> str:
    """The figure of flatness and accuracy."""
    drawn = any(_measured(results, split) for split in results.splits("tuned"))
    return f"![Test accuracy against flatness]({FIGURES}/flatness.svg)" if drawn else ""


def correlation_table(results: Results) -> str:
    """Spearman's correlations of flatness and accuracy within and between methods."""
    rows = [
        (heading(split), words, *_correlation(within(own, measure)), *_correlation(between(own, measure)))
        for split in results.splits("tuned")
        if (own := _measured(results, split))
        for measure, words in MEASURES.items()
    ]
    titles = ("split", "measure", "within a method", "methods", "between methods", "methods")
    return Table(titles, rows).markdown() if rows else ""


def drift(results: Results) -> str:
    """FedGF's drift and c, in a table and a figure."""
    if not results.drift:
        return ""
    image = f"![Drift and interpolation of FedGF]({FIGURES}/drift.svg)"
    return f"{drift_table(results.drift).markdown()}\n\n{image}"


def drift_table(rows: Sequence[Row]) -> Table:
    """A row for each radius."""
    titles = (
        "rho",
        "rounds",
        "mean drift [least, most]",
        "threshold",
        "rounds above",
        "mean c [least, most]",
        "last c",
    )
    return Table(titles, [_drift_row([row for row in rows if row["rho"] == rho]) for rho in _radii(rows)])


def _drift_row(rows: Sequence[Row]) -> tuple[str, ...]:
    drifts, c = ([row[name] for row in rows] for name in ("drift", "c"))
    rho, threshold = (rows[0][name] for name in ("rho", "threshold"))
    far = sum(x > threshold for x in drifts)
    return f"{rho:g}", str(len(rows)), _range(drifts), f"{threshold:g}", str(far), _range(c), f"{c[-1]:.2f}"


def cost_table(results: Results) -> str:
    """Hours and gradients of finished runs, and how often they were gone on from."""
    parts = dict.fromkeys((row["part"], row["split"]) for row in results.runs)
    rows = [(part, heading(split), *_cost(results.runs, [(part, split)])) for part, split in parts]
    total = ("**all**", "", *_cost(results.runs, list(parts)))
    titles = ("part", "split", "runs", "hours", "gradients, millions", "gone on from")
    return Table(titles, [*rows, total]).markdown() if rows else ""


def _cost(every: Sequence[Row], parts: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    rows = [row for row in every if (row["part"], row["split"]) in parts]
    hours, millions = sum(row["seconds"] for row in rows) / 3600, sum(row["gradients"] for row in rows) / 1e6
    again = sum(row["segments"] - 1 for row in rows)
    return f"{len(rows):,}", f"{hours:.2f}", f"{millions:.2f}", f"{again:,}"


def _by_split(tables: dict[str, Table]) -> str:
    """A table for each split, under its name; nothing if there is none."""
    return "\n\n".join(f"**{heading(split)}**\n\n{table.markdown()}" for split, table in tables.items())


def _measured(results: Results, split: str) -> list[Row]:
    """The tuned runs of a split that have a measure of flatness."""
    return [row for row in results.of("tuned", split) if any(row[measure] is not None for measure in MEASURES)]


def _radii(rows: Sequence[Row]) -> list[float]:
    return sorted({row["rho"] for row in rows})


def _range(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


def _accuracy(one: MeanEstimate | None) -> str:
    """In per cent: mean ± standard deviation (seeds)."""
    if one is None:
        return MISSING
    return f"{100 * one.mean:.2f}{'' if one.std is None else f' ± {100 * one.std:.2f}'} ({one.n})"


def _estimate(one: MeanEstimate) -> str:
    return f"{one.mean:.3g}" if one.std is None else with_error(one.mean, one.std)


def _correlation(one: Correlation | None) -> tuple[str, str]:
    if one is None:
        return MISSING, MISSING
    return f"{one.value:+.2f} [{one.low:+.2f}, {one.high:+.2f}]", str(one.methods)


def _p(p: float | None) -> str:
    return MISSING if p is None else "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def _short(key: str) -> str:
    """`rho` for `method.rho`."""
    return key.rpartition(".")[2]
