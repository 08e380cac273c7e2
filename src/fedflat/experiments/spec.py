"""The configuration of a run and of a study, from TOML files and dotted flags, and the objects built from it."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
import torch
from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from ..adapters.lora import LoRA
from ..core.compression import Compression
from ..core.errors import InputError, shortened
from ..core.hyper import hyper, unused_later_fields
from ..core.method import Method
from ..core.object_references import (
    ExtensionPoint,
    is_code_allowed,
    is_outside,
    is_reference,
    origin,
    portable,
    relative_to,
)
from ..core.perturbation import Perturbation
from ..core.running_statistics import Buffers
from ..core.task import FORMS, LOSSES, Kind
from ..core.toml import parse_toml
from ..core.wrapper import Wrapper
from ..data import FederatedData, Partition, load
from ..data.conversion import SampleFormat
from ..data.dataset import FileDataset, FoundDataset
from ..data.labels import Labelling
from ..data.loading import described
from ..data.partition import PARTITIONS, all_partitions
from ..data.schema import Schema
from ..data.selection import DataOptions
from ..data.sources import SOURCES, is_folder, known_source
from ..engine.problem import check_weights, check_workers
from ..engine.ranks import ALONE, Ranks
from ..files import read_toml
from ..methods import METHODS, all_methods, find
from ..metrics.classification import METRICS
from ..metrics.flatness import LIGHT, check_measures
from ..metrics.flatness.measures import MEASURES, all_measures
from ..metrics.protocols import SCORES, Protocol
from ..models import MODELS, known_model
from ..models.blocks.fetched import folder_of
from ..rounds.accountant import Privacy
from ..rounds.attack import Attack
from ..rounds.checksums import check_listed
from ..rounds.guard import Guard
from ..rounds.local_training import Client, check_perturbation
from ..rounds.participation import Bernoulli, HeldOut, Participation, Unreliable
from ..rounds.participation import participation as as_rule
from ..rounds.run_model import InitialModel
from ..rounds.settings import digest, settings_key
from .config_errors import check_bounds, short_repr, validated
from .schema import NamedObject, ObjectByName, ObjectOf, Section, errors_at, table_of
from .settings_tables import SettingsGrid, checked_grid, merged, nested, variants

METRIC_NAMES = tuple(METRICS)
MAX_FILE_BYTES = 2**24  # of a configuration; listed cohorts of a million clients take 12 million bytes
ALL_CLIENTS = 1.0  # default participation of a `Simulation`; with privacy, `privacy.rate` decides who takes part
MAX_ROUNDS = 999_999  # names of checkpoints have six digits
MAX_CLIENTS = 2**31 - 1  # the client of a sample is stored in 32 bits
MAX_STORE_MEGABYTES = 10**9  # a petabyte, so that bytes fit in 50 bits
MAX_RUNS = 10_000  # runs of a study; each has a folder
DIGITS = 16  # hexadecimal digits of a digest in a folder's name

if TYPE_CHECKING:
    from torch import nn

    from ..engine.simulation import Simulation


def _method_choice(wrapped: ObjectByName | None = None) -> ObjectByName:
    """Return the field that chooses a method by name.

    wrapped: the field that chooses the method inside a wrapper; without one, wrappers are refused.
    """
    outer = tuple(name for name, cls in all_methods().items() if issubclass(cls, Wrapper))
    classes = {name: cls for name, cls in all_methods().items() if wrapped or name not in outer}
    return ObjectByName(classes, "FedAvg", METHODS, Method, wrapped, () if wrapped else outer)


METHOD = _method_choice(wrapped=_method_choice())
MEASURE = ObjectByName(all_measures(), "sharpness", MEASURES)
CLIENT = ObjectOf(Client)


def from_flag(value: Any) -> Any:
    """Parse a flag's text as a number, list or table in JSON or TOML; return any other value unchanged."""
    for read in (json.loads, lambda text: parse_toml(f"value = {text}")["value"]) if isinstance(value, str) else ():
        try:
            parsed = read(value)
        except RecursionError as error:
            raise InputError("nested too deep") from error
        except ValueError:
            continue
        check_bounds(parsed)
        return parsed
    return value


