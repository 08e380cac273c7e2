"""What clients are told about their local training."""

from __future__ import annotations

import pytest

import fedflat as ff


def test_the_step_size_decays_from_round_to_round() -> None:
    """lr decay^t: the first round, t = 0, has the step size that the user has written."""
    client = ff.Client(lr=0.5, lr_decay=0.8)
    assert [client.lr_at(t) for t in range(3)] == pytest.approx([0.5, 0.4, 0.32], rel=1e-15)
    assert client.descent(client.lr_at(2)).lr == client.lr_at(2)
