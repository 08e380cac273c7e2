"""What a run and a study are, as configuration: TOML files, dotted flags, and the objects they stand for."""

from __future__ import annotations

import hashlib
import json
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
import torch
from pydantic import BeforeValidator, Field, field_validator, model_validator

from ..core.errors import InputError
from ..core.method import Method
from ..data import FederatedData, Partition, load
from ..data.options import DataOptions
from ..data.partition import all_partitions
from ..data.sources import known_source
from ..engine.arguments import check_weights, check_workers
from ..engine.ranks import ALONE, Ranks
from ..files import read_toml
from ..methods import all_methods, find, plain
from ..metrics.flatness import LIGHT, Measure, all_measures
from ..metrics.protocols import Protocol
from ..models import model_names
from ..rounds.local_training import Client
from ..rounds.participation import Bernoulli, Participation
from ..rounds.participation import participation as as_rule
from .config_bounds import check_bounds
from .config_errors import shown, validated
from .schema import Section, choice, section

if TYPE_CHECKING:
    from ..engine.simulation import Simulation

FILE = 2**24  # bytes of a configuration; a million clients in listed cohorts have 12 million
ROUNDS = 999_999  # checkpoints are named with six digits, in whose order they are found
CLIENTS = 2**31 - 1  # who holds a sample is kept in 32 bits
MEGABYTES = 10**9  # a petabyte; in bytes it has 50 bits
RUNS = 10_000  # of a study; each has a folder
METHODS = 1000  # of a study
MethodSection = choice(all_methods(), plain, default="FedAvg")
PartitionSection = choice(all_partitions(), plain, default="dirichlet")
ClientSection = section(Client)
MeasureSection = choice(all_measures(), plain, default="sharpness")


def _from_flag(value: Any) -> Any:
    """A flag's text as the number, list or table that it spells, in JSON or TOML; other values as they are."""
    for read in (json.loads, _toml_value) if isinstance(value, str) else ():
        try:
            found = read(value)
        except RecursionError as error:
            raise InputError("nested too deep") from error
        except ValueError:
            continue
        check_bounds(found)
        return found
    return value


def _toml_value(text: str) -> Any:
    return tomllib.loads(f"value = {text}")["value"]


class BernoulliSection(Section):
    """Every client independently with probability `bernoulli`."""

    bernoulli: float = Field(gt=0, le=1)


class DataSection(section(DataOptions)):  # type: ignore[misc]  # made at run time
    """The data set, the number of clients it is split over, and which samples are used."""

    name: str = Field("digits", description="a source, see `fedflat data list`")
    clients: int = Field(50, ge=1, le=CLIENTS, description="number of clients")

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            return known_source(name)
        except InputError as error:
            raise InputError(str(error).removeprefix("data.name = ")) from error

    @field_validator("augment", mode="before")
    @classmethod
    def _spelled(cls, augment: Any) -> Any:
        return "none" if augment is None else augment  # flags read the word none as no value


def _option(value: Any) -> Any:
    """An option of a model: a number, a text, true, false, or a list of these."""
    if not all(isinstance(one, bool | int | float | str) for one in (value if isinstance(value, list) else [value])):
        raise InputError(f"an option is a number, a text, true or false, or a list of these, got {shown(value)}")
    return value


