"""What a run leaves, read back: nothing in its folder is believed before it has been looked at.

Every function raises InputError, one line that names the file and the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from ..core.errors import InputError, printable
from ..data.partition_statistics import PartitionStatistics
from ..files import parsed, read_bytes
from ..metrics.flatness import Finding
from .config_errors import shown
from .spec import CLIENTS, ROUNDS

REPORT = 2**25  # bytes of summary.json and flatness.json; listed cohorts of a million clients have some millions
TABLE = 2**28  # bytes of a parquet file
METRICS = 1000  # columns of metrics.parquet
CELLS = 10**8  # of a parquet file: a million clients with 100 classes, 0.8 GB
LABEL, LONG = 1000, 2**24  # characters of a text; of the one that may list cohorts
CURVE = 100_000  # points of a curve
MOST = 1e300  # of a number whose mean is taken
NEEDED = ("t", "gradients", "bytes_down", "bytes_up")  # columns of metrics.parquet
SHARES = ("test_accuracy", "validation_accuracy")  # columns, and kinds of numbers of a summary, in [0, 1]


def _plain(text: str) -> str:
    """Refuse control characters: labels go to terminals, figures and pages."""
    if printable(text) != text:
        raise ValueError("control characters")
    return text


Text = Annotated[str, StringConstraints(max_length=LABEL), AfterValidator(_plain)]
Listing = Annotated[str, StringConstraints(max_length=LONG), AfterValidator(_plain)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_plain)]
Number = Annotated[float, Field(ge=-MOST, le=MOST)]
Loss = float  # may be infinite, or NaN: a model can be that bad and have an accuracy
Amount = Annotated[float, Field(ge=0, le=MOST)]
Share = Annotated[float, Field(ge=0, le=1)]
Scalar = bool | int | float | Text | None


class _Read(BaseModel):
    """A part of a file; keys that a later version may add are kept."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Numbers(_Read):
    """What is known of the numbers of a summary; the others are any numbers."""

    __pydantic_extra__: dict[str, Loss]
    rounds: int = Field(ge=1, le=ROUNDS)
    parameters: int = Field(ge=1)
    vector_bytes: int = Field(ge=1)
    client_accuracy_mean: Share
    client_accuracy_std: Share
    client_accuracy_worst: Share
    client_accuracy_best: Share
    gradients: Amount
    bytes_down: Amount
    bytes_up: Amount
    drift: Loss
    train_loss: Loss
    seconds: Amount


class _Tested(_Read):
    """What a summary has beside that if there is a test set."""

    test_accuracy: Share
    test_accuracy_std: Share
    test_accuracy_evaluations: int = Field(ge=1, le=ROUNDS)
    test_accuracy_last: Share
    test_loss_last: Loss


class _Validated(_Read):
    """What a summary has beside that if clients have validation samples."""

    validation_accuracy_mean: Share
    validation_accuracy_std: Share
    validation_accuracy_worst: Share
    validation_accuracy_best: Share


class _Best(_Read):
    """What a summary with both has beside that."""

    best_validation_round: int = Field(ge=1, le=ROUNDS)
    test_accuracy_best_validation: Share


class _Settings(_Read):
    """What the rounds depend on, in words."""

    __pydantic_extra__: dict[str, Scalar]
    method: Text
    client: Text
    participation: Listing
    weights: Text
    seed: int
    data: Text
    partition_hash: Text
    data_hash: Text
    augmentation: Text
    model: Text
    model_hash: Text
    executor: Text
    hyper: dict[Key, Scalar]
    split: dict[str, Any]


class _Summary(_Read):
    """summary.json."""

    summary: dict[Key, int | float]
    targets: list[dict[str, Any]] = Field(max_length=1000)
    settings: _Settings
    cost: dict[Key, int]


ADDITIONS = {"test_accuracy": _Tested, "validation_accuracy_mean": _Validated, "best_validation_round": _Best}
FINDINGS = TypeAdapter(list[Finding])
SPLIT = TypeAdapter(PartitionStatistics)


def read_summary(path: Path) -> dict[str, Any]:
    """What summary.json holds: numbers in `summary`, `targets`, `settings` in words, and `cost`."""
    read: _Summary = _checked(path, lambda: _Summary.model_validate_json(read_bytes(path, REPORT)))
    content, numbers = read.model_dump(), read.summary
    for kind in (_Numbers, *(kind for name, kind in ADDITIONS.items() if name in numbers)):
        _checked(path, lambda kind=kind: kind.model_validate(numbers), "summary")
    split = _checked(path, lambda: SPLIT.validate_python(content["settings"]["split"]), "settings", "split")
    content["settings"]["split"] = vars(split)
    return content


