"""Exports a finished run for other programs: the model as files, and predictions for new samples as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save
from torch import Tensor, nn

from ..adapters import adapted_network, network_of
from ..adapters.peft_files import export_adapter
from ..core.errors import InputError, printable
from ..core.progress import Progress
from ..data.own_tables import CSV, JSONL
from ..data.readers.array_files import read_samples
from ..data.readers.file_search import plain_files
from ..data.readers.layouts import Shape
from ..data.readers.picture_folders import SUFFIXES
from ..data.readers.pictures import decode_pictures
from ..data.readers.untrusted_files import MAX_ENCODED_BYTES, MAX_FILE_BYTES, listed, read_regular
from ..data.sample_kind import SampleKind
from ..data.schema import Schema
from ..data.tables import TableRows
from ..engine.evaluation import classes_of
from ..files import make_folder, read_text, write_atomically, write_text
from .csv_text import csv_line
from .load_script import SNIPPET, ExportKind, load_script, onnx_script, own_file
from .model_card import CARD, base_model, model_card
from .onnx_file import onnx_bytes

if TYPE_CHECKING:
    from .run_directory import Format, StoredRun

MODEL, BASE, ONNX = "model.safetensors", "base.safetensors", "model.onnx"
TABLES = (".csv", ".parquet")  # formats of predictions
Samples = tuple[list[str], Iterator[Any]]  # the names of all samples, and an iterator over pieces of the samples
AT_ONCE, BYTES = 1024, 2**28  # most samples of a piece, and most bytes of their pixels


def export(run: StoredRun, folder: Path, format: Format = "safetensors", license: str | None = None) -> list[str]:
    """Write a run's model into the new `folder`; return the names of the files.

    In the format "safetensors" this is the adapter as `peft` reads it or, without an adapter, the model's `state_dict`.
    In the format "onnx" it is a program that takes samples as they were given for training, see `onnx_file`. The file
    load.py shows how to load the model, and README.md is its card, see `model_card`, with `license`. Raises InputError
    if the folder is not empty or cannot be written, if the model cannot be converted, and in the cases in which
    `StoredRun.model` raises it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already; give a new folder")
    card = model_card(run, license)
    names = _write_onnx(run, folder) if format == "onnx" else _write_tensors(run, folder)
    write_text(folder / CARD, card)
    return [*names, CARD]


def _write_onnx(run: StoredRun, folder: Path) -> list[str]:
    """Write the model as ONNX."""
    content = onnx_bytes(run.model, run.samples)
    make_folder(folder)
    write_atomically(folder / ONNX, lambda path: path.write_bytes(content))
    write_text(folder / SNIPPET, onnx_script(run.samples))
    return [ONNX, SNIPPET]


def _write_tensors(run: StoredRun, folder: Path) -> list[str]:
    """Write the parameters of the adapter, or of the model, as safetensors."""
    model, initial = run.model, run.initial_model
    network, own = adapted_network(model), own_file(initial)
    kind: ExportKind = "model"
    make_folder(folder)
    if network is None:
        _write_state(model, folder / MODEL)
        names = [MODEL]
    else:
        names, kind = export_adapter(network, folder, base_model(initial.options)), "adapter"
        if all(initial.options.get(name) is None for name in ("path", "pretrained")):  # the base has random weights
            _write_state(network_of(replace(initial, adapter=None).module()), folder / BASE)
            names, kind = [*names, BASE], "fresh"
    if own is not None:
        code = read_regular(own, MAX_FILE_BYTES)
        write_atomically(folder / own.name, lambda path: path.write_bytes(code))
        names = [*names, own.name]
    inner = network is not None and hasattr(network.base_model.model, "base_model_prefix")
    write_text(folder / SNIPPET, load_script(initial, run.samples, kind, ".network" if inner else ""))
    return [*names, SNIPPET]


def _write_state(model: nn.Module, path: Path) -> None:
    """Write all parameters and buffers of `model`, by name, to a safetensors file."""
    state = {name: x.detach().cpu().contiguous().clone() for name, x in model.state_dict().items()}
    write_atomically(path, lambda temporary: temporary.write_bytes(save(state)))


def predict_file(run: StoredRun, source: Path, out: Path, scores: bool, probabilities: bool, progress: Progress) -> int:
    """Write the predictions of `run` for the samples in `source` to the new file `out`; return how many there are.

    Raises InputError, naming file or option, if `out` exists, and for samples of another kind than in training.
    """
    if out.suffix not in TABLES:
        raise InputError(f"--out {out} must end in {' or '.join(TABLES)}")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}")
    if out.exists():
        raise InputError(f"--out {out} is there already; choose another name, or remove it")
    if probabilities and run.samples.task == "regression":
        raise InputError("--probabilities: a regression has none; its predictions are the numbers")
    if run.samples.form.has_positions:
        raise InputError(f"--input: a table has a line for each sample, and in {run.samples.task} each position has a "
                         "prediction; use predict of the loaded run in Python")  # fmt: skip
    (names, pieces), parts = _samples(source, run), list[Tensor]()
    if not names:
        raise InputError(f"--input {source} has no samples")
    for piece in pieces:
        parts.append(run.predict(piece))
        progress("samples", sum(map(len, parts)), len(names))
    table = _table(names, torch.cat(parts), run.samples, scores, probabilities)
    write_atomically(out, partial(pq.write_table, table) if out.suffix == ".parquet" else partial(_write_csv, table))
    return len(names)


