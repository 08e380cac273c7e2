"""Tries a study out as a federation on one machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...experiments.spec import RunSpec
from ..flower.approved_app import app_digest
from ..flower.directory import FederationDirectory
from ..flower.export import export
from ..flower.settings import NodeSettings, RunSettings
from ..flower.study import Study
from .local_federation import LocalFederation


@contextmanager
def local_deployment(
    spec: RunSpec, path: Path, settings: Mapping[str, Any], secure: bool, folders: Mapping[str, Path] | None = None
) -> Iterator[Iterator[dict[str, Any]]]:
    """Export a study, start a `LocalFederation`, and run the study on it; inside the block, the events as they happen.

    path: the folder of the federation; Flower's files are in its folder `flower`. folders: clients' own samples, by
    their names; without, they have the parts of the study's data set.

    Raises InputError for a study that no federation can carry out, and for a folder that holds anything else; the
    events raise FederationError if the federation fails.
    """
    path, number = path.absolute(), len(folders or ()) or spec.data.clients
    study = Study(spec, RunSettings.parse("flower run", {**settings, "clients": number, "out": str(path)}))
    directory = FederationDirectory(path)
    directory.refuse_other(study)  # before anything is written to it
    nodes = {}
    for config in _node_configs(spec, number, folders):
        config["state"] = str(path / "clients")
        nodes[NodeSettings.parse("node-config", config).client_name(number, study.own_samples)] = config

    def exported_app() -> list[str]:  # each time: the app in the folder may be another version's
        with directory.writing(study):
            export(spec, study.settings, path / "app", replace=True)
        return [app_digest(path / "app")]

    with LocalFederation(path / "flower", nodes, secure, approved=exported_app) as federation:
        yield federation.events(federation.submit(path / "app", path))


def _node_configs(spec: RunSpec, number: int, folders: Mapping[str, Path] | None) -> Iterator[dict[str, Any]]:
    if folders:
        yield from ({"name": name, "data": str(folder.absolute())} for name, folder in folders.items())
        return
    data = {"data-dir": str(Path(spec.data_dir).absolute())} if spec.data_dir else {}
    yield from ({"partition-id": i, "num-partitions": number, **data} for i in range(number))
