"""Small configured runs on the digits."""

from __future__ import annotations

from typing import Any

from fedflat.experiments.spec import RunSpec, StudySpec

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "clients": 10},
    "client": {"lr": 0.1, "epochs": 1, "batch_size": 50},
    "rounds": 6,
    "participation": 0.5,
    "checkpoint_every": 2,
    "executor": "sequential",  # `auto` is found by a clock, and two runs of a test must not find two
}


def run_spec(**changes: Any) -> RunSpec:
    return RunSpec(**(SMALL | changes))


def study_spec(**changes: Any) -> StudySpec:
    return StudySpec(**(SMALL | {"methods": ["fedavg", "fedsam"], "seeds": [0, 1]} | changes))
