"""The generated chapters and the figure of docs/gap_study.md, from the results of this study alone.

A chapter is empty as long as the runs that it is about have not ended, so that no partial comparison is shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from benchmarks.tables import MISSING, Table

from ..inference import LEVEL, POWER, Correlation, detectable
from . import plan
from .analysis import (
    LEAST_GAP,
    MEASURES,
    SCALE,
    EqualGradients,
    Estimate,
    Judged,
    Numbers,
    Primary,
    Results,
    Row,
    contrasts,
    correlation,
    diverged,
    equal_gradients,
    estimate,
    judged,
    leads_set_aside,
    manipulation,
    means_of,
    primary,
    scores,
    with_gap,
)
from .figures import lead_figure
from .plan import GAPS, Configuration, ranked

FIGURES = "_static/gap_study"  # below docs/
IMAGES = {gap: f"{number:,}" for gap, number in plan.IMAGES.items()}
LEAST_P = 1e-4  # that is printed
TWICE = "at twice the gradients for the base"


def chapters(results: Results) -> dict[str, str]:
    """Return what stands between the marks of the page, by mark."""
    found: dict[str, str] = {"state": state(results)}
    comparison: dict[str, Callable[[Results], str]] = {
        "lead": lead, "contrasts": contrast_chapter, "controls": controls, "flatness": flatness, "power": power_chapter,
    }  # fmt: skip
    found |= {what: make(results) if results.has_ended else "" for what, make in comparison.items()}
    return found | {"chosen": choice(results) if results.choice_has_ended else ""}


def figures(results: Results) -> dict[str, str]:
    """Return the figure by file name; none before every run has ended."""
    return {"lead.svg": lead_figure(contrasts(results.compared, results.plan))} if results.has_ended else {}


def state(results: Results) -> str:
    """Return in one line how many runs have ended, and of which commits they are."""
    if results.has_ended:
        lost = ", ".join(f"{number} of {name}" for name, number in diverged(results).items()) or "none"
        commits = sorted({row["commit"] for row in results.runs})
        versions = sorted({_versions(one) for row in results.runs for one in _each(row["versions"])})
        return (
            f"All {len(results.runs):,} runs have ended; diverged: {lost}. Commit {', '.join(commits)}; "
            f"{' and '.join(versions)}. {_hours(results.runs)}"
        )
    names = dict.fromkeys(part.name for part in results.parts)
    counts = ", ".join(f"{name} {_count(results, name)}" for name in names)
    return f"**The runs have not finished**, and no result is shown before they have. Ended so far: {counts}."


def _count(results: Results, name: str) -> str:
    """Return `3 of 84`; the number of runs of some parts is known only once others have ended."""
    parts = [part for part in results.parts if part.name == name]
    sizes = [part.size for part in parts if part.size is not None]
    ended = sum(len(part.ended(results.runs)) for part in parts)
    return f"{ended:,} of {sum(sizes):,}" if len(sizes) == len(parts) else f"{ended:,} (of how many is not known yet)"


def _each(versions: str) -> list[dict[str, str]]:
    """Return the versions of every segment of a run."""
    found: list[dict[str, str]] = json.loads(f"[{versions}]")
    return found


def _versions(one: dict[str, str]) -> str:
    return ", ".join(f"{name} {one[name]}" for name in ("fedflat", "torch", "numpy", "python"))


def _hours(rows: Sequence[Row]) -> str:
    hours = sum(row["seconds"] or 0.0 for row in rows) / 3600
    resumed = sum(row["segments"] > 1 for row in rows)
    return (
        f"Training took {hours:.1f} core-hours by the clock, all runs together, one worker for each; {resumed} runs "
        "were interrupted and resumed. Runs that were lost and trained anew are counted once."
    )


def lead(results: Results) -> str:
    """Return the figure, the primary sentence, and what each contrast gained."""
    found = primary(contrasts(results.compared, results.plan))
    if found is None:
        return ""
    image = f"![Lead over the base against the gap]({FIGURES}/lead.svg)"
    failed = [one.base for one in manipulation(results) if not one.passes]
    beside = f"Bases that failed the manipulation check: {', '.join(failed)}." if failed else ""
    gains = "\n".join(f"* {sentence}" for sentence in sentences(results))
    title = "## Lead over the base against the gap"
    return "\n\n".join(filter(None, [title, image, f"**{primary_sentence(found)}**", beside, _scales(found), gains]))


def primary_sentence(found: Primary) -> str:
    """Return the sentence that the plan fixed; if the verdict is that it depends on the scale, it ends with that."""
    few, many = (_with_interval(found.lead[gap]) for gap in GAPS)
    beyond = "is beyond chance" if found.is_beyond_chance else "is not beyond chance"
    more = f"; smaller differences than {found.interaction.high:.2f} are not excluded"
    end = SCALE if found.verdict == SCALE else beyond + ("" if found.is_beyond_chance else more)
    return (
        f"On Fashion-MNIST with one small network, a perturbation radius gained {few} points with {IMAGES['few']} "
        f"images and {many} with {IMAGES['many']}; the difference {_with_interval(found.interaction)} {end}."
    )


def _scales(found: Primary) -> str:
    """Return the two forms of the primary test, and the word of the plan."""
    points, ratio = found.interaction, found.logarithm
    return (
        f"Primary test, of the mean of the interactions of a seed over {points.n} seeds: {_p_of(points)} in points. "
        f"The mean of the logarithms of the ratios of errors: {_logarithm(ratio)}, "
        f"{_p_of(ratio)}. Verdict: *{found.verdict}*."
    )


def _p_of(one: Estimate) -> str:
    return f"p {_p(one.p)}" if one.p < LEAST_P else f"p = {_p(one.p)}"


def sentences(results: Results) -> list[str]:
    """Return a sentence for each contrast."""
    lost = {one.flat for one in equal_gradients(results) if one.vanishes}
    found = []
    for one in contrasts(results.compared, results.plan):
        few, many = (estimate(one.lead[gap]) for gap in GAPS)
        if few and many:
            end = f", and no lead is left {TWICE}" if one.flat in lost else ""
            found.append(f"{one.flat} gained {_with_interval(few)} points over {one.base} with {IMAGES['few']} images "
                         f"and {_with_interval(many)} with {IMAGES['many']}{end}.")  # fmt: skip
    return found


def contrast_chapter(results: Results) -> str:
    """Return the table of contrasts, and the parts of each lead."""
    return _headed("The contrasts", _CONTRASTS, contrast_table(judged(results)).markdown(), _LEADS,
                   lead_table(results).markdown())  # fmt: skip


_CONTRASTS = """\
*Interaction* is the lead with few images minus that with many, in points of test accuracy, paired by seed. *p* is of
the t test over the seeds, *Holm* after Holm's correction over the contrasts; *log* is the same of the logarithm of
the ratio of the errors."""
_LEADS = """\
A lead is the change of the training accuracy minus the change of the gap where both are of the final model; the lead
itself is the mean over the last three evaluations. Descriptive, with t intervals at 95 %."""


def contrast_table(every: Sequence[Judged]) -> Table:
    """Return a row for each contrast."""
    titles = ("contrast", "seeds", "interaction (95 %)", "90 %", "p", "Holm", "log (95 %)", "Holm, log", "verdict")
    return Table(titles, [_contrast_row(one) for one in every])


def _contrast_row(one: Judged) -> tuple[str, ...]:
    d, ratio = one.points, one.logarithm
    return (
        f"{one.contrast.flat} over {one.contrast.base}", str(d.n), _with_interval(d),
        f"{d.inner[0]:+.2f} to {d.inner[1]:+.2f}", _p(d.p), _p(one.corrected),
        _logarithm(ratio), _p(one.logarithm_corrected), one.verdict,
    )  # fmt: skip


def lead_table(results: Results) -> Table:
    """Return lead, change of the training accuracy and change of the gap, by contrast and gap."""
    rows = [
        (f"{one.flat} over {one.base}", gap, f"{one.base_gap[gap].mean():.2f}",
         *(_interval_of(values[gap]) for values in (one.lead, one.training, one.gap)))
        for one in contrasts(results.compared, results.plan) for gap in GAPS
    ]  # fmt: skip
    titles = ("contrast", "images", "gap of the base", "lead", "change of training accuracy", "change of the gap")
    return Table(titles, rows)


def choice(results: Results) -> str:
    """Return what was chosen, the manipulation check, and what the second best would have shown."""
    return _headed("What was chosen", _CHOSEN, chosen_table(results).markdown(), _CHECK,
                   manipulation_table(results).markdown(), _SECOND, second_table(results).markdown())  # fmt: skip


_CHOSEN = "By the accuracy in per cent on the images set aside, mean over the choosing seeds, used for nothing else."
_CHECK = f"""\
Manipulation check: the gap on the images set aside, in points. A base passes if its gap with few images exceeds that
with many by {LEAST_GAP:g} points."""
_SECOND = """\
Leads on the images set aside, in points, of the best and of the second best configurations. No seed of these runs is
in the comparison."""


def chosen_table(results: Results) -> Table:
    """Return a row for each method and gap."""
    rows = []
    for gap in GAPS:
        known = scores(results, gap)
        for method in results.plan.methods:
            first, second = ranked(known, method)[:2]
            ends = "yes" if is_at_an_end(first, list(known)) else "no"
            rows.append((method, gap, _settings(first), f"{100 * known[first]:.2f}", ends, _settings(second),
                         f"{100 * known[second]:.2f}"))  # fmt: skip
    titles = ("method", "images", "chosen", "accuracy", "at an end", "second best", "accuracy")
    return Table(titles, rows)


def is_at_an_end(one: Configuration, tried: Sequence[Configuration]) -> bool:
    """Tell whether the step size or the radius is the least or the most of those that were tried for the method."""
    mine = [other for other in tried if other.method == one.method]
    values = {name: {getattr(other, name) for other in mine} for name in ("lr", "rho")}
    return any(len(known) > 1 and getattr(one, name) in (min(known), max(known)) for name, known in values.items())


def _settings(one: Configuration) -> str:
    return f"lr {one.lr:g}" + (f", rho {one.rho:g}" if one.rho else "")


def manipulation_table(results: Results) -> Table:
    """Return a row for each base."""
    rows = [
        (one.base, *(f"{one.gap[gap]:.2f}" for gap in GAPS), f"{one.gap['few'] - one.gap['many']:+.2f}",
         "yes" if one.passes else "no")
        for one in manipulation(results)
    ]  # fmt: skip
    return Table(("base", "few", "many", "difference", "passes"), rows)


def second_table(results: Results) -> Table:
    """Return a row for each contrast, with the leads of the best and of the second best configurations."""
    found = [leads_set_aside(results, place) for place in (0, 1)]
    rows = [
        (f"{flat} over {base}", *(f"{x:+.2f}" for leads in found for x in _few_many_difference(leads[flat])))
        for flat, base in results.plan.base_of.items()
    ]
    columns = tuple(f"{which}: {what}" for which in ("best", "second") for what in ("few", "many", "interaction"))
    return Table(("contrast", *columns), rows)


def _few_many_difference(leads: dict[str, float]) -> tuple[float, float, float]:
    return leads["few"], leads["many"], leads["few"] - leads["many"]


def controls(results: Results) -> str:
    """Return the controls: same step size, equal gradients, runs that diverged, and drift."""
    parts = [
        "**Same step size**: the flat method at the step size of its base, with the best radius there.",
        same_step_table(judged(results)).markdown(),
        f"**Equal gradients**, with {IMAGES['few']} images: the base is trained for twice the rounds.",
        gradient_table(equal_gradients(results)).markdown(),
        without_diverged(results),
        "**Drift**: mean distance of a client's model from the one that it received, over all rounds and seeds.",
        drift_table(results).markdown(),
    ]
    return _headed("Controls", *parts)


def same_step_table(every: Sequence[Judged]) -> Table:
    """Return a row for each contrast."""
    rows = [
        (f"{one.contrast.flat} over {one.contrast.base}", _with_interval(one.points),
         _with_interval(one.same_step_size), "no" if one.has_other_sign else "yes")
        for one in every
    ]  # fmt: skip
    return Table(("contrast", "interaction", "at the same step size", "same sign"), rows)


def gradient_table(every: Sequence[EqualGradients]) -> Table:
    """Return a row for each flat method that takes two gradients a step."""
    rows = [
        (f"{one.flat} over {one.base}", _with_interval(one.lead), _with_interval(one.left),
         "yes" if one.vanishes else "no")
        for one in every
    ]  # fmt: skip
    return Table(("contrast", "lead", TWICE, "the lead vanishes"), rows)


def without_diverged(results: Results) -> str:
    """Return the results without the seeds of runs that diverged, if there are such runs in the comparison."""
    if not any(arm.diverged.any() for arm in results.same_step_size.values()):
        return "**Runs that diverged**: none in the comparison, so that results with and without such runs are equal."
    found = primary(contrasts(results.compared, results.plan), whole=False)
    mean = found and found.interaction
    said = f"{_with_interval(mean)}, {_p_of(mean)}, over {mean.n} seeds" if mean else "of too few seeds"
    table = contrast_table(judged(results, whole=False)).markdown()
    return f"**Without the seeds of runs that diverged**: mean of the interactions {said}.\n\n{table}"


def drift_table(results: Results) -> Table:
    """Return the mean drift of every method at both gaps."""
    of = {
        (gap, method): means_of([row for row in results.of("compare", gap) if row["method"] == method], ["drift"])
        for gap in GAPS
        for method in results.plan.methods
    }
    rows = [(method, *(f"{of[gap, method]['drift']:.3f}" for gap in GAPS)) for method in results.plan.methods]
    return Table(("method", *GAPS), rows)


def flatness(results: Results) -> str:
    """Return the measures of the final models, and their rank correlations with the gap."""
    measured = {gap: with_gap(results.of("compare", gap)) for gap in GAPS}
    return _headed("Flatness against the gap", _FLATNESS, correlation_table(measured).markdown(), _MEASURES,
                   measure_table(measured, results.plan.methods).markdown())  # fmt: skip


_FLATNESS = """\
Spearman's correlation of each measure with the gap of the final model, over all methods and seeds with one number of
images, never over both. The intervals at 95 % draw seeds, the same for all methods, and methods. Descriptive; the
number of methods is in brackets."""
_MEASURES = f"""\
Means over the seeds of the final models, in brackets the largest error of a single model's. Measures are taken on
{IMAGES["few"]} training images: all with few, and every tenth with many, so that they are not of the same images."""


def correlation_table(measured: dict[str, list[Row]]) -> Table:
    """Return a row for each measure."""
    rows = [
        (words, *(_correlation(correlation(rows, measure)) for rows in measured.values()))
        for measure, words in MEASURES.items()
    ]
    return Table(("measure", *measured), rows)


def measure_table(measured: dict[str, list[Row]], methods: Sequence[str]) -> Table:
    """Return a row for each method and gap."""
    columns = {"measured_gap": "gap, points", "train_loss": "training loss", **MEASURES}
    rows = []
    for gap, every in measured.items():
        for method in methods:
            own = [row for row in every if row["method"] == method]
            rows.append((method, gap, str(len(own)), *(_measure(own, column) for column in columns)))
    return Table(("method", "images", "models", *columns.values()), rows)


def _measure(rows: Sequence[Row], column: str) -> str:
    """Return the mean with the largest error of a single model's, if the measure has one."""
    errors = [row[f"{column}_error"] for row in rows if row.get(f"{column}_error") is not None]
    mean = means_of(rows, [column])[column]
    return f"{mean:.3g} ({max(errors):.2g})" if errors else f"{mean:.3g}"


