"""Dropout from keys: a good hash, torch's scaling, one mask per key, call and element, also inside vmap."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from fedflat.core.objective import Batch, Objective
from fedflat.core.stacked_layers import SeededDropout, kept

KEY = torch.tensor(-8_123_456_789_012_345_678)
WORD = 2**64


def split_mix(x: int) -> int:
    """SplitMix64's finaliser (Steele et al., 2014) on Python's unbounded integers."""
    x = (x + 0x9E3779B97F4A7C15) % WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_the_hash_is_split_mix_of_unsigned_words(p: float) -> None:
    """Torch's signed shifts and products lose nothing: the same elements in exact integer arithmetic."""
    for key in (0, 1, 2**63, WORD - 1, 0xDEADBEEF12345678):
        signed = key - WORD if key >= 2**63 else key
        got = kept(torch.tensor(signed), 2, (3, 40), p)
        start = split_mix(key ^ split_mix(2))
        rows = [split_mix(start ^ split_mix(i)) for i in range(3)]
        words = [[split_mix(row ^ split_mix(j)) for j in range(40)] for row in rows]
        assert got.tolist() == [[(word + 2**63) % WORD >= p * WORD for word in row] for row in words]


@pytest.mark.parametrize("p", [0.05, 0.25, 0.5, 0.9])
def test_as_many_are_kept_as_a_fair_coin_keeps(p: float) -> None:
    """Within five standard deviations of the binomial law: over all elements, each key, each row and each column."""
    keys = torch.arange(50)
    masks = torch.stack([kept(key, 0, (40, 50), p) for key in keys]).double()
    for axes in ((0, 1, 2), (1, 2), (0, 2), (0, 1)):
        rate, draws = masks.mean(axes), masks.numel() / masks.mean(axes).numel()
        assert ((rate - (1 - p)).abs() <= 5 * (p * (1 - p) / draws) ** 0.5).all()


def test_neighbours_have_nothing_in_common() -> None:
    """Correlation of masks of adjacent keys, calls, rows, columns and diagonals is that of independent coins."""
    n = 300
    masks = {(key, call): kept(KEY + key, call, (n, n), 0.5).double() * 2 - 1 for key in range(3) for call in range(3)}
    one = masks[0, 0]
    pairs = [(one, other) for name, other in masks.items() if name != (0, 0)]
    pairs += [(one[1:], one[:-1]), (one[:, 1:], one[:, :-1]), (one[1:, 1:], one[:-1, :-1]), (one, one.T)]
    pairs += [(one[1:], masks[1, 0][:-1]), (one[1:], masks[0, 1][:-1])]
    for a, b in pairs:
        assert abs((a * b).mean()) <= 5 / (n * n) ** 0.5 * 2**0.5  # (one, one.T) counts every product twice


def test_every_place_of_sixty_four_keys_is_its_own_coin() -> None:
    """A chi-square of the 2^6 patterns of six neighbouring elements: no pattern is rarer than chance makes it."""
    mask = kept(KEY, 0, (40_000, 6), 0.5).numpy()
    counts = np.bincount(mask @ (1 << np.arange(6)), minlength=64)
    chi = ((counts - 625) ** 2 / 625).sum()
    assert abs(chi - 63) <= 5 * (2 * 63) ** 0.5


DROPOUTS = {
    "module": nn.Dropout(0.3),
    "in place": lambda x: nn.Dropout(0.3, inplace=True)(x.clone()),
    "functional": lambda x: functional.dropout(x, p=0.3),
    "operator": lambda x: torch.dropout(x, p=0.3, train=True),
    "operator in place": lambda x: torch.dropout_(x.clone(), 0.3, True),
}