def _model_option(value: Any) -> Any:
    """Check an option of a model: a number, a text, true, false, or a list of these."""
    if not all(isinstance(x, bool | int | float | str) for x in (value if isinstance(value, list) else [value])):
        raise InputError(f"an option is a number, a text, true or false, or a list of these, got {short_repr(value)}")
    return value


class ParticipationSection(Section):
    """The choice of clients: one of `share`, `number`, `bernoulli` and `cohorts`, and failures of clients."""

    share: float | None = Field(None, gt=0, le=1, description="share of the clients in each round")
    number: int | None = Field(None, ge=1, description="number of clients in each round")
    bernoulli: float | None = Field(None, gt=0, le=1, description="probability of every client, independently")
    cohorts: list[list[int]] | None = Field(None, description="the clients of every round")
    dropouts: float = Field(0.0, ge=0, lt=1, description="probability that a sampled client does not reply")
    stragglers: float = Field(0.0, ge=0, lt=1, description="probability of a client to take a random part of its steps")
    held_out: float = Field(0.0, ge=0, lt=1, description="share of the clients that only evaluate, and never train")

    def rule(self) -> Participation:
        """Return the participation. Raises InputError unless exactly one key selects the clients."""
        given: list[Any] = [value for value in (self.share, self.number, self.cohorts) if value is not None]
        given += [] if self.bernoulli is None else [Bernoulli(self.bernoulli)]
        if len(given) != 1:
            raise InputError("participation needs one of share, number, bernoulli and cohorts")
        rule = as_rule(given[0])
        if self.held_out:
            rule = HeldOut(rule, self.held_out)
        return Unreliable(rule, self.dropouts, self.stragglers) if self.dropouts or self.stragglers else rule


