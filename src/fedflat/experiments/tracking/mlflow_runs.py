"""`--track mlflow`: runs of MLflow, on the server of MLFLOW_TRACKING_URI, or in `mlflow.db` of the folder."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from .tracker import TrackedRun, Tracker

AT_ONCE = 100  # parameters that servers take in one call
MOST = 500  # characters of a parameter that older servers take


class MlflowTracker(Tracker):
    """A run of MLflow in the experiment of MLFLOW_EXPERIMENT_NAME, by default named after the folder.

    The identifier of the run is kept in its folder; which steps there are, MLflow knows.
    """

    package = extra = "mlflow"

    def __init__(self, run: TrackedRun) -> None:
        from mlflow.entities import Param  # an optional package, here and below
        from mlflow.tracking import MlflowClient

        super().__init__(run)
        self._client = MlflowClient(_address(run))
        kept = run.state("mlflow").get("run_id")
        self._id = kept if isinstance(kept, str) else self._created()
        self._client.update_run(self._id, status="RUNNING")
        known = self._client.get_run(self._id).data.params
        settings = [Param(name, str(x)[:MOST]) for name, x in run.settings().items() if name not in known]
        for first in range(0, len(settings), AT_ONCE):
            self._client.log_batch(self._id, params=settings[first : first + AT_ONCE])
        rounds = self._client.get_metric_history(self._id, "gradients")  # every round has this metric
        self._next = max((one.step + 1 for one in rounds), default=0)

    @property
    def next_step(self) -> int:
        return self._next

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._log(step, metrics)
        self._next = step + 1

    def finish(self, summary: Mapping[str, float]) -> None:
        self._log(self._next, {f"summary/{name}": value for name, value in summary.items()})
        self._client.set_terminated(self._id)

    def close(self) -> None:
        if self._client.get_run(self._id).info.status == "RUNNING":
            self._client.set_terminated(self._id, status="KILLED")

    def _created(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or self.run.root.resolve().name
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        identifier = str(self._client.create_run(number, run_name=self.run.spec.label).info.run_id)
        self.run.keep("mlflow", {"run_id": identifier})
        return identifier

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in values.items()])


def _address(run: TrackedRun) -> str:
    """Where runs are kept: what the user has set, or a data base in the folder, as MLflow does by default."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run.root / 'mlflow.db').resolve()}"
