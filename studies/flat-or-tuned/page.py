"""The tables and figures of docs/study.md, from the results of studies/flat-or-tuned alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from benchmarks.tables import MISSING, Table
from fedflat.experiments.statistics import Difference, MeanEstimate
from fedflat.experiments.tuning import Tuned
from fedflat.metrics.flatness.measure import with_error

from .analysis import (
    BARELY,
    BASES,
    CORRELATED,
    HELD,
    MEASURES,
    NOT_HELD,
    SIGMA,
    UNDECIDED,
    Contrast,
    Correlation,
    Results,
    Row,
    between,
    by_method,
    contrasts,
    contrasts_at_same_settings,
    diverged,
    ends,
    in_order,
    near_chance,
    runs_near_chance,
    searched,
    twice_the_gradients,
    within,
)
from .figures import contrast_figure, curve_figure, drift_figure, flatness_figure

FIGURES = "_static/study"  # below docs/
NOT_MEASURED = "Not measured yet."
PARTS = {
    "tuned": "tuned", "published": "as published", "twice": "plain, twice the rounds", "tuned-again": "searched again",
}  # fmt: skip
# Columns of the tuned final models.
FINAL = {
    "train_accuracy": "tuned, final model: training accuracy", "gap": "test minus training",
    "train_loss": "training loss",
}  # fmt: skip
ACCURACIES = {"accuracy": "", "accuracy_of_final_model": ", final model"}  # columns, and what they are called
# The parts with the flat methods and with their bases, by kind of comparison; the first one is the plan's question.
KINDS = {
    "tuned": ("tuned", "tuned"), "as published": ("published", "published"),
    "tuned, equal gradients": ("tuned", "twice"), "tuned, same settings": ("tuned", "same"),
    "searched again": ("tuned-again", "tuned"),
}  # fmt: skip


def chapters(results: Results) -> dict[str, str]:
    """Return what stands between the marks of the page, by mark."""
    makers: dict[str, Callable[[Results], str]] = {
        "answer": answer, "missing": missing,
        "chosen": chosen, "chosen again": chosen_again, "switch": switch,
        "again contrasts": again_contrasts, "other contrasts": other_contrasts,
        "accuracies": accuracy_tables, "contrasts": tuned_contrasts,
        "published contrasts": published_contrasts, "gradient contrasts": gradient_contrasts,
        "same contrasts": same_contrasts,
        "contrast figure": contrast_image,
        "curves": curves, "flatness": flatness_tables, "correlations": correlation_table,
        "flatness figure": flatness_image,
        "drift": drift, "cost": cost_table,
    }  # fmt: skip
    return {what: make(results) or NOT_MEASURED for what, make in makers.items()}


def figures(results: Results) -> dict[str, str]:
    """Return the figures of which there is something to draw, by file name."""
    by_split = {heading(split): kinds(results, split) for split in results.splits("tuned", "published")}
    found = {"contrasts.svg": contrast_figure(by_split)} if by_split else {}
    for split in results.splits("tuned"):
        found[f"curves-{split}.svg"] = curve_figure(results.curves_of("tuned", split), heading(split))
    measured = {heading(split): rows for split, rows in _measured_tuned(results).items()}
    found |= {"flatness.svg": flatness_figure(measured)} if measured else {}
    return found | ({"drift.svg": drift_figure(results.drift)} if results.drift else {})


def heading(split: str) -> str:
    """Return `alpha = 0.1` for `alpha-0.1`."""
    return split.replace("-", " = ")


def kinds(results: Results, split: str) -> dict[str, list[Contrast]]:
    """Return the contrasts of one split by kind of comparison."""
    return {kind: kind_of_contrasts(results, split, kind) for kind in KINDS}


def kind_of_contrasts(results: Results, split: str, kind: str) -> list[Contrast]:
    """Return the contrasts of one kind.

    Those of a second search that was better are returned alone, out of the nine.
    """
    flat, plain = (results.of(part, split) for part in KINDS[kind])
    if kind == "tuned, equal gradients":
        return contrasts(flat, plain, twice_the_gradients())
    if kind == "tuned, same settings":
        return contrasts_at_same_settings(flat, plain)
    if kind == "searched again":
        return _replaced_contrasts(results, split, _searched_again(results, split, better=True))
    return contrasts(flat, plain)


def _replaced_contrasts(results: Results, split: str, methods: Sequence[str]) -> list[Contrast]:
    """Return the contrasts that change if the second searches of some methods replace the first ones."""
    runs = _with_second_searches(results, split, methods)
    return [one for one in contrasts(runs, runs) if {one.method, one.base} & set(methods)]


def _with_second_searches(results: Results, split: str, methods: Sequence[str]) -> list[Row]:
    """Return the tuned runs of a split, where the second searches of some methods have replaced the first ones."""
    first = [row for row in results.of("tuned", split) if row["method"] not in methods]
    return in_order(first + [row for row in results.of("tuned-again", split) if row["method"] in methods])


def _searched_again(results: Results, split: str, better: bool) -> list[str]:
    """Return the methods whose second search was `better` by validation accuracy than the first, or the others."""
    first, second = (
        {one.label: one.winner.score for one in searched(_search(results, part, split))}
        for part in ("tune", "tune-again")
    )
    return [method for method, score in second.items() if (score > first[method]) == better]


def _search(results: Results, part: str, split: str) -> list[Row]:
    """Return the rows of one search."""
    return [row for row in results.tuning if (row["part"], row["split"]) == (part, split)]


def answer(results: Results) -> str:
    """Return which methods held, by split and kind of comparison; an unfinished comparison has no verdicts."""
    rows = [
        (heading(split), kind, *_verdicts(results, split, kind))
        for split in results.splits("tuned")
        for kind, parts in KINDS.items()
        if all(results.of(part, split) for part in parts)
    ]
    return Table(("split", "comparison", HELD, NOT_HELD, UNDECIDED), rows).markdown() if rows else ""


def _verdicts(results: Results, split: str, kind: str) -> tuple[str, ...]:
    if not results.have_ended(split, *KINDS[kind]):
        return ("not finished", MISSING, MISSING)
    found: dict[str, list[str]] = {HELD: [], NOT_HELD: [], UNDECIDED: []}
    for one in kind_of_contrasts(results, split, kind):
        barely = one.verdict == BARELY
        found[HELD if barely else one.verdict].append(f"{one.method}{' (below a point)' if barely else ''}")
    return tuple(", ".join(names) or MISSING for names in found.values())


def missing(results: Results) -> str:
    """Return what of the plan has not finished."""
    if not results.runs:
        return ""
    lines = [f"* {row['part']}, {heading(row['split'])}: {row['what']}" for row in results.missing]
    if not lines:
        return "All runs have ended; those that the plan's departures leave out were not made."
    return "\n".join(["**This is not the whole study.** What has not finished:", "", *lines])


def chosen(results: Results) -> str:
    """Return what the searches have chosen."""
    return _chosen(results, "tune")


def chosen_again(results: Results) -> str:
    """Return what the second searches have chosen."""
    return _chosen(results, "tune-again")


def _chosen(results: Results, part: str) -> str:
    rows = [row for row in results.tuning if row["part"] == part]
    splits = sorted({row["split"] for row in rows})
    return _by_split({split: chosen_table(searched(_search(results, part, split))) for split in splits})


def again_contrasts(results: Results) -> str:
    """Return the contrasts with a method of which the second search was better."""
    return _contrast_tables(results, "searched again", results.splits("tuned-again"))


def other_contrasts(results: Results) -> str:
    """Return what the contrasts would be with the second searches that were not better."""
    splits = [split for split in results.splits("tuned-again") if results.have_ended(split, "tuned", "tuned-again")]
    found = {
        split: _replaced_contrasts(results, split, _searched_again(results, split, better=False)) for split in splits
    }
    return _by_split({split: contrast_table(some) for split, some in found.items() if some})


def chosen_table(found: Sequence[Tuned]) -> Table:
    """Return a row for each method of one search."""
    titles = ("method", "chosen", "validation", "over the first", "at an end", "near chance", "tie after", "diverged")
    return Table(titles, [_chosen_row(tuned) for tuned in found])


def _chosen_row(tuned: Tuned) -> tuple[str, ...]:
    given, there = tuned.given
    gain = MISSING if given.diverged else f"{100 * (there.score - given.score):+.2f} after {given.rounds:,}"
    at_ends = ", ".join(f"{_short(key)}: {end}" for key, end in ends(tuned).items())
    number = len(tuned.steps[0])
    settings = ", ".join(f"{_short(key)}={value}" for key, value in tuned.winner.values.items())
    return (
        tuned.label, settings, f"{100 * tuned.winner.score:.2f}", gain,
        at_ends or MISSING, f"{near_chance(tuned)} of {number}", ", ".join(map(str, tuned.ties)) or MISSING,
        f"{diverged(tuned)} of {number}",
    )  # fmt: skip


def switch(results: Results) -> str:
    """Return how far FedGF's c was from 0, where it is FedSAM, in the comparisons of its two searches."""
    rows = [
        (heading(split), words, str(len(c)), _range(c))
        for part, words in (("tuned", "as planned"), ("tuned-again", "searched again"))
        for split in results.splits(part)
        if (c := [row["mean_c"] for row in results.of(part, split) if row["mean_c"] is not None])
    ]
    return Table(("split", "search", "runs", "mean c [least, most]"), rows).markdown() if rows else ""


