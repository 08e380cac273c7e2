"""The method keeps the promises of every method, and equals a known method at the ends of its ranges."""

from __future__ import annotations

import pytest
import torch
from method import FedExample

import fedflat as ff
from fedflat.core.method_contract import CONTRACT
from fedflat.engine.trials import TRIALS, simulation


@pytest.mark.parametrize("promise", {**CONTRACT, **TRIALS})
def test_contract(promise: str) -> None:
    {**CONTRACT, **TRIALS}[promise](FedExample())


def test_without_momentum_it_is_fedsam() -> None:
    """Replace this by the limits of your method, and by a transcription of its equations."""
    models = [
        simulation(method, "stacked").run().w for method in (FedExample(rho=0.3, beta=0.0), ff.methods.FedSAM(rho=0.3))
    ]
    torch.testing.assert_close(*models, rtol=0, atol=1e-12)
