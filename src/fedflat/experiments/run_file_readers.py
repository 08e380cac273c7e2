"""Readers of the files of a finished run. They check every value, because anybody may have written the files.

Every reader raises InputError with one line that names the file and the key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from ..core.errors import InputError, printable
from ..core.task import CROSS_ENTROPY
from ..data.partition_statistics import PartitionStatistics
from ..data.sample_kind import SampleKind
from ..data.types import Index
from ..files import parsed, read_bytes
from ..metrics.by_client import MOST_CLIENTS, ClientScores
from ..metrics.flatness import Finding
from ..metrics.protocols import SCORES
from ..rounds.settings import CLASS, flattened
from .config_errors import short_repr
from .spec import MAX_CLIENTS, MAX_ROUNDS

MAX_JSON_BYTES = 2**25  # of summary.json and flatness.json; listed cohorts of a million clients have some millions
MAX_PARQUET_BYTES = 2**28
MAX_METRICS = 1000  # columns of metrics.parquet
MAX_CLASSES = 10**6  # columns of partition.parquet
MAX_CELLS = 10**8  # of a parquet file: a million clients with 100 classes, 0.8 GB
MAX_TEXT = 1000  # characters
MAX_COHORTS_TEXT = 2**24  # characters of the text that may list cohorts
MAX_AXES = 8  # of a sample
MAX_CURVE = 100_000  # points
MAX_NUMBER = 1e300  # so that a mean is finite
REQUIRED_COLUMNS = ("t", "gradients", "bytes_down", "bytes_up")  # of metrics.parquet
SHARES = ("test_accuracy", "test_mean_iou", "validation_accuracy")  # columns in [0, 1], whose cells may be empty
T = TypeVar("T")


def _no_control_characters(text: str) -> str:
    """Refuse control characters, because labels go to terminals, figures and pages."""
    if printable(text) != text:
        raise ValueError("control characters")
    return text


Text = Annotated[str, StringConstraints(max_length=MAX_TEXT), AfterValidator(_no_control_characters)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_no_control_characters)]
Loss = float  # may be infinite or NaN: a diverged model still has an accuracy
Amount = Annotated[float, Field(ge=0, le=MAX_NUMBER)]
Share = Annotated[float, Field(ge=0, le=1)]
Rounds = Annotated[int, Field(ge=1, le=MAX_ROUNDS)]
Scalar = bool | int | float | Text | None


def _as(part: type[BaseModel]) -> AfterValidator:
    """Return a validator that checks a table as a `part` and returns the table unchanged."""

    def check(table: dict[str, Any]) -> dict[str, Any]:
        try:
            part.model_validate(table)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        return table

    return AfterValidator(check)


class _FilePart(BaseModel):
    """A part of a JSON file; unknown keys are kept."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Numbers(_FilePart):
    """The numbers that every summary has; any other value must only be a number."""

    __pydantic_extra__: dict[str, Loss]
    rounds: Rounds
    parameters: int = Field(ge=1)
    vector_bytes: int = Field(ge=1)
    gradients: Amount
    bytes_down: Amount
    bytes_up: Amount
    drift: Loss
    train_loss: Loss
    seconds: Amount


def _plain_table(table: dict[str, Any]) -> dict[str, Any]:
    """Refuse a table without the name of a class, or with values other than numbers, texts, None and lists of them."""
    if not isinstance(table.get(CLASS), str):
        raise ValueError(f"a table needs the name of its {CLASS}")
    for name, value in flattened(table).items():
        parts = value if isinstance(value, list) else [value]
        longest = MAX_COHORTS_TEXT if name.endswith("cohorts") else MAX_TEXT
        for text in (name, *(part for part in parts if isinstance(part, str))):
            if len(text) > longest:
                raise ValueError(f"{short_repr(name)} is too long")
            _no_control_characters(text)
        if not all(part is None or isinstance(part, bool | int | float | str) for part in parts):
            raise ValueError(f"{short_repr(name)} is neither a number nor a text")
    return table


