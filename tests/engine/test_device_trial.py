"""The trial of a device, on the CPU and on the stand-in for a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedflat.core.local import LocalResult
from fedflat.engine import trials
from fedflat.engine.stacked import Stacked
from support.effort import chosen
from support.meta_device import MetaDevice


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "WORKLOADS", {"a small workload": ("cnn", 8, 4)})
    monkeypatch.setattr(trials, "ENOUGH", 0.0)


def found(device: str) -> dict[str, trials.DeviceCheck]:
    return {finding.part: finding for finding in trials.device_trial(torch.device(device))}


@pytest.mark.slow
@pytest.mark.usefixtures(*chosen(["traced"], []))
def test_the_processor_passes() -> None:
    findings = found("cpu")
    assert all(finding.passed for finding in findings.values())
    assert "stacked" in findings["agreement, FedAvg"].text
    assert "(compiled)" in findings["agreement, FedSMOO"].text
    assert findings["the same run twice"].text == "the same bits"
    assert findings["a small workload"].text.endswith("ms a step of FedAvg and FedSAM, of the processor")


@pytest.mark.slow
def test_it_runs_through_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose numbers are made up, so that nothing agrees."""
    monkeypatch.setattr(trials, "executors_on", lambda _: ["sequential", "stacked"])
    monkeypatch.setattr(trials, "METHODS", ("FedAvg",))
    pictures = trials._random_pictures
    monkeypatch.setattr(trials, "_random_pictures", lambda sizes, shape: pictures((2, 1), shape))
    with MetaDevice():
        findings = found("meta")
    assert not [finding for finding in findings.values() if "Error" in finding.text]
    assert not findings["agreement, FedAvg"].passed


def test_an_executor_that_ends_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of one part in a million in what stacked clients send."""
    right = Stacked.run

    def wrong(self: Stacked, *args: object) -> LocalResult:
        result = right(self, *args)
        return replace(result, up=result.up.map(lambda x: x * (1 + 1e-6)))

    monkeypatch.setattr(trials, "METHODS", ("FedAvg", ""))
    assert trials.dense_agreement("FedAvg", torch.device("cpu"))[1]
    monkeypatch.setattr(Stacked, "run", wrong)
    assert not trials.dense_agreement("FedAvg", torch.device("cpu"))[1]


def test_a_part_that_raises_has_not_passed() -> None:
    def fail() -> tuple[str, bool]:
        raise RuntimeError("no kernel image is available\nfor execution on the device")

    assert trials.tried("a part", fail) == trials.DeviceCheck(
        "a part", "RuntimeError: no kernel image is available", passed=False
    )
