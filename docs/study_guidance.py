"""What docs/which_method.md says from the study's results, in sentences with the numbers of the moment."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from docs.study import KINDS, NOT_MEASURED, heading, kind_of_contrasts
from docs.study_analysis import BARELY, HELD, NOT_HELD, UNDECIDED, Contrast, Results, by_method


def guidance(results: Results) -> str:
    """A list of sentences, each about comparisons of which all runs have ended."""
    lines = []
    for split in results.splits("tuned"):
        for say, kind in ((tuned_alike, "tuned"), (worth_of_tuning, "as published"),
                          (equal_gradients, "tuned, equal gradients")):  # fmt: skip
            parts = {"tuned", *KINDS[kind]}
            if results.have_ended(split, *parts) and all(results.of(part, split) for part in parts):
                lines.append(f"* At {heading(split)} {say(results, split)}")
    return "\n".join(lines) or NOT_MEASURED


def tuned_alike(results: Results, split: str) -> str:
    """How many flat methods are ahead of their bases, and which."""
    some = kind_of_contrasts(results, split, "tuned")
    return f"and tuned alike, of {len(some)} flat methods {_outcomes(some)}."


def worth_of_tuning(results: Results, split: str) -> str:
    """What tuning changed, beside what flatness did."""
    tuned, published = (by_method(results.of(part, split), "accuracy") for part in ("tuned", "published"))
    gains = {name: 100 * (tuned[name].mean - published[name].mean) for name in tuned if name in published}
    most = max(gains, key=gains.__getitem__)
    leads = [abs(100 * one.difference.mean) for one in kind_of_contrasts(results, split, "tuned") if one.difference]
    return (
        f"tuning changed a method by {median(map(abs, gains.values())):.1f} points in the median over the published "
        f"hyper-parameters, and {most} by {gains[most]:+.1f}; "
        f"between a tuned flat method and its tuned base the median difference is {median(leads):.1f}."
    )


def equal_gradients(results: Results, split: str) -> str:
    """Flat methods with two gradients a step against their bases with as many."""
    some = kind_of_contrasts(results, split, "tuned, equal gradients")
    leads = [100 * one.difference.mean for one in some if one.difference]
    return (
        f"and with as many gradients for both, of {len(some)} flat methods that take two a step {_outcomes(some)}: "
        f"differences of {min(leads):+.1f} to {max(leads):+.1f} points."
    )


def _outcomes(some: Sequence[Contrast]) -> str:
    """How many of the contrasts held, did not and are undecided, and which."""
    held, not_held, undecided = (_named(some, verdicts) for verdicts in ((HELD, BARELY), (NOT_HELD,), (UNDECIDED,)))
    return (
        f"{len(held)} held a lead over the plain method that they extend{_list(held)}; "
        f"{len(not_held)} did not{_list(not_held)}, and {len(undecided)} are undecided{_list(undecided)}"
    )


def _named(some: Sequence[Contrast], verdicts: Sequence[str]) -> list[str]:
    return [one.method for one in some if one.verdict in verdicts]


def _list(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""
