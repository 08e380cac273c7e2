"""Records: the state that a party keeps and the messages that it sends, declared as types.

Communication, memory, checkpoints, network messages, masking and averaging are all computed
from these declarations, so that every field is declared only once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Self, TypeVar, dataclass_transform, get_type_hints

import torch
from torch import Tensor

# The last axis is the parameter axis. In the simulator a client axis stands before it.
Vector = Annotated[Tensor, "d"]  # (*clients, d)
Scalar = Annotated[Tensor, "1"]  # (*clients, 1)


def per_round() -> Any:
    """Mark a client field that is zero at the start of a round and is not kept at its end."""
    return field(metadata={"per_round": True})


def uniform_mean() -> Any:
    """Mark a field that is averaged with equal weights even if clients are weighted by samples."""
    return field(metadata={"uniform_mean": True})


def mean_of_clients() -> Any:
    """Mark a server field that is a mean over all N clients of what each keeps, which is zero for a new client."""
    return field(metadata={"mean_of_clients": True})


def gradient_scale() -> Any:
    """Mark a field that has the scale of gradients; unmarked fields have the scale of parameters and their changes."""
    return field(metadata={"gradient_scale": True})


def own_model() -> Any:
    """Mark a client field that is the client's own model, which local training moves by the method's `own_step`.

    It begins as the run's initial model. Measures of clients' own models evaluate it.
    """
    return field(metadata={"own_model": True})


def squared_length() -> Any:
    """Mark a field that is the square of a length, in squared parameter units."""
    return field(metadata={"squared_length": True})


def squared_gradient() -> Any:
    """Mark a field of squares of gradients, such as a second moment."""
    return field(metadata={"squared_length": True, "gradient_scale": True})


def in_range(low: float, high: float) -> Any:
    """Mark a field without a unit, from `low` to `high`, such as a cosine. Norms of records leave it out."""
    return field(metadata={"in_range": (low, high)})


def running_statistics() -> Any:
    """Mark a field of running statistics, such as BatchNorm's; norms of records leave it out."""
    return field(metadata={"running_statistics": True})


@dataclass_transform(
    frozen_default=True,
    field_specifiers=(
        per_round,
        uniform_mean,
        mean_of_clients,
        gradient_scale,
        own_model,
        squared_length,
        squared_gradient,
        in_range,
        running_statistics,
    ),
)
@dataclass(frozen=True)
class Record:
    """A frozen set of named tensors with the same leading axes. Subclasses only list fields.

    The annotation of a field gives its width. A `Vector` is as wide as the model, a `Scalar` is one number.
    `Annotated[Tensor, "name"]` has the width that the integer attribute `name` of the method gives.
    `Annotated[Tensor, "d", "name"]` is as wide as the model if the attribute `name` is true, and has width 0 otherwise.
    With `"name=value"` instead of `"name"`, the attribute must have this value. If there are several conditions, all
    must hold.
    """

    _known_marks: ClassVar[dict[str, tuple[str, ...]]]
    __match_args__: ClassVar[tuple[str, ...]]  # the names of the fields; the dataclass sets them

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    @classmethod
    def widths(cls, d: int, method: object = None) -> dict[str, int]:
        """Return the width of each field for a model of `d` parameters."""
        known = {"d": d, "1": 1}
        widths = {}
        for name, (mark, *needed) in cls._marks().items():
            width = known[mark] if mark in known else int(getattr(method, mark))
            widths[name] = width if all(_holds(method, condition) for condition in needed) else 0
        return widths

    @classmethod
    def zeros(cls, like: Tensor, method: object = None) -> Self:
        """Return a record of zeros; `like` (*clients, d) gives leading axes, dtype and device."""
        *lead, d = like.shape
        return cls(**{name: like.new_zeros(*lead, width) for name, width in cls.widths(d, method).items()})

    @classmethod
    def marked(cls, mark: str) -> frozenset[str]:
        """Return the names of the fields declared by the function called `mark`, such as "per_round"."""
        return frozenset(f.name for f in fields(cls) if f.metadata.get(mark))

    @classmethod
    def ranges(cls) -> dict[str, tuple[float, float]]:
        """Return the bounds (low, high) of the fields declared by `in_range`, by field name."""
        return {f.name: f.metadata["in_range"] for f in fields(cls) if f.metadata.get("in_range")}

    @classmethod
    def _marks(cls) -> dict[str, tuple[str, ...]]:
        """Return the width mark of every field, and the conditions on its width, from the annotations.

        The result is stored in the class, because a worker process gets a class of the user's script by value, and
        cannot resolve annotations that use names of the script.
        """
        if "_known_marks" not in vars(cls):
            hints = get_type_hints(cls, include_extras=True)
            cls._known_marks = {f.name: hints[f.name].__metadata__ for f in fields(cls)}
        return cls._known_marks

    def map(self, fn: Callable[..., Tensor], *others: Self) -> Self:
        """Apply `fn` to each field of this record and of `others`; stacking, masking, averaging and sending do so."""
        return type(self)(**{name: fn(*(getattr(r, name) for r in (self, *others))) for name in self.__match_args__})

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields by name."""
        return {name: getattr(self, name) for name in self.__match_args__}  # fields(self) takes longer


def _holds(method: object, condition: str) -> bool:
    name, equals, value = condition.partition("=")
    found = getattr(method, name)
    return bool(found == value if equals else found)


def is_finite(x: Tensor) -> Tensor:
    """Return for each row of `x` (*clients, width) whether it has neither NaN nor infinity, (*clients,) bool."""
    return (x * 0).sum(-1) == 0  # faster than isfinite(x).all(-1), which costs much of a small round


class Nothing(Record):
    """No state, or an empty message."""


class Model(Record):
    """A model."""

    w: Vector  # parameters


class Delta(Record):
    """The change that a client made to the model it received."""

    delta: Vector  # w_i - w, parameters


R = TypeVar("R", bound=Record)


def record_norm(
    record: Record,
    lr_sum: Tensor,
    without: frozenset[str] = frozenset(),
    squared: frozenset[str] = frozenset(),
) -> Tensor:
    """Compute the Euclidean norm of each client's record, (*clients, 1), in float64.

    record: (*clients, width) in every field.
    lr_sum: (*clients, 1), the sum of the client's step sizes; fields with the scale of gradients are multiplied by it,
    which converts them to parameter units.
    without: fields that do not count.
    squared: fields that hold squared norms; their square roots enter the norm, so that a record whose vectors are
    scaled by c has c times the norm. By default no root is taken: privacy noise with one standard deviation for all
    fields needs the norm of the fields themselves.
    """
    gradients, without = record.marked("gradient_scale"), without | record.marked("running_statistics")
    squares = []
    for name, x in record.tensors().items():
        if name in without:
            continue
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64)
        if name in squared:
            squares.append(length * lr_sum**2 if name in gradients else length)
        else:
            squares.append((length * lr_sum if name in gradients else length) ** 2)
    return torch.stack(squares).sum(0).sqrt()


def shortened_to(record: R, norm: Tensor, bound: float, squared: frozenset[str] = frozenset()) -> R:
    """Scale each client's record by min(1, bound / norm): the direction stays, the norm is at most `bound`.

    norm: (*clients, 1), the result of `record_norm` with the same `squared`. The fields `squared` are multiplied by the
    square of this factor.
    """
    factor = (bound / norm.clamp(min=bound)).nan_to_num(0.0)
    short = {name: x * (factor**2 if name in squared else factor) for name, x in record.tensors().items()}
    return type(record)(**{name: short[name].to(x.dtype) for name, x in record.tensors().items()})