def accuracy_tables(results: Results) -> str:
    """Return mean and spread over seeds of every method in every part."""
    return _by_split({split: accuracy_table(results, split) for split in results.splits(*PARTS)})


def accuracy_table(results: Results, split: str) -> Table:
    """Return a row for each method of one split."""
    cells = {part: accuracy_cells(results.of(part, split)) for part in PARTS}
    methods = dict.fromkeys(method for some in cells.values() for method in some)
    final = final_cells(results.of("tuned", split))
    rows = [
        (method, *(cells[part].get(method, MISSING) for part in PARTS), *final.get(method, (MISSING,) * len(FINAL)))
        for method in methods
    ]
    return Table(("method", *PARTS.values(), *FINAL.values()), rows)


def final_cells(rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    """Return of final models: training accuracy in per cent, test accuracy minus it in points, training loss."""
    columns = [by_method([row | {"gap": _gap(row)} for row in rows], name) for name in FINAL]
    return {
        method: (f"{100 * columns[0][method].mean:.2f}", f"{100 * columns[1][method].mean:+.2f}",
                 f"{columns[2][method].mean:.2f}")
        for method in columns[0]
    }  # fmt: skip


def _gap(row: Row) -> float | None:
    known = row["train_accuracy"] is not None
    return row["accuracy_of_final_model"] - row["train_accuracy"] if known else None


def accuracy_cells(rows: Sequence[Row]) -> dict[str, str]:
    """Return by method, in per cent: mean ± standard deviation (seeds, and how many of them near chance)."""
    near_chance_of = runs_near_chance(rows)
    found = {}
    for method, one in by_method(rows, "accuracy").items():
        spread = "" if one.std is None else f" ± {100 * one.std:.2f}"
        near = f", {near_chance_of[method]} near chance" if near_chance_of[method] else ""
        found[method] = f"{100 * one.mean:.2f}{spread} ({one.n}{near})"
    return found


def tuned_contrasts(results: Results) -> str:
    """Return the nine contrasts of the tuned methods."""
    return _contrast_tables(results, "tuned", results.splits("tuned"))


def published_contrasts(results: Results) -> str:
    """Return the nine contrasts of control 1."""
    return _contrast_tables(results, "as published", results.splits("published"))


def gradient_contrasts(results: Results) -> str:
    """Return the contrasts of control 2, and those of methods with one gradient a step with the same bases."""
    splits = results.splits("twice")
    tables = _contrast_tables(results, "tuned, equal gradients", splits)
    return "\n\n".join(filter(None, [tables, *(_one_gradient(results, split) for split in splits)]))


def _one_gradient(results: Results, split: str) -> str:
    single = [method for method in BASES if method not in twice_the_gradients()]
    some = contrasts(results.of("tuned", split), results.of("twice", split), single)
    told = [f"{one.method} {100 * one.difference.mean:+.2f}" for one in some if one.difference]
    if not told:
        return ""
    return (
        f"Methods that take one gradient a step, {heading(split)}, against the same bases, which have twice their "
        f"gradients: {', '.join(told)} points."
    )


def same_contrasts(results: Results) -> str:
    """Return the contrasts of control 3, and the accuracies of its runs."""
    splits = results.splits("same")
    bases = {split: base_table(results.of("same", split)) for split in splits}
    tables = [_contrast_tables(results, "tuned, same settings", splits), _by_split(bases)]
    return "\n\n".join(filter(None, tables))


def base_table(rows: Sequence[Row]) -> Table:
    """Return a row for each plain base and step size of control 3."""
    cells = []
    for method, rate in dict.fromkeys((row["method"], row["client.lr"]) for row in rows):
        own = [row for row in rows if (row["method"], row["client.lr"]) == (method, rate)]
        cells.append((method, f"{rate:g}", accuracy_cells(own)[method]))
    return Table(("plain base", "step size", "test accuracy"), cells)


def _contrast_tables(results: Results, kind: str, splits: Sequence[str]) -> str:
    tables = {}
    for split in splits:
        ended = results.have_ended(split, *KINDS[kind])
        tables[split] = contrast_table(kind_of_contrasts(results, split, kind), ended)
    return _by_split(tables)


def contrast_image(results: Results) -> str:
    """Return the figure of all contrasts."""
    drawn = results.splits("tuned", "published")
    return f"![Flat methods minus their plain bases]({FIGURES}/contrasts.svg)" if drawn else ""


def contrast_table(some: Sequence[Contrast], ended: bool = True) -> Table:
    """Return a row for each contrast, in points of accuracy; there is no verdict before all runs have `ended`."""
    titles = ("flat method", "plain base", "pairs", "difference", "95 % interval", "p", "p, corrected", "verdict")
    return Table(titles, [_contrast_row(one, ended) for one in some])


def _contrast_row(one: Contrast, ended: bool) -> tuple[str, ...]:
    numbers = ("0", MISSING, MISSING) if one.difference is None else _difference(one.difference)
    said = one.verdict if one.difference and ended else MISSING
    return one.method, one.base, *numbers, _p(one.p), _p(one.corrected), said


def _difference(d: Difference) -> tuple[str, str, str]:
    interval = MISSING if d.low is None or d.high is None else f"[{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
    return str(d.n), f"{100 * d.mean:+.2f}", interval


def curves(results: Results) -> str:
    """Return a figure for each split."""
    splits = results.splits("tuned")
    return "\n\n".join(f"![Test accuracy, {heading(split)}]({FIGURES}/curves-{split}.svg)" for split in splits)


def flatness_tables(results: Results) -> str:
    """Return the measures of the tuned final models."""
    return _by_split({split: flatness_table(rows) for split, rows in _measured_tuned(results).items()})


def flatness_table(rows: Sequence[Row]) -> Table:
    """Return mean and spread over seeds of each measure, and in brackets the largest error of a single model's."""
    titles = ("method", "models", *MEASURES.values(), "sigma^2 trace / 2")
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
    trace = by_method(rows, "trace").get(method)
    cells.append(f"{SIGMA**2 * trace.mean / 2:.4f}" if trace else MISSING)
    return method, str(len(rows)), *cells


def flatness_image(results: Results) -> str:
    """Return the figure of flatness and accuracy."""
    return f"![Test accuracy against flatness]({FIGURES}/flatness.svg)" if _measured_tuned(results) else ""


def correlation_table(results: Results) -> str:
    """Return Spearman's correlations of flatness and accuracy within and between methods."""
    rows = [
        (
            title,
            words,
            *(_correlation(one(own, measure, accuracy)) for one in (within, between) for accuracy in ACCURACIES),
        )
        for title, own in _measured_sets(results).items()
        for measure, words in CORRELATED.items()
    ]
    kinds = (f"{kind}{which}" for kind in ("within a method", "between methods") for which in ACCURACIES.values())
    return Table(("split", "measure", *kinds), rows).markdown() if rows else ""


def _measured_sets(results: Results) -> dict[str, list[Row]]:
    """Return the measured runs of each split, and those with second searches in place of the first ones, by title."""
    found = {}
    for split, rows in _measured_tuned(results).items():
        found[heading(split)] = rows
        better = _searched_again(results, split, better=True)
        if better and results.of("tuned-again", split):
            again = _with_second_searches(results, split, better)
            found[f"{heading(split)}, {' and '.join(better)} searched again"] = _measured(again)
    return found


def drift(results: Results) -> str:
    """Return FedGF's drift and c, in a table and a figure."""
    if not results.drift:
        return ""
    image = f"![Drift and interpolation of FedGF]({FIGURES}/drift.svg)"
    return f"{drift_table(results.drift).markdown()}\n\n{image}"


def drift_table(rows: Sequence[Row]) -> Table:
    """Return a row for each radius."""
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
    """Return hours and gradients of finished runs, and how often they were continued."""
    parts = sorted({(row["part"], row["split"]) for row in results.runs}, key=lambda one: (one[1], one[0]))
    rows = [(part, heading(split), *_cost(results.runs, [(part, split)])) for part, split in parts]
    total = ("**all**", "", *_cost(results.runs, parts))
    titles = ("part", "split", "runs", "hours", "gradients, millions", "gone on from")
    return Table(titles, [*rows, total]).markdown() if rows else ""


def _cost(every: Sequence[Row], parts: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    rows = [row for row in every if (row["part"], row["split"]) in parts]
    hours, millions = sum(row["seconds"] for row in rows) / 3600, sum(row["gradients"] for row in rows) / 1e6
    again = sum(row["segments"] - 1 for row in rows)
    return f"{len(rows):,}", f"{hours:.2f}", f"{millions:.2f}", f"{again:,}"


def _by_split(tables: dict[str, Table]) -> str:
    """Return a table for each split, under its name; nothing if there is none."""
    return "\n\n".join(f"**{heading(split)}**\n\n{table.markdown()}" for split, table in tables.items())


def _measured_tuned(results: Results) -> dict[str, list[Row]]:
    """Return the measured runs of the tuned methods, by split."""
    found = {split: _measured(results.of("tuned", split)) for split in results.splits("tuned")}
    return {split: rows for split, rows in found.items() if rows}


def _measured(rows: Sequence[Row]) -> list[Row]:
    """Return the runs that have a measure of flatness, by method."""
    return in_order([row for row in rows if any(row[measure] is not None for measure in MEASURES)])


def _radii(rows: Sequence[Row]) -> list[float]:
    return sorted({row["rho"] for row in rows})


def _range(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


def _estimate(one: MeanEstimate) -> str:
    return f"{one.mean:.3g}" if one.std is None else with_error(one.mean, one.std)


def _correlation(one: Correlation | None) -> str:
    return MISSING if one is None else f"{one.value:+.2f} [{one.low:+.2f}, {one.high:+.2f}] ({one.methods})"


def _p(p: float | None) -> str:
    return MISSING if p is None else "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def _short(key: str) -> str:
    """Return `rho` for `method.rho`."""
    return key.rpartition(".")[2]
