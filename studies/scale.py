"""The scale of a study in one sentence, so that no result is quoted without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedflat.data.sources import source
from fedflat.models import build


def title(data: str) -> str:
    """Return the name of a data set as its publisher writes it, such as `CIFAR-10`."""
    return source(data).summary.split(" (")[0]


def scale(data: str, model: Mapping[str, Any], clients: int, cohort: int, *more: str) -> str:
    """Return data, network with its number of parameters, cohorts, and what else is given."""
    known, options = source(data), model.get("options", {})
    module = build(model["name"], known.classes, known.sample_shape(), **options)
    settings = ", ".join(f"{name} {value}" for name, value in options.items())
    number = sum(one.numel() for one in module.parameters())
    network = f"network `{model['name']}`{f' with {settings}' if settings else ''} ({number:,} parameters)"
    return f"Scale: {', '.join([title(data), network, f'{cohort} of {clients} clients a round', *more])}."
