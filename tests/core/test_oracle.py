from __future__ import annotations

import torch

from fedflat.core.method_contract import ContractOracle
from fedflat.core.oracle import ObservedOracle, asam, sam, shifted, teacher_gradient, unit


def test_unit_is_per_row_and_keeps_zero() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-5, 0.0]], dtype=torch.float64)
    assert torch.allclose(unit(x), torch.tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]]).double(), atol=1e-6)
    assert torch.equal(unit(x)[1], torch.zeros(2).double())


def test_transforms_on_a_quadratic() -> None:
    """grad = w, so the SAM gradient is w (1 + rho / ||w||)."""
    w = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    grad = lambda at: at  # noqa: E731
    assert torch.allclose(sam(grad, 0.5)(w), w * torch.tensor([[1.1], [1.0]]))
    assert torch.equal(shifted(grad, torch.ones(2))(w), w + 1)


def test_the_adaptive_perturbation_ends_on_the_scaled_ball() -> None:
    """grad = w, so it is rho T T w / ||T w|| (Kwon et al., 2021, eq. 3), and ||e / T|| = rho."""
    w, T = torch.tensor([3.0, 4.0]).double(), torch.tensor([2.0, 0.5]).double()
    e = asam(lambda at: at, 0.5, T)(w) - w
    torch.testing.assert_close(e, 0.5 * T.square() * w / (36 + 4) ** 0.5, rtol=0, atol=1e-11)
    torch.testing.assert_close((e / T).norm(), torch.tensor(0.5).double(), rtol=0, atol=1e-11)


def test_radius_zero_costs_one_gradient() -> None:
    asked = []
    grad = lambda at: asked.append(at) or at  # noqa: E731
    sam(grad, 0.0)(torch.ones(2))
    assert len(asked) == 1
    sam(grad, 0.1)(torch.ones(2))
    assert len(asked) == 3


def test_a_teachers_gradient_counts_and_is_no_descent_gradient() -> None:
    """Whether it comes before or after the descent gradient."""
    w, e = torch.ones(2).double(), torch.zeros(2).double()
    for order in ("before", "after"):
        oracle = ObservedOracle(ContractOracle(torch.zeros(2).double(), 0))
        if order == "before":
            teacher_gradient(oracle, w, e, 2.0)
        descent = oracle(3 * w)
        if order == "after":
            teacher_gradient(oracle, w, e, 2.0)
        assert oracle.calls == 2
        assert torch.equal(oracle.descent, descent)
        assert torch.equal(oracle.point, 3 * w)
