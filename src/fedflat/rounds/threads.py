"""How many threads torch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """One thread inside the block, where `device` is the CPU.

    Sums over several threads depend, in their last bits, on how many there are; rounds shall not depend on the machine
    or on the number of worker processes.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