Table = Annotated[dict[Key, Any], AfterValidator(_plain_table)]


def _required(**kinds: Any) -> type[_FilePart]:
    """Return a class of file parts; `kinds` are its keys, all required, with the types of their values."""
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in kinds.items()}
    return pydantic.create_model("_Required", __base__=_FilePart, **fields)


# The settings of local training, of the model and of differential privacy that pages show.
_Client = _required(
    lr=Amount, lr_decay=Amount, epochs=int | None, steps=int | None, batch_size=int | None, weight_decay=Amount,
    max_norm=Loss, momentum=Amount, wd_scope=Text, clip_scope=Text,
)  # fmt: skip
_Model = _required(parameters=Annotated[int, Field(ge=1)], dtype=Text)
_Privacy = _required(noise=Text)


class _Participation(_FilePart):
    """The settings of participation that pages show."""

    number: int = 1
    share: Share = 1.0
    p: Share = 1.0
    rate: Share = 1.0


class _Data(_FilePart):
    """The data set and its partition."""

    name: Text
    clients: int = Field(ge=1, le=MAX_CLIENTS)
    partition: Table | Text


class _Settings(_FilePart):
    """The table of settings that the rounds depend on."""

    __pydantic_extra__: dict[str, Scalar]
    method: Table
    label: Text
    method_code: Text | None
    client: Annotated[Table, _as(_Client)]
    participation: Annotated[Table, _as(_Participation)]
    augmentation: Table | None
    adapter: Table | None
    guard: Table | None
    attack: Table | None
    privacy: Annotated[Table, _as(_Privacy)] | None
    perturbation: Table | None = None  # missing without options
    compress: Table | None = None  # likewise
    buffers: Text | None = None  # missing in older files, as `keep`
    keep: list[Text] | None = None
    loss: Text
    weights: Text
    seed: int
    data: _Data
    partition_hash: Text
    data_hash: Text
    model: Annotated[Table, _as(_Model)]
    model_hash: Text
    base_hash: Text | None
    precision: Text
    layers: Text
    executor: Text
    split: dict[str, Any]


class _Architecture(_FilePart):
    """The arguments that build the initial model."""

    name: Text
    options: dict[Key, Scalar | list[Scalar]]
    classes: int = Field(ge=1, le=MAX_CLASSES)
    shape: list[Annotated[int, Field(ge=1)]] = Field(max_length=MAX_AXES)
    dtype: Literal["float16", "bfloat16", "float32", "float64"]
    seed: int = Field(ge=0)
    adapter: dict[Key, Scalar | list[Text]] | None


def _checked_clients(found: ClientScores) -> ClientScores:
    """Return the scores of clients. Raises ValueError for lists of different lengths, names and shares out of range."""
    number = len(found.client)
    lists: list[Sequence[object]] = [found.samples, *found.recall.values()]
    lists += [some for some in (found.name, found.accuracy, found.personal_accuracy) if some]
    if not 0 < number <= MOST_CLIENTS or {len(some) for some in lists} != {number}:
        raise ValueError("lists of different lengths, or too many clients")
    shares = (*found.accuracy, *found.personal_accuracy, *(one for some in found.recall.values() for one in some))
    if not all(share is None or 0 <= share <= 1 for share in shares) or not (found.accuracy or found.personal_accuracy):
        raise ValueError("a share outside [0, 1], or no accuracy")
    for name in (*found.name, *found.recall):
        if len(name) > MAX_TEXT or printable(name) != name:
            raise ValueError("a name that is long or not printable")
    return found


class Summary(_FilePart):
    """The content of summary.json."""

    summary: dict[Key, int | float]
    targets: list[dict[str, Any]] = Field(max_length=1000)
    settings: _Settings
    cost: dict[Key, int]
    architecture: _Architecture | None = None  # None for a module of the user's own
    samples: SampleKind
    clients: Annotated[ClientScores, AfterValidator(_checked_clients)] | None = None  # if they have test samples


