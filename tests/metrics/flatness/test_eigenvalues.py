"""Largest eigenvalues against dense Hessians and known spectra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.core.progress import no_progress
from fedflat.metrics.flatness.hessian import Hessian
from fedflat.metrics.flatness.measures.eigenvalues import Eigenvalues, eigenpairs
from support.federation import federation, tanh_network
from support.networks import convolutions, dense_hessian, landscape
from support.quadratic_clients import Bowls, measured
from support.spectra import Known, KnownHessian, like_a_network, rotated


def names(k: int) -> list[str]:
    return ["lambda_max", *(f"lambda_{i}" for i in range(2, k + 1))]


def known(values: np.ndarray, dtype: torch.dtype = torch.float64) -> KnownHessian:
    subject = Known(rotated(values)[None], dtype)
    return KnownHessian(subject, subject.w)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("make", [tanh_network, convolutions])
@pytest.mark.parametrize("k", [1, 4])
def test_they_are_those_of_the_dense_hessian(make, k: int, dtype: torch.dtype) -> None:
    data = federation()
    found = ff.flatness(make().to(dtype), data, [Eigenvalues(k=k)])
    expected = np.linalg.eigvalsh(dense_hessian(make(), data.x, data.y))[: -k - 1 : -1]
    got = [value.value for value in found.values()]
    assert got == pytest.approx(expected, rel=1e-4)
    assert list(found) == names(k)
    for value, exact in zip(found.values(), expected, strict=True):
        assert abs(value.value - exact) <= value.error + 1e-6 * expected[0]  # of float32: its rounding
        assert value.kind == "residual"
        assert value.error <= 1e-4 * abs(value.value)


def test_the_largest_are_meant_not_the_largest_in_size() -> None:
    """At a saddle whose most negative eigenvalues dominate."""
    values = np.array([-5, -4, *np.linspace(-1, 0.5, 21), 0.8, 1])
    saddle = Bowls(rotated(values)[None], np.zeros((1, 25)), (3,), np.zeros(25))
    assert {name: x.value for name, x in measured(saddle.subject, Eigenvalues(k=2)).items()} == {
        "lambda_max": pytest.approx(1, rel=1e-4),
        "lambda_2": pytest.approx(0.8, rel=1e-4),
    }


@pytest.mark.parametrize("k", [1, 3, 12])
def test_restarts_find_what_a_crowded_spectrum_hides(k: int) -> None:
    """Evenly spaced eigenvalues, far more than the basis holds; the residual bounds the error, up to rounding."""
    values = np.linspace(-2, 1, 400)
    H = known(values)
    found = eigenpairs(H, k, 1e-6, 10_000, no_progress)
    assert H.products > 2 * (2 * k + 8)
    assert [value for value, _ in found] == pytest.approx(values[: -k - 1 : -1], rel=1e-6)
    for (value, residual), exact in zip(found, values[::-1], strict=False):
        assert abs(value - exact) <= residual + 1e-14
        assert residual <= 1e-6


def test_it_stops_as_soon_as_it_may() -> None:
    """Outliers stand out: nine to ten products, where ARPACK takes 20 before it looks."""
    subject = like_a_network(d=500)
    H = KnownHessian(subject, subject.w)
    ((value, residual),) = eigenpairs(H, 1, 1e-2, 1000, no_progress)
    assert H.products < 20
    assert abs(value - np.linalg.eigvalsh(subject.H)[-1]) <= residual <= 1e-2 * value


def test_what_has_not_converged_says_so() -> None:
    values = np.linspace(-2, 1, 400)
    H = known(values)
    ((value, residual),) = eigenpairs(H, 1, 1e-12, 30, no_progress)
    assert H.products == 30
    assert residual > 1e-4
    assert np.abs(values - value).min() <= residual


@pytest.mark.parametrize("values", [[5.0, 5.0, 1.0], [0.0, 0.0, 0.0, -1.0], [3.0], [2.0] * 15, [4, 4, 3, *[0] * 15]])
def test_all_of_a_small_space_with_multiple_eigenvalues(values: list[float]) -> None:
    found = eigenpairs(known(np.array(values)), len(values), 1e-4, 1000, no_progress)
    assert [value for value, _ in found] == pytest.approx(sorted(values, reverse=True), abs=1e-12)


@pytest.mark.parametrize("k", [70, 72, 73, 200])
def test_as_many_as_there_are_parameters(k: int) -> None:
    data = federation()
    found = ff.flatness(tanh_network(), data, [Eigenvalues(k=k)])
    expected = np.linalg.eigvalsh(dense_hessian(tanh_network(), data.x, data.y))[::-1][:k]
    np.testing.assert_allclose([value.value for value in found.values()], expected, rtol=0, atol=1e-12)


def test_a_dead_network_is_flat() -> None:
    found = ff.flatness(nn.Sequential(tanh_network(), nn.Hardshrink(1e9)), federation(), [Eigenvalues(k=2)])
    assert [(value.value, value.error) for value in found.values()] == [(0, 0), (0, 0)]


def test_more_than_single_precision_has_is_not_promised() -> None:
    """With a tolerance below its rounding it ends, and states what rounding leaves."""
    values = np.array([*np.linspace(-1, 1, 80), 10.0])
    ((value, residual),) = eigenpairs(known(values, torch.float32), 1, 1e-12, 500, no_progress)
    assert value == pytest.approx(10, rel=2e-6)
    assert abs(value - 10) <= residual <= 2e-5


@pytest.mark.parametrize("k", [1, 5])
def test_progress_rises_and_ends_where_it_said(k: int) -> None:
    reported: list[tuple[int, int]] = []
    found = eigenpairs(known(np.linspace(-2, 1, 100)), k, 1e-4, 1000, lambda *now: reported.append(now))
    assert len(found) == k
    assert [done for done, _ in reported] == list(range(1, len(reported) + 1))
    assert all(done <= total for done, total in reported)
    assert reported[-1][0] == reported[-1][1]


def test_curvlinops_and_arpack_find_the_same() -> None:
    curvlinops = pytest.importorskip("curvlinops")
    from scipy.sparse.linalg import eigsh

    network, data = tanh_network(), federation()
    theirs = curvlinops.HessianLinearOperator(
        network, nn.CrossEntropyLoss(), list(network.parameters()), [(data.x, data.y)]
    )
    found = eigenpairs(Hessian(*landscape(tanh_network())), 3, 1e-9, 1000, no_progress)
    expected = eigsh(theirs.to_scipy(), 3, which="LA", tol=1e-12, return_eigenvectors=False)
    assert [value for value, _ in found] == pytest.approx(sorted(expected, reverse=True), rel=1e-7)
