"""The configuration of a run and of a study, from TOML files and dotted flags, and the objects built from it."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
import torch
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from ..core.errors import InputError
from ..core.method import Method
from ..core.task import LOSSES, Kind
from ..data import FederatedData, Partition, load
from ..data.partition import all_partitions
from ..data.selection import DataOptions
from ..data.sources import is_folder, known_source
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
from .config_errors import check_bounds, short_repr, validated
from .schema import NamedSection, Section, choice_of, section_of

MAX_FILE_BYTES = 2**24  # of a configuration; a million clients in listed cohorts have 12 million
MAX_ROUNDS = 999_999  # checkpoints are named with six digits and found in the order of their names
MAX_CLIENTS = 2**31 - 1  # the client of a sample is kept in 32 bits
MAX_STORE_MEGABYTES = 10**9  # a petabyte, so that bytes fit in 50 bits
MAX_RUNS = 10_000  # of a study; each has a folder

if TYPE_CHECKING:  # the fields of sections are those of classes that are found at run time
    from ..engine.simulation import Simulation

    ClientSection = Section
    MethodSection = NamedSection
    PartitionSection = NamedSection
    MeasureSection = NamedSection
else:
    ClientSection = section_of(Client)
    MethodSection = choice_of(all_methods(), plain, default="FedAvg")
    PartitionSection = choice_of(all_partitions(), plain, default="dirichlet")
    MeasureSection = choice_of(all_measures(), plain, default="sharpness")


def _from_flag(value: Any) -> Any:
    """A flag's text as the number, list or table that it spells, in JSON or TOML; other values unchanged."""
    for read in (json.loads, lambda text: tomllib.loads(f"value = {text}")["value"]) if isinstance(value, str) else ():
        try:
            found = read(value)
        except RecursionError as error:
            raise InputError("nested too deep") from error
        except ValueError:
            continue
        check_bounds(found)
        return found
    return value


def _model_option(value: Any) -> Any:
    """An option of a model: a number, a text, true, false, or a list of these."""
    if not all(isinstance(one, bool | int | float | str) for one in (value if isinstance(value, list) else [value])):
        raise InputError(f"an option is a number, a text, true or false, or a list of these, got {short_repr(value)}")
    return value


class BernoulliSection(Section):
    """Participation of every client independently with probability `bernoulli`."""

    bernoulli: float = Field(gt=0, le=1)


class DataSection(section_of(DataOptions)):  # type: ignore[misc]  # made at run time
    """The data set, the number of clients it is split over, and which samples are used."""

    name: str = Field(default="digits", description="a source, see `fedflat data list`")
    clients: int = Field(default=50, ge=1, le=MAX_CLIENTS, description="number of clients")

    @field_validator("name")
    @classmethod
    def _is_a_source(cls, name: str) -> str:
        try:
            return known_source(name)
        except InputError as error:
            raise InputError(str(error).removeprefix("data.name = ")) from error

    @field_validator("augment", mode="before")
    @classmethod
    def _none_is_a_word(cls, augment: Any) -> Any:
        return "none" if augment is None else augment  # flags read the word none as no value


class ModelSection(Section):
    """The model; further keys are its own options."""

    name: str = Field(default="mlp", description="a model of the zoo")
    options: dict[str, Annotated[Any, BeforeValidator(_model_option)]] = Field(
        default={}, description="options of the model, e.g. {hidden = [64]}"
    )

    @field_validator("name")
    @classmethod
    def _is_a_model(cls, name: str) -> str:
        if name not in model_names():
            raise InputError(f"{name!r} is unknown; known are {', '.join(model_names())}")
        return name


