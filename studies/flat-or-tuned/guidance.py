"""What the study found, in sentences with the numbers of the moment, for docs/study.md and docs/which_method.md."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log
from statistics import median

from .analysis import BARELY, CLASSES, HELD, NOT_HELD, UNDECIDED, Contrast, Results, by_method, searched
from .page import KINDS, NOT_MEASURED, heading, kind_of_contrasts


def chapters(results: Results) -> dict[str, str]:
    """Return what stands between the marks of both pages, by mark."""
    return {"guidance": guidance(results), "reach": reach(results)}


def reach(results: Results) -> str:
    """Return what these runs cannot show: how training and test accuracy differ, and how roughly the search chose."""
    said = [
        sentence
        for split in results.splits("tuned")
        if results.have_ended(split, "tuned")
        for sentence in (_gap(results, split), _choice(results, split))
        if sentence
    ]
    if not said:
        return NOT_MEASURED
    return (
        "**This study is about speed at this scale, not about whether flat minima generalise.** There is nothing to "
        f"generalise here, and the search chose roughly. {' '.join(said)}"
    )


def _gap(results: Results, split: str) -> str:
    """Return how far test and training accuracies of final models differ, and how many losses are above a guess's."""
    rows = [row for row in results.of("tuned", split) if row["train_accuracy"] is not None]
    if not rows:
        return ""
    train, test, loss = (by_method(rows, name) for name in ("train_accuracy", "accuracy_of_final_model", "train_loss"))
    gaps = [100 * (test[name].mean - train[name].mean) for name in train]
    above = sum(one.mean > log(CLASSES) for one in loss.values())
    bad = f"; the training loss of {above} is above ln {CLASSES} = {log(CLASSES):.2f}, that of a guess" if above else ""
    return (
        f"At {heading(split)} test accuracy is {min(gaps):+.1f} to {max(gaps):+.1f} points from training accuracy over "
        f"the {len(gaps)} tuned methods{bad}."
    )


def _choice(results: Results, split: str) -> str:
    """Return by how much the best of the first step led, and how much accuracy moved between evaluations."""
    found = searched([row for row in results.tuning if (row["part"], row["split"]) == ("tune", split)])
    steps = [one.steps[0] for one in found if len(one.steps[0]) > 1]
    curves = [[accuracy for _, accuracy in curve] for one in found for curve in one.winner.curves.values()]
    moves = [abs(100 * (after - before)) for curve in curves for before, after in pairwise(curve)]
    if not steps or not moves:
        return ""
    leads = [100 * (first.score - second.score) for first, second, *_ in steps]
    return (
        f"The first cut there is by one evaluation, after {steps[0][0].rounds} rounds, where a method's best "
        f"configuration led the second by {min(leads):.1f} to {max(leads):.1f} points; a winner's accuracy moves by "
        f"{median(moves):.1f} points between two evaluations, in the median."
    )


def guidance(results: Results) -> str:
    """Return a list of sentences, each about comparisons of which all runs have ended."""
    sayings = {
        "tuned": tuned_alike, "as published": worth_of_tuning, "tuned, equal gradients": equal_gradients,
        "tuned, same settings": same_settings, "searched again": searched_again,
    }  # fmt: skip
    lines = []
    for split in results.splits("tuned"):
        for kind, say in sayings.items():
            parts = {"tuned", *KINDS[kind]}
            if results.have_ended(split, *parts) and all(results.of(part, split) for part in parts):
                lines.append(f"* At {heading(split)} {say(results, split)}")
    return "\n".join(lines) or NOT_MEASURED


def tuned_alike(results: Results, split: str) -> str:
    """Return how many flat methods are ahead of their bases, and which."""
    return f"and tuned alike, {_outcomes(kind_of_contrasts(results, split, 'tuned'))}."


def worth_of_tuning(results: Results, split: str) -> str:
    """Return what tuning changed, beside what flatness did."""
    tuned, published = (by_method(results.of(part, split), "accuracy") for part in ("tuned", "published"))
    gains = {name: 100 * (tuned[name].mean - published[name].mean) for name in tuned if name in published}
    most = max(gains, key=gains.__getitem__)
    leads = [abs(100 * one.difference.mean) for one in kind_of_contrasts(results, split, "tuned") if one.difference]
    return (
        f"tuning changed a method by {median(map(abs, gains.values())):.1f} points in the median over published "
        f"hyper-parameters with one step size, and {most} by {gains[most]:+.1f}; "
        f"between a tuned flat method and its tuned base the median difference is {median(leads):.1f}."
    )


def equal_gradients(results: Results, split: str) -> str:
    """Return flat methods with two gradients a step against their bases with as many."""
    some = kind_of_contrasts(results, split, "tuned, equal gradients")
    return f"and with twice the rounds for the plain method, so as many gradients as SAM takes, {_with_range(some)}."


def same_settings(results: Results, split: str) -> str:
    """Return flat methods against their bases with the flat methods' own settings."""
    some = kind_of_contrasts(results, split, "tuned, same settings")
    return f"and with the flat method's own step size and coefficient for its base, {_with_range(some)}."


def searched_again(results: Results, split: str) -> str:
    """Return the contrasts that second searches have changed."""
    some = kind_of_contrasts(results, split, "searched again")
    return f"and where a second search on a fairer range was better, {_with_range(some)}."


def _with_range(some: Sequence[Contrast]) -> str:
    """Return the outcomes, and how far the differences reach."""
    leads = [100 * one.difference.mean for one in some if one.difference]
    differences = dict.fromkeys(f"{lead:+.1f}" for lead in (min(leads), max(leads)))
    return f"{_outcomes(some)}: {' to '.join(differences)} points"


def _outcomes(some: Sequence[Contrast]) -> str:
    """Return how many of the contrasts held, did not and are undecided, and which."""
    held, not_held, undecided = (_named(some, verdicts) for verdicts in ((HELD, BARELY), (NOT_HELD,), (UNDECIDED,)))
    said = [f"{len(held)} held a lead over its plain base{_list(held)}"]
    said += [f"{len(not_held)} did not{_list(not_held)}"] if not_held else []
    said += [f"{len(undecided)} stayed undecided{_list(undecided)}"] if undecided else []
    return f"of {len(some)} flat method{'s' * (len(some) != 1)} {', '.join(said)}"


def _named(some: Sequence[Contrast], verdicts: Sequence[str]) -> list[str]:
    return [one.method for one in some if one.verdict in verdicts]


def _list(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""
