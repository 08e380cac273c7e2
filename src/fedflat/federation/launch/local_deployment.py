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
    spec: RunSpec, path: Path, settings: Mapping[str, Any], secure: bool
) -> Iterator[Iterator[dict[str, Any]]]:
    """Export a study, start a `LocalFederation`, and run the study on it; inside the block, the events as they happen.

    path: the folder of the federation; Flower's files are in its folder `flower`.

    Raises InputError for a study that no federation can carry out, and for a folder that holds anything else; the
    events raise FederationError if the federation fails.
    """
    path, number = path.absolute(), spec.data.clients
    study = Study(spec, RunSettings.parse("flower run", {**settings, "clients": number, "out": str(path)}))
    directory = FederationDirectory(path)
    directory.refuse_other(study)  # before anything is written to it
    common = {"num-partitions": number, "state": str(path / "clients")}
    common |= {"data-dir": str(Path(spec.data_dir).absolute())} if spec.data_dir else {}
    nodes = {}
    for i in range(number):
        config = {"partition-id": i, **common}
        nodes[NodeSettings.parse("node-config", config).client_name(number, own_samples=False)] = config

    def exported_app() -> list[str]:  # each time: the app in the folder may be another version's
        with directory.writing(study):
            export(spec, study.settings, path / "app", replace=True)
        return [app_digest(path / "app")]

    with LocalFederation(path / "flower", nodes, secure, approved=exported_app) as federation:
        yield federation.events(federation.submit(path / "app", path))
