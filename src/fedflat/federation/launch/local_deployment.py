"""A study tried out as a federation on one machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from ...experiments.spec import RunSpec
from ..flower.directory import FederationDirectory
from ..flower.export import export_again
from ..flower.settings import NodeSettings, RunSettings
from ..flower.study import Study
from .local_federation import LocalFederation


class LocalDeployment:
    """Exports a study, starts everything that it needs, and runs it; to be used in a `with` block."""

    def __init__(self, spec: RunSpec, path: Path, settings: Mapping[str, Any], secure: bool) -> None:
        """path: the folder of the federation, with Flower's in `flower` below it. Raises InputError for a study that no
        federation can carry out, and for a folder that holds something else."""
        self._path, number = path.absolute(), spec.data.clients
        given = {**settings, "clients": number, "out": str(self._path)}
        self._study = Study(spec, RunSettings.of("flower run", given))
        self._folder = FederationDirectory(self._path)
        self._folder.refuse_other(self._study)  # before anything is made in it
        state = {"num-partitions": number, "state": str(self._path / "clients")}
        state |= {"data-dir": str(Path(spec.data_dir).absolute())} if spec.data_dir else {}
        nodes = [{"partition-id": i, **state} for i in range(number)]
        names = [NodeSettings.of("node-config", node).client_name(number, own=False) for node in nodes]
        self._local = LocalFederation(
            self._path / "flower", dict(zip(names, nodes, strict=True)), secure, first=self._export
        )

    def _export(self) -> None:
        """The app, anew: what is there may be another version's."""
        with self._folder.writing(self._study):
            export_again(self._study.spec, self._study.settings, self._path / "app")

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._local)
            self._run = self._local.submit(self._path / "app", self._path)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """What happens. Raises FederationError if the federation fails."""
        return self._local.events(self._run)
