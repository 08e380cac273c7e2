"""Products against a dense Hessian, and the same whatever is kept, chunked or stacked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.core.objective import Batch
from fedflat.metrics.flatness.hessian import Hessian
from fedflat.metrics.flatness.passes import allocated
from support.federation import federation, tanh_network
from support.networks import NETWORKS, attention, convolutions, dense_hessian, landscape

Make = Callable[[], nn.Module]
everywhere = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)


def some_vectors(k: int, d: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).normal(size=(k, d)))


@pytest.mark.parametrize("make", [tanh_network, convolutions])
def test_products_with_unit_vectors_are_the_columns_of_the_dense_hessian(make: Make) -> None:
    F, w = landscape(make())
    data = federation()
    expected = dense_hessian(make(), data.x, data.y)
    got = Hessian(F, w)(torch.eye(F.d, dtype=torch.float64))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13)


def test_attention_has_a_second_derivative() -> None:
    """Against differences of gradients; the fused kernel has none."""
    F, w = landscape(attention())
    v, h = some_vectors(1, F.d)[0], 1e-5
    batch = Batch(F.data.x, F.data.y)
    numeric = (F.objective.gradient(w + h * v, batch) - F.objective.gradient(w - h * v, batch)) / (2 * h)
    torch.testing.assert_close(Hessian(F, w)(v), numeric, rtol=1e-5, atol=1e-8)


@everywhere
def test_a_kept_graph_one_that_is_built_again_and_chunks_give_the_same(make: Make) -> None:
    F, w = landscape(make())
    each = F.footprint.graph + F.footprint.product
    vectors = some_vectors(4, F.d)
    whole = Hessian(F, w)
    expected = whole(vectors)
    for memory in (1, int(1.5 * each), int(7 * each), int(37 * each)):  # 38 samples
        chunked = Hessian(landscape(make(), memory=memory)[0], w)
        torch.testing.assert_close(chunked(vectors), expected, rtol=0, atol=1e-13)
        torch.testing.assert_close(chunked(vectors[2]), expected[2], rtol=0, atol=1e-13)
    assert whole.products == 4
    assert chunked.products == 5


@everywhere
def test_several_vectors_at_once_are_one_after_another(make: Make) -> None:
    F, w = landscape(make())
    H, vectors = Hessian(F, w), some_vectors(5, F.d)
    torch.testing.assert_close(H(vectors), torch.stack([H(v) for v in vectors]), rtol=0, atol=1e-13)


@everywhere
def test_single_precision_is_close_to_double(make: Make) -> None:
    F, w = landscape(make())
    v = some_vectors(1, F.d)[0]
    single = Hessian(*landscape(make().float()))(v.float())
    expected = Hessian(F, w)(v)
    assert single.dtype == torch.float64  # what is summed over samples
    assert float((single - expected).norm()) <= 1e-5 * float(expected.norm())


def test_a_loss_that_does_not_depend_on_the_parameters_has_a_hessian_of_zeros() -> None:
    F, w = landscape(nn.Sequential(tanh_network(), nn.Hardshrink(1e9)))
    assert not Hessian(F, w)(some_vectors(2, F.d)).any()


def test_a_loss_that_overflows_is_not_measured() -> None:
    """And says so, instead of giving NaN to an eigenvalue solver."""
    network = nn.Sequential(tanh_network(), nn.Linear(3, 3).double())
    with torch.no_grad():
        network[1].weight.fill_(1e200)
    found = ff.flatness(network, federation(), ["eigenvalues", "trace", "density"])
    assert not found
    assert all("products with the Hessian of the loss are not finite" in one.protocol for one in found.findings)


@pytest.mark.parametrize("samples", [2, 40])
def test_a_stack_of_vectors_takes_no_more_memory_than_there_is(samples: int) -> None:
    """Of a network with many units and few parameters, so that samples take what is taken."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 1), nn.Linear(1, 2000), nn.Tanh(), nn.Linear(2000, 3)).double()
    F, w = landscape(network)
    F.samples, F.memory = F.samples[:samples].repeat(2), samples * 1_000_000
    vectors = some_vectors(50, F.d)
    beside = 6 * vectors.numel() * 8  # the vectors, their products, and copies of both
    assert F.memory / 3 < max(allocated(lambda: Hessian(F, w)(vectors))) < F.memory + beside


@pytest.mark.parametrize("make", [tanh_network, convolutions])
def test_curvlinops_gives_the_same_products(make: Make) -> None:
    curvlinops = pytest.importorskip("curvlinops")
    network, data = make(), federation()
    batches = list(zip(data.x.split(10), data.y.split(10), strict=True))
    theirs = curvlinops.HessianLinearOperator(network, nn.CrossEntropyLoss(), list(network.parameters()), batches)
    F, w = landscape(make())
    v = some_vectors(1, F.d)[0]
    torch.testing.assert_close(Hessian(F, w)(v), theirs @ v, rtol=1e-7, atol=1e-12)
