"""An observer of runs for tests."""

from __future__ import annotations

import os
import signal

from fedflat.experiments.runner import RunObserver


class Watched(RunObserver):
    """Records the calls; can send a signal after a round or in a measure."""

    def __init__(self, signal_after: int | None = None, times: int = 1, signal_in: str | None = None) -> None:
        self.rounds: list[int] = []
        self.started: list[tuple[str, int]] = []
        self.finished: list[str] = []
        self.failed: list[str] = []
        self._signal_after, self._times, self._signal_in = signal_after, times, signal_in
        self.measured: list[str] = []

    def run_started(self, spec, done: int) -> None:
        self.started.append((spec.label, done))

    def round_ended(self, spec, result) -> None:
        self.rounds.append(result.t)
        if result.t == self._signal_after:  # of several runs at once, the first: a second signal stops at once
            for _ in range(self._times):
                os.kill(os.getpid(), signal.SIGINT)
            self._signal_after = None

    def measuring(self, spec, name: str, done: int, total: int) -> None:
        self.measured.append(name)
        if name == self._signal_in:
            os.kill(os.getpid(), signal.SIGINT)

    def run_ended(self, spec, run) -> None:
        self.finished.append(spec.label)

    def run_failed(self, spec, error) -> None:
        self.failed.append(spec.label)
