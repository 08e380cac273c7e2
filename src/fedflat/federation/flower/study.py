"""The study of an exported app, which must be the same for server and clients; and functions that load samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...core.errors import InputError
from ...core.method import Method
from ...core.object_references import allow_code
from ...core.objective import Objective
from ...core.progress import no_progress
from ...core.task import FORMS, task_of
from ...data import FederatedData
from ...data.conversion import SampleFormat, tokenizer_of
from ...data.dataset import BundledDataset, FileDataset, LoadedDataset
from ...data.loading import labelled
from ...data.numbers import NumberKind, kind_of
from ...data.own_folders import FolderDataset
from ...data.preparation import AUGMENTATIONS
from ...data.schema import Schema
from ...data.sources import is_folder, source
from ...experiments.spec import RunSpec, federated_data, participation_of
from ...models.blocks.fetched import folder_of
from ...rounds.device import usable_device
from ...rounds.model_parts import check_parts, method_of_run
from ...rounds.private_rounds import Poisson, PrivateRounds, check_private_settings
from ...rounds.run_plan import RunPlan
from ...rounds.segments import versions
from ..membership import fixed_members
from ..terms import RoundTerms
from .settings import RunSettings

FILE = "study.toml"
SampleLoader = Callable[[Mapping[str, Any]], tuple[Any, Any]]  # the node's configuration -> x (n, *shape), y (n,)


class SamplesError(InputError):
    """An error about a client's own samples: its text may have values of them in it, and stays at the client."""


@contextmanager
def _errors_with_values() -> Iterator[None]:
    """Turn an InputError in the block into a SamplesError."""
    try:
        yield
    except InputError as error:
        raise SamplesError(str(error)) from error


def version() -> str:
    """Return the version of fedflat on this machine."""
    return str(versions(("fedflat",))["fedflat"])


