"""A model as an ONNX file that takes samples as they were given for training, checked by onnxruntime."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from ..adapters import adapted_network
from ..core.errors import InputError, MissingPackageError, first_line
from ..core.torch_module import scores_of
from ..data.preparation import Preparation
from ..data.sample_kind import SampleKind
from ..data.schema import Schema
from ..engine.evaluation import predict

INPUT, OUTPUT, SAMPLES = "x", "scores", "samples"  # names in the file; the last one is that of the first axis
LARGEST = 2**31 - 1  # bytes of one ONNX file; a larger model needs further files beside it
TRACED, CHECKED = 2, (1, 3)  # number of samples with which the model is converted, and checked
TOLERANCE = 1e-5  # largest difference of two scores, by the largest score if that is above 1
STANDARD = ("", "ai.onnx")  # domains of ONNX's own operators; others need code that is not in the file


class _Network(nn.Module):
    """A model with the preparation of its samples before it."""

    def __init__(self, model: nn.Module, preparation: Preparation) -> None:
        super().__init__()
        self.model, self.preparation = model, preparation

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores (n, k) of stored samples `x` (n, *shape)."""
        return scores_of(self.model(self.preparation(x)))


def onnx_bytes(model: nn.Module, kind: SampleKind) -> bytes:
    """Convert `model`, in evaluation mode on the CPU, to ONNX, with the preparation of samples of the `kind`.

    The result gives the scores of `predict` for the same samples, to 1e-5. Raises InputError, naming the operator, if
    torch cannot convert the model, and if onnxruntime computes other scores.
    """
    schema, kind = kind.schema, replace(kind, schema=None)  # the input is the encoded row of a table
    _check_model(model)
    onnx, onnxruntime = _libraries()
    dtype = next(p.dtype for p in model.parameters())
    network = _Network(model, Preparation(kind.mean, kind.std, dtype)).eval()
    content = _converted(network, _random_samples(model, kind, dtype, TRACED))
    _check_operators(onnx, content)
    _check_scores(onnxruntime, content, model, kind, dtype)
    return content if schema is None else _described(onnx, content, schema)


def _described(onnx: Any, content: bytes, schema: Schema) -> bytes:
    """Add the schema of a table to the file's metadata, as JSON, because its input is the encoded row."""
    made = onnx.load_model_from_string(content)
    onnx.helper.set_model_props(made, {INPUT: f"rows of a table, encoded by {json.dumps(schema.stated)}"})
    described: bytes = made.SerializeToString()
    return described


def _check_model(model: nn.Module) -> None:
    """Raise InputError for a model with an adapter, and for one that is too large for one file."""
    if adapted_network(model) is not None:
        raise InputError("--format onnx: the run has an adapter, which stays apart from its base; leave --format out")
    size = sum(x.numel() * x.element_size() for x in model.state_dict().values())
    if size > LARGEST:
        raise InputError(f"--format onnx: the model has {size:,} bytes, and one ONNX file has at most {LARGEST:,}")


def _libraries() -> tuple[Any, Any]:
    """Import onnx and onnxruntime, here because they are optional."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise MissingPackageError("--format onnx needs the extra: pip install 'fedflat[onnx]'") from error
    return onnx, onnxruntime


def _random_samples(model: nn.Module, kind: SampleKind, dtype: torch.dtype, number: int) -> Tensor:
    """Draw `number` samples of the `kind`, always the same; every second text ends with padding."""
    generator, shape = torch.Generator().manual_seed(number), (number, *kind.shape)
    if kind.numbers == "floats":
        return torch.randn(shape, generator=generator, dtype=dtype)
    if kind.numbers == "pixels":
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    texts = [part for part in model.modules() if type(getattr(part, "vocabulary", None)) is int]
    tokens = torch.randint(min([int(one.vocabulary) for one in texts], default=2), shape, generator=generator)  # type: ignore[arg-type]
    tokens[::2, kind.shape[0] // 2 :] = next((int(one.padding) for one in texts if hasattr(one, "padding")), 0)  # type: ignore[arg-type]
    return tokens


def _converted(network: nn.Module, x: Tensor) -> bytes:
    """Convert `network` by tracing it with the samples `x`.

    This exporter of torch needs the package onnx alone; the newer one needs onnxscript, too.
    """
    axis = {0: SAMPLES}
    with TemporaryDirectory() as folder, warnings.catch_warnings(), _no_output():
        path = Path(folder) / "model.onnx"
        warnings.simplefilter("ignore")  # what a trace can miss is found by `_check_scores`
        try:
            torch.onnx.export(
                network, (x,), path, input_names=[INPUT], output_names=[OUTPUT],
                dynamic_axes={INPUT: axis, OUTPUT: axis}, dynamo=False,
            )  # fmt: skip
            return path.read_bytes()
        except Exception as error:  # of any type: the exporter raises what the model's operators raise
            reason = first_line(error).partition("  [Caused by")[0]  # which names lines of the model's source
            raise InputError(f"--format onnx: torch cannot convert the model: {reason}") from error


@contextmanager
def _no_output() -> Iterator[None]:
    """Discard the standard output inside the block: when it fails, torch prints the whole graph there."""
    kept = os.dup(1)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _check_operators(onnx: Any, content: bytes) -> None:
    """Raise InputError, naming the operator, if the file needs code or files of others."""
    made = onnx.load_model_from_string(content)
    onnx.checker.check_model(made)
    other = [f"{node.domain}::{node.op_type}" for node in made.graph.node if node.domain not in STANDARD]
    if other:
        raise InputError(f"--format onnx: {other[0]} is no operator of ONNX, so that programs cannot run the file")


def _check_scores(onnxruntime: Any, content: bytes, model: nn.Module, kind: SampleKind, dtype: torch.dtype) -> None:
    """Raise InputError if onnxruntime computes other scores than the model, for batches of several sizes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors, which it raises as well
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        for number in CHECKED:
            x = _random_samples(model, kind, dtype, number)
            found = torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0])
            _check_equal(found, predict(model, kind, x))
    except InputError:
        raise
    except Exception as error:  # of any type: those of onnxruntime have no common class
        raise InputError(f"--format onnx: onnxruntime cannot run the model: {first_line(error)}") from error


def _check_equal(found: Tensor, expected: Tensor) -> None:
    """Raise InputError unless the scores `found` (n, k) are the `expected` ones to 1e-5."""
    if found.shape != expected.shape:
        raise InputError(
            f"--format onnx: the file gives scores {tuple(found.shape)}, the model {tuple(expected.shape)}"
        )
    difference, scale = float((found - expected).abs().max()), max(1.0, float(expected.abs().max()))
    if not difference <= TOLERANCE * scale:
        raise InputError(f"--format onnx: onnxruntime's scores differ by {difference:.1e} from the model's")