@pytest.mark.parametrize("dropout", DROPOUTS.values(), ids=DROPOUTS)
def test_every_form_of_dropout_takes_the_keys_mask(dropout) -> None:
    """Kept elements are multiplied by exactly 1 / (1 - p), the others by 0, and torch's state stays."""
    x = torch.linspace(1, 2, 60, dtype=torch.float64).reshape(3, 20)
    state = torch.get_rng_state()
    with SeededDropout(KEY):
        got = dropout(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(got, x * kept(KEY, 0, (3, 20), 0.3) * (1 / (1 - 0.3)))
    assert 0 < (got == 0).sum() < x.numel()


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_channels_are_dropped_as_a_whole(axes: int) -> None:
    layer = {1: nn.Dropout1d, 2: nn.Dropout2d, 3: nn.Dropout3d}[axes](0.5)
    with SeededDropout(KEY):
        got = layer(torch.ones(5, 8, *[3] * axes)).flatten(2)
    assert torch.equal(got, got[:, :, :1].expand_as(got))
    assert set(got.unique().tolist()) == {0.0, 2.0}


def test_nothing_is_drawn_where_torch_draws_nothing() -> None:
    x = torch.ones(4, 5)
    covered = SeededDropout(KEY)
    with covered:
        assert torch.equal(functional.dropout(x, 0.5, training=False), x)
        assert torch.equal(functional.dropout(x, 0.0), x)
        assert torch.equal(functional.dropout(x, 1.0), torch.zeros_like(x))
        with pytest.raises(ValueError, match="between 0 and 1"):
            functional.dropout(x, 1.5)
    assert covered.calls == 0


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: functional.dropout1d(x[0]),  # unbatched
        lambda x: functional.alpha_dropout(x, training=True),
        lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        lambda x: x + torch.randn_like(x),
    ],
)
def test_what_is_not_covered_still_moves_torchs_state(draw) -> None:
    state = torch.get_rng_state()
    with SeededDropout(KEY):
        draw(torch.ones(2, 3, 4))
    assert not torch.equal(torch.get_rng_state(), state)


def test_a_short_batch_has_the_mask_it_has_inside_a_longer_one() -> None:
    """Wherever the axis of samples is: models may put time or position first."""
    longer, shorter = kept(KEY, 1, (7, 9, 5), 0.5), kept(KEY, 1, (7, 4, 5), 0.5)
    assert torch.equal(longer[:, :4], shorter)


def test_masks_of_a_stack_are_those_of_its_clients() -> None:
    keys, x = torch.tensor([1, 2, -3]), torch.rand(3, 6, 4, 5)

    def twice(key: Tensor, one: Tensor) -> Tensor:
        with SeededDropout(key):
            return nn.Dropout2d(0.5, inplace=True)(functional.dropout(one[..., None], 0.4))

    stacked = vmap(twice)(keys, x)
    assert torch.equal(stacked, torch.stack([twice(key, one) for key, one in zip(keys, x, strict=True)]))
    for a, b in pairwise(stacked):
        assert not torch.equal(a == 0, b == 0)


def test_layers_of_one_pass_have_masks_of_their_own_and_the_next_pass_begins_again() -> None:
    x = torch.ones(10, 10)
    with SeededDropout(KEY):
        first, second = functional.dropout(x), functional.dropout(x)
    with SeededDropout(KEY):
        again = functional.dropout(x)
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


def test_a_batch_with_a_key_has_one_loss_and_one_without_has_torchs() -> None:
    network = nn.Sequential(nn.Linear(6, 30), nn.Dropout(0.5), nn.Linear(30, 3)).double()
    objective = Objective(network)
    w, x, y = objective.space.flatten(network), torch.ones(4, 6).double(), torch.tensor([0, 1, 2, 0])
    losses = [objective.loss(w, Batch(x, y, key=key)) for key in (KEY, KEY, KEY + 1, None, None)]
    assert losses[0] == losses[1]
    assert len({float(loss) for loss in losses}) == 4
    with objective.evaluating():
        plain = [objective.loss(w, Batch(x, y, key=key)) for key in (KEY, None)]
    assert plain[0] == plain[1]
