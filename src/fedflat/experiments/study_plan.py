"""Estimates the cost of a study before training: hours, memory and disk space of its runs.

Runs are of one kind if they agree in the settings that the time of a gradient depends on. One run of each kind is timed
over some trial steps, or carried out if it is short. The other runs of that kind are assumed to be as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapreplace
from pathlib import Path
from tempfile import gettempdir
from time import perf_counter

from ..engine.choice import Trial
from ..engine.simulation import Simulation
from ..files import temporary_folder
from ..metrics.accuracy import SAMPLES_AT_ONCE, score
from ..rounds.checkpoint import KEPT
from ..rounds.cost import full_passes_per_round, gradients_per_step
from ..rounds.device import one_thread
from ..rounds.settings import settings_key
from .budget import TIMED_STEPS, RunBudget, Speed, median_seconds, peak_bytes, run_budget
from .run_directory import RunDirectory
from .runner import run as carry_out
from .spec import RunSpec, StudySpec
from .studies import check_finished, check_folders, check_study_folder, runs_of

SHORT = 1.0  # seconds; shorter runs are carried out, because start, files and measures take much of their time
MOST_TRIALS = 12  # each builds a simulation, and takes some seconds
SMALL_FILES = 50_000  # bytes of those files of a run whose size does not depend on the model, without the metrics
ROW_BYTES = 1_000  # most bytes of a round's metrics, in metrics.parquet and in each checkpoint


@dataclass(frozen=True)
class TrialCost:
    """The measured cost of a trial."""

    title: str  # of the run
    speed: Speed
    state_bytes: int  # of one copy of the server's state
    peak_bytes: int | None  # peak memory of this process; None where the system does not report it
    fixed: float = 0.0  # seconds for start, files and measures; zero for long runs


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study and its expected cost."""

    spec: RunSpec
    directory: RunDirectory
    budget: RunBudget
    trial: TrialCost  # of a run of the same kind, or of a similar run
    finished: bool  # whether the folder holds the finished run

    @property
    def seconds(self) -> float:
        """The remaining seconds in one process; an unfinished run counts with all its rounds."""
        return 0.0 if self.finished else self.trial.speed.seconds(self.budget) + self.trial.fixed

    @property
    def disk_bytes(self) -> int:
        """The largest size of the run's folder: model, kept checkpoints, and small files."""
        kept = min(KEPT, -(-self.spec.rounds // self.spec.checkpoint_every))
        model = self.budget.parameters * self.spec.torch_dtype.itemsize
        states = kept * (self.trial.state_bytes + self.budget.client_state_bytes)
        return model + states + SMALL_FILES + (1 + kept) * ROW_BYTES * self.spec.rounds


def study_plan(spec: StudySpec, path: Path) -> list[PlannedRun]:
    """Estimate the cost of each run of `spec` in the folder `path`; nothing is written there.

    Raises InputError, as `studies.carry_out_study` does, if the folder holds anything but this study.
    """
    check_study_folder(spec, path)
    runs = runs_of(spec, path)
    check_folders(runs)
    check_finished(runs)
    costs = _costs(run for run, _ in runs)
    return [PlannedRun(*run, *cost, run[1].is_finished) for run, cost in zip(runs, costs, strict=True)]


def seconds_of(runs: Iterable[PlannedRun], jobs: int = 1) -> float:
    """Return the remaining seconds of `runs` in `jobs` processes; each run begins as soon as a process is free."""
    ends = [0.0] * jobs
    for run in runs:
        heapreplace(ends, ends[0] + run.seconds)
    return max(ends)


def _costs(runs: Iterable[RunSpec]) -> Iterator[tuple[RunBudget, TrialCost]]:
    """Yield the budget of each run and the trial of its kind.

    After `MOST_TRIALS` trials, a run of a new kind gets the last trial of its method, or else the first trial of all.
    """
    budgets, of_kind, of_method = dict[str, RunBudget](), dict[str, TrialCost](), dict[str, TrialCost]()
    for run in runs:
        kind, method, table = _kind(run), run.method.full_name, run.decisive()
        if kind not in of_kind and len(of_kind) < MOST_TRIALS:
            with closing(run.build()) as sim:
                tried = trial_cost(run, sim)
            of_kind[kind] = of_method[method] = replace(tried, fixed=_fixed_seconds(run, tried.speed))
        work = settings_key(table | {"client": table["client"] | {"lr": None}})  # step sizes do not change the budget
        budgets[work] = budgets.get(work) or run_budget(run)
        yield budgets[work], of_kind.get(kind) or of_method.get(method) or next(iter(of_kind.values()))


def _fixed_seconds(run: RunSpec, speed: Speed) -> float:
    """Measure the seconds that a short run takes besides its gradients and evaluations; return 0 for a long run.

    The run is carried out twice, in a temporary folder, because the first time includes imports.
    """
    known = speed.seconds(run_budget(run))
    if known > SHORT:
        return 0.0
    with temporary_folder("fedflat-trial-", Path(gettempdir())) as folder:
        for name in ("first", "second"):
            start = perf_counter()
            carry_out(run, folder / name)
    return max(0.0, perf_counter() - start - known)


def _kind(run: RunSpec) -> str:
    """Return a key of the settings that the time of a gradient depends on; only runs of one kind have the same key."""
    data = {name: value for name, value in vars(run.data).items() if name != "clients"}
    own = [run.adapter and run.adapter.values(), run.client.batch_size, run.client.accumulate]
    shared = [getattr(run, name) for name in ("device", "dtype", "precision", "executor", "loss")]
    return settings_key([run.method.full_name, data, run.model.values(), *own, *shared])


def trial_cost(run: RunSpec, sim: Simulation) -> TrialCost:
    """Measure the peak memory, and the time of a gradient (with the largest clients) and of an evaluation."""
    peak = peak_bytes(sim)
    with one_thread(sim.device):  # as in a round
        trial = Trial(sim.executor, sim.trial_cohort, TIMED_STEPS)
        passes = sim.client.batches_per_epoch(sim.data.sizes_of(trial.plan.clients)) * full_passes_per_round(sim.method)
        gradients = int(trial.plan.steps.sum()) * gradients_per_step(sim.method) + int(passes.sum())
        gradient = evaluation = median_seconds(trial.run, sim.device) / gradients
    if sim.data.test is not None:
        x, y = (part[:SAMPLES_AT_ONCE] for part in sim.data.test)
        evaluate = partial(score, sim.objective, sim.served_model(), x, y, sim.data.preparation)
        evaluation = median_seconds(evaluate, sim.device) / len(y)
    state = sim.server.w.nbytes + sum(x.nbytes for x in sim.server.tensors().values())  # and the last direction
    return TrialCost(run.title, Speed(gradient, evaluation), state, peak)
