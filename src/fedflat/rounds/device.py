"""The device that training runs on, and its threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..core.errors import InputError


def usable_device(name: str | torch.device) -> torch.device:
    """The device called `name`; `auto` is a GPU if there is one. Raises InputError if it cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        probe = torch.zeros(1, device=name)
        probe.item()  # a device without memory of its own fails here
        return probe.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device = {str(name)!r} cannot be used: {str(error).splitlines()[0]}") from error


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


def device_name(device: torch.device) -> str:
    """The name of a device for a user: of a GPU its model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


ALIGNED = 64  # bytes, as torch aligns its own tensors: vector kernels round differently on other addresses


def aligned(x: Tensor) -> Tensor:
    """`x` with its numbers side by side from an aligned address, as in shared memory; copied only if it is not so."""
    return x if x.is_contiguous() and x.data_ptr() % ALIGNED == 0 else x.clone(memory_format=torch.contiguous_format)
