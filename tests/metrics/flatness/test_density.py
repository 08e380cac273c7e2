"""Densities against known spectra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.metrics.flatness import Curve, Finding
from fedflat.metrics.flatness.hessian import Krylov, rademacher, tridiagonals
from fedflat.metrics.flatness.measures import density
from fedflat.metrics.flatness.measures.density import Density, broadened
from support.federation import federation, tanh_network
from support.networks import dense_hessian
from support.spectra import Known, KnownHessian, like_a_network


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Landscapes are known spectra."""
    monkeypatch.setattr(density, "Hessian", KnownHessian)


def measured(one: Density, subject: Any) -> Finding:
    return one.measure(subject, lambda done, total: None)


def bells(values: np.ndarray, x: np.ndarray, sigma: float) -> np.ndarray:
    """The mean of normal densities at `values`."""
    return np.exp(-(((x[:, None] - values) / sigma) ** 2) / 2).mean(1) / (sigma * np.sqrt(2 * np.pi))


def exact_moments(H: np.ndarray) -> dict[str, float]:
    return {"eigenvalue_mean": H.trace() / len(H), "eigenvalue_rms": np.linalg.norm(H) / np.sqrt(len(H))}


def integral(curve: Curve) -> float:
    return float(np.trapezoid(curve.y, curve.x))


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("width", [0.005, 0.02, 0.3])
def test_of_a_diagonal_hessian_it_is_exact(width: float) -> None:
    """Every eigenvector has the same share in every vector of signs."""
    values = np.array([-1.0, -0.4, -0.1, 0, 0.05, 0.3, 0.7, 1.5, 2, 5])
    found = measured(Density(probes=3, steps=10, width=width), Known(np.diag(values)[None])).curves
    ((name, curve),) = found.items()
    sigma = width * (values.max() - values.min())
    expected = bells(values, np.array(curve.x), sigma)
    np.testing.assert_allclose(curve.y, expected, rtol=0, atol=1e-6 * expected.max())
    assert name == ("density" if width == 0.01 else f"density(width={width})")
    assert max(curve.error) <= 1e-6 * expected.max()
    assert curve.logarithmic


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("one", [Density(), Density(probes=1), Density(steps=2), Density(width=1)])
def test_it_integrates_to_one_and_is_nowhere_negative(one: Density) -> None:
    (curve,) = measured(one, like_a_network()).curves.values()
    assert integral(curve) == pytest.approx(1, abs=1e-8)
    assert min(curve.y) >= 0
    assert len(curve.x) == len(curve.y)
    assert (curve.error is None) == (one.probes == 1)


@pytest.mark.slow
@pytest.mark.usefixtures("known")
def test_intervals_of_moments_cover_the_truth_as_often_as_they_say() -> None:
    """In 90 to 99 % of 400 repetitions."""
    subject = like_a_network()
    found = [measured(Density(steps=3, width=1, seed=seed), subject).values for seed in range(400)]
    for name, exact in exact_moments(subject.H).items():
        draws = [values[f"{name}(width=1)"] for values in found]
        assert 360 <= sum(abs(x.value - exact) <= x.error for x in draws) <= 396


@pytest.mark.slow
@pytest.mark.usefixtures("known")
def test_intervals_of_the_curve_cover_the_broadened_spectrum() -> None:
    """At every place where there is something, on the average of 30 repetitions."""
    subject, covered = like_a_network(), []
    values = np.linalg.eigvalsh(subject.H)
    for seed in range(30):
        (curve,) = measured(Density(seed=seed), subject).curves.values()
        expected = bells(values, np.array(curve.x), 0.01 * (values[-1] - values[0]))
        there = expected > 1e-3 * expected.max()
        covered.append((np.abs(curve.y - expected) <= curve.error)[there].mean())
    assert 0.85 <= np.mean(covered) <= 0.99


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_eigenvalues_that_are_found_again_keep_their_weight(dtype: torch.dtype) -> None:
    """Far more steps than it takes the outliers to converge: ghosts, yet the density of full reorthogonalisation."""
    subject = like_a_network(d=200)
    subject.dtype = dtype
    H = KnownHessian(subject, subject.w)
    z = rademacher(np.random.default_rng(0), 2, subject.w)
    plain = tridiagonals(H, z, 100, lambda: None)
    full = torch.stack([Krylov(H, each, 100).run(lambda m: None).projected for each in z])
    assert int((torch.linalg.eigvalsh(plain)[0] > 9.99).sum()) > 1 == int((torch.linalg.eigvalsh(full)[0] > 9.99).sum())
    one, other = (broadened(*quadratures(T), 0.01) for T in (plain, full))
    x, rounding = np.array(other.x), 1e-8 if dtype == torch.float64 else 1e-4
    np.testing.assert_allclose(np.interp(x, one.x, one.y), other.y, rtol=0, atol=rounding * max(other.y))


def quadratures(T: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    nodes, vectors = np.linalg.eigh(T.numpy())
    return nodes, vectors[:, 0] ** 2


@pytest.mark.slow
def test_of_a_network_it_is_that_of_the_dense_hessian() -> None:
    data = federation()
    found = ff.flatness(tanh_network(), data, [Density(probes=100, steps=73)])
    H = dense_hessian(tanh_network(), data.x, data.y)
    for name, exact in exact_moments(H).items():
        assert abs(found[name].value - exact) <= 2 * found[name].error
    curve, values = found.curves["density"], np.linalg.eigvalsh(H)
    expected = bells(values, np.array(curve.x), 0.01 * (values[-1] - values[0]))
    assert np.trapezoid(np.abs(curve.y - expected), curve.x) <= 0.1


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("block", [1, 4, 100])
def test_it_does_not_matter_how_many_probes_go_together(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = like_a_network()
    expected = measured(Density(), subject).curves["density"]
    monkeypatch.setattr(KnownHessian.__init__, "__defaults__", (block,))
    found = measured(Density(), subject).curves["density"]
    same = min(len(found.x), len(expected.x))  # a rounding of the eigenvalues may add a point at the end
    assert max(len(found.x), len(expected.x)) <= same + 1
    for one, other in ((found.x, expected.x), (found.y, expected.y), (found.error, expected.error)):
        np.testing.assert_allclose(one[:same], other[:same], rtol=1e-5, atol=1e-7)


def test_a_dead_network_has_one_bell_at_zero() -> None:
    found = ff.flatness(nn.Sequential(tanh_network(), nn.Hardshrink(1e9)), federation(), [Density(probes=2)])
    curve = found.curves["density"]
    np.testing.assert_allclose(curve.y, bells(np.zeros(1), np.array(curve.x), 0.01), atol=1e-12)
    assert found["eigenvalue_mean"].value == found["eigenvalue_rms"].value == 0


@pytest.mark.usefixtures("known")
def test_progress_rises_and_ends_where_it_said() -> None:
    reported: list[tuple[int, int]] = []
    Density(probes=7, steps=20).measure(like_a_network(), lambda *now: reported.append(now))
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
    assert {total for _, total in reported} == {140}
    assert reported[-1][0] == 140
