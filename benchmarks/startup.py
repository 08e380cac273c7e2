"""What it costs to start: processor seconds of short commands and of `import fedflat`, against `import torch`.

    git worktree add /tmp/before ad61b80        # or any other version to compare with
    python -m benchmarks.startup [--before /tmp/before/src] [--repeats 7]

Every case is a new process, and all cases take turns. Seconds are those of the processor in user and system mode
together, with one thread, so that other work on the machine changes them little. Files of compiled Python are there.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

from .measurement import Spread
from .timing import Seconds, in_turns

SOURCE = Path(__file__).parents[1] / "src"
TORCH = "import torch"
IMPORTS = ("pass", TORCH, "import fedflat", "import fedflat; fedflat.Simulation")
COMMANDS = (
    "--help", "--version", "run --help", "methods", "methods FedSMOO", "doctor", "data list", "flatness --list",
    "run --keys", "recipes list", "recipes list fedgf",
)  # fmt: skip
# As the shell asks when the user presses the tabulator.
COMPLETION = {"_FEDFLAT_COMPLETE": "complete_bash", "COMP_WORDS": "fedflat methods feds", "COMP_CWORD": "2"}
COMPLETE = "import sys; sys.argv = ['fedflat']; from fedflat.cli import main; main()"


def seconds(source: Path, words: Sequence[str], **variables: str) -> Seconds:
    """Return seconds of `python WORDS`, of the processor and by the clock, with the version of fedflat in `source`."""
    environment = os.environ | {"PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"} | variables
    clock, before = perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile() as output:
        subprocess.run([sys.executable, *words], env=environment, stdout=output, check=True)  # noqa: S603
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, perf_counter() - clock


def cases(source: Path) -> dict[str, Callable[[], Seconds]]:
    """Return what is timed, by name, for the version of fedflat in `source`."""
    timers = {code: partial(seconds, source, ["-c", code]) for code in IMPORTS}
    timers |= {f"fedflat {line}": partial(seconds, source, ["-m", "fedflat", *line.split()]) for line in COMMANDS}
    return timers | {"completion": partial(seconds, source, ["-c", COMPLETE], **COMPLETION)}


def main() -> None:
    """Print a row for each case: medians, the least and the most, and the ratio to `import torch`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the folder `src` of a version to compare with")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each case")
    parser.add_argument("--only", nargs="*", default=[], help="names of cases; default all")
    given = parser.parse_args()
    versions = {"": SOURCE} | ({"before: ": given.before} if given.before else {})
    timers = {f"{version}{name}": timer for version, source in versions.items() for name, timer in cases(source).items()
              if not given.only or name in {*given.only, TORCH}}  # fmt: skip
    times = in_turns(timers, given.repeats, warm_ups=1)
    torch = Spread.of([processor for processor, _ in times[TORCH]])
    print(f"{'processor seconds':44}{'median':>8} [least, most]   of torch's")
    for name, values in times.items():
        found = Spread.of([processor for processor, _ in values])
        ratio = found.median / torch.median
        print(f"{name:44}{found.median:8.2f} [{found.low:.2f}, {found.high:.2f}]   {ratio:10.2f}")


if __name__ == "__main__":
    main()
