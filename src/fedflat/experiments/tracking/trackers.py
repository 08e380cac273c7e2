"""The tracking tools: their common interface, CSV files, TensorBoard, Weights & Biases, and MLflow."""

from __future__ import annotations

import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...core.errors import InputError
from ...files import read_text, system_errors, write_text
from ...rounds.checksums import digest_of, read_checked, write_checked
from ...rounds.settings import flattened
from ..csv_text import csv_line
from ..run_directory import RunDirectory
from ..spec import RunSpec

STATE = "tracking.json"
TOOL, METRICS, SUMMARY = "csv", "metrics.csv", "summary.csv"
MOST = 2**28  # most bytes of a file that is read
AGAIN = "resuming with --track csv writes it again"
AT_ONCE = 100  # most parameters that MLflow servers accept in one call
LONGEST = 500  # most characters of a parameter that older MLflow servers accept


@dataclass(frozen=True)
class TrackedRun:
    """A run that is written to tracking tools, and the state that its trackers keep."""

    spec: RunSpec
    directory: RunDirectory
    root: Path  # the folder of the run, or of the study that it belongs to

    def kept_name(self, tool: str) -> str:
        """Return a name that no other run of the study has, and that stays the same when the run gets more rounds."""
        kept = self.state(tool).get("digest")
        digest = kept if isinstance(kept, str) and kept.isalnum() else self.spec.digest()
        self.keep(tool, {"digest": digest})
        return f"{self.spec.label}-{digest}"

    def settings(self) -> dict[str, Any]:
        """Return the configuration with dotted keys, such as `client.lr`."""
        return flattened(self.spec.table())

    def state(self, tool: str) -> dict[str, Any]:
        """Return the state that a tracker has kept in the run's folder. Raises InputError if the file is damaged."""
        return dict(kept_states(self.directory.path).get(tool) or {})

    def keep(self, tool: str, state: Mapping[str, Any]) -> None:
        """Keep the state that a tracker needs when the run is resumed."""
        write_checked(self.directory.path / STATE, kept_states(self.directory.path) | {tool: dict(state)})


def kept_states(folder: Path) -> dict[str, Any]:
    """Read the states of the trackers of a run, by tool. Raises InputError if the file is damaged."""
    path = folder / STATE
    try:
        content = read_checked(path) if path.exists() else {}
        if isinstance(content, dict) and all(isinstance(state, dict) for state in content.values()):
            return content
        raise InputError(f"{path} was not written by fedflat")
    except InputError as error:
        raise InputError(f"{error}; remove it, and the run is tracked again from round 0") from error


