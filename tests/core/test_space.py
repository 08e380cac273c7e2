from __future__ import annotations

import pytest
import torch
from torch import nn

from fedflat.core.torch_module import Space


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 3)).double()


def test_flat_vector_is_in_the_order_of_parameters_row_major() -> None:
    module = network()
    space = Space(module)
    w = space.flatten(module)
    assert torch.equal(w, nn.utils.parameters_to_vector(module.parameters()).detach())
    assert space.d == len(w)


def test_views_and_write_undo_flatten() -> None:
    module, other = network(), network()
    space = Space(module)
    w = torch.randn(space.d, dtype=torch.float64)
    space.write(other, w)
    assert torch.equal(space.flatten(other), w)
    for (name, p), view in zip(other.named_parameters(), space.views(w).values(), strict=True):
        assert torch.equal(p, view), name
    assert space.views(w)["0.weight"].data_ptr() == w.data_ptr(), "views share the vector's memory"


def test_views_of_a_stack_are_the_views_of_its_rows() -> None:
    space = Space(network())
    stack = torch.randn(4, space.d)
    for name, view in space.views(stack).items():
        assert torch.equal(view, torch.stack([space.views(row)[name] for row in stack]))


def test_layers_tile_the_vector_and_weights_are_told_from_biases() -> None:
    module = network()
    space = Space(module)
    slices = dict(space.layers())
    assert [s.start for s in slices.values()] == [0, *[s.stop for s in slices.values()]][:-1]
    mask = space.is_weight()
    assert all(bool(mask[s].all()) == ("weight" in name) == bool(mask[s].any()) for name, s in slices.items())


def test_frozen_parameters_are_left_out_and_a_module_without_any_is_refused() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    assert Space(module).d == 6
    with pytest.raises(ValueError, match="ReLU has no trainable parameter"):
        Space(nn.ReLU())


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ((torch.float64, torch.float32), "several types, 'a' torch.float64 and 'b' torch.float32"),
        ((torch.complex64, torch.float32), "parameter 'a' is torch.complex64"),
    ],
)
def test_parameters_of_other_types_are_refused(types: tuple[torch.dtype, ...], message: str) -> None:
    module = nn.Module()
    for name, dtype in zip("ab", types, strict=True):
        module.register_parameter(name, nn.Parameter(torch.zeros(2, dtype=dtype)))
    with pytest.raises(ValueError, match=message):
        Space(module)


def test_zero_dimensional_parameters_work() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2.0))

    assert Space(Scale()).views(torch.ones(3, 1))["factor"].shape == (3,)
    assert Space(Scale()).views(torch.ones(1))["factor"].shape == ()
