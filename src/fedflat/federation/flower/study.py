"""The study of an exported app: what the server and all clients must have in common."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ...adapters import by_turns
from ...core.errors import InputError
from ...core.method import Method
from ...core.object_references import allow_code
from ...core.space import Space
from ...data.sources import is_folder
from ...experiments.spec import RunSpec, participation_of
from ...rounds.device import usable_device
from ...rounds.segments import versions
from ..round_terms import RoundTerms
from .settings import RunSettings

FILE = "study.toml"


def version() -> str:
    """The version of fedflat on this machine."""
    return str(versions(("fedflat",))["fedflat"])


@dataclass(frozen=True)
class Study:
    """One run of one method. Clients have parts of the data set that `spec` names, or samples of their own."""

    spec: RunSpec
    settings: RunSettings

    def __post_init__(self) -> None:
        """Raises InputError, naming the key, for a study that no federation can carry out."""
        if not self.own_samples and self.settings.clients != self.spec.data.clients:
            raise InputError(
                f"clients is {self.settings.clients}, and the study's data.clients {self.spec.data.clients}: not equal"
            )
        if not self.own_samples and is_folder(self.spec.data.name):
            raise InputError(
                f"data.name = {self.spec.data.name!r} is a folder on one machine; let clients have their own samples: "
                "give --shape and --classes, and to `fedflat flower run` --client NAME=FOLDER for each"
            )
        if self.spec.loss != "cross-entropy":
            raise InputError(f"loss = {self.spec.loss!r}: a federation trains classifiers; set loss = 'cross-entropy'")
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
        participation_of(self.spec.participation).check(self.settings.clients, self.spec.rounds)
        if self.spec.privacy is not None:
            raise InputError("privacy is for simulations: a federation's server sees what each client sends; "
                             "leave [privacy] out")  # fmt: skip
        if self.spec.probes:
            raise InputError("probes need all clients' samples in one place; set probes = []")

        self.terms.check(self.spec.guard)

    @classmethod
    def load(cls, folder: Path, settings: RunSettings) -> Study:
        """Read the study of the app in `folder`, whose code it may name. Raises InputError, naming file or field."""
        with allow_code():  # whoever runs the app runs its programs
            return cls(RunSpec.load(folder / FILE), settings)

    @property
    def terms(self) -> RoundTerms:
        """When a round ends, and which replies it accepts."""
        settings = self.settings
        return RoundTerms(settings.deadline, settings.quorum, settings.norm_multiple, settings.secure_sum)

    @property
    def own_samples(self) -> bool:
        """Whether clients have samples of their own."""
        return self.settings.shape is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        own = self.settings.shape
        return tuple(map(int, own.split("x"))) if own else self.spec.classes_and_shape()[1]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.settings.classes or self.spec.classes_and_shape()[0]

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits, equal for two studies only if they have the same results."""
        facts = [self.spec.decisive(), self.own_samples, self.shape, self.classes]
        facts += [self.settings.numbers] if self.settings.numbers != "floats" else []
        facts += (
            [{name: found["sha256"] for name, found in self.spec.code().items()}] if self.spec.outside_names() else []
        )
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def module(self) -> nn.Module:
        """The initial model, on this machine's device; its weights depend on nothing but the study's seed."""
        return self.spec.module_for(self.classes, self.shape).to(usable_device(self.spec.device))

    def method(self, module: nn.Module) -> Method:
        """The method for `module`, whose adapters may be trained by turns."""
        device = next(module.parameters()).device
        adapter = None if self.spec.adapter is None else self.spec.adapter.object
        return by_turns(self.spec.method.object, adapter, Space(module), device)
