"""Carries out several runs of a study at the same time, each in its own worker process."""

from __future__ import annotations

import os
import signal
import tomllib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from types import FrameType
from typing import Any

import torch

from ..core.errors import InputError, changes_in_one_line, is_out_of_memory
from ..core.object_references import allow_code, is_code_allowed
from ..engine.workers import WorkerError
from ..engine.workers.process import Report, RunTask, WorkerProcess
from ..engine.workers.worker_pool import WorkerPool
from .claims import BusyError, Observation
from .config_errors import validated
from .interrupt import Interrupted, StopRequest
from .jobs import VISIBLE, least_used
from .run_directory import RunDirectory
from .run_queue import QueuedRun, RunQueue
from .runner import Forwarding, RunExecution, RunObserver
from .spec import RunSpec

SAVED = "the last round of every run that was under way is saved"
CHECK_INTERVAL = 0.2  # seconds; a signal reaches the workers within this time


@dataclass(frozen=True)
class StudyTask:
    """The task to carry out one run of a study."""

    label: str
    toml: str  # the configuration as TOML, because its class cannot be pickled
    path: Path  # the run's folder
    strict: bool  # refuse to resume if versions or code have changed
    code: bool  # whether the code that the configuration names may be run
    on_gpu: bool  # whether the worker has a GPU of its own
    observed: Observation  # the claim on the folder
    lease: float  # seconds

    def failure_message(self, pid: int, how: str) -> str:
        """Return the message for a worker that ended while it carried out this run."""
        return (
            f"the process of {self.label} {how} (is memory short?); the same command resumes it from "
            "its last checkpoint"
        )


class FirstSignal(StopRequest):
    """A signal handler of a worker that keeps the number of the first signal; later ones change nothing.

    A scheduler may signal every process, and the parent passes the same signal on. The parent also decides when to stop
    at once: it then ends its workers.
    """

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = self.signal_number or number


def prepare_runs() -> RunTask:
    """Let SIGINT and SIGTERM stop this worker's run between rounds; return the function that carries out a run.

    The returned function returns the number of the signal that stopped the run, or None if the run finished.
    """
    request = FirstSignal()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, request)

    def run(task: StudyTask, report: Report) -> int | None:
        try:
            with changes_in_one_line(), allow_code() if task.code else nullcontext():
                spec = validated(RunSpec, tomllib.loads(task.toml))
                observer = Forwarding(lambda hook, _, *arguments: report((hook, *arguments)))  # the parent has the spec
                if task.on_gpu:
                    observer.run_placed(spec, f"GPU {os.environ[VISIBLE]}")
                execution = RunExecution(spec, RunDirectory(task.path), observer, request, task.strict,
                                         observed=task.observed, lease=task.lease)  # fmt: skip
                execution.carry_out()
        except Interrupted:
            return request.signal_number
        return None

    return run


class ParallelRuns:
    """Carries out runs in at most `number` worker processes, each with a share of the threads and, if any, a GPU."""

    def __init__(
        self, number: int, observer: RunObserver, request: StopRequest, strict: bool = False, gpus: Sequence[str] = ()
    ) -> None:
        """Keep the settings; no process is started yet.

        strict: refuse to resume if versions or code have changed since the saved rounds, instead of warning.
        gpus: names as in CUDA_VISIBLE_DEVICES. A worker sees only one of these GPUs: the one with the fewest workers,
        the first such one on a tie.
        """
        self._observer, self._request, self._strict = observer, request, strict
        self._threads = max(1, torch.get_num_threads() // number)
        self._gpus = gpus
        self._gpu_of: dict[WorkerProcess, str] = {}

        def call_observer(task: StudyTask, event: tuple[Any, ...]) -> None:
            hook, *arguments = event
            getattr(observer, hook)(self._active[task.path].spec, *arguments)

        self._pool = WorkerPool(number, self._new_worker, attempts=1, on_event=call_observer)
        self._number, self._queue = number, RunQueue([])
        self._active: dict[Path, QueuedRun] = {}  # the runs of the workers
        self._left_out: list[Exception] = []
        self._out_of_memory: list[str] = []  # titles of runs
        self._error: Exception | None = None

    def carry_out(self, queue: RunQueue) -> list[Exception]:
        """Carry out the runs of `queue`, and return the errors of those that were left out.

        After a signal, or an error after which the others cannot go on, the active runs finish their round and are
        saved. Then this method raises Interrupted or the error.
        """
        self._queue, stopping = queue, False
        try:
            while True:
                stopping = stopping or self._stops()
                if not stopping:
                    self._submit()
                if self._pool.is_running:
                    self._wait()
                elif stopping or queue.is_over:
                    break
                else:
                    sleep(CHECK_INTERVAL)
        finally:
            self._pool.close()
        if self._error is None and self._request.signal_number:
            self._error = Interrupted(self._request.signal_number, SAVED)
        if self._error is None and self._out_of_memory:
            titles = ", ".join(sorted(self._out_of_memory))
            self._error = InputError(
                f"memory was too short for {titles}; the other runs have ended; a smaller --jobs-per-gpu resumes what "
                "is left; if a run alone needs more, lower client.batch_size"
            )
        if self._error is not None:
            raise self._error
        return self._left_out

    def _stops(self) -> bool:
        """Stop the active runs after a signal or an error; tell whether there was one."""
        if self._error is None and not self._request.signal_number:
            return False
        self._pool.stop(self._request.signal_number or signal.SIGTERM)
        return True

    def _submit(self) -> None:
        """Give runs to the workers that have none."""
        while len(self._active) < self._number and (run := self._queue.next()) is not None:
            self._active[run.directory.path] = run
            terms = self._strict, is_code_allowed(), bool(self._gpus), run.observed, self._queue.lease
            self._pool.submit(StudyTask(run.spec.title, run.spec.to_toml(), run.directory.path, *terms))

    def _new_worker(self) -> WorkerProcess:
        """Start a worker process."""
        self._gpu_of = {worker: gpu for worker, gpu in self._gpu_of.items() if worker.is_alive}
        if not self._gpus:
            return WorkerProcess(prepare_runs, threads=self._threads)
        gpu = least_used(self._gpus, self._gpu_of.values())
        worker = WorkerProcess(prepare_runs, threads=self._threads, variables={VISIBLE: gpu})
        self._gpu_of[worker] = gpu
        return worker

    def _wait(self) -> None:
        """Process the next messages of the workers."""
        error: Exception | None = None
        try:
            finished = [item for item in self._pool.wait(CHECK_INTERVAL) if item.task]  # else it set up a worker
        except WorkerError as failure:  # a worker ended before it had a task
            finished, error = [], failure
        for item in finished:
            run = self._active.pop(item.task.path)
            if isinstance(item.error, BusyError):
                self._queue.put_back(run)
            elif self._gpus and item.error is not None and is_out_of_memory(item.error):
                self._out_of_memory.append(item.task.label)
                self._observer.run_failed(run.spec, item.error)
            elif isinstance(item.error, self._queue.left_out):
                self._left_out.append(item.error)
                self._observer.run_failed(run.spec, item.error)
            else:
                error = error or item.error or (Interrupted(item.value, SAVED) if item.value else None)
        self._error = self._error or error
        if finished and self._error is None and not self._request.signal_number:
            self._submit()
        if finished:
            self._pool.end_idle()  # end the workers for which no run is left
