"""Carries out one run with several ranks, in a folder that all ranks can read and rank 0 writes."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from ..core.errors import InputError
from ..engine.ranks import Ranks
from . import runner
from .interrupt import StopRequest, stop_between_rounds
from .run_directory import RunDirectory, StoredRun
from .runner import RunObserver
from .spec import RunSpec


def run(
    spec: RunSpec, path: Path, observer: RunObserver | None, ranks: Ranks, strict: bool = False
) -> StoredRun | None:
    """Carry out `spec` in the folder `path` as `runner.run` does. All ranks must call this; rank 0 returns the run.

    Raises what `runner.run` does, on all ranks, and RankError if one is lost.
    """
    if ranks.alone:
        return runner.run(spec, path, observer, strict)
    directory = RunDirectory(path)
    observer = observer if observer and ranks.index == 0 else RunObserver()
    with stop_between_rounds() as request, ExitStack() as lock:
        with ranks.together():  # an error of rank 0 is raised on all ranks
            if ranks.index == 0:
                lock.enter_context(directory.writing())
                directory.remove_damaged(directory.damaged_files())
                if directory.has_begun:
                    directory.check_same_run(spec)
        if not ranks.first(directory.is_finished):
            _train(spec, directory, observer, request, ranks, strict)
            if ranks.index == 0:
                # In one process, which has all clients' records from the last checkpoint.
                with closing(spec.build(directory.state)) as sim:
                    runner.load_newest_checkpoint(sim, directory)
                    runner.finish(spec, sim, directory, observer, request)
        return runner.open_finished(spec, directory, observer) if ranks.index == 0 else None


def _train(
    spec: RunSpec, directory: RunDirectory, observer: RunObserver, request: StopRequest, ranks: Ranks, strict: bool
) -> None:
    """Compute the rounds that are left, from the newest whole checkpoint if there is one."""
    ranks.same(spec.digest(), "the digest of the configuration")
    with ranks.together():
        sim = spec.build(ranks=ranks)
    with closing(sim):
        _check_same_checkpoints(directory, ranks)
        runner.load_newest_checkpoint(sim, directory, strict)
        sim.prepare()  # all ranks must choose the executor at the same time
        with ranks.together():
            if ranks.index == 0:
                directory.begin(spec, sim)
                directory.add_segment(sim)
        runner.train(spec, sim, directory, observer, request, ranks)


def _check_same_checkpoints(directory: RunDirectory, ranks: Ranks) -> None:
    """Raise InputError, on all ranks, unless all see the checkpoints that rank 0 sees."""
    names = [path.name for path in directory.checkpoints]
    expected = ranks.first(names)
    with ranks.together():
        if names != expected:
            raise InputError(
                f"rank {ranks.index} sees {', '.join(names) or 'no checkpoint'} in {directory.state}, rank 0 "
                f"{', '.join(expected) or 'none'}; the folder must be on storage that all machines share"
            )