def _table(names: list[str], scores: Tensor, kind: SampleKind, with_scores: bool, probabilities: bool) -> pa.Table:
    """Return a table with a row for each sample: name, prediction, and on request scores or probabilities."""
    labels: Sequence[str] = kind.class_names or list(map(str, range(kind.outputs)))
    columns: dict[str, Any] = {"sample": names}
    further = {"score": scores} if with_scores else {}
    if kind.task == "classification":
        columns["class"] = [labels[i] for i in classes_of(scores, kind).tolist()]
    else:
        further = {"prediction": scores if kind.task == "regression" else classes_of(scores, kind)} | further
    if probabilities:
        wide = scores.double()
        further["probability"] = wide.softmax(-1) if kind.task == "classification" else wide.sigmoid()
    for name, values in further.items():
        columns |= {f"{name}_{label}": values[:, i].numpy() for i, label in enumerate(labels)}
    return pa.table(columns)


def _write_csv(table: pa.Table, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(csv_line(table.column_names))
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
            file.write(csv_line(row))


def _samples(source: Path, run: StoredRun) -> Samples:
    """Read the samples in a file or a folder; return their names, and an iterator over pieces of the samples.

    A piece has at most `AT_ONCE` samples, or ten times as many texts.
    """
    kind = run.samples
    if not source.exists():
        raise InputError(f"--input {source} is not there")
    if kind.schema is not None:
        return _of_table(source, kind.schema)
    if source.is_dir() or source.suffix.lower() in SUFFIXES:
        return _of_pictures(source, run)
    if source.suffix == ".npz":
        x = read_samples(source)
        return _numbered(x)
    if source.suffix == ".txt":
        text = read_text(source, MAX_FILE_BYTES).removesuffix("\n")
        return _numbered(text.replace("\r\n", "\n").split("\n") if text else [], 10 * AT_ONCE)
    if source.suffix == ".parquet":
        # imported here, because most inputs need no parquet
        from ..data.readers.parquet_columns import picture_column, text_column

        if kind.numbers == "floats":
            raise InputError(f"--input {source} has pictures or texts, and the run was trained on floats of shape "
                             f"{kind.shape}; give these as x in an npz")  # fmt: skip
        if kind.numbers != "pixels":
            return _numbered(text_column(source, "text"), 10 * AT_ONCE)
        rows, encoded = picture_column(source, "image")
        return list(map(str, range(rows))), _decoded(encoded, _shape(source, run))
    raise InputError(f"--input {source} must be .npz, .parquet, .txt, a picture or a folder of pictures")


def _of_table(source: Path, schema: Schema) -> Samples:
    """Read the columns of a table that the schema uses; there may be others, such as the label's."""
    reader = next((one.reader for one in (CSV, JSONL) if source.suffix in one.suffixes), None)
    if reader is None:
        raise InputError(f"--input {source} must be .csv, .tsv or .jsonl with the columns "
                         f"{listed(schema.feature_columns)}: the run was trained on rows of a table, which are scaled "
                         "and encoded")  # fmt: skip
    table, names = reader(source), schema.feature_columns
    number = sum(len(columns[0]) for _, columns in table.columns(names))
    pieces = (
        TableRows(source, range(first, first + len(columns[0])), dict(zip(names, columns, strict=True)))
        for first, columns in table.columns(names)
    )
    return list(map(str, range(number))), pieces


def _of_pictures(source: Path, run: StoredRun) -> Samples:
    """Read a picture, or all pictures in a folder and its subfolders, named by their paths in the folder."""
    files = [source] if source.is_file() else [x for x in plain_files(source) if x.suffix.lower() in SUFFIXES]
    if not files:
        raise InputError(f"--input {source} has no pictures ({', '.join(sorted(SUFFIXES))})")
    names = [printable((path.relative_to(source) if path != source else Path(path.name)).as_posix()) for path in files]
    encoded = ((str(path), partial(read_regular, path, MAX_ENCODED_BYTES)) for path in files)
    return names, _decoded(encoded, _shape(source, run))


def _shape(source: Path, run: StoredRun) -> Shape:
    """Return the shape to decode pictures to. Raises InputError for a run that was not trained on square pictures."""
    kind = run.samples
    fits = kind.numbers == "pixels" and len(kind.shape) == 3 and kind.shape[0] in (1, 3)
    if not fits or kind.shape[1] != kind.shape[2]:
        raise InputError(f"--input {source} has pictures, and the run was trained on {kind.numbers} of shape "
                         f"{kind.shape}; give samples as they were given for training, as x in an npz")  # fmt: skip
    return run.picture_shape()


def _numbered(samples: Any, at_once: int = AT_ONCE) -> Samples:
    """Return the indices of samples as their names, and the samples in pieces of `at_once`."""
    pieces = (samples[start : start + at_once] for start in range(0, len(samples), at_once))
    return list(map(str, range(len(samples)))), pieces


def _decoded(encoded: Iterable[tuple[str, Callable[[], bytes]]], shape: Shape) -> Iterator[Tensor]:
    pictures = decode_pictures(encoded, shape)
    at_once = max(1, min(AT_ONCE, BYTES // (shape.channels * shape.size**2)))
    while piece := list(islice(pictures, at_once)):
        yield torch.from_numpy(np.stack(piece))
