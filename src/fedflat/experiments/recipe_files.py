"""What the files of recipes may hold."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .schema import Section

Number = float | list[float]  # a mean, or a mean and its spread


class Layer(Section):
    """A part of a study, and hyper-parameters by a method's label."""

    study: dict[str, Any] = Field({})
    methods: dict[str, dict[str, Any]] = Field({})


class Option(Layer):
    """One choice on an axis."""

    only_with: list[str] = Field([], description="makes cells only together with one of these other options")


class When(Layer):
    """A layer for the cells in which all the options of `cell` are chosen."""

    cell: list[str]


class Published(Section):
    """Numbers that the paper prints."""

    cell: list[str] = Field([], description="for every cell with all these options")
    quantity: str = Field(description="what the numbers are, e.g. test accuracy %")
    where: str = Field(description="where the paper prints them")
    values_by_method: dict[str, Number] = Field(alias="values", description="mean, or mean and spread")
    warning: str | None = None


class Base(Layer):
    """What the recipes of one paper share."""

    paper: str
    title: str
    notes: list[str] = Field([])
    options: dict[str, dict[str, Option]] = Field({})
    when: list[When] = Field([])


class Item(Layer):
    """One table or figure."""

    title: str
    items: list[str] = Field(min_length=1)
    kind: Literal["training", "partition"] = "training"
    use: list[str] = Field([], description="labels of the methods, in the paper's order")
    axes: dict[str, list[str]] = Field({})
    notes: list[str] = Field([])
    options: dict[str, dict[str, Option]] = Field({})
    when: list[When] = Field([])
    published: list[Published] = Field([])
