"""Embeddings of many clients at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding
from torch.overrides import TorchFunctionMode

from .errors import StackingError

ARGUMENTS = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")


def has_special_gradient(module: nn.Module) -> bool:
    """Tell whether an embedding of `module` has an option for its gradient that `vmap` would ignore."""
    return any(
        getattr(layer, "padding_idx", None) is not None or getattr(layer, "scale_grad_by_freq", False)
        for layer in module.modules()
    )


class EmbeddingGradients(TorchFunctionMode):
    """Inside the block, embeddings have the gradient that they have outside `vmap`, whose rule forgets two options.

    The row of `padding_idx` has no gradient; `scale_grad_by_freq`, which counts the tokens of one client's batch,
    raises StackingError.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function; torch does this for each of its functions."""
        out = func(*args, **(kwargs or {}))
        if func is not embedding:
            return out
        given = dict(zip(ARGUMENTS, args, strict=False)) | (kwargs or {})
        if given.get("scale_grad_by_freq"):
            raise StackingError(
                "model: an embedding with scale_grad_by_freq cannot be run for several clients at once; set executor = "
                "'sequential'"
            )
        if given.get("padding_idx") is None:
            return out
        padding = given["input"] == given["padding_idx"] % len(given["weight"])
        return torch.where(padding[..., None], out.detach(), out)