class ModelSection(Section):
    """The model; further keys are its own options."""

    name: str = Field("mlp", description="a model of the zoo")
    options: dict[str, Annotated[Any, BeforeValidator(_option)]] = Field(
        {}, description="options of the model, e.g. {hidden = [64]}"
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return _one_of(name, model_names())


class Experiment(Section):
    """What a run and a study have in common."""

    data: DataSection = DataSection()
    data_dir: str | None = Field(None, description="folder with the data sets; default $FEDFLAT_DATA")
    partition: PartitionSection = Field(default_factory=dict, validate_default=True)
    model: ModelSection = ModelSection()
    client: ClientSection = ClientSection()
    rounds: int = Field(100, ge=1, le=ROUNDS, description="communication rounds")
    participation: Annotated[Any, BeforeValidator(_from_flag)] = Field(
        0.2, description="share of the clients, number per round, list of cohorts, or {bernoulli = p}"
    )
    weights: Literal["uniform", "samples"] = Field("uniform", description="of the clients in the mean")
    device: str = Field("auto", description="auto, cpu, cuda, ...")
    dtype: Literal["float32", "float64"] = Field("float32", description="of parameters and data")
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="of training gradients; bf16 is autocast: faster on some hardware, doubtful for small rho"
    )
    executor: Literal["auto", "sequential", "stacked", "compiled", "graphed"] = Field(
        "auto", description="how clients are run"
    )
    workers: Annotated[Any, BeforeValidator(_from_flag)] = Field(
        "auto", description="processes that train clients side by side on the CPU; they change no result"
    )
    eval_every: int = Field(1, ge=1, description="rounds between evaluations on the test set")
    last: int = Field(10, ge=1, description="evaluations at the end that the reported accuracy is the mean of")
    targets: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        [], description="accuracies whose first round, and cost until then, is reported"
    )
    checkpoint_every: int = Field(25, ge=1, description="rounds between checkpoints")
    store_megabytes: int = Field(
        2048, ge=0, le=MEGABYTES, description="memory for what clients keep; a file where it may be more"
    )
    flatness: list[MeasureSection] = Field(
        list(LIGHT), validate_default=True, description="measures of the final model, see `fedflat flatness --list`"
    )
    probes: list[MeasureSection] = Field([], description="measures during training, which they do not change")
    probe_every: int = Field(10, ge=1, description="rounds between probes")

    @field_validator("participation")
    @classmethod
    def _rule(cls, value: Any) -> Any:
        participation_of(value)
        return value

    @field_validator("workers")
    @classmethod
    def _number(cls, value: Any) -> Any:
        check_workers(value)
        return value

    @classmethod
    def read(cls, path: Path) -> dict[str, Any]:
        """The table in a TOML file. Raises InputError, naming the file, if it cannot be read."""
        try:
            return read_toml(path, FILE)
        except InputError as error:
            raise InputError(f"configuration {error}") from error

    @classmethod
    def load(cls, path: Path) -> Self:
        """The configuration in a TOML file. Raises InputError, naming file or field."""
        return validated(cls, cls.read(path))

    def to_toml(self) -> str:
        """Everything, defaults included, as TOML; keys without a value are left out."""
        return tomli_w.dumps(self.model_dump(mode="python", exclude_none=True))

    def digest(self) -> str:
        """Six hexadecimal digits that tell apart two configurations with different results."""
        # Without what is at its default, so that a setting added later does not change the names of old folders.
        usual = type(self)().decisive()
        given = {name: value for name, value in self.decisive().items() if value != usual[name]}
        return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:6]

    def decisive(self) -> dict[str, Any]:
        """Every setting that the results depend on."""
        return self.model_dump(exclude={"checkpoint_every", "data_dir", "store_megabytes", "targets", "workers"})


class RunSpec(Experiment):
    """One run: one method, one seed."""

    method: MethodSection = Field(default_factory=dict, validate_default=True)
    seed: int = Field(0, ge=0, description="of partition, initial weights, cohorts and batches")

    @model_validator(mode="after")
    def _weights_fit(self) -> Self:
        check_weights(build_method(self.method), self.weights)
        return self

    @property
    def label(self) -> str:
        """A name for folders and progress, e.g. `FedSAM-seed0`."""
        return f"{self.method.name}-seed{self.seed}"

    def build(self, store_folder: Path | None = None, ranks: Ranks = ALONE) -> Simulation:
        """The simulation this describes, which may keep a file of client records in `store_folder`; see `Simulation`.

        Raises ValueError for what cannot work.
        """
        from ..engine.simulation import Simulation  # whoever only lists or checks settings needs no engine

        return Simulation(
            model=self.model.name,
            data=federated_data(self),
            method=build_method(self.method),
            client=Client(**self.client.values()),
            rounds=self.rounds,
            participation=participation_of(self.participation),
            weights=self.weights,
            seed=self.seed,
            device=self.device,
            dtype=getattr(torch, self.dtype),
            precision=self.precision,
            executor=self.executor,
            workers=self.workers,
            eval_every=self.eval_every,
            last=self.last,
            model_options=self.model.options,
            probes=[build_measure(one) for one in self.probes],
            probe_every=self.probe_every,
            store_budget=self.store_megabytes * 10**6,
            store_folder=store_folder,
            ranks=ranks,
        )


