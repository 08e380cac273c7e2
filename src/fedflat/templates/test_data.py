"""The data set is one that can be split over clients."""

from __future__ import annotations

import fedflat as ff
from data import example


def test_it_can_be_split() -> None:
    (x, y), (test_x, _) = example()
    assert len(x) == len(y)
    assert x.shape[1:] == test_x.shape[1:]
    data = ff.FederatedData.from_clients([(x, y)], test=example()[1])
    assert data.classes == len(set(y.tolist()))
