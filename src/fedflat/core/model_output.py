"""The scores in what a model returns: a tensor, the first of a tuple, or the `logits` of an object or a dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .errors import InputError, printable, shortened


def scores_of(output: Any) -> Tensor:
    """The scores (b, outputs) in a model's `output`. Raises InputError if there are none."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif hasattr(output, "logits"):  # before tuples, because an output of Hugging Face may be both
        found = output.logits
    else:
        found = output[0] if isinstance(output, tuple | list) and output else None
    if not isinstance(found, Tensor):
        raise InputError(
            f"model: returns {_described(output)}; it has to return a tensor of scores, a tuple that begins with it, "
            "or an output with `logits`"
        )
    return found


def _described(output: Any) -> str:
    """The kind of an output, and what is in it."""
    name = f"{type(output).__name__}"
    if isinstance(output, Mapping):
        return shortened(printable(f"a {name} with {', '.join(map(repr, output)) or 'nothing in it'}"))
    if isinstance(output, tuple | list):
        return shortened(f"a {name} of {', '.join(type(part).__name__ for part in output) or 'nothing'}")
    return shortened(printable(f"a value of type {name}"))
