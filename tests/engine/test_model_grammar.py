"""Every executor gives the model of plain PyTorch, or refuses it in one line: models and data drawn from a grammar."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from fedflat.core.errors import InputError
from support.effort import chosen, effort
from support.model_grammar import Problem, problems

EXECUTORS = {"sequential": 1, "stacked": 1, "auto": 1}
EXECUTORS |= chosen({}, {"compiled": 1, "sequential in workers": 2})  # tracing takes seconds, and so do processes
outcomes: Counter[tuple[str, str]] = Counter()


@pytest.mark.slow
@pytest.mark.usefixtures("traced", "forked_processes")
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@settings(max_examples=effort(2, 200), derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(problems())
def test_training_is_that_of_plain_pytorch_or_refused(problem: Problem) -> None:
    found = {name: trained(problem, name, workers) for name, workers in EXECUTORS.items()}
    assert not any(isinstance(result, str) and "\n" in result for result in found.values())
    trains = [name for name, result in found.items() if isinstance(result, dict)]
    for name, result in found.items():
        outcomes[name, "trained" if name in trains else str(result)] += 1
    assert "auto" in trains or "sequential" not in trains, "auto ends where sequential works"
    if trains:
        expected = problem.in_plain_pytorch()
        for name in trains:
            for parameter, p in expected.items():
                off = float((found[name][parameter] - p).abs().max())
                assert off <= 1e-5 * max(1.0, float(p.abs().max())), (name, parameter, off)


def trained(problem: Problem, name: str, workers: int) -> dict[str, torch.Tensor] | str:
    """The parameters after training, or the line that refuses it."""
    try:
        sim = problem.simulation(name.split()[0], workers)
        for _ in sim:
            pass
        return {parameter: p.detach() for parameter, p in sim.model.named_parameters()}
    except InputError as error:
        return str(error)
