"""The meaning of a user's own files, stated once for all sites: columns, categories, scaling, colours, words.

Classes and their order are stated by `class_names`, the size of pictures by `image_size`, and the length of texts by
`text_length`, see `DataOptions`. In a simulation, whatever is not stated is taken from the training samples of all
clients. A site of a federation has only its own samples, so there everything must be stated.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any, Literal, Self

from ..core.errors import FieldError, InputError, printable, shortened
from ..core.hyper import check, hyper

Missing = Literal["refuse", "drop", "fill"]
DEFAULT_LABEL = "label"  # the column with the label, unless another one is named
DEFAULT_USER = "user"  # the column with the client, if there is one and no other one is named


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Which columns of a user's own files are used, and how their values become the numbers of samples."""

    label_columns: tuple[str, ...] = hyper(
        (), "column with the label, by default label; several for multi-label and regression", later=True
    )
    client_column: str | None = hyper(
        None, "column that says whose row it is; default user, or else each file is a client", later=True
    )
    text_column: str | None = hyper(
        None, "column whose texts are the samples; default text in jsonl, none in csv", later=True
    )
    numeric_columns: tuple[str, ...] = hyper(
        (), "columns of numbers, in the order in which models see them; without them and categorical_columns, every "
        "column is used: as numbers if all its values are numbers", later=True,
    )  # fmt: skip
    categorical_columns: tuple[str, ...] = hyper(
        (), "columns of categories; models see one number, 0 or 1, for each category", later=True
    )
    categories: tuple[tuple[str, ...], ...] = hyper(
        (), "the categories of each categorical column, in order; default those that occur", later=True
    )
    missing: Missing = hyper(
        "refuse", "for rows without a value: refuse them, drop them, or fill in the mean (no category)", later=True
    )
    means: tuple[float, ...] = hyper(
        (), "subtracted from each numeric column, or from each colour in [0, 1]; default the columns' own, colours 0",
        later=True,
    )  # fmt: skip
    deviations: tuple[float, ...] = hyper(
        (), "by which each numeric column or colour is divided; default the columns' own, colours 1", later=True
    )
    channels: int | None = hyper(
        None, "colours of pictures, 1 (grey) or 3; default those of the first picture", low=1, high=3, later=True
    )
    vocabulary: tuple[str, ...] = hyper(
        (), "words by token number, after padding and unknown words; default the frequent ones", later=True
    )

    def __post_init__(self) -> None:
        """Raise InputError, naming the field, for a value out of range and for fields that do not fit each other."""
        for one in fields(Schema):
            object.__setattr__(self, one.name, _as_tuple(getattr(self, one.name), one.name.endswith("_columns")))
        check(self, "data")
        self._check_columns()
        self._check_scaling()
        if self.channels == 2:
            raise FieldError("channels", "must be 1 (grey) or 3 (coloured), got 2", "data")

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the columns with labels."""
        return self.label_columns or (DEFAULT_LABEL,)

    @property
    def stated(self) -> dict[str, Any]:
        """The fields that have another value than their default, by name."""
        return {one.name: value for one in fields(Schema) if (value := getattr(self, one.name)) != one.default}

    @property
    def width(self) -> int:
        """Number of features of a row of a table."""
        return len(self.numeric_columns) + sum(map(len, self.categories))

    @property
    def feature_columns(self) -> tuple[str, ...]:
        """The columns that make up the features of a row, in their order."""
        return (*self.numeric_columns, *self.categorical_columns)

    @property
    def is_complete(self) -> bool:
        """Whether it states everything that the features of a row are made of."""
        counts = len(self.means), len(self.categories)
        return self.width > 0 and counts == (len(self.numeric_columns), len(self.categorical_columns))

    @property
    def is_of_table(self) -> bool:
        """Whether it describes a table, whose whole numbers may be classes as well as numbers to predict."""
        return self.width > 0 or self.text_column is not None

    @classmethod
    def of(cls, options: Schema) -> Schema:
        """Return the schema in the options of a data set, which have further fields."""
        return Schema(**{one.name: getattr(options, one.name) for one in fields(Schema)})

    def refuse(self, used: tuple[str, ...], what: str) -> None:
        """Raise InputError, naming the field, if a field is stated that is not among `used` by the samples `what`."""
        for name, value in self.stated.items():
            if name not in used:
                raise InputError(f"data.{name} = {printable(shortened(repr(value)))} has no use with {what}; "
                                 "leave it out")  # fmt: skip

    def need(self, names: tuple[str, ...], what: str) -> None:
        """Raise InputError, naming the field, if one of the fields `names` is not stated for the sites' own `what`."""
        for name in names:
            if name not in self.stated:
                raise InputError(f"data.{name} is needed for sites with {what} of their own, so that all read them "
                                 "alike; `fedflat data schema` writes it")  # fmt: skip

    def filled_in(self, **found: Any) -> Self:
        """Return a copy with the values `found` in the files, for the fields that are not stated."""
        return replace(self, **{name: value for name, value in found.items() if name not in self.stated})

    def _check_columns(self) -> None:
        own = [*self.label_names, *self.numeric_columns, *self.categorical_columns]
        own += [name for name in (self.client_column, self.text_column) if name is not None]
        if twice := next((name for name in own if own.count(name) > 1), None):
            raise InputError(f"data: column {printable(twice)!r} is named twice, among label_columns, client_column, "
                             "text_column, numeric_columns and categorical_columns")  # fmt: skip
        if self.text_column is not None and (self.numeric_columns or self.categorical_columns):
            raise InputError("data.text_column makes samples of texts; leave out numeric_columns and "
                             "categorical_columns")  # fmt: skip
        if self.categories and len(self.categories) != len(self.categorical_columns):
            raise InputError(f"data.categories has {len(self.categories)} lists, and data.categorical_columns "
                             f"{len(self.categorical_columns)} columns: give one list for each column")  # fmt: skip
        for column, some in zip(self.categorical_columns, self.categories, strict=False):
            if not some or len(set(some)) < len(some):
                raise InputError(f"data.categories: those of {printable(column)!r} are none, or one of them is given "
                                 "twice")  # fmt: skip
        for name in ("numeric_columns", "categorical_columns", "vocabulary"):
            if "" in getattr(self, name):
                raise FieldError(name, "has an empty text", "data")
        if len(set(self.vocabulary)) < len(self.vocabulary):
            raise FieldError("vocabulary", "has a word twice", "data")

    def _check_scaling(self) -> None:
        if len(self.means) != len(self.deviations):
            raise InputError(f"data: means has {len(self.means)} numbers and deviations {len(self.deviations)}; give "
                             "both, with one number for each column or colour")  # fmt: skip
        if not all(map(isfinite, (*self.means, *self.deviations))) or min(self.deviations, default=1) <= 0:
            raise FieldError("deviations", "and means must be finite, and deviations more than 0", "data")
        if self.numeric_columns and self.means and len(self.means) != len(self.numeric_columns):
            raise InputError(f"data: means has {len(self.means)} numbers, and numeric_columns "
                             f"{len(self.numeric_columns)} columns")  # fmt: skip


def _as_tuple(value: Any, may_be_one: bool) -> Any:
    """Return lists, also inside a list, as tuples; with `may_be_one` a text as a tuple of one text."""
    if may_be_one and isinstance(value, str):
        return (value,)
    return tuple(_as_tuple(one, False) for one in value) if isinstance(value, list | tuple) else value
