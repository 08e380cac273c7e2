"""An exported app's study: what server and clients agree on before they meet."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...core.errors import InputError
from ...core.method import Method
from ...data.sources import source
from ...experiments.environment import versions
from ...experiments.spec import RunSpec, build_method, participation_of
from ...rounds.device import usable_device
from ...rounds.initial_model import fresh_module
from ...rounds.local_training import Client
from .settings import RunSettings

FILE = "study.toml"


def version() -> str:
    """Of fedflat, on this machine."""
    return str(versions(("fedflat",))["fedflat"])


@dataclass(frozen=True)
class Study:
    """One run of one method, with clients that have their own samples or parts of a named set."""

    spec: RunSpec
    settings: RunSettings

    def __post_init__(self) -> None:
        """Raises InputError, naming the key, for what no federation can do."""
        if not self.own and self.settings.clients != self.spec.data.clients:
            raise InputError(
                f"clients is {self.settings.clients}, and the study's data.clients {self.spec.data.clients}: not equal"
            )
        if self.own and self.spec.data.validation:
            raise InputError("data.validation is for named sets; leave samples out of a client's own instead")
        participation_of(self.spec.participation).check(self.settings.clients, self.spec.rounds)
        if self.spec.probes:
            raise InputError("probes need all clients' samples in one place; set probes = []")

    @classmethod
    def load(cls, folder: Path, settings: RunSettings) -> Study:
        """That of the app in `folder`. Raises InputError, naming file or field."""
        return cls(RunSpec.load(folder / FILE), settings)

    @property
    def own(self) -> bool:
        """Whether clients have samples of their own."""
        return self.settings.shape is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample."""
        data = self.spec.data
        return self.settings.own_shape or source(data.name).sample_shape(data.image_size)

    @property
    def classes(self) -> int:
        return self.settings.classes or source(self.spec.data.name).classes

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that tell apart studies with different results."""
        facts = [self.spec.decisive(), self.own, self.shape, self.classes]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def method(self) -> Method:
        return build_method(self.spec.method)

    @property
    def client(self) -> Client:
        settings: Any = self.spec.client
        return Client(**settings.values())

    def module(self) -> nn.Module:
        """The initial model, on the device of who asks; its weights depend on the seed alone."""
        spec, dtype = self.spec, getattr(torch, self.spec.dtype)
        module = fresh_module(spec.model.name, self.classes, self.shape, spec.seed, spec.model.options, dtype)
        return module.to(usable_device(spec.device))
