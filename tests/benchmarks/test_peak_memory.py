from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest

from benchmarks.peak_memory import Peak

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the system does not tell the peak of memory"
)
MB = 2**20


def touch_and_free(size: int) -> None:
    """Take memory straight from the system, which no allocator can have kept from before, and give it back."""
    with mmap.mmap(-1, size) as block:
        for _ in range(size // MB):
            block.write(b"x" * MB)


def test_a_block_that_is_gone_again_is_in_the_peak() -> None:
    peak = Peak()
    before = peak.bytes()
    touch_and_free(64 * MB)
    assert before + 60 * MB < peak.bytes() < before + 80 * MB


def test_an_older_peak_is_not() -> None:
    touch_and_free(64 * MB)
    assert Peak().bytes() < 60 * MB


@pytest.mark.slow
def test_processes_that_this_one_has_started_count() -> None:
    """The other process takes what this one has now, and 64 MB besides."""
    peak = Peak()
    before = peak.bytes()
    script = f"x = bytearray(b'x') * {peak._base + 64 * MB}; print(len(x), flush=True); input()"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        during = peak.bytes()
        other.communicate(b"\n")
    assert before + 60 * MB < during < before + 100 * MB