def read_findings(path: Path) -> list[Finding]:
    """What flatness.json holds."""
    findings = _checked(path, lambda: FINDINGS.validate_json(read_bytes(path, REPORT), strict=True))
    for place, finding in enumerate(findings):
        _check_finding(finding, f"{path}: {place}")
    return findings


def read_metrics(path: Path) -> pa.Table:
    """What metrics.parquet holds: a row for each round, columns of numbers; among them those that all runs have."""
    table = _table(path, ROUNDS, METRICS)
    missing = [name for name in NEEDED if name not in table.column_names]
    if missing:
        raise InputError(f"{path} has no column {missing[0]}")
    _check_column(path, table, "t", 0, ROUNDS, whole=True)
    for name in ("gradients", "bytes_down", "bytes_up"):
        _check_column(path, table, name, 0, MOST)
    for name in SHARES:
        if name in table.column_names:
            _check_column(path, table, name, 0, 1, gaps=True)
    return table


def read_counts(path: Path) -> np.ndarray:
    """What partition.parquet holds: samples per client and class, (clients, classes)."""
    table = _table(path, CLIENTS, LABEL * METRICS)
    for name in table.column_names:
        _check_column(path, table, name, 0, 2**53, whole=True)
    return np.column_stack([column.to_numpy() for column in table.columns])


def _checked(path: Path, validate: Any, *place: str) -> Any:
    """What `validate` gives. Raises InputError, naming file and key."""
    try:
        return parsed(path, validate)
    except InputError as error:
        cause = error.__cause__
        raise InputError(_problem(path, cause, place) if isinstance(cause, ValidationError) else str(error)) from error


def _problem(path: Path, error: ValidationError, place: Sequence[str]) -> str:
    """The first problem of a file in one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    key = printable(".".join(str(part)[:60] for part in (*place, *first["loc"]))[:200])
    given = "" if first["type"] in ("missing", "json_invalid") else f", got {shown(first['input'])}"
    return printable(f"{path} is damaged: {key + ': ' if key else ''}{first['msg']}{given}")


def _check_finding(finding: Finding, where: str) -> None:
    """Raise InputError for texts or curves that nobody could show."""
    curves = finding.curves.values()
    labels = [text for curve in curves for text in (curve.x_label, curve.y_label)]
    for text in (finding.measure, finding.protocol, *finding.values, *finding.curves, *labels):
        if len(text) > 10 * LABEL or printable(text) != text:
            raise InputError(f"{where}: a text is too long or has control characters: {shown(text)}")
    for name, curve in finding.curves.items():
        lengths = {len(values) for values in (curve.x, curve.y, curve.error) if values is not None}
        if len(lengths) != 1 or not 1 <= lengths.pop() <= CURVE or not np.isfinite(curve.x).all():
            raise InputError(f"{where}.curves.{name}: x, y and error must be finite and of one length up to {CURVE:,}")


def _table(path: Path, rows: int, columns: int) -> pa.Table:
    """A parquet file of numbers, not read before its own account of its size has been."""
    content = pa.BufferReader(read_bytes(path, TABLE))
    file = parsed(path, lambda: pq.ParquetFile(content))
    facts, names = file.metadata, file.schema_arrow.names
    if not (1 <= facts.num_rows <= rows and 1 <= len(names) <= columns and facts.num_rows * len(names) <= CELLS):
        raise InputError(f"{path} is damaged: it has {facts.num_rows:,} rows and {len(names):,} columns")
    for field in file.schema_arrow:
        if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type)) or names.count(field.name) > 1:
            raise InputError(printable(f"{path} is damaged: column {shown(field.name)} is no column of numbers"))
        if printable(field.name[: LABEL + 1]) != field.name or len(field.name) > LABEL:
            raise InputError(printable(f"{path} is damaged: the name of a column is {shown(field.name)}"))
    return parsed(path, file.read)


def _check_column(
    path: Path, table: pa.Table, name: str, low: float, high: float, whole: bool = False, gaps: bool = False
) -> None:
    """Raise InputError unless all values of a column, which may have `gaps`, are in [low, high]."""
    column = table[name]
    if whole and not pa.types.is_integer(column.type):
        raise InputError(f"{path} is damaged: column {name} has no whole numbers")
    if column.null_count and not gaps:
        raise InputError(f"{path} is damaged: column {name} has empty cells")
    if column.null_count == len(column):
        return
    good = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))  # of NaN neither holds
    if not pc.all(good).as_py():
        raise InputError(f"{path} is damaged: column {name} has values outside [{low:g}, {high:g}]")