def _of_score(name: str) -> type[_FilePart]:
    """Return the numbers that a summary has with the score called `name`."""
    kind: Any = Share if name in SHARES else Loss
    kinds = {name: kind, f"{name}_std": kind, f"{name}_evaluations": Rounds, f"{name}_last": kind}
    return _required(**kinds, test_loss_last=Loss)


# Groups of further numbers, by the first name of each group; some need a test set, validation samples or both.
FURTHER_NUMBERS = {
    "client_accuracy_mean": _required(
        client_accuracy_mean=Share, client_accuracy_std=Share, client_accuracy_worst=Share, client_accuracy_best=Share,
    ),
    "client_test_accuracy_mean": _required(
        client_test_accuracy_mean=Share, client_test_accuracy_std=Share, client_test_accuracy_worst=Share,
        client_test_accuracy_best=Share, client_test_accuracy_worst_tenth=Share,
    ),
    "personal_test_accuracy_mean": _required(
        personal_test_accuracy_mean=Share, personal_test_accuracy_std=Share, personal_test_accuracy_worst=Share,
        personal_test_accuracy_best=Share, personal_test_accuracy_worst_tenth=Share,
    ),
    "personal_accuracy_mean": _required(
        personal_accuracy_mean=Share, personal_accuracy_std=Share, personal_accuracy_worst=Share,
        personal_accuracy_best=Share,
    ),
    "validation_accuracy_mean": _required(
        validation_accuracy_mean=Share, validation_accuracy_std=Share, validation_accuracy_worst=Share,
        validation_accuracy_best=Share,
    ),
    "test_samples": _required(test_samples=Annotated[int, Field(ge=1)]),
    "epsilon": _required(epsilon=Amount, epsilon_replace_one=Amount, delta=Share, noise_multiplier=Amount),
    "best_validation_round": _required(best_validation_round=Rounds),
    **{name: _of_score(name) for name in SCORES},
    **{f"{name}_best_validation": _required(**{f"{name}_best_validation": Share}) for name in SCORES if name in SHARES},
}  # fmt: skip
_FINDINGS = TypeAdapter(list[Finding])
_SPLIT = TypeAdapter(PartitionStatistics)


def read_summary(path: Path) -> Summary:
    """Read summary.json."""
    content = _validated(path, lambda: Summary.model_validate_json(read_bytes(path, MAX_JSON_BYTES)))
    numbers = content.summary
    expected = set(numbers) | _expected(content.settings)
    kinds: list[type[_FilePart]] = [_Numbers, *(kind for name, kind in FURTHER_NUMBERS.items() if name in expected)]
    for kind in kinds:
        _validated(path, partial(kind.model_validate, numbers), "summary")
    split = _validated(path, lambda: _SPLIT.validate_python(content.settings.split), "settings", "split")
    content.settings.split = vars(split)
    return content


def _expected(settings: _Settings) -> set[str]:
    """Return the keys of `FURTHER_NUMBERS` that a summary must have with these settings."""
    if settings.privacy is not None:
        return {"epsilon"}
    # With another loss there may be no accuracy.
    return {"client_accuracy_mean"} if settings.loss == CROSS_ENTROPY.loss else set()


def read_findings(path: Path) -> list[Finding]:
    """Read the findings of measures in flatness.json."""
    findings = _validated(path, lambda: _FINDINGS.validate_json(read_bytes(path, MAX_JSON_BYTES), strict=True))
    for place, finding in enumerate(findings):
        where, curves = f"{path}: {place}", finding.curves.values()
        labels = [text for curve in curves for text in (curve.x_label, curve.y_label)]
        for text in (finding.measure, finding.protocol, *finding.values, *finding.curves, *labels):
            if len(text) > 10 * MAX_TEXT or printable(text) != text:
                raise InputError(f"{where}: a text is too long or has control characters: {short_repr(text)}")
        for name, curve in finding.curves.items():
            lengths = {len(values) for values in (curve.x, curve.y, curve.error) if values is not None}
            if len(lengths) != 1 or not 1 <= lengths.pop() <= MAX_CURVE or not np.isfinite(curve.x).all():
                raise InputError(
                    f"{where}.curves.{name}: x, y and error must be finite and of one length up to {MAX_CURVE:,}"
                )
    return findings