@dataclass(frozen=True)
class Study:
    """One run of one method. Clients have parts of the data set that `spec` names, or samples of their own."""

    spec: RunSpec
    settings: RunSettings
    device: str | None = None  # of this machine, in place of the study's

    def __post_init__(self) -> None:
        """Raise InputError, naming the key, for a study that no federation can carry out."""
        if not self.own_samples and self.settings.clients != self.spec.data.clients:
            raise InputError(
                f"clients is {self.settings.clients}, and the study's data.clients {self.spec.data.clients}: not equal"
            )
        if self.reads_files and self.settings.shape is None:
            self._check_stated()
        if self.settings.test and not self.own_samples:
            raise InputError("test goes with own samples; a named set has its own test samples")
        if not self.own_samples:
            self._check_labels()
        if (training := self.spec.method.object.training) != "federated":
            raise InputError(
                f"method.name = {self.spec.method.name!r} is {training} training, not that of a federation"
            )
        if self.spec.attack is not None:
            raise InputError("attack is an experiment of `fedflat run`, not for a federation; leave it out")
        names = self.spec.data.class_names
        if self.own_samples and names and len(names) != self.classes:
            raise InputError(f"classes is {self.classes}, and data.class_names has {len(names)} names: not equal")
        if self.own_samples and self.spec.data.labels == "names" and not names:
            raise InputError("data.labels = 'names' needs data.class_names in a federation: all clients number alike")
        if self.own_samples and self.spec.data.validation:
            raise InputError("data.validation is for named sets; leave samples out of a client's own instead")
        self.plan.participation.check(self.settings.clients, self.spec.rounds)
        if self.spec.privacy is not None:
            self._check_privacy()
        if self.spec.probes:
            raise InputError("probes need all clients' samples in one place; set probes = []")

        self.terms.check(self.spec.guard, self.spec.compress is not None)

    def _check_stated(self) -> None:
        """Raise InputError, naming the setting, unless the study states how all sites read their files."""
        _ = self._stated
        if FORMS[self.spec.task].are_classes and not self.spec.data.class_names:
            raise InputError("data.class_names is needed for sites with files of their own, so that all number classes "
                             "alike; `fedflat data schema` writes it")  # fmt: skip

    def _check_labels(self) -> None:
        """Raise InputError if the named set has no labels for the loss."""
        data, named = self.spec.data, source(self.spec.data.name)
        if not isinstance(named, FileDataset | BundledDataset) or named.task != self.spec.task:
            raise InputError(f"loss = {self.spec.loss!r}: {data.name} has other labels; let clients have their own "
                             "samples")  # fmt: skip

    def _check_privacy(self) -> None:
        """Raise InputError, naming the setting, for settings that a private federation cannot have."""
        adapter = self.spec.adapter
        alternates = adapter is not None and adapter.object.mode == "alternate"
        check_private_settings(self.spec.weights, alternates, self.spec.guard is not None)
        if self.settings.secure_sum is not None:
            raise InputError("secure-sum does not go with privacy: the server adds the noise, so it must see the "
                             "records, to bound each of them; leave one of the two out")  # fmt: skip

    def private_rounds(self, method: Method) -> PrivateRounds | None:
        """Return sampler, noise and accountant of the rounds; None without privacy.

        Raises InputError, naming the setting, if the rounds cannot be private or would exceed the budget.
        """
        spec, plan = self.spec, self.plan
        if spec.privacy is None:
            return None
        return PrivateRounds(spec.privacy, method, plan.client, self.settings.clients, plan.rounds, plan.seed)

    @classmethod
    def load(cls, folder: Path, settings: RunSettings) -> Study:
        """Read the study of the app in `folder`; the app's code may run. Raises InputError, naming file or field."""
        with allow_code():  # whoever runs the app runs its code in any case
            return cls(RunSpec.load(folder / FILE), settings)

    @property
    def plan(self) -> RunPlan:
        """How clients train, and who takes part in each round."""
        spec = self.spec
        rule = participation_of(spec.participation) if spec.privacy is None else Poisson(spec.privacy.rate)
        return RunPlan(spec.client, rule, spec.seed, spec.rounds, spec.guard)

    @property
    def terms(self) -> RoundTerms:
        """The settings that decide when a round ends, and which replies the server accepts."""
        settings = self.settings
        # A bound from the norms of others would let one client decide whether another one counts.
        multiple = settings.norm_multiple if self.spec.privacy is None else inf
        return RoundTerms(settings.deadline, settings.quorum, multiple, settings.secure_sum, settings.goal)

    @property
    def closed(self) -> str:
        """The reason why no client may join after the beginning; empty if some may."""
        settings = self.settings
        if fixed := fixed_members(self.plan.participation, self.spec.privacy is not None):
            return f"came after the federation had begun, and {fixed}"
        may_join = self.own_samples and (settings.members or settings.registry or settings.join_later)
        return "" if may_join else "came after the federation had begun, and waits for the next"

    @property
    def reads_files(self) -> bool:
        """Whether clients have files of their own in a format that `data.name` states."""
        return is_folder(self.spec.data.name) and not (self.spec.data.name == "npz" and self.settings.shape is not None)

    @property
    def own_samples(self) -> bool:
        """Whether clients have samples of their own."""
        return self.settings.shape is not None or self.reads_files

    @property
    def _stated(self) -> tuple[tuple[int, ...], NumberKind]:
        """The shape of a sample and the kind of its numbers, as `data` states them."""
        described = source(self.spec.data.name)
        assert isinstance(described, FolderDataset)  # noqa: S101 (`reads_files` is true)
        return described.stated_samples(self.form)

    @property
    def form(self) -> SampleFormat:
        """The form in which samples are stored."""
        data, model = self.spec.data, self.spec.model
        path = model.options.get("path") if model.name == "transformer" else None
        folder = data.tokenizer or (str(folder_of("path", str(path))) if path else None)
        return SampleFormat(data.image_size, data.text_length, tokenizer_of(folder), Schema.of(data))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        own = self.settings.shape
        if own is None and self.reads_files:
            return self._stated[0]
        return tuple(map(int, own.split("x"))) if own else self.spec.classes_and_shape()[1]

    @property
    def classes(self) -> int:
        """The number of classes, or in other tasks of labels or predicted numbers."""
        if self.settings.classes or not self.reads_files:
            return self.settings.classes or self.spec.classes_and_shape()[0]
        data = self.spec.data
        return len(data.class_names if FORMS[self.spec.task].are_classes else data.label_names)

    @property
    def numbers(self) -> NumberKind:
        """The kind of the numbers of clients' own samples."""
        return self._stated[1] if self.settings.shape is None and self.reads_files else self.settings.numbers

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits of the SHA-256 of everything in the study on which the results depend."""
        settings = self.spec.model_copy(update={"data_dir": None})  # each machine has its own data folder
        facts: list[Any] = [settings.decisive(), self.own_samples, self.shape, self.classes]
        facts += [self.numbers] if self.own_samples and self.numbers != "floats" else []
        facts += self.form.text_key if self.reads_files else ()
        facts += (
            [{name: found["sha256"] for name, found in self.spec.code().items()}] if self.spec.outside_names() else []
        )
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def module(self) -> nn.Module:
        """Build the initial model on this machine's device; its weights depend on the study's seed alone."""
        return self.spec.module_for(self.classes, self.shape).to(self.usable_device())

    def usable_device(self) -> torch.device:
        """Return the device of training on this machine. Raises InputError if it cannot be used."""
        return usable_device(self.device or self.spec.device)

    def method(self, objective: Objective) -> Method:
        """Return the method for a model; with its wrappers for adapters in turns and for parts that stay."""
        spec, adapter = self.spec, None if self.spec.adapter is None else self.spec.adapter.object
        parts = spec.model.buffers, spec.model.keep
        method = method_of_run(spec.method.object, objective, spec.client, adapter, *parts, spec.perturbation,
                               spec.compress)  # fmt: skip
        check_parts(method, spec.guard, is_private=spec.privacy is not None)
        return method

    def objective(self) -> Objective:
        """Return the loss of the initial model, see `module`."""
        spec = self.spec
        return Objective(self.module(), spec.precision == "bf16", task_of(spec.loss, spec.task),
                         spec.model.buffers)  # fmt: skip


def stored(node: Mapping[str, Any]) -> tuple[Any, Any]:
    """Read the samples in the folder `data` of the node's configuration `node`. Raises InputError, naming the file."""
    folder = node.get("data")
    if folder is None:
        raise InputError("node-config: data is missing: the folder with this client's samples")
    return _read(Path(str(folder)).expanduser())


