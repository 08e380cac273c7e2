"""What other pages quote of this study: its sentences, never without its scale."""

from __future__ import annotations

from ..scale import scale
from .analysis import Results, contrasts, equal_gradients, primary
from .page import IMAGES, TWICE, primary_sentence, sentences
from .plan import CLIENTS, COHORT, DATA, GAPS, MODEL, Plan

UNFINISHED = "The second study asks whether flatness helps where there is a gap; its runs have not finished."


def quote(results: Results) -> str:
    """Return the primary sentence with its scale."""
    found = primary(contrasts(results.compared, results.plan)) if results.has_ended else None
    return f"**{primary_sentence(found)}** {scale_of(results.plan)}" if found else UNFINISHED


def methods(results: Results) -> str:
    """Return a list with what each flat method gained, and the scale."""
    if not results.has_ended:
        return UNFINISHED
    lines = [*sentences(results), at_equal_gradients(results)]
    return "\n".join([*(f"* {one}" for one in lines), "", scale_of(results.plan)])


def at_equal_gradients(results: Results) -> str:
    """Return what is left of the leads of methods with two gradients a step over bases with as many gradients."""
    told = [f"{one.flat} {one.left.mean:+.2f} ({one.left.low:+.2f} to {one.left.high:+.2f}) over {one.base}"
            for one in equal_gradients(results)]  # fmt: skip
    return f"With {IMAGES['few']} images and {TWICE}, in points: {', '.join(told)}."


def scale_of(plan: Plan) -> str:
    """Return the scale of this study."""
    numbers = " or ".join(IMAGES[gap] for gap in GAPS)
    return scale(DATA, MODEL, CLIENTS, COHORT, f"{numbers} training images", f"{plan.rounds} rounds",
                 f"{len(plan.base_of)} flat methods", f"{len(plan.seeds)} seeds")  # fmt: skip