class Experiment(Section):
    """The settings that a run and a study have in common."""

    data: DataSection = DataSection()
    data_dir: str | None = Field(default=None, description="folder with the data sets; default $FEDFLAT_DATA")
    partition: PartitionSection = Field(default_factory=dict, validate_default=True)
    model: ModelSection = ModelSection()
    client: ClientSection = ClientSection()
    rounds: int = Field(default=100, ge=1, le=MAX_ROUNDS, description="communication rounds")
    participation: Any = Field(
        default=0.2, description="share of the clients, number per round, list of cohorts, or {bernoulli = p}"
    )
    weights: Literal["uniform", "samples"] = Field(default="uniform", description="of the clients in the mean")
    loss: Literal["cross-entropy", "multi-label", "regression"] = Field(
        default="cross-entropy", description="what is minimised; the other two are for a folder of your own"
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, ...")
    dtype: Literal["float32", "float64"] = Field(default="float32", description="of parameters and data")
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="of training gradients; bf16 is autocast: faster on some hardware, doubtful for small rho",
    )
    executor: Literal["auto", "sequential", "stacked", "compiled", "graphed"] = Field(
        default="auto", description="how clients are run"
    )
    workers: Any = Field(
        default="auto", description="processes that train clients side by side on the CPU; they change no result"
    )
    eval_every: int = Field(default=1, ge=1, description="rounds between evaluations on the test set")
    last: int = Field(default=10, ge=1, description="evaluations at the end that the reported accuracy is the mean of")
    targets: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        default=[], description="accuracies whose first round, and cost until then, is reported"
    )
    checkpoint_every: int = Field(default=25, ge=1, description="rounds between checkpoints")
    store_megabytes: int = Field(
        default=2048,
        ge=0,
        le=MAX_STORE_MEGABYTES,
        description="memory for what clients keep; a file where it may be more",
    )
    flatness: list[MeasureSection] = Field(
        default=list(LIGHT),
        validate_default=True,
        description="measures of the final model, see `fedflat flatness --list`",
    )
    probes: list[MeasureSection] = Field(default=[], description="measures during training, which they do not change")
    probe_every: int = Field(default=10, ge=1, description="rounds between probes")

    @field_validator("participation", "workers", mode="before")
    @classmethod
    def _parsed_and_checked(cls, value: Any, info: ValidationInfo) -> Any:
        check: Callable[[Any], object] = participation_of if info.field_name == "participation" else check_workers
        value = _from_flag(value)
        check(value)
        return value

    @classmethod
    def read(cls, path: Path) -> dict[str, Any]:
        """The table in a TOML file. Raises InputError, naming the file, if it cannot be read."""
        try:
            return read_toml(path, MAX_FILE_BYTES)
        except InputError as error:
            raise InputError(f"configuration {error}") from error

    @classmethod
    def load(cls, path: Path) -> Self:
        """The configuration in a TOML file. Raises InputError, naming file or field."""
        return validated(cls, cls.read(path))

    @property
    def task(self) -> Kind:
        """The kind of labels that `loss` needs."""
        return LOSSES[self.loss].kind

    def to_toml(self) -> str:
        """All settings, defaults included, as TOML; keys without a value are left out."""
        return tomli_w.dumps(self.model_dump(mode="python", exclude_none=True))

    def digest(self) -> str:
        """Six hexadecimal digits that tell apart two configurations with different results."""
        # Settings at their default are left out, so that one that is added later does not rename old folders.
        defaults = type(self)().decisive()
        given = {name: value for name, value in self.decisive().items() if value != defaults.get(name)}
        return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:6]

    def decisive(self) -> dict[str, Any]:
        """Every setting that the results depend on, which a folder of data is if its files are the user's own."""
        ignored = {"checkpoint_every", "data_dir", "store_megabytes", "targets", "workers"}
        return self.model_dump(exclude=ignored - {"data_dir"} if is_folder(self.data.name) else ignored)


