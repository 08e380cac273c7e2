"""The server's folder of a federation: safe to read at any time, written by one process at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from ..core.errors import InputError
from ..deploy.coordinator import Coordinator
from ..engine.run import metrics_table
from ..experiments.directory import RunDirectory, difference, save_model
from ..experiments.spec import RunSpec
from ..files import write_atomically
from .study import Study

STUDY, RESULT = "federated-study.toml", "result.json"


@dataclass(frozen=True)
class FederationFolder:
    """federated-study.toml, events.jsonl, metrics.parquet, checkpoint/ and, at the end, model.safetensors and
    result.json."""

    path: Path

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        return RunDirectory(self.path).checkpoint

    @contextmanager
    def writing(self, study: Study) -> Iterator[None]:
        """The folder made and locked. Raises InputError if it cannot be written, is being written, or holds something
        else."""
        directory, spec = RunDirectory(self.path), study.spec
        if directory.has_begun:
            raise InputError(f"out {self.path} holds a run; choose another folder for a federation")
        with directory.writing():
            file = self.path / STUDY
            if file.exists():
                found = difference(RunSpec.load(file).decisive(), spec.decisive())
                if found:
                    raise InputError(f"out {self.path} holds another federation: {found}")
            write_atomically(file, lambda path: path.write_text(spec.to_toml()))
            yield

    def save(self, coordinator: Coordinator) -> None:
        """Write a checkpoint and the metrics so far; the older checkpoint goes once the new one is safe."""
        older, newest = self.checkpoint, RunDirectory(self.path).state / f"round-{coordinator.t:06d}.safetensors"
        coordinator.save(newest)
        table = metrics_table(coordinator.history)
        write_atomically(self.path / "metrics.parquet", lambda path: pq.write_table(table, path))
        if older and older != newest:
            older.unlink()

    def finish(self, coordinator: Coordinator) -> str:
        """Write the model, and what there is to say of it; gives the SHA-256 of the model's file."""
        file = self.path / "model.safetensors"
        write_atomically(file, lambda path: save_model(path, coordinator.model))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        last = coordinator.history[-1]
        result = {"rounds": coordinator.t, "clients": coordinator.names, "model_sha256": digest, "last_round": last}
        write_atomically(self.path / RESULT, lambda path: path.write_text(json.dumps(result, indent=2) + "\n"))
        return digest
