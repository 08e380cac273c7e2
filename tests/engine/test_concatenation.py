"""The pass that lets traced steps work on the parts of a concatenated gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fedflat.engine.concatenation import LEAST_WIDTH, MOST_PARTS, distribute

WIDE = LEAST_WIDTH
ROWS = 3


def rows_of(*widths: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(len(widths))
    return [torch.randn(ROWS, width, generator=random) for width in widths]


def both(step: Callable[..., Any], *inputs: Tensor) -> tuple[GraphModule, Any, Any]:
    """Return the changed graph, its result, and that of the step."""
    module = distribute(make_fx(step)(*inputs))
    module.graph.lint()
    return module, module(*inputs), step(*inputs)


def concatenated(module: GraphModule) -> list[list[str]]:
    """Return the operations of whose results each concatenation is made."""
    cats = [node for node in module.graph.nodes if node.target is torch.ops.aten.cat.default]
    return [[str(part.target).removeprefix("aten.") for part in node.args[0]] for node in cats]


def test_a_step_along_the_gradient_is_computed_part_by_part() -> None:
    w, a, b = rows_of(2 * WIDE + 5, WIDE, WIDE + 5)
    lr = torch.tensor(0.1)
    module, found, expected = both(lambda w, lr, a, b: w - lr * torch.cat([a, b], -1), w, lr, a, b)
    assert torch.equal(found, expected)
    assert concatenated(module) == [["sub.Tensor", "sub.Tensor"]]


def test_a_perturbed_model_that_is_split_again_is_never_joined() -> None:
    w, a, b = rows_of(2 * WIDE, WIDE, WIDE)

    def step(w: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        g = torch.cat([a, b], -1)
        point = (w + 0.5 * g).detach()
        return [x.exp() for x in torch.split(point, [WIDE, WIDE], dim=-1)]

    module, found, expected = both(step, w, a, b)
    assert all(map(torch.equal, found, expected))
    assert concatenated(module) == []


def test_a_norm_is_that_of_the_norms_of_parts() -> None:
    a, b = (x.double() for x in rows_of(WIDE, 3 * WIDE))

    def step(a: Tensor, b: Tensor) -> Tensor:
        g = torch.cat([a, b], -1)
        return g / torch.linalg.vector_norm(g, dim=-1, keepdim=True)

    module, found, expected = both(step, a, b)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
    assert concatenated(module) == [["linalg_vector_norm.default"] * 2, ["div.Tensor"] * 2]


def test_a_sum_is_that_of_the_sums_of_parts() -> None:
    w, a, b = (x.double() for x in rows_of(3 * WIDE, WIDE, 2 * WIDE))
    module, found, expected = both(lambda w, a, b: (w * torch.cat([a, b], -1)).sum(-1, keepdim=True), w, a, b)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert concatenated(module) == [["sum.dim_IntList", "sum.dim_IntList"]]


@pytest.mark.parametrize("reduce", [
    lambda g: torch.linalg.vector_norm(g, ord=1, dim=-1, keepdim=True),
    lambda g: g.sum(0, keepdim=True),
    lambda g: g.sum(-1),
    lambda g: g.amax(-1, keepdim=True),
    lambda g: g @ torch.ones(2 * WIDE, 2),
    lambda g: torch.cat([g, g], 0),
    lambda g: g.view(ROWS, 2, WIDE).mean(1),
])  # fmt: skip
def test_what_needs_the_whole_vector_gets_it(reduce: Callable[[Tensor], Tensor]) -> None:
    w, a, b = rows_of(2 * WIDE, WIDE, WIDE)
    module, found, expected = both(lambda w, a, b: reduce(w + 2 * torch.cat([a, b], -1)), w, a, b)
    assert torch.equal(found, expected)
    assert ["add.Tensor", "add.Tensor"] in concatenated(module)


def test_numbers_of_clients_are_no_parts_of_a_vector() -> None:
    """Vectors without an axis of parameters are joined along that of clients, whose number is not fixed."""
    a, b = torch.ones(WIDE), torch.ones(WIDE)
    module, found, expected = both(lambda a, b: 2 * torch.cat([a, b], 0), a, b)
    assert torch.equal(found, expected)
    assert str([node.target for node in module.graph.nodes][-2]) == "aten.mul.Tensor"


def test_a_split_at_other_places_gets_the_whole_vector() -> None:
    a, b = rows_of(WIDE, WIDE)
    _, found, expected = both(lambda a, b: torch.split(2 * torch.cat([a, b], -1), [WIDE - 1, WIDE + 1], -1), a, b)
    assert all(map(torch.equal, found, expected))


def test_narrow_neighbours_are_one_part_and_are_split_from_it() -> None:
    """Two biases stand between two weights, and one after them."""
    parts = rows_of(WIDE, 5, 6, WIDE, 7)
    widths = [x.shape[-1] for x in parts]

    def step(*parts: Tensor) -> list[Tensor]:
        moved = torch.cat(parts, -1) * 3.0
        return [moved, *(x + 1 for x in torch.split(moved, widths, dim=-1))]

    module, found, expected = both(step, *parts)
    assert all(map(torch.equal, found, expected))
    assert len(concatenated(module)[-1]) == 4


@pytest.mark.parametrize("widths", [[WIDE] * (MOST_PARTS + 1), [3, 4]])
def test_many_parts_and_narrow_vectors_stay_as_they_are(widths: list[int]) -> None:
    parts = rows_of(*widths)
    module, found, expected = both(lambda *parts: 2 * torch.cat(parts, -1), *parts)
    assert torch.equal(found, expected)
    assert len(concatenated(module)[0]) == len(widths)
    assert [str(node.target) for node in module.graph.nodes][-2] == "aten.mul.Tensor"


def test_columns_numbers_and_other_gradients_are_used_as_they_are() -> None:
    """Two gradients with equal parts, a number of each row, and the same vector for all rows."""
    w, a, b, c, d, each = rows_of(2 * WIDE, WIDE, WIDE, WIDE, WIDE, 1)

    def step(w: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, each: Tensor) -> Tensor:
        first, second = torch.cat([a, b], -1), torch.cat([c, d], -1)
        return torch.where(w > 0, w - each * (first + second), w[:1].expand_as(w))

    module, found, expected = both(step, w, a, b, c, d, each)
    assert torch.equal(found, expected)
    assert concatenated(module) == [["where.self", "where.self"]]


def test_a_graph_that_changes_a_vector_in_place_stays_as_it_is() -> None:
    """The parts of the doubled vector are no longer those that were concatenated."""
    a, b = rows_of(WIDE, WIDE)

    def step(a: Tensor, b: Tensor) -> Tensor:
        g = torch.cat([a, b], -1)
        same = g.detach()
        g.mul_(2)
        return same + 1

    module, found, expected = both(step, a, b)
    assert torch.equal(found, expected)
    assert str([node.target for node in module.graph.nodes][-2]) == "aten.add.Tensor"
