"""How much memory a run will take, tried out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..metrics.accuracy import SAMPLES_AT_ONCE, score
from ..rounds.aggregation import RunningMean
from .executors.trial import Trial

if TYPE_CHECKING:
    from .simulation import Simulation

HEADROOM = 1.3  # blocks that are freed do not always fit again, less so where the threads of the store come between
COPIES = 4  # of a server's state: the old and the new one, the message, and the mean, beside what is being added up


def peak_bytes(sim: Simulation) -> int | None:
    """Bytes of memory that this process will take at most, for all rounds; None where the system does not tell.

    Found by taking some steps with the largest clients and evaluating once; what the clients of all rounds may keep
    is added. The number of rounds and the size of a cohort do not enter: clients are trained a few at a time.
    """
    if not sys.platform.startswith("linux"):
        return None
    Trial(sim.executor, sim.cohort(0)).run()
    if sim.data.test is not None:
        x, y = (part[:SAMPLES_AT_ONCE] for part in sim.data.test)
        score(sim.objective, sim.server.w, x, y, sim.data.preparation)
    server = sum(x.nbytes for x in sim.server.tensors().values())
    sums = sum(x.sums.nbytes for x in RunningMean(sim.method, sim.server.w).sums())
    return int(HEADROOM * (_highest() + COPIES * server + sums + sim.store_bytes))


def _highest() -> int:
    """The most bytes that this process had in memory so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