@_errors_with_values()
def files_of(study: Study, place: str) -> LoadedDataset:
    """Read the samples in the files at `place`, a folder or one file, as the study states.

    Raises SamplesError, naming file and column, for files that do not fit the study.
    """
    name, how, path = study.spec.data.name, study.spec.data.labelling, Path(place).expanduser()
    if not path.exists():
        raise InputError(f"{place} does not exist")
    loaded = source(name).load(name, str(path), True, study.form, no_progress)
    return labelled(loaded, study.spec.task, name, replace(how, classes=study.classes))


def own_samples(study: Study, samples: tuple[Any, Any] | LoadedDataset, number: int) -> FederatedData:
    """Return the samples of client `number` as its data. Raises InputError if they do not fit the study.

    The InputError is a SamplesError if its text may have values of samples in it.
    """
    how = study.spec.data
    meaning: dict[str, Any] = {"labels": how.labels, "class_names": how.class_names}
    known: dict[str, Any] = {}
    if isinstance(samples, LoadedDataset):
        meaning, known = {}, {"class_names": samples.class_names, "preparation": samples.preparation}
        samples = samples.train.x, samples.train.y
    with _errors_with_values():
        data = FederatedData.from_clients([samples], classes=study.classes, task=study.spec.task, **meaning)
        data = replace(data, **known)
    if data.class_names and not how.class_names:
        raise InputError("y names classes: set data.class_names in the study, so that all clients number them alike")
    if kind_of(data.x) != study.numbers:
        raise InputError(f"samples are {kind_of(data.x)} ({str(data.x.dtype).removeprefix('torch.')}), and the study's "
                         f"{study.numbers}, so that all clients' reach the model alike: convert x, or set "
                         "numbers (--numbers)")  # fmt: skip
    if data.shape != study.shape:
        raise InputError(f"samples have shape {data.shape}, the study's {study.shape}")
    return replace(data, first=number, augmentation=AUGMENTATIONS[study.spec.data.augment])


def evaluation_data(study: Study) -> FederatedData | None:
    """Return data with the server's test samples, or None without a test set.

    Raises InputError, naming `test`, if own test samples do not fit the study.
    """
    if not study.own_samples:
        return federated_data(study.spec)
    if not study.settings.test:
        return None
    place = study.settings.test
    try:
        found = files_of(study, place) if study.reads_files else _read(Path(place).expanduser())
        data = own_samples(study, found, 0)
    except InputError as error:
        raise InputError(f"test: {error}") from error
    return replace(data, test=data.client(0))


def _read(folder: Path) -> tuple[Any, Any]:
    """Map `x.npy`, samples (n, *shape), and `y.npy`, class indices or names of classes (n,), into memory.

    Raises InputError, naming the file.
    """
    arrays: list[Any] = []
    for path in (folder / "x.npy", folder / "y.npy"):
        try:
            arrays.append(np.load(path, mmap_mode="c", allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{path} cannot be read as an array: {error}") from error
        if not isinstance(arrays[-1], np.ndarray):
            raise InputError(f"{path} is an archive of arrays, expected one array")
    return arrays[0], arrays[1]