class RunSpec(Experiment):
    """One run: one method, one seed."""

    method: MethodSection = Field(default_factory=dict, validate_default=True)
    seed: int = Field(default=0, ge=0, description="of partition, initial weights, cohorts and batches")

    @model_validator(mode="after")
    def _weights_fit(self) -> Self:
        check_weights(build_method(self.method), self.weights)
        return self

    @property
    def label(self) -> str:
        """A name for folders and progress, e.g. `FedSAM-seed0`."""
        return f"{self.method.name}-seed{self.seed}"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of parameters and data."""
        return {"float32": torch.float32, "float64": torch.float64}[self.dtype]

    def build(self, store_folder: Path | None = None, ranks: Ranks = ALONE) -> Simulation:
        """The simulation that these settings describe; it may keep a file of clients' records in `store_folder`.

        Raises ValueError, naming the setting, for a combination that cannot work.
        """
        from ..engine.simulation import Simulation  # whoever only lists or checks settings needs no engine

        return Simulation(
            model=self.model.name,
            data=federated_data(self),
            method=build_method(self.method),
            client=build_client(self.client),
            rounds=self.rounds,
            participation=participation_of(self.participation),
            weights=self.weights,
            loss=self.loss,
            seed=self.seed,
            device=self.device,
            dtype=self.torch_dtype,
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
    seeds: list[int] = Field(default=[0, 1, 2], min_length=1, description="one run per method and seed")
    client_of: dict[str, dict[str, Any]] = Field(
        default={}, description="client settings of one method, over [client], e.g. {FedDyn = {lr_decay = 0.9995}}"
    )
    protocol: Protocol = Field(default="last", description="which accuracy the table shows")

    @field_validator("methods")
    @classmethod
    def _are_different(cls, methods: list[NamedSection]) -> list[NamedSection]:
        for i, method in enumerate(methods):
            if method in methods[:i]:
                raise ValueError(f"number {i} is the same as number {methods.index(method)}: {method.name}")
        return methods

    @field_validator("seeds")
    @classmethod
    def _are_distinct(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise InputError("seeds must be different whole numbers from 0")
        return seeds

    @field_validator("client_of")
    @classmethod
    def _known_methods(cls, table: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {find(name).__name__: values for name, values in table.items()}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        runs = len(self.methods) * len(self.seeds)
        if runs > MAX_RUNS:
            raise InputError(f"methods and seeds make {runs:,} runs; {MAX_RUNS:,} are the most")
        if self.protocol == "best-validation" and not self.data.validation:
            raise InputError("protocol = 'best-validation' needs validation samples; set data.validation")
        if self.task == "regression":
            raise InputError("loss = 'regression' has no accuracy to compare methods by; use `fedflat run` for each")
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

    def _client_for(self, method: NamedSection) -> Section:
        """The client settings of one method."""
        own = self.client_of.get(method.name)
        if own is None:
            return self.client
        try:
            return validated(ClientSection, {**self.client.values(), **own})
        except InputError as error:
            raise InputError(f"client_of.{method.name}.{error}") from error


def federated_data(spec: RunSpec) -> FederatedData:
    """The data of a run, split over its clients; all methods of a study share one copy."""
    options = spec.data.values()
    name, clients = options.pop("name"), options.pop("clients")
    scheme = build_partition(spec.partition)
    return load_once(name, clients, scheme, spec.seed, spec.data_dir, (*options.items(), ("task", spec.task)))


@cache
def load_once(
    name: str, clients: int, scheme: Partition, seed: int, data_dir: str | None, options: tuple[tuple[str, Any], ...]
) -> FederatedData:
    """`fedflat.data.load`, whose result is kept for as long as the process lives."""
    return load(name, clients, scheme, seed, data_dir, **dict(options))


def build_client(section: Section) -> Client:
    """The local training that a `client` section describes."""
    return Client(**section.values())


def build_method(section: NamedSection) -> Method:
    """The method that a section names."""
    return find(section.name)(**section.arguments())


def build_partition(section: NamedSection) -> Partition:
    """The partition scheme that a section names."""
    return all_partitions()[section.name](**section.arguments())


def build_measure(section: NamedSection) -> Measure:
    """The measure that a section names."""
    return all_measures()[section.name](**section.arguments())


def participation_of(value: Any) -> Participation:
    """The participation that a configuration describes. Raises InputError if it describes none."""
    if isinstance(value, dict):
        return Bernoulli(BernoulliSection(**value).bernoulli)
    return as_rule(value)
