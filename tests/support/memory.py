"""How much memory a process takes, such as one that loads a set and touches all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNTER = """
import sys
from pathlib import Path

def in_bytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

def begin():  # the peak is counted from here
    global before
    Path("/proc/self/clear_refs").write_text("5")
    before = in_bytes("VmRSS")

def peak():
    return in_bytes("VmHWM") - before
"""

LOAD = """
import fedflat.data

name, folder, partial = sys.argv[1:]
fedflat.data.load("digits", clients=2)  # what any first load imports
import PIL.Image, pyarrow.parquet, fedflat.data.readers.file_search  # and what one of files imports
begin()
data = fedflat.data.load(name, clients=100, data_dir=folder, partial=partial == "True")
total = sum(int(x.view(-1)[::1024].sum()) for x in (data.x, data.test[0]))  # every page is used
print(peak(), total)
"""


def counted(program: str, *arguments: object) -> list[int]:
    """The numbers that `program` prints in a process of its own; `begin()` and `peak()` (bytes) are defined for it.

    Not from `getrusage`: what it tells of a new process begins with the peak of the one that started it.
    """
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the system does not tell the peak of memory")
    command = [sys.executable, "-c", COUNTER + program, *map(str, arguments)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [int(word) for word in printed.split()]


def peak_of_a_load(name: str, folder: Path, partial: bool = False) -> tuple[int, int]:
    """The peak of memory (bytes, above what the imports take), and the sum of every 1,024th pixel."""
    peak, total = counted(LOAD, name, folder, partial)
    return peak, total
