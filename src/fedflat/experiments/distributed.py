"""Carries out one run by several ranks, in a folder that all of them can read and the first one writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from ..core.errors import InputError
from ..engine.ranks import Ranks
from ..engine.simulation import Simulation
from . import runner
from .interrupt import StopRequest, stop_between_rounds
from .run_directory import RunDirectory, StoredRun
from .runner import Silent, Watcher
from .spec import RunSpec


def run(spec: RunSpec, path: Path, watcher: Watcher | None, ranks: Ranks, strict: bool = False) -> StoredRun | None:
    """Carry out `spec` in the folder `path` as `runner.run` does. All ranks must call this; the first has the result.

    Raises what `runner.run` does, on all ranks, and RankError if one is lost.
    """
    if ranks.alone:
        return runner.run(spec, path, watcher, strict)
    directory = RunDirectory(path)
    watcher = watcher if watcher and ranks.index == 0 else Silent()
    with stop_between_rounds() as request, _writing(spec, directory, ranks):
        if not ranks.first(directory.is_finished):
            _train(spec, directory, watcher, request, ranks, strict)
            if ranks.index == 0:
                _measure(spec, directory, watcher, request)
        return runner.told(spec, directory, watcher) if ranks.index == 0 else None


@contextmanager
def _writing(spec: RunSpec, directory: RunDirectory, ranks: Ranks) -> Iterator[None]:
    """The folder locked by rank 0. Raises InputError on all ranks if it cannot be used."""
    with ExitStack() as stack:
        with ranks.together():
            if ranks.index == 0:
                stack.enter_context(directory.writing())
                directory.give_up(directory.damaged())
                if directory.has_begun:
                    directory.refuse_other(spec)
        yield


def _train(
    spec: RunSpec, directory: RunDirectory, watcher: Watcher, request: StopRequest, ranks: Ranks, strict: bool
) -> None:
    """All rounds that are left, and their checkpoints."""
    ranks.same(spec.digest(), "the digest of the configuration")
    with ranks.together():
        sim = spec.build(ranks=ranks)
    with closing(sim):
        _load(sim, directory, ranks, strict)
        sim.prepare()  # all ranks at the same time
        with ranks.together():
            if ranks.index == 0:
                directory.begin(spec, sim)
                directory.add_segment(sim)
        runner.train(spec, sim, directory, watcher, request, ranks)


def _load(sim: Simulation, directory: RunDirectory, ranks: Ranks, strict: bool) -> None:
    """Go on from the newest whole checkpoint, if there is one. Raises InputError unless all ranks see the same."""
    names = [path.name for path in directory.checkpoints]
    seen = ranks.first(names)
    with ranks.together():
        if names != seen:
            raise InputError(
                f"rank {ranks.index} sees {', '.join(names) or 'no checkpoint'} in {directory.state}, rank 0 "
                f"{', '.join(seen) or 'none'}; the folder must be on storage that all machines share"
            )
    runner.go_on(sim, directory, strict)


def _measure(spec: RunSpec, directory: RunDirectory, watcher: Watcher, request: StopRequest) -> None:
    """What comes after the last round, in one process that has all clients' records from the last checkpoint."""
    with closing(spec.build(directory.state)) as sim:
        runner.go_on(sim, directory)
        runner.finish(spec, sim, directory, watcher, request)
