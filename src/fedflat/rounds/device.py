"""The device of training, its threads, and the memory layout of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..core.errors import InputError, first_line


def usable_device(name: str | torch.device) -> torch.device:
    """Return the device called `name`; `auto` is a GPU if available. Raises InputError if it cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        probe = torch.zeros(1, device=name)
        probe.item()  # a device without memory of its own fails here
        return probe.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device = {str(name)!r} cannot be used: {first_line(error)}") from error


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Use one thread inside the block if `device` is the CPU.

    The last bits of sums over several threads depend on the number of threads; rounds must not depend on the machine or
    on the number of worker processes.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_name(device: torch.device) -> str:
    """Return the name of a device to show to a user; for a GPU, its model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


ALIGNED = 64  # bytes, as torch aligns its own tensors: vector kernels round differently on other addresses


def aligned(x: Tensor) -> Tensor:
    """Return `x`, contiguous and at an aligned address, as in shared memory; copy it only if necessary."""
    return x if x.is_contiguous() and x.data_ptr() % ALIGNED == 0 else x.clone(memory_format=torch.contiguous_format)
