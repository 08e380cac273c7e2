"""Reports on the clients of a rehearsal on one machine: samples, and scores of the final model on test samples.

The command that runs the rehearsal reads the files of all clients. In a federation nothing of this is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.method import Method
from ...core.objective import Objective
from ...core.own_model import own_field, own_model_of
from ...core.partial_model import partial_model, sent_part
from ...core.task import IGNORED
from ...data.dataset import LoadedDataset
from ...files import parsed
from ...metrics.accuracy import score
from ...metrics.classification import Collector
from ...rounds.checksums import read_checked, write_checked
from ...rounds.run_model import load_model
from ..client import ClientState
from ..membership import Membership
from .directory import CLIENTS, MODEL, FederationDirectory
from .study import Study, evaluation_data, files_of, own_samples, stored

STATES = "clients"  # the folder of a rehearsal with the states of all clients
METRICS = ("balanced-accuracy", "recall")


@dataclass(frozen=True)
class ClientReport:
    """One client after a rehearsal."""

    name: str
    samples: int  # for training
    classes: int  # that occur in them
    test_samples: int = 0
    scores: Mapping[str, float] = field(default_factory=dict)  # of the final model on its test samples
    own_scores: Mapping[str, float] = field(default_factory=dict)  # of its own model, if a part stays with the clients


def write_reports(out: Path, reports: Sequence[ClientReport]) -> None:
    """Write the reports to the rehearsal's folder `out`, readable by the owner alone.

    Raises InputError if they cannot be written.
    """
    write_checked(out / CLIENTS, [asdict(report) for report in reports], private=True)


def read_reports(out: Path) -> list[ClientReport]:
    """Read the reports in the folder `out`; empty if there are none. Raises InputError if the file is damaged."""
    path = out / CLIENTS
    if not path.exists():
        return []
    reports: list[ClientReport] = parsed(path, lambda: [ClientReport(**report) for report in read_checked(path)])
    return reports


def check_places(study: Study, places: Mapping[str, Path]) -> None:
    """Raise InputError if samples do not fit the study: now, not when all have started.

    The error names the client, or `test` if they are the server's test samples.
    """
    for number, (name, place) in enumerate(sorted(places.items())):
        try:
            own_samples(study, _samples(study, place), number)
        except InputError as error:
            raise InputError(f"client {name}: {error}") from error
    evaluation_data(study)


def client_reports(study: Study, out: Path, places: Mapping[str, Path]) -> list[ClientReport]:
    """Return the report of each member after the rehearsal in the folder `out`.

    places: the folder or file of each client, by name; one that was never admitted gets no report.
    """
    states = out / STATES
    objective = study.objective()
    method = study.method(objective).fitted(study.shape)  # before the final model is loaded: it knows the initial one
    load_model(out / MODEL, objective.module)
    w = objective.space.flatten(objective.module)
    newest = FederationDirectory(out).newest()
    membership = None if newest is None else Membership.load(newest.path)
    reports = []
    for number, (name, place) in enumerate(sorted(places.items())):
        if membership is not None and name not in membership.members:
            continue
        found = _samples(study, place)
        data = own_samples(study, found, number)
        report = ClientReport(name, len(data.y), len(torch.unique(data.y[data.y != IGNORED])))
        if isinstance(found, LoadedDataset) and found.test is not None:
            own = None if membership is None else _own_model(method, w, states / membership.name / name)
            test = found.test.x, found.test.y
            scores = [{} if x is None else _scores(study, objective, x, *test, found) for x in (w, own)]
            report = ClientReport(report.name, report.samples, report.classes, len(test[1]), *scores)
        reports.append(report)
    return reports


def _samples(study: Study, place: Path) -> tuple[Any, Any] | LoadedDataset:
    return files_of(study, str(place)) if study.reads_files else stored({"data": str(place)})


def _scores(
    study: Study, objective: Objective, w: Tensor, x: Tensor, y: Tensor, found: LoadedDataset
) -> dict[str, float]:
    """Return accuracy and further metrics of the model `w` (d,) on the test samples x (n, *shape), y (n,)."""
    names = found.class_names or tuple(map(str, range(study.classes)))
    collector = Collector(METRICS if study.spec.task == "classification" else (), names)
    device = objective.device
    return score(objective, w, x.to(device), y.to(device), found.preparation, collector).numbers


def _own_model(method: Method, w: Tensor, folder: Path) -> Tensor | None:
    """Return the own model (d,) of one client, where `w` (d,) is the server's; None if it has none."""
    partial = partial_model(method)
    if own_field(method) is None and (partial is None or not partial.kept_width):
        return None
    state = ClientState(folder, method.client)
    like = method.init_client(method.broadcast(method.init_server(w)).map(lambda x: x[None])).map(lambda x: x[0])
    record = state.load(state.newest, like)
    return own_model_of(method, sent_part(method, w), record.map(lambda x: x.to(w)))