class Tracker(ABC):
    """One run in one tool. A step is the number of a round, from 0; each step is written once, in rising order."""

    package: ClassVar[str] = ""  # the package that the tracker imports
    extra: ClassVar[str] = ""  # the extra of fedflat that installs the package

    def __init__(self, run: TrackedRun) -> None:
        """Begin or resume the run."""
        self.run = run
        self.next_step = 0  # the first step that is not written yet

    @abstractmethod
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a round."""

    @abstractmethod
    def finish(self, summary: Mapping[str, float]) -> None:
        """Write the summary of the finished run."""

    def close(self) -> None:  # noqa: B027 (not every tool has something to close)
        """Write buffered metrics; the run may be resumed later."""


class CsvTracker(Tracker):
    """Files metrics.csv and summary.csv in the run's folder.

    metrics.csv has a row for each round and a column for each metric; cells of rounds without the metric are empty.
    When the run is resumed, metrics.csv is rewritten from the metrics in the checkpoint, which repairs any damage.
    """

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self.path = run.directory.path / METRICS
        self.columns = ["t"]
        if self.path.exists() and not read_text(self.path, MOST).startswith(("t,", "t\n")):
            raise InputError(f"{self.path} was not written by fedflat; move it away")
        run.keep(TOOL, {})  # removes the digests, because the files are about to change

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        row = {**metrics, "t": step}
        new = [name for name in row if name not in self.columns]
        if new or not self.next_step:
            self._rewrite([*self.columns, *new], row)
        else:
            with system_errors(self.path, "written"), self.path.open("a", newline="", encoding="utf-8") as file:
                file.write(csv_line(row.get(name) for name in self.columns))
        self.next_step += 1

    def finish(self, summary: Mapping[str, float]) -> None:
        folder, text = self.run.directory.path, "name,value\n" + "".join(map(csv_line, summary.items()))
        write_text(folder / SUMMARY, text)
        self.run.keep(TOOL, {name: digest_of(folder / name) for name in (METRICS, SUMMARY)})

    def _rewrite(self, columns: list[str], row: Mapping[str, float]) -> None:
        """Rewrite the file with more columns, and append `row`."""
        old = read_text(self.path, MOST).splitlines()[1:] if self.next_step else []
        more = "," * (len(columns) - len(self.columns))
        table = [csv_line(columns), *(f"{line}{more}\n" for line in old), csv_line(row.get(name) for name in columns)]
        write_text(self.path, "".join(table))
        self.columns = columns


def check_csv(folder: Path) -> dict[str, str]:
    """Check the files of a CSV tracker in a run's folder; return the problem of each file, "" for an undamaged file.

    Only a run that was tracked to its end is checked; the files of any other run are rewritten when it is resumed.
    Raises InputError if the file with the digests is damaged.
    """
    digests = kept_states(folder).get(TOOL)
    if digests:
        found = {name: digest_of(folder / name) if (folder / name).is_file() else None for name in (METRICS, SUMMARY)}
        return {name: "it is missing" if digest is None else "" if digest == digests.get(name)
                else "its SHA-256 is another one" for name, digest in found.items()}  # fmt: skip
    is_ours = (folder / METRICS).exists() and read_text(folder / METRICS, MOST).startswith("t,")
    return {STATE: "it is missing"} if is_ours and not (folder / STATE).exists() else {}


class TensorBoardTracker(Tracker):
    """Event files of TensorBoard: metrics as scalars, settings as a text.

    They are in `tensorboard/` in the folder of the run or study, in a subfolder for each run. TensorBoard's own writer
    is used, which needs no TensorFlow.
    """

    package, extra = "tensorboard", "tensorboard"

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        super().__init__(run)
        self.folder = run.root / "tensorboard" / run.kept_name("tensorboard")
        self.next_step = _steps(self.folder)
        self._writer = EventFileWriter(str(self.folder))
        if not self.next_step:
            self._add(0, [_text("settings", run.spec.to_toml())])

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._scalars(step, metrics)
        self._writer.flush()
        self.next_step = step + 1

    def finish(self, summary: Mapping[str, float]) -> None:
        self._scalars(self.next_step, {f"summary/{name}": value for name, value in summary.items()})

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
    """A run of Weights & Biases, online or, with WANDB_MODE=offline, in `wandb/` in the folder of the run or its study.

    The environment variables of the tool, such as WANDB_PROJECT, apply. The identifier and the next step are kept in
    the run's folder, because an offline run does not know the steps that were logged before.
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
        self.next_step = max(int(state.get("next") or 0), int(self._run.step))
        run.keep("wandb", {"id": self._id, "next": self.next_step})

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)
        self.next_step = step + 1
        self.run.keep("wandb", {"id": self._id, "next": self.next_step})

    def finish(self, summary: Mapping[str, float]) -> None:
        self._run.summary.update({f"summary/{name}": value for name, value in summary.items()})

    def close(self) -> None:
        self._run.finish()


class MlflowTracker(Tracker):
    """A run of MLflow, on the server MLFLOW_TRACKING_URI or in the file `mlflow.db` in the folder of the run or study.

    The name of the experiment is MLFLOW_EXPERIMENT_NAME, by default the name of that folder. The identifier is kept in
    the run's folder; the next step is read from MLflow.
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
        self.next_step = max((one.step + 1 for one in rounds), default=0)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._log(step, metrics)
        self.next_step = step + 1

    def finish(self, summary: Mapping[str, float]) -> None:
        self._log(self.next_step, {f"summary/{name}": value for name, value in summary.items()})
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
    """Return the address of MLflow: MLFLOW_TRACKING_URI, or a database in the folder of the run or study."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run.root / 'mlflow.db').resolve()}"