def read_metrics(path: Path) -> pa.Table:
    """Read metrics.parquet: a row for each round, and columns of numbers, among them `REQUIRED_COLUMNS`."""
    table = _read_table(path, MAX_ROUNDS, MAX_METRICS)
    missing = [name for name in REQUIRED_COLUMNS if name not in table.column_names]
    if missing:
        raise InputError(f"{path} has no column {missing[0]}")
    _check_column(path, table, "t", 0, MAX_ROUNDS, integers=True)
    for name in ("gradients", "bytes_down", "bytes_up"):
        _check_column(path, table, name, 0, MAX_NUMBER)
    for name in SHARES:
        if name in table.column_names:
            _check_column(path, table, name, 0, 1, may_be_empty=True)
    return table


def read_counts(path: Path) -> Index:
    """Read the samples per client and class, (clients, classes), in partition.parquet."""
    table = _read_table(path, MAX_CLIENTS, MAX_CLASSES)
    for name in table.column_names:
        _check_column(path, table, name, 0, 2**53, integers=True)
    counts: Index = np.column_stack([column.to_numpy() for column in table.columns])
    return counts


def _validated(path: Path, validate: Callable[[], T], *place: str) -> T:
    """Return `validate()`. Raises InputError that names the file and the key, which begins with `place`."""
    try:
        result: T = parsed(path, validate)
    except InputError as error:
        if not isinstance(error.__cause__, ValidationError):
            raise
        first = error.__cause__.errors(include_url=False, include_context=False)[0]
        key = printable(".".join(str(part)[:60] for part in (*place, *first["loc"]))[:200])
        given = "" if first["type"] in ("missing", "json_invalid") else f", got {short_repr(first['input'])}"
        message = printable(f"{path} is damaged: {key + ': ' if key else ''}{first['msg']}{given}")
        raise InputError(message) from error
    return result


def _read_table(path: Path, rows: int, columns: int) -> pa.Table:
    """Read a parquet file of numbers, with at most `rows` rows and `columns` columns.

    The size in the header is checked before the cells are read.
    """
    content = pa.BufferReader(read_bytes(path, MAX_PARQUET_BYTES))
    file = parsed(path, lambda: pq.ParquetFile(content))
    facts, names = file.metadata, file.schema_arrow.names
    if not (1 <= facts.num_rows <= rows and 1 <= len(names) <= columns and facts.num_rows * len(names) <= MAX_CELLS):
        raise InputError(f"{path} is damaged: it has {facts.num_rows:,} rows and {len(names):,} columns")
    for field in file.schema_arrow:
        if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type)) or names.count(field.name) > 1:
            raise InputError(printable(f"{path} is damaged: column {short_repr(field.name)} is no column of numbers"))
        if printable(field.name[: MAX_TEXT + 1]) != field.name or len(field.name) > MAX_TEXT:
            raise InputError(printable(f"{path} is damaged: the name of a column is {short_repr(field.name)}"))
    return parsed(path, file.read)


def _check_column(
    path: Path, table: pa.Table, name: str, low: float, high: float, integers: bool = False, may_be_empty: bool = False
) -> None:
    """Raise InputError unless all values of a column are in [low, high]; empty cells are valid if `may_be_empty`."""
    column = table[name]
    if integers and not pa.types.is_integer(column.type):
        raise InputError(f"{path} is damaged: column {name} has no integers")
    if column.null_count and not may_be_empty:
        raise InputError(f"{path} is damaged: column {name} has empty cells")
    if column.null_count == len(column):
        return
    good = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))  # both are false for NaN
    if not pc.all(good).as_py():
        raise InputError(f"{path} is damaged: column {name} has values outside [{low:g}, {high:g}]")
