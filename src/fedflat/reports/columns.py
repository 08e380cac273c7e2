"""The columns of the comparison table, the same on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..experiments.statistics import Estimate
from .comparison import Comparison, Row

NOTHING = "–"


@dataclass(frozen=True)
class Column:
    """A title, what the numbers mean, and how a row's cell is written."""

    title: str
    meaning: str
    cell: Callable[[Row], str]


def columns(comparison: Comparison) -> list[Column]:
    """The columns of `comparison`, in order."""
    goal = f"{100 * comparison.target:.1f}\N{NO-BREAK SPACE}%"
    return [
        Column("method", "class name; hyper-parameters only where they tell variants apart", lambda row: row.label),
        Column(
            "test accuracy\N{NO-BREAK SPACE}%",
            "mean over the last 10 evaluations of each run; mean ± sample standard deviation over seeds",
            lambda row: _spread(row.estimates["test_accuracy"], 100, ".2f"),
        ),
        Column(
            f"Δ to {comparison.baseline}",
            "paired difference of test accuracy, in points, with 95 % confidence interval (Student's t over seeds)",
            _difference,
        ),
        Column(
            f"rounds to {goal}",
            f"first round with test accuracy ≥ {goal}, mean over the seeds that reached it (how many did)",
            _rounds,
        ),
        Column(
            "clients: std (worst)\N{NO-BREAK SPACE}%",
            "accuracy of the final model on each client's own training samples: spread over clients, worst client",
            _clients,
        ),
        Column(
            "λ max", "largest eigenvalue of the Hessian of the training loss, final model", _number("lambda_max", ".2f")
        ),
        Column(
            "sharpness",
            "F(w + ρ ∇F/‖∇F‖) − F(w) of the training loss, ρ = 0.05, final model",
            _number("sharpness", ".4f"),
        ),
        Column("gradients", "minibatch gradients computed by all clients, per run", _number("gradients", ",.0f")),
        Column("MB sent", "to and from all clients, per run, from the sizes of the records", _megabytes),
    ]


def _spread(value: Estimate, factor: float, form: str) -> str:
    mean = format(factor * value.mean, form)
    return mean if value.std is None else f"{mean} ± {factor * value.std:{form}}"


def _difference(row: Row) -> str:
    d = row.difference
    if d is None:
        return NOTHING
    interval = "" if d.low is None or d.high is None else f" [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
    return f"{100 * d.mean:+.2f}{interval}"


def _rounds(row: Row) -> str:
    reached = row.rounds_to_target
    return f"{np.mean(reached):.0f} ({len(reached)}/{len(row.runs)})" if reached else NOTHING


def _clients(row: Row) -> str:
    std, worst = (row.estimates[f"client_accuracy_{name}"].mean for name in ("std", "worst"))
    return f"{100 * std:.1f} ({100 * worst:.0f})"


def _number(name: str, form: str) -> Callable[[Row], str]:
    return lambda row: format(row.estimates[name].mean, form) if name in row.estimates else NOTHING


def _megabytes(row: Row) -> str:
    return f"{(row.estimates['bytes_down'].mean + row.estimates['bytes_up'].mean) / 1e6:,.0f}"
