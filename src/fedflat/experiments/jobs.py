"""How many runs a study carries out at a time, and the GPU of each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ..core.errors import InputError
from ..operating_system import IS_POSIX, refuse_on_windows

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Jobs:
    """How many runs are carried out at a time, each in a process of its own."""

    # "auto": on the CPU the number of torch's threads; on GPUs the number of GPUs times `per_gpu`; on Windows 1.
    number: int | Literal["auto"] = 1
    per_gpu: int = 1  # runs at a time that share a GPU

    def __post_init__(self) -> None:
        if self.number != "auto" and not _is_positive(self.number):
            raise InputError(f"jobs must be 'auto' or an integer of at least 1, got {self.number!r}")
        if not _is_positive(self.per_gpu):
            raise InputError(f"jobs_per_gpu must be an integer of at least 1, got {self.per_gpu!r}")

    def count(self, device: str, runs: int) -> int:
        """Return how many of `runs` on `device` are carried out at a time.

        Raises InputError if more than `per_gpu` runs would have to share a GPU, and for several runs on Windows.
        """
        gpus = gpus_of_jobs(device)
        if self.number == "auto":
            most = len(gpus) * self.per_gpu if gpus else torch.get_num_threads() if is_cpu(device) else 1
            return min(runs, most if IS_POSIX else 1)
        number = min(self.number, runs)
        if number > 1:
            refuse_on_windows(f"--jobs {self.number}", "worker processes", "leave out --jobs")
        if gpus and number > len(gpus) * self.per_gpu:
            raise InputError(
                f"--jobs {self.number}: {number} runs at a time on {len(gpus)} GPU(s), with --jobs-per-gpu "
                f"{self.per_gpu}; set --jobs-per-gpu {-(-number // len(gpus))}, or fewer jobs"
            )
        return number


def gpus_of_jobs(device: str) -> list[str]:
    """Return the GPUs that runs on `device` are distributed over; none for the CPU and for one GPU, such as `cuda:1`.

    CUDA is not started in this process, because it would take memory of a GPU.
    """
    is_any_gpu = device in ("cuda", "auto") and not is_cpu(device)
    return visible_gpus(os.environ.get(VISIBLE), torch.cuda.device_count()) if is_any_gpu else []


def visible_gpus(listed: str | None, number: int) -> list[str]:
    """Return the names of the GPUs that a process may use, as CUDA_VISIBLE_DEVICES gives them.

    listed: the value of CUDA_VISIBLE_DEVICES: numbers, UUIDs of GPUs, or names of MIG instances; None if it is not set.
    number: how many GPUs CUDA uses in this process; it ignores the first unknown name and all names after that one. Of
    MIG instances it uses only one, but each process may use another one; so all MIG instances are returned.
    """
    if listed is None:
        return [str(index) for index in range(number)]
    names = [name for name in (part.strip() for part in listed.split(",")) if name]
    if number and names and names[0].startswith("MIG-"):
        return [name for name in names if name.startswith("MIG-")]
    return names[:number]


def least_used(gpus: Sequence[str], used: Iterable[str]) -> str:
    """Return the first of `gpus` that the fewest processes use; `used` has one name for each process."""
    counts = Counter(used)
    return min(gpus, key=counts.__getitem__)


def _is_positive(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def is_cpu(device: str) -> bool:
    """Tell whether the setting `device` means the CPU on this machine."""
    return device == "cpu" or (device == "auto" and not torch.cuda.is_available())
