"""The options of a data set that a user may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.errors import InputError
from ..core.hyper import check, hyper


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which samples of a data set are used, and how they are prepared."""

    augment: Literal["none", "crop-flip", "fl-simulator"] = hyper(
        "none", "in training: none, crop-flip (FedGF), fl-simulator (FL-Simulator's order and chances)"
    )
    partial: bool = hyper(False, "accept files that hold only a part of the set")
    train_samples: int | None = hyper(
        None, "use so many training samples, classes in proportion, always the same", low=1
    )
    test_samples: int | None = hyper(None, "use so many test samples, classes in proportion, always the same", low=1)
    test_domain: str | None = hyper(None, "the domain held out as test set; clients share the others")
    image_size: int | None = hyper(
        None, "pixels that photographs are resized to; default the set's own", low=8, high=2048
    )
    validation: float = hyper(0.0, "share of each client's samples that it does not train on", low=0, high=0.9)

    def __post_init__(self) -> None:
        """Raises InputError, naming the field, for a value out of range."""
        try:
            check(self)
        except InputError as error:
            raise InputError(str(error).replace("DataOptions.", "data.")) from error