class StudySpec(Experiment):
    """The same experiment for several methods and seeds."""

    methods: list[MethodSection] = Field(
        default_factory=lambda: ["FedAvg", "FedSAM"], validate_default=True, min_length=1
    )
    seeds: list[int] = Field([0, 1, 2], min_length=1, description="one run per method and seed")
    client_of: dict[str, dict[str, Any]] = Field(
        {}, description="client settings of one method, over [client], e.g. {FedDyn = {lr_decay = 0.9995}}"
    )
    protocol: Protocol = Field("last", description="which accuracy the table shows")

    @field_validator("methods")
    @classmethod
    def _unlike(cls, methods: list[Any]) -> list[Any]:
        for i, method in enumerate(methods):
            if method in methods[:i]:
                raise ValueError(f"number {i} is the same as number {methods.index(method)}: {method.name}")
        return methods

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise InputError("seeds must be different whole numbers from 0")
        return seeds

    @field_validator("client_of")
    @classmethod
    def _known_methods(cls, table: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {find(name).__name__: values for name, values in table.items()}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.methods) * len(self.seeds) > RUNS:
            raise InputError(
                f"methods and seeds make {len(self.methods) * len(self.seeds):,} runs; {RUNS:,} are the most"
            )
        if self.protocol == "best-validation" and not self.data.validation:
            raise InputError("protocol = 'best-validation' needs validation samples; set data.validation")
        for method in self.methods:
            check_weights(build_method(method), self.weights)
            self._client_for(method)
        return self

    def runs(self) -> list[RunSpec]:
        """Every run of the study, seed after seed."""
        shared = {name: getattr(self, name) for name in Experiment.model_fields if name != "client"}
        return [
            RunSpec(**shared, client=self._client_for(method), method=method, seed=seed)
            for seed in self.seeds
            for method in self.methods
        ]

    def _client_for(self, method: Any) -> Any:
        """The client settings of one method."""
        own = self.client_of.get(method.name)
        if own is None:
            return self.client
        try:
            return validated(ClientSection, {**self.client.values(), **own})
        except InputError as error:
            raise InputError(f"client_of.{method.name}.{error}") from error


@cache
def _load(name: str, clients: int, scheme: Partition, seed: int, data_dir: str | None, options: Any) -> FederatedData:
    return load(name, clients, scheme, seed, data_dir, **dict(options))


def federated_data(spec: RunSpec) -> FederatedData:
    """The data of a run, split; loaded once for all methods of a study."""
    options = spec.data.values()
    name, clients = options.pop("name"), options.pop("clients")
    return _load(name, clients, build_partition(spec.partition), spec.seed, spec.data_dir, tuple(options.items()))


def build_measure(table: Any) -> Measure:
    """The measure of a section."""
    values = table.values()
    return all_measures()[values.pop("name")](**values)


def build_partition(table: Any) -> Partition:
    """The partition scheme of a section."""
    values = table.values()
    return all_partitions()[values.pop("name")](**values)


def build_method(table: Any) -> Method:
    """The method of a section."""
    values = table.values()
    return find(values.pop("name"))(**values)


def participation_of(value: Any) -> Participation:
    """The rule that a configuration means. Raises InputError for one that is none."""
    if isinstance(value, dict):
        return Bernoulli(BernoulliSection(**value).bernoulli)
    return as_rule(value)


def _one_of(name: str, known: list[str]) -> str:
    if name not in known:
        raise InputError(f"{name!r} is unknown; known are {', '.join(known)}")
    return name