def power_chapter(results: Results) -> str:
    """Return the power as planned and as it came."""
    n = len(results.plan.seeds)
    levels = {"primary": LEVEL, "a contrast": LEVEL / len(results.plan.base_of)}
    planned = " and ".join(f"{detectable(1.0, n, level):.2f} points ({what})" for what, level in levels.items())
    found = primary(contrasts(results.compared, results.plan))
    tests = [("primary", found.interaction, levels["primary"])] if found else []
    tests += [(one.contrast.flat, one.points, levels["a contrast"]) for one in judged(results)]
    rows = [
        (what, f"{one.mean:+.2f}", f"{one.deviation:.2f}", f"{detectable(one.deviation, one.n, level):.2f}")
        for what, one, level in tests
    ]
    table = Table(("test", "interaction", "deviation over seeds", f"found with probability {POWER:g}"), rows)
    return _headed("Power", f"As planned, with {n} seeds and a deviation of one point: {planned} are found with "
                   f"probability {POWER:g}. As it came, in points:", table.markdown())  # fmt: skip


def _headed(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *parts])


def _with_interval(one: Estimate) -> str:
    """Return `+0.55 (+0.10 to +1.00)`."""
    return f"{one.mean:+.2f} ({one.low:+.2f} to {one.high:+.2f})"


def _logarithm(one: Estimate) -> str:
    return f"{one.mean:+.4f} ({one.low:+.4f} to {one.high:+.4f})"


def _interval_of(values: Numbers) -> str:
    found = estimate(values)
    return MISSING if found is None else _with_interval(found)


def _correlation(one: Correlation | None) -> str:
    return MISSING if one is None else f"{one.value:+.2f} ({one.low:+.2f} to {one.high:+.2f}) ({one.methods})"


def _p(p: float) -> str:
    return f"< {LEAST_P:.4f}" if p < LEAST_P else f"{p:.4f}"
