"""Tries a study out as a federation on one machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from ...experiments.spec import RunSpec
from ..flower.directory import FederationDirectory
from ..flower.export import export
from ..flower.settings import NodeSettings, RunSettings
from ..flower.study import Study
from .local_federation import LocalFederation


class LocalDeployment:
    """Exports a study, starts a `LocalFederation`, and runs the study on it. A context manager."""

    def __init__(self, spec: RunSpec, path: Path, settings: Mapping[str, Any], secure: bool) -> None:
        """path: the folder of the federation; Flower's files are in its folder `flower`.

        Raises InputError for a study that no federation can carry out, and for a folder that holds anything else.
        """
        self._path, number = path.absolute(), spec.data.clients
        given = {**settings, "clients": number, "out": str(self._path)}
        self._study = Study(spec, RunSettings.parse("flower run", given))
        self._directory = FederationDirectory(self._path)
        self._directory.refuse_other(self._study)  # before anything is written to it
        common = {"num-partitions": number, "state": str(self._path / "clients")}
        common |= {"data-dir": str(Path(spec.data_dir).absolute())} if spec.data_dir else {}
        nodes = {}
        for i in range(number):
            config = {"partition-id": i, **common}
            nodes[NodeSettings.parse("node-config", config).client_name(number, own_samples=False)] = config
        self._federation = LocalFederation(self._path / "flower", nodes, secure, on_locked=self._export)

    def _export(self) -> None:
        """Export the app again each time: the one in the folder may be another version's."""
        with self._directory.writing(self._study):
            export(self._study.spec, self._study.settings, self._path / "app", replace=True)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._federation)
            self._run = self._federation.submit(self._path / "app", self._path)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what happens as it happens. Raises FederationError if the federation fails."""
        return self._federation.events(self._run)
