"""The schema of the files of recipes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .schema import Section

Number = float | list[float]  # a mean, or a mean and its spread
Absent = Literal["failed", "not reached", "not readable"]  # the last: lost in the copy of the paper that was read


class Layer(Section):
    """Settings of a study, and hyper-parameters of its methods by label."""

    study: dict[str, Any] = Field(default={})
    methods: dict[str, dict[str, Any]] = Field(default={})


class Option(Layer):
    """One option of an axis."""

    only_with: list[str] = Field(default=[], description="makes cells only together with one of these other options")


class When(Layer):
    """A layer for the cells that have all options in `cell`."""

    cell: list[str]
    without: list[str] = Field(default=[], description="labels of methods that the paper does not show there")


class Published(Section):
    """Numbers that the paper prints."""

    cell: list[str] = Field(default=[], description="for every cell with all these options")
    quantity: str = Field(description="what the numbers are, e.g. test accuracy %")
    where: str = Field(description="where the paper prints them")
    mean_over_cells: bool = Field(default=False, description="means over these cells, and of none of them")
    values_by_method: dict[str, Number] = Field(alias="values", description="mean, or mean and spread")
    absent: dict[str, Absent] = Field(default={}, description="why a method of the table has no number")
    warning: str | None = Field(default=None, description="what contradicts these numbers")


class PublishedFile(Section):
    """All numbers that the paper prints for one recipe."""

    read: str = Field(description="what the numbers were read in")
    blocks: list[Published] = Field(alias="published")


class Base(Layer):
    """The common settings of the recipes of one paper."""

    paper: str
    title: str
    notes: list[str] = Field(default=[])
    options: dict[str, dict[str, Option]] = Field(default={})
    when: list[When] = Field(default=[])


class Item(Layer):
    """One table or figure."""

    title: str
    items: list[str] = Field(min_length=1)
    kind: Literal["training", "partition"] = "training"
    use: list[str] = Field(default=[], description="labels of the methods, in the paper's order")
    axes: dict[str, list[str]] = Field(default={})
    notes: list[str] = Field(default=[])
    options: dict[str, dict[str, Option]] = Field(default={})
    when: list[When] = Field(default=[])
