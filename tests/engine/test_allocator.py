from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from fedflat.core.native_libraries import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, NEVER_TRIM, SWITCH, tune_allocator
from support.files import refused

# 20 times a block of 40 MiB whose first 4 MiB are written: above 32 MiB, glibc's default is always to map a block by
# itself, so that its 1,024 pages are new every time.
FAULTS = """
import ctypes, resource
from fedflat.core.native_libraries import tune_allocator
library = ctypes.CDLL(None)
library.malloc.restype = library.memset.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def use():
    block = library.malloc(40 << 20)
    library.memset(block, 1, 4 << 20)
    library.free(block)

print(tune_allocator())
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
SIMULATION = """
import numpy as np, torch
import fedflat as ff
data = ff.FederatedData.from_clients([(np.ones((4, 2), np.float32), np.arange(4) % 2)] * 2, classes=2)
ff.Simulation(torch.nn.Linear(2, 2), data, ff.methods.FedAvg(), ff.Client(steps=1), executor="sequential")
"""


class Library:
    """Stands for a C library: it stores the settings, and refuses thresholds above `most`."""

    def __init__(self, most: int = 2**31) -> None:
        self.settings: dict[int, int] = {}
        self.most = most

    def mallopt(self, parameter: int, value: int) -> int:
        if parameter == M_MMAP_THRESHOLD and value > self.most:
            return 0
        self.settings[parameter] = value
        return 1


def missing() -> Library:
    raise OSError("no such library")


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)


def test_large_blocks_come_from_the_heap_and_the_heap_is_never_trimmed() -> None:
    library = Library()
    assert tune_allocator(lambda: library)
    assert library.settings == {M_MMAP_THRESHOLD: 2**30, M_TRIM_THRESHOLD: NEVER_TRIM}


def test_a_second_call_changes_nothing() -> None:
    library = Library()
    assert tune_allocator(lambda: library)
    once = dict(library.settings)
    assert tune_allocator(lambda: library)
    assert library.settings == once


def test_an_older_glibc_takes_what_it_accepts() -> None:
    library = Library(most=2**25)
    assert tune_allocator(lambda: library)
    assert library.settings[M_MMAP_THRESHOLD] == 2**25


def test_where_mapping_cannot_be_moved_trimming_stays_as_it_is() -> None:
    library = Library(most=0)
    assert not tune_allocator(lambda: library)
    assert library.settings == {}


@pytest.mark.parametrize("library", [missing, object], ids=["no library", "no mallopt"])
def test_other_systems_are_left_alone(library) -> None:
    assert not tune_allocator(library)


def test_the_switch_leaves_the_allocator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "default")
    library = Library()
    assert not tune_allocator(lambda: library)
    assert library.settings == {}


def test_a_misspelt_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "defualt")
    with refused(SWITCH, "defualt"):
        tune_allocator(Library)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_freed_memory_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = {}
    for value in ("", "default"):
        monkeypatch.setenv(SWITCH, value)
        tuned, number = subprocess.run(
            [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
        ).stdout.split()
        assert tuned == str(value == "")
        faults[value] = int(number)
    assert faults[""] < 1000 < 20_000 < faults["default"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="sets glibc")
@pytest.mark.parametrize(("value", "keeps"), [("", True), ("default", False)])
def test_a_simulation_in_a_script_keeps_memory_too(value: str, keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, value)
    script = FAULTS.replace("print(tune_allocator())", SIMULATION)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    faults = int(run.stdout)
    assert (faults < 1024) == keeps