@dataclass(frozen=True, kw_only=True)
class DataSection(DataOptions):
    """The data set, the number of clients it is split over, and which samples are used."""

    name: str = hyper("digits", "a source, see `fedflat data list`")
    clients: int = hyper(50, "number of clients", low=1, high=MAX_CLIENTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_reference(self.name) or is_code_allowed():
            object.__setattr__(self, "name", known_source(self.name))


class ModelSection(Section):
    """The model and its options."""

    has_keys_of_its_name = True
    name: str = Field(default="mlp", description="a model of the zoo")
    options: dict[str, Annotated[Any, BeforeValidator(_model_option)]] = Field(
        default={}, description="options of the model, e.g. {hidden = [64]}"
    )
    buffers: Buffers | None = Field(
        default=None,
        description="running statistics of BatchNorm: frozen, averaged, or local to each client; needed with such "
        "layers, see docs/howto/model_parts.md",
    )
    keep: list[Annotated[str, Field(min_length=1)]] = Field(
        default=[],
        description="names, with * and ?, of parameters and buffers that stay with each client, e.g. ['head.*']",
    )

    @field_validator("keep", mode="before")
    @classmethod
    def _layers_may_be_numbers(cls, keep: Any) -> Any:
        """Read the flag `--model.keep 5`, a layer of a sequence of layers, as a name."""
        return [str(one) if type(one) is int else one for one in keep] if isinstance(keep, list) else keep

    @field_validator("name")
    @classmethod
    def _is_a_model(cls, name: str) -> str:
        return name if is_reference(name) and not is_code_allowed() else known_model(name)


class Experiment(Section):
    """The settings that runs and studies share."""

    data: Annotated[DataSection, ObjectOf(DataSection)] = DataSection()
    data_dir: str | None = Field(default=None, description="folder with the data sets; default $FEDFLAT_DATA")
    partition: Annotated[NamedObject, ObjectByName(all_partitions(), "dirichlet", PARTITIONS)] = Field(
        default_factory=dict, validate_default=True
    )
    model: ModelSection = ModelSection()
    adapter: Annotated[NamedObject, ObjectByName({"lora": LoRA}, "lora")] | None = Field(
        default=None, description="train adapters in place of the model, see docs/howto/adapters.md"
    )
    privacy: Annotated[Privacy, ObjectOf(Privacy)] | None = Field(
        default=None, description="client-level differential privacy, see docs/privacy.md"
    )
    client: Annotated[Client, CLIENT] = Client()
    perturbation: Annotated[Perturbation, ObjectOf(Perturbation)] | None = Field(
        default=None, description="options of a method's perturbation, see docs/howto/perturbation.md"
    )
    guard: Annotated[Guard, ObjectOf(Guard)] | None = Field(
        default=None, description="limits on the influence of one client on the mean, see docs/guards.md"
    )
    attack: Annotated[Attack, ObjectOf(Attack)] | None = Field(
        default=None, description="simulated attackers among the clients, see docs/guards.md"
    )
    compress: Annotated[Compression, ObjectOf(Compression)] | None = Field(
        default=None, description="compression of what clients send, see docs/howto/compression.md"
    )
    rounds: int = Field(default=100, ge=1, le=MAX_ROUNDS, description="communication rounds")
    participation: Any = Field(
        default=0.2,
        description="share of the clients, number per round, list of cohorts, or a table of share, number or bernoulli "
        "with dropouts, stragglers and held_out, e.g. {share = 0.2, dropouts = 0.1}",
    )
    weights: Literal["uniform", "samples"] = Field(default="uniform", description="weights of the clients in the mean")
    loss: Literal[tuple(LOSSES)] = Field(  # type: ignore[valid-type]  # the names of a table
        default="cross-entropy", description="loss to minimise; all but the first are for data with other labels"
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, ...")
    dtype: Literal["float32", "float64"] = Field(default="float32", description="type of parameters and data")
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="of training gradients; bf16 is autocast: faster on some hardware, too coarse for small rho",
    )
    executor: Literal["auto", "sequential", "stacked", "compiled", "graphed"] = Field(
        default="auto", description="how clients are run"
    )
    workers: Any = Field(
        default="auto", description="processes that train clients in parallel on the CPU; no result depends on them"
    )
    eval_every: int = Field(default=1, ge=1, description="rounds between evaluations on the test set")
    last: int = Field(default=10, ge=1, description="the reported accuracy is the mean of this many last evaluations")
    targets: list[Annotated[float, Field(gt=0)]] = Field(
        default=[],
        description="accuracies or other test scores; the first round that reaches each, and its cost, are reported",
    )
    checkpoint_every: int = Field(default=25, ge=1, description="rounds between checkpoints")
    store_megabytes: int = Field(
        default=2048,
        ge=0,
        le=MAX_STORE_MEGABYTES,
        description="memory for the records of clients; larger records are kept in a file",
    )
    metrics: list[Literal[METRIC_NAMES]] = Field(  # type: ignore[valid-type]  # the names of a table
        default=[], description="further metrics of the test samples in every evaluation; recall is that of each class"
    )
    flatness: list[Annotated[NamedObject, MEASURE]] = Field(
        default=list(LIGHT),
        validate_default=True,
        description="measures of the final model, see `fedflat flatness --list`",
    )
    probes: list[Annotated[NamedObject, MEASURE]] = Field(
        default=[], description="measures during training; they do not change it"
    )
    probe_every: int = Field(default=10, ge=1, description="rounds between probes")

    @model_validator(mode="before")
    @classmethod
    def _measures_of_private_runs_are_asked_for(cls, table: Any) -> Any:
        """Take no measures of private runs by default, because measures use clients' samples."""
        has_privacy = isinstance(table, dict) and table.get("privacy") is not None
        return {"flatness": [], **table} if has_privacy else table

    @model_validator(mode="after")
    def _privacy_says_who_takes_part(self) -> Self:
        given = type(self).model_fields["participation"].default
        if self.privacy is not None and self.participation != given:
            raise InputError(
                f"participation = {self.participation!r} cannot be combined with privacy, whose clients take part "
                "independently with probability privacy.rate; leave participation out"
            )
        return self

    @model_validator(mode="after")
    def _targets_are_scores_of_the_task(self) -> Self:
        SCORES[FORMS[self.task].score].check_targets(self.targets)
        return self

    @field_validator("loss", mode="before")
    @classmethod
    def _is_no_function(cls, loss: Any) -> Any:
        if is_reference(loss):
            raise InputError(f"{shortened(loss)}: a loss of your own is given in Python, fedflat.Simulation(loss=...); "
                             f"here it is one of {', '.join(LOSSES)}")  # fmt: skip
        return loss

    @field_validator("participation", "workers", mode="before")
    @classmethod
    def _parsed_and_checked(cls, value: Any, info: ValidationInfo) -> Any:
        check: Callable[[Any], object] = participation_of if info.field_name == "participation" else check_workers
        value = from_flag(value)
        if isinstance(value, Participation):
            raise InputError("a study has a number, a list or a table here, such as {'bernoulli': 0.2}")
        check(value)
        return value

    @classmethod
    def read(cls, path: Path) -> dict[str, Any]:
        """Read the table in a TOML file; paths of code files in the table are relative to the folder of the TOML file.

        Raises InputError, naming the file, if it cannot be read, or if its digest is not the one in SHA256SUMS.
        """
        check_listed(path)
        try:
            return with_names(read_toml(path, MAX_FILE_BYTES), lambda name: relative_to(path.parent, name))
        except InputError as error:
            raise InputError(f"configuration {error}") from error

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load the configuration in a TOML file. Raises InputError, naming file or field."""
        return validated(cls, cls.read(path))

    def classes_and_shape(self) -> tuple[int, tuple[int, ...]]:
        """Return the number of classes and the shape of a sample."""
        known = self.known_data
        return known.classes, known.sample_shape(self.sample_format)

    @property
    def known_data(self) -> FileDataset | FoundDataset:
        """The description of the data set; no sample is read."""
        how = Labelling(self.data.labels, self.data.class_names)
        return described(self.data.name, self.data_dir, self.sample_format, self.task, how)

    @property
    def sample_format(self) -> SampleFormat:
        """The settings that decide the shape of samples."""
        return SampleFormat(self.data.image_size, self.data.text_length, schema=Schema.of(self.data))

    @property
    def tokenizer(self) -> str | None:
        """The folder of the tokenizer for texts: the one in `data`, else that of the model; None without either."""
        path = self.model.options.get("path")
        own = self.model.name == "transformer" and path and len(self.classes_and_shape()[1]) == 1
        return self.data.tokenizer or (str(folder_of("path", str(path))) if own else None)

    @property
    def task(self) -> Kind:
        """The kind of labels that `loss` needs."""
        return LOSSES[self.loss].kind

    def to_toml(self) -> str:
        """Return all settings, defaults included, as TOML; keys without a value are left out."""
        return tomli_w.dumps(self.table())

    def digest(self) -> str:
        """Return a digest of the decisive settings for names of folders; two equal digests do not prove equality."""
        return digest(self.decisive(), DIGITS)

    def decisive(self) -> dict[str, Any]:
        """Return every setting that the results depend on; code files are named without their folders.

        `data_dir` is included if the data set is a folder of the user's.
        """
        ignored = {"checkpoint_every", "data_dir", "store_megabytes", "targets", "workers"}
        ignored -= {"data_dir"} if is_folder(self.data.name) else set()
        table = with_names(self.model_dump(exclude=ignored), portable)
        if self.data.tokenizer is None:
            table["data"].pop("tokenizer", None)  # as if it were not set
        if not table["metrics"]:
            del table["metrics"]
        if self.perturbation is None or not self.perturbation.changed:
            table.pop("perturbation")  # likewise
        if self.compress is None:
            table.pop("compress")  # likewise
        used = {"client": Client, "data": DataSection, "perturbation": Perturbation}
        for section, cls in ((name, cls) for name, cls in used.items() if name in table):
            for key in unused_later_fields(table[section], cls):
                table[section].pop(key, None)
        for key in ("buffers", "keep"):  # likewise
            if not table["model"].get(key):
                table["model"].pop(key, None)
        return table

    @abstractmethod
    def method_sections(self) -> list[NamedObject]:
        """Return the methods of the runs."""

    def planned_by_rounds(self) -> str | None:
        """Return what makes runs depend on the planned rounds, if anything does: a method's label, or a schedule."""
        if any(client.depends_on_rounds for client in self.clients()):
            return "the schedule of client.lr"
        if self.perturbation is not None and self.perturbation.depends_on_rounds:
            return "perturbation.schedule"
        if self.privacy is not None and self.privacy.noise_multiplier is None:
            return f"{self.method_sections()[0].label} with noise for a given epsilon"
        loaded = (one for one in self.method_sections() if one.is_loaded)
        return next((one.label for one in loaded if one.object.depends_on_rounds), None)

    @abstractmethod
    def clients(self) -> list[Client]:
        """Return the settings of local training of the runs."""

    def outside_names(self) -> dict[str, ExtensionPoint]:
        """Return the names of all code outside this package that the configuration uses, with the kind of each."""
        named = {self.partition.name: PARTITIONS, self.model.name: MODELS, self.data.name: SOURCES}
        named |= {one.name: MEASURES for one in (*self.flatness, *self.probes)}
        named |= {name: METHODS for one in self.method_sections() for name in one.names()}
        return {name: point for name, point in named.items() if is_outside(name, point)}

    @model_validator(mode="after")
    def _own_files_have_names_of_their_own(self) -> Self:
        """Refuse two code files with the same base name, because run folders are named without the files' folders."""
        known: dict[str, str] = {}
        for name in self.outside_names():
            other = known.setdefault(portable(name), name)
            if other != name:
                raise InputError(f"{other} and {name} have one name and would be taken for each other: rename one file")
        return self

    def code(self) -> dict[str, dict[str, str]]:
        """Return file and SHA-256 of all code outside this package, by the name of the code without its folder.

        Raises InputError if code may not be run here.
        """
        origins = {portable(name): origin(name, point) for name, point in self.outside_names().items()}
        return {name: vars(file) for name, file in origins.items() if file is not None}


NAMED = ("data", "flatness", "method", "methods", "model", "partition", "probes")  # keys whose value names something


def with_names(table: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return `table` with `change` applied to every name of a method, model, data set, partition or measure."""

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list):
            return [changed(one) for one in value]
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            # The fields of a class outside this package are known only from the file, which leaves out those of None.
            kept = {k: x for k, x in value.items() if x is not None or not is_reference(value["name"])}
            inside = {k: changed(x) for k, x in kept.items() if isinstance(x, dict) and "name" in x}
            return {**kept, **inside, "name": change(value["name"])}
        return value

    return {key: changed(value) if key in NAMED else value for key, value in table.items()}


class RunSpec(Experiment):
    """One run: one method, one seed."""

    method: Annotated[NamedObject, METHOD] = Field(default_factory=dict, validate_default=True)
    seed: int = Field(default=0, ge=0, description="seed of partition, initial weights, cohorts and batches")
    _variant: str = PrivateAttr(default="")  # settings that distinguish the run from others of its method in a study

    @model_validator(mode="after")
    def _method_fits(self) -> Self:
        _check_method(self.method, self.weights, self.rounds)
        _check_perturbation(self.method, self.client, self.perturbation)
        return self

    def method_sections(self) -> list[NamedObject]:
        return [self.method]

    def clients(self) -> list[Client]:
        return [self.client]

    @property
    def label(self) -> str:
        """A name for folders and progress, e.g. `FedSAM-seed0`."""
        return f"{self.method.label}-seed{self.seed}"

    @property
    def title(self) -> str:
        """The label for messages, with the settings that distinguish the run from others of its study."""
        return f"{self.method.label}({self._variant})-seed{self.seed}" if self._variant else self.label

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of parameters and data."""
        return {"float32": torch.float32, "float64": torch.float64}[self.dtype]

    def module(self) -> nn.Module:
        """Build the initial model from the seed and the data set's shape and classes; no samples are read."""
        return self.module_for(*self.classes_and_shape())

    def module_for(self, classes: int, shape: tuple[int, ...]) -> nn.Module:
        """Build the initial model, with its adapters if it has any, for samples of this `shape`."""
        adapter = None if self.adapter is None else self.adapter.object
        return InitialModel(
            self.model.name, classes, shape, self.seed, self.model.options, self.torch_dtype, adapter
        ).module()

    def build(self, store_folder: Path | None = None, ranks: Ranks = ALONE) -> Simulation:
        """Build the simulation of these settings, which may keep a file of clients' records in `store_folder`.

        Raises ValueError, naming the setting, for a combination that cannot work.
        """
        from ..engine.simulation import (
            Simulation,  # imported here, because listing and checking settings needs no engine
        )

        sim = Simulation(
            model=self.model.name,
            data=federated_data(self),
            method=self.method.object,
            client=self.client,
            rounds=self.rounds,
            participation=participation_of(self.participation) if self.privacy is None else ALL_CLIENTS,
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
            buffers=self.model.buffers,
            keep=self.model.keep,
            probes=[one.object for one in self.probes],
            probe_every=self.probe_every,
            metrics=self.metrics,
            store_budget=self.store_megabytes * 10**6,
            store_folder=store_folder,
            ranks=ranks,
            adapter=None if self.adapter is None else self.adapter.object,
            privacy=self.privacy,
            guard=self.guard,
            attack=self.attack,
            perturbation=self.perturbation,
            compress=self.compress,
        )
        check_measures([one.object for one in self.flatness], sim.objective.module)  # now, not after training
        return sim


def distinct_seeds(seeds: list[int]) -> list[int]:
    """Return `seeds`. Raises InputError unless they are different integers of at least 0."""
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise InputError("seeds must be different integers from 0")
    return seeds


class StudySpec(Experiment):
    """The same experiment for several methods and seeds."""

    methods: list[Annotated[NamedObject, METHOD]] = Field(
        default_factory=lambda: ["FedAvg", "FedSAM"], validate_default=True, min_length=1
    )
    seeds: list[int] = Field(default=[0, 1, 2], min_length=1, description="one run per method and seed")
    client_of: dict[str, dict[str, Any]] = Field(
        default={},
        description="client settings of one method, which override [client], e.g. {FedDyn = {lr_decay = 0.9995}}",
    )
    protocol: Protocol = Field(default="last", description="the accuracy that the table shows")
    grid: dict[str, Any] = Field(
        default={},
        description="lists of values by key; every combination is run: "
        "method.rho for every method with that field, FedSAM.rho for one method, client.lr, partition.alpha, ...",
    )

    @model_validator(mode="before")
    @classmethod
    def _seeds_may_be_in_the_grid(cls, table: Any) -> Any:
        grid = table.get("grid") if isinstance(table, dict) else None
        if not isinstance(grid, dict) or "seeds" not in grid:
            return table
        if "seeds" in table:
            raise InputError("seeds are given twice: as seeds, and in the grid")
        return {**table, "seeds": grid["seeds"], "grid": {key: x for key, x in grid.items() if key != "seeds"}}

    @field_validator("grid")
    @classmethod
    def _is_a_grid(cls, table: dict[str, Any]) -> dict[str, Any]:
        return checked_grid(table)

    @field_validator("methods")
    @classmethod
    def _are_different(cls, methods: list[NamedObject]) -> list[NamedObject]:
        for i, method in enumerate(methods):
            if method in methods[:i]:
                raise ValueError(f"number {i} is the same as number {methods.index(method)}: {method.name}")
        return methods

    @field_validator("seeds")
    @classmethod
    def _are_distinct(cls, seeds: list[int]) -> list[int]:
        return distinct_seeds(seeds)

    @field_validator("client_of")
    @classmethod
    def _known_methods(cls, table: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        by_method: dict[str, dict[str, Any]] = {}
        for name, values in table.items():  # the later one of two spellings of one name overrides the other
            by_method[_method_name(name)] = {**by_method.get(_method_name(name), {}), **values}
        return by_method

    @model_validator(mode="after")
    def _fits(self) -> Self:
        runs = SettingsGrid(self.grid, self.methods).size * len(self.seeds)
        if runs > MAX_RUNS:
            raise InputError(f"methods, seeds and grid make {runs:,} runs; {MAX_RUNS:,} are the most")
        if self.protocol == "best-validation" and not self.data.validation:
            raise InputError("protocol = 'best-validation' needs validation samples; set data.validation")
        for method in self.methods:
            _check_method(method, self.weights, None if "rounds" in self.grid else self.rounds)
            _check_perturbation(method, self._client_for(method), self.perturbation)
        if self.grid:
            self._check_points()
        return self

    def method_sections(self) -> list[NamedObject]:
        return self.methods

    def clients(self) -> list[Client]:
        return [run.client for run in self.runs()]

    def runs(self) -> list[RunSpec]:
        """Return every run of the study, seed after seed; runs with equal settings are listed once."""
        points = SettingsGrid(self.grid, self.methods).points()
        first = (self._run(method, values, self.seeds[0]) for method, values in points)
        distinct = with_variants(list({settings_key(run.decisive()): run for run in first}.values()))
        return [run.model_copy(update={"seed": seed}) for seed in self.seeds for run in distinct]

    def _check_points(self) -> None:
        """Raise InputError for an invalid point of the grid, and for two points of one method that are the same run."""
        known: dict[tuple[int, str], str] = {}
        for method, values in SettingsGrid(self.grid, self.methods).points():
            run, point = self._run(method, values, self.seeds[0]), settings_key(values)
            other = known.setdefault((id(method), settings_key(run.decisive())), point)
            if other != point:
                raise InputError(f"grid: {other} and {point} are the same run of {method.label}; leave one of them out")

    def _run(self, method: NamedObject, values: dict[str, Any], seed: int) -> RunSpec:
        """Return the run at one point of the grid. Raises InputError, naming the key, for an invalid value."""
        shared = {name: getattr(self, name) for name in Experiment.model_fields if name != "client"}
        settings = {**shared, "client": self._client_for(method), "method": method, "seed": seed}
        if not values:
            return RunSpec(**settings)
        try:
            for key, value in values.items():
                settings = merged(RunSpec, settings, nested(key, value))
            return validated(RunSpec, settings)
        except InputError as error:
            raise InputError(f"grid: {str(error).removeprefix('grid.')}") from error

    def _client_for(self, method: NamedObject) -> Client:
        """Return the client settings of one method."""
        keys = (method.full_name, "-".join(map(portable, method.names())), method.name)
        own = next((self.client_of[key] for key in keys if key in self.client_of), None)
        if own is None:
            return self.client
        with errors_at(f"client_of.{method.full_name}"):
            client: Client = CLIENT.build({**table_of(self.client), **own})
        return client


def with_variants(runs: list[RunSpec]) -> list[RunSpec]:
    """Return `runs`, after noting in each run the settings that distinguish it from other runs of its method."""
    methods: dict[str, list[RunSpec]] = {}
    for run in runs:
        methods.setdefault(run.method.full_name, []).append(run)
    for group in methods.values():
        tables = [{name: value for name, value in run.decisive().items() if name != "seed"} for run in group]
        for run, variant in zip(group, variants(tables), strict=True):
            run._variant = variant
    return runs


def _method_name(name: str) -> str:
    """Return the method's full name (see `NamedObject`) for a user's spelling. Raises InputError if it is unknown."""
    if is_reference(name):
        return name
    wrappers = (known for known, cls in all_methods().items() if issubclass(cls, Wrapper))
    outer = next((wrapper for wrapper in wrappers if name.lower().startswith(f"{wrapper.lower()}-")), None)
    return f"{outer}-{_method_name(name[len(outer) + 1 :])}" if outer else find(name).__name__


def _check_method(section: NamedObject, weights: str, rounds: int | None) -> None:
    """Raise InputError if a method does not support these weights or this number of rounds.

    A method whose code may not be run here is not checked.
    """
    if section.is_loaded:
        check_weights(section.object, weights)
        if rounds is not None:
            section.object.check_rounds(rounds)


def _check_perturbation(section: NamedObject, client: Client, options: Perturbation | None) -> None:
    """Raise InputError for options that do not go with a method, unless its code may not be run here."""
    if section.is_loaded:
        check_perturbation(section.object, client, options)


def federated_data(spec: RunSpec) -> FederatedData:
    """Return the data of a run, split over its clients; all methods of a study share one copy."""
    options = table_of(spec.data)
    name, clients = options.pop("name"), options.pop("clients")
    options["tokenizer"] = spec.tokenizer
    return load_once(
        name, clients, spec.partition.object, spec.seed, spec.data_dir, (*options.items(), ("task", spec.task))
    )


@cache
def load_once(
    name: str, clients: int, scheme: Partition, seed: int, data_dir: str | None, options: tuple[tuple[str, Any], ...]
) -> FederatedData:
    """Return the result of `fedflat.data.load`, cached for the lifetime of the process."""
    return load(name, clients, scheme, seed, data_dir, **dict(options))


def participation_of(value: Any) -> Participation:
    """Return the participation that a configuration describes. Raises InputError for an invalid one."""
    if isinstance(value, dict):
        return validated(ParticipationSection, value).rule()
    return as_rule(value)
