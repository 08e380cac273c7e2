"""`--track tensorboard`: event files in `tensorboard/` of the folder, which `tensorboard --logdir` shows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tracker import TrackedRun, Tracker


class TensorBoardTracker(Tracker):
    """A folder of event files for each run: a scalar for each metric, and the settings as a text.

    TensorBoard's own writer is used, which needs no TensorFlow.
    """

    package, extra = "tensorboard", "tensorboard"

    def __init__(self, run: TrackedRun) -> None:
        # Here and below: an optional package, which takes a part of a second to import.
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
    """How many rounds the event files in `folder` have."""
    if not folder.is_dir():
        return 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("summary/")]
    return max((one.step + 1 for tag in tags for one in events.Scalars(tag)), default=0)


def _text(tag: str, text: str) -> Any:
    """A text, which TensorBoard shows as it stands."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    shown = "".join(f"    {line}\n" for line in text.splitlines())  # four spaces are code in Markdown
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    tensor = TensorProto(dtype=DT_STRING, string_val=[shown.encode()])
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)
