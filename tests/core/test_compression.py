"""The operators of compression: closed forms, and what the kept errors add up to."""

from __future__ import annotations

import pytest
import torch

import fedflat as ff
from fedflat.core.compression import Compression
from fedflat.core.errors import InputError


def no_draw(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("the largest entries are no matter of chance")


@pytest.mark.parametrize(
    ("share", "kept"),
    [(0.001, [0, 0, -3, 0, 0, 0]), (0.5, [2, 0, -3, -2, 0, 0]), (2 / 3, [2, 0, -3, -2, 2, 0]),
     (1.0, [2, 1, -3, -2, 2, 0])],
)  # fmt: skip
def test_the_largest_magnitudes_stay_and_of_equal_ones_the_first(share: float, kept: list[float]) -> None:
    x = torch.tensor([[2.0, 1.0, -3.0, -2.0, 2.0, 0.0]])
    expected = torch.tensor([kept], dtype=torch.float32)
    assert torch.equal(ff.Compression(share=share).compressed(x, no_draw), expected)


def test_rows_are_clients_of_their_own() -> None:
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for how in (ff.Compression(share=0.2), ff.Compression(kind="quantise", bits=3)):
        rows = torch.cat([how.compressed(row[None], lambda x: torch.full_like(x, 0.4)) for row in x])
        assert torch.equal(how.compressed(x, lambda x: torch.full_like(x, 0.4)), rows)


def test_three_bits_have_three_levels_between_which_chance_decides() -> None:
    """Of 6, the largest: 4.5 is two levels and a quarter of 2, -1 half a level."""
    x, how = torch.tensor([6.0, 4.5, -1.0, 0.0, -6.0]), ff.Compression(kind="quantise", bits=3)
    for drawn, expected in ((0.0, [6, 6, -2, 0, -6]), (0.3, [6, 4, -2, 0, -6]), (0.7, [6, 4, 0, 0, -6])):
        found = how.compressed(x, lambda x, drawn=drawn: torch.full_like(x, drawn))
        assert torch.equal(found, torch.tensor(expected, dtype=torch.float32))
        assert not found[found == 0].signbit().any()
    assert torch.equal(how.compressed(torch.zeros(3), torch.zeros_like), torch.zeros(3))


@pytest.mark.parametrize("bits", [2, 4, 16])
def test_the_mean_over_all_draws_is_the_vector(bits: int) -> None:
    """Over a grid of draws it is, up to the grid's spacing times a level."""
    how, draws = ff.Compression(kind="quantise", bits=bits, error_feedback=False), 400
    x = torch.randn(30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grid = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    sent = torch.stack([how.compressed(x, lambda x, one=one: torch.full_like(x, float(one))) for one in grid])
    assert (sent.mean(0) - x).abs().max() <= x.abs().max() / how.levels / draws
    assert (sent - x).abs().max() < x.abs().max() / how.levels


@pytest.mark.parametrize("how", [ff.Compression(share=0.1), ff.Compression(kind="quantise", bits=3)], ids=str)
def test_what_is_sent_and_what_is_kept_add_up_and_what_is_kept_is_bounded(how: Compression) -> None:
    """Quantised: |e| <= s / L and s <= |x| + |e| give |e| <= |x| / (L - 1), L = 3."""
    draw = torch.Generator().manual_seed(2)
    unsent, wanted, sent, most = torch.zeros(50).double(), torch.zeros(50).double(), torch.zeros(50).double(), 0.0
    for _ in range(200):
        x = torch.rand(50, generator=draw, dtype=torch.float64) * 2 - 1
        message = how.compressed(x + unsent, lambda x: torch.rand(x.shape, generator=draw, dtype=x.dtype))
        unsent, wanted, sent = x + unsent - message, wanted + x, sent + message
        most = max(most, float(unsent.abs().max()))
    torch.testing.assert_close(sent + unsent, wanted, rtol=0, atol=1e-12)
    assert most <= (0.5 if how.kind == "quantise" else 50)


REFUSED = [
    ({}, "compress.kind = 'top-k' needs compress.share"),
    ({"kind": "quantise"}, "compress.kind = 'quantise' needs compress.bits"),
    ({"share": 0.1, "bits": 4}, "compress.bits = 4 is not used by compress.kind = 'top-k'; leave it out"),
    ({"kind": "quantise", "share": 0.1, "bits": 4}, "compress.share = 0.1 is not used by compress.kind = 'quantise'"),
    ({"share": 0.0}, r"compress.share must be a number in \(0, 1\]"),
    ({"share": 1.5}, r"compress.share must be a number in \(0, 1\]"),
    ({"kind": "quantise", "bits": 1}, r"compress.bits must be a whole number in \[2, 16\]"),
    ({"kind": "quantise", "bits": 17}, r"compress.bits must be a whole number in \[2, 16\]"),
    ({"kind": "quantise", "bits": 2}, "compress.bits = 2 does not go with compress.error_feedback"),
    ({"kind": "signs"}, "compress.kind must be one of 'top-k', 'quantise'"),
]


@pytest.mark.parametrize(("table", "message"), REFUSED, ids=str)
def test_fields_that_do_not_go_together_are_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        ff.Compression(**table)
    assert "\n" not in str(error.value)
