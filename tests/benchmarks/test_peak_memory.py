from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.fresh_process import output_of

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the system does not tell the peak of memory"
)
MB = 2**20
ROOT = str(Path(__file__).parents[2])

# In a small process: of this one a system that is short of memory may take more away meanwhile than the block has.
PEAKS = """
import mmap
from benchmarks.peak_memory import Peak

peak = Peak()
before = peak.bytes()
with mmap.mmap(-1, 64 << 20) as block:  # straight from the system: no allocator can have kept it from before
    for _ in range(64):
        block.write(b"x" * (1 << 20))
print(before, peak.bytes(), Peak().bytes())
"""


def test_a_block_that_is_gone_again_is_in_the_peak_and_not_in_one_that_begins_later() -> None:
    before, peak, later = map(int, output_of(PEAKS, PYTHONPATH=ROOT).split())
    assert before + 60 * MB < peak < before + 80 * MB
    assert later < 60 * MB


# The other process takes what the first one has at its start, and 64 MB besides.
PEAK_OF_TWO = """
import subprocess, sys
from benchmarks.peak_memory import Peak

peak = Peak()
before = peak.bytes()
script = f"x = bytearray(b'x') * {peak._base + (64 << 20)}; print(len(x), flush=True); input()"
with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
    other.stdout.readline()
    print(before, peak.bytes())
    other.communicate(b"\\n")
"""


def test_processes_that_this_one_has_started_count() -> None:
    before, during = map(int, output_of(PEAK_OF_TWO, PYTHONPATH=ROOT).split())
    assert before + 60 * MB < during < before + 100 * MB
