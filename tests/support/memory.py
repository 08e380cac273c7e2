"""How much memory a process takes that loads a set and touches all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from pathlib import Path
import fedflat.data

def in_kibibytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

name, folder, partial = sys.argv[1:]
fedflat.data.load("digits", clients=2)  # what any first load imports
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
before = in_kibibytes("VmRSS")
data = fedflat.data.load(name, clients=100, data_dir=folder, partial=partial == "True")
total = sum(int(x.view(-1)[::1024].sum()) for x in (data.x, data.test[0]))  # every page is used
print((in_kibibytes("VmHWM") - before) * 1024, total)
"""


def peak_of_a_load(name: str, folder: Path, partial: bool = False) -> tuple[int, int]:
    """The peak of memory (bytes, above what the imports take) in its own process, and the sum of every 1,024th pixel.

    Not from `getrusage`: what it tells of a new process begins with the peak of the one that started it.
    """
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the system does not tell the peak of memory")
    command = [sys.executable, "-c", SCRIPT, name, str(folder), str(partial)]
    peak, total = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(peak), int(total)
