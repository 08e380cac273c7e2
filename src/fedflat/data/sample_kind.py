"""The kind of samples that a model was trained on: new samples are prepared in the same way, or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from numbers import Number
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError, printable
from ..core.task import FORMS, Kind, LabelForm
from .arrays import has_columns, stacked
from .conversion import encode
from .federated import FederatedData
from .labels import MAX_NAME
from .numbers import NumberKind, is_table, kind_of, sample_tensor
from .preparation import Preparation
from .readers.untrusted_files import listed
from .schema import Schema
from .tables import TableRows, features_to_predict, rows_of_table

MEANING: dict[NumberKind, str] = {
    "pixels": "pixels (uint8), which models see scaled to [0, 1]",
    "tokens": "tokens (whole numbers)",
    "floats": "floats",
}
LARGEST = 10**8  # largest size of a sample: the product of its shape
Encoder = Callable[[Sequence[str]], Any]  # texts to token numbers (n, tokens)


@dataclass(frozen=True)
class SampleKind:
    """The kind of the training samples of a run, and the meaning of the model's scores."""

    shape: tuple[int, ...]  # of one sample
    numbers: NumberKind  # kind of the numbers in stored samples
    task: Kind
    outputs: int  # number of scores of a sample, or of one of its positions: classes, labels or predicted numbers
    mean: tuple[float, ...] = ()  # as in `Preparation`
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()  # empty if classes have none
    vocabulary: tuple[str, ...] = ()  # of texts: the word of each token number
    schema: Schema | None = None  # of rows of the user's own tables: how they become samples

    def __post_init__(self) -> None:
        """Raise InputError for values that no run can have, because they may come from an untrusted folder."""
        names = {name for name in self.class_names if len(name) <= MAX_NAME and printable(name) == name}
        if not 1 <= self.outputs <= LARGEST or min(self.shape, default=1) < 1 or prod(self.shape) > LARGEST:
            raise InputError("samples: not a shape, or not a number of scores")
        if len(names) not in (0, self.outputs) or len(names) < len(self.class_names) or len(self.mean) != len(self.std):
            raise InputError("samples: not a short name of its own for each class, or not a deviation for each mean")
        if self.schema is not None and not (self.schema.is_complete and (self.schema.width,) == self.shape):
            raise InputError("samples: not a schema of a table, or not of as many features as the samples have")

    @property
    def stated(self) -> dict[str, Any]:
        """The fields by name, as plain values; without the vocabulary, which has a file of its own."""
        schema = {} if self.schema is None else {"schema": self.schema.stated}
        return {name: value for name, value in vars(self).items() if name not in ("vocabulary", "schema")} | schema

    @property
    def form(self) -> LabelForm:
        """The form of labels and scores."""
        return FORMS[self.task]

    @property
    def score_shape(self) -> tuple[int, ...]:
        """The shape of the scores of one sample."""
        return self.form.score_shape(self.outputs, self.shape)

    @classmethod
    def of(cls, data: FederatedData) -> Self:
        """Return the kind of the training samples of `data`."""
        return cls(
            data.shape, kind_of(data.x), data.task, data.classes, data.preparation.mean, data.preparation.std,
            data.class_names, data.vocabulary, data.schema if data.schema.width else None,
        )  # fmt: skip

    def stored(self, x: Any, encoder: Encoder | None = None) -> Tensor:
        """Convert samples to the form in which training samples are stored, (n, *shape).

        x: an array, a tensor, a list (of arrays, tensors, texts or pictures of Pillow), or a map-style dataset, whose
        labels are ignored; after training on rows of a table, a table with the same columns. encoder: makes the token
        numbers of texts, by default from the run's vocabulary. Raises InputError, in one line, for samples of another
        shape or another kind of numbers, which are never converted, and for an array in place of a table.
        """
        found = self._tensor(x, encoder) if self.schema is None else self._features(x, self.schema)
        if found.shape[1:] != self.shape:
            one = "; one sample is x[None]" if tuple(found.shape) == self.shape else ""
            raise InputError(f"predict: x has shape {tuple(found.shape)}, and samples of training have "
                             f"{self.shape}: expected (n, {', '.join(map(str, self.shape))}){one}")  # fmt: skip
        if kind_of(found) != self.numbers:
            raise InputError(f"predict: x has {MEANING[kind_of(found)]}, and samples of training are "
                             f"{MEANING[self.numbers]}; give these")  # fmt: skip
        return found

    def prepared(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Scale stored samples (n, *shape) for the model, as in training. Raises InputError for NaN and infinity."""
        x = Preparation(self.mean, self.std, dtype)(x.to(dtype) if x.is_floating_point() else x)
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise InputError(f"predict: x has a value that is NaN, infinite or too large for {dtype}")
        return x

    def _features(self, x: Any, schema: Schema) -> Tensor:
        """Encode the rows of a table as in training. Raises InputError for anything without named columns."""
        if isinstance(x, TableRows):
            return torch.from_numpy(features_to_predict(x, schema))
        if not has_columns(x) and not is_table(x):
            raise InputError("predict: the run was trained on rows of a table, scaled and encoded; give a table (a "
                             f"DataFrame, a pyarrow table) with the columns {listed(schema.feature_columns)}, or a csv "
                             f"file to `fedflat predict`; a {type(x).__name__} has no names of columns")  # fmt: skip
        names = x.column_names if has_columns(x) else list(x.columns)
        return torch.from_numpy(features_to_predict(rows_of_table(x, names, schema), schema))

    def _tensor(self, x: Any, encoder: Encoder | None) -> Tensor:
        if has_columns(x):
            raise InputError("predict: x has columns; give the one with the samples, such as dataset['image']")
        if isinstance(x, str | bytes | dict):
            raise InputError(f"predict: x is of type {type(x).__name__}; give an array or a list of samples")
        if not hasattr(x, "dtype") and not is_table(x) and hasattr(x, "__getitem__") and hasattr(x, "__len__"):
            x = [_without_label(x[i]) for i in range(len(x))]
            if x and all(isinstance(one, str) for one in x):
                return torch.from_numpy(np.array(self._encoder(encoder)(x)))  # a tokenizer's cannot be written
            if x and (hasattr(x[0], "shape") or hasattr(x[0], "getbands")):
                return stacked(x, "predict")
        return sample_tensor(x, "predict: x").detach()

    def _encoder(self, encoder: Encoder | None) -> Encoder:
        if self.numbers != "tokens" or len(self.shape) != 1:
            raise InputError(f"predict: x has texts, and samples of training are {MEANING[self.numbers]} of shape "
                             f"{self.shape}; give these")  # fmt: skip
        if encoder is not None:
            return encoder
        if not self.vocabulary:
            raise InputError("predict: x has texts, and the run has no vocabulary; give token numbers, as in training")
        return lambda texts: encode(texts, self.vocabulary, self.shape[0])


def _without_label(item: Any) -> Any:
    """Return the sample x of a dataset's item: (x,), (x, y) or x itself."""
    is_pair = isinstance(item, tuple) and len(item) in (1, 2) and not isinstance(item[0], Number)
    return item[0] if is_pair else item
