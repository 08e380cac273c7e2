"""What recipes cost: work times speed, by recipe and kind of cell."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks import recipe_costs
from benchmarks.recipe_costs import kind_of, kinds, page_part, seconds, speed_of
from fedflat.experiments.budget import budget_of_runs
from fedflat.experiments.recipe import find_recipe

SPEEDS = {("cifar10", "lenet", 64): (0.5, 0.0), ("cifar100", "lenet", 64): (0.25, 0.001)}


def measured() -> dict[str, object]:
    found = [
        {"data": data, "model": model, "batch_size": size, "gradient": gradient, "evaluation": evaluation}
        for (data, model, size), (gradient, evaluation) in SPEEDS.items()
    ]
    return {"machine": "2 shared CPU cores", "torch": "9.9", "kinds": found}


@pytest.mark.slow
def test_hours_are_gradients_and_evaluations_times_their_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: FedAvg has 20,000 rounds of 5 clients with 8 steps, and an evaluation of 10,000 pictures a round."""
    study = find_recipe("fedgf/table1").cells("cifar100,alpha-0,5-of-100")[0].study(only=["FedAvg"])
    work = budget_of_runs(study.runs())
    assert (work.gradients, work.evaluated_samples) == (20_000 * 5 * 8, 20_000 * 10_000 + 50_000)
    monkeypatch.setattr(recipe_costs, "all_recipes", lambda: {"fedgf/table1": find_recipe("fedgf/table1")})
    text = page_part(measured())
    row = next(line for line in text.splitlines() if line.startswith("| fedgf/table1 | cifar100, lenet |"))
    own = {cell.name: budget_of_runs(runs) for cell, runs in recipe_costs.cells() if kind_of(runs[0])[0] == "cifar100"}
    hours = {name: (0.25 * some.gradients + 0.001 * some.evaluated_samples) / 3600 for name, some in own.items()}
    least = min(hours, key=hours.__getitem__)
    assert row.split(" | ")[2:] == [
        "9", "99", f"{sum(hours.values()):,.0f}", f"`{least}`", f"{hours[least]:,.1f} |"
    ]  # fmt: skip
    assert "Measured on 2 shared CPU cores, one thread" in text
    assert not re.search(r"resnet|vit", text), "what was not measured is not shown"


@pytest.mark.slow
def test_every_kind_of_cell_is_measured_in_the_page() -> None:

    known = {
        (one["data"], one["model"], one["batch_size"]) for one in json.loads(recipe_costs.FILE.read_text())["kinds"]
    }
    assert known == set(kinds())


def test_a_kind_is_timed_in_seconds_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_costs, "SECONDS", 0.05)
    found = speed_of(find_recipe("fedgf/figure2").cells()[0].study().runs()[0])
    assert 0 < found.evaluation < found.gradient
    clock = iter([0.0, 9.0, 10.0, 11.0, 20.0, 23.0, 30.0, 31.0])  # calls take 9 (left out), 1, 3 and 1 seconds
    monkeypatch.setattr(recipe_costs, "process_time", lambda: next(clock))
    monkeypatch.setattr(recipe_costs, "SECONDS", 13.5)
    assert seconds(lambda: None) == 1
