from __future__ import annotations

import pytest
import torch

from benchmarks.host import in_a_process_of_its_own
from benchmarks.record_store import changed, measure_store
from fedflat.methods import Scaffold


@pytest.mark.slow
def test_a_million_clients_are_read_and_written() -> None:
    times, peak = in_a_process_of_its_own(measure_store, 2)
    assert len(times.cpu) == len(times.wall) == 2
    assert min(times.wall) > 0
    assert times.facts["clients"] == 1_000_000
    assert all(31_400 * 250 < found < 4_000_000_000 for found in peak.bytes)  # at least a chunk, far from all clients


def test_what_is_put_back_is_new() -> None:
    record = Scaffold.client(c=torch.zeros(2, 3))
    assert torch.equal(changed(record).c, torch.ones(2, 3))
    assert torch.equal(record.c, torch.zeros(2, 3))
