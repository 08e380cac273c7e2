"""The tools for following runs that are optional packages: TensorBoard, Weights & Biases and MLflow.

Each package is imported where it is used, because it takes a part of a second or more.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tracker import TrackedRun, Tracker

AT_ONCE = 100  # parameters that servers take in one call
LONGEST = 500  # characters of a parameter that older servers take


class TensorBoardTracker(Tracker):
    """Event files in `tensorboard/` of the folder, a subfolder for each run: metrics as scalars, settings as a text.

    TensorBoard's own writer is used, which needs no TensorFlow.
    """

    package, extra = "tensorboard", "tensorboard"

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        super().__init__(run)
        self.folder = run.root / "tensorboard" / run.kept_name("tensorboard")
        self._next = _steps(self.folder)
        self._writer = EventFileWriter(str(self.folder))
        if not self._next:
            self._add(0, [_text("settings", run.spec.to_toml())])

    @property
    def next_step(self) -> int:
        return self._next

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._scalars(step, metrics)
        self._writer.flush()
        self._next = step + 1

    def finish(self, summary: Mapping[str, float]) -> None:
        self._scalars(self._next, {f"summary/{name}": value for name, value in summary.items()})

    def close(self) -> None:
        self._writer.close()

    def _scalars(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, [Summary.Value(tag=name, simple_value=value) for name, value in values.items()])

    def _add(self, step: int, values: list[Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))


def _steps(folder: Path) -> int:
    """Count the rounds that the event files in `folder` have."""
    if not folder.is_dir():
        return 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("summary/")]
    return max((one.step + 1 for tag in tags for one in events.Scalars(tag)), default=0)


def _text(tag: str, text: str) -> Any:
    """Return a text that TensorBoard shows verbatim."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    shown = "".join(f"    {line}\n" for line in text.splitlines())  # four spaces are code in Markdown
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    tensor = TensorProto(dtype=DT_STRING, string_val=[shown.encode()])
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)


class WandbTracker(Tracker):
    """A run of Weights & Biases, online or, with WANDB_MODE=offline, in `wandb/` of the folder.

    The tool's variables, such as WANDB_PROJECT, mean what they always mean.

    The run's identifier and the next step are kept in its folder: an offline run does not know what was logged before.
    """

    package = extra = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        super().__init__(run)
        state = run.state("wandb")
        self._id = str(state.get("id") or secrets.token_hex(6))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedflat"),
            group=run.root.name,
            name=run.spec.label,
            id=self._id,
            resume="allow",
            reinit="create_new",  # several runs of a study may be open at the same time
            dir=os.environ.get("WANDB_DIR", str(run.root)),
            config=run.settings(),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._next = max(int(state.get("next") or 0), int(self._run.step))
        run.keep("wandb", {"id": self._id, "next": self._next})

    @property
    def next_step(self) -> int:
        return self._next

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)
        self._next = step + 1
        self.run.keep("wandb", {"id": self._id, "next": self._next})

    def finish(self, summary: Mapping[str, float]) -> None:
        self._run.summary.update({f"summary/{name}": value for name, value in summary.items()})

    def close(self) -> None:
        self._run.finish()


class MlflowTracker(Tracker):
    """A run of MLflow, on the server of MLFLOW_TRACKING_URI, or in `mlflow.db` of the folder.

    Its experiment is that of MLFLOW_EXPERIMENT_NAME, by default named after the folder.

    The identifier of the run is kept in its folder; which steps there are, MLflow knows.
    """

    package = extra = "mlflow"

    def __init__(self, run: TrackedRun) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        super().__init__(run)
        self._client = MlflowClient(_address(run))
        kept = run.state("mlflow").get("run_id")
        self._id = kept if isinstance(kept, str) else self._created()
        self._client.update_run(self._id, status="RUNNING")
        known = self._client.get_run(self._id).data.params
        settings = [Param(name, str(x)[:LONGEST]) for name, x in run.settings().items() if name not in known]
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
    """Return where runs are kept: what the user has set, or a data base in the folder, as MLflow does by default."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run.root / 'mlflow.db').resolve()}"
