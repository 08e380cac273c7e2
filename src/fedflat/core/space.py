"""Conversion between a module's parameters and one flat vector."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .errors import InputError

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of parameters that are trained


class Space:
    """The flat parameter space of a module: d numbers, parameter after parameter in `parameters()` order.

    Weights of two-dimensional convolutions are stored in it as (out, height, width, in), so that their views have the
    channels-last memory format, in which convolutions are faster and their gradients need no copy; all other parameters
    are row-major. `row_major` converts to the order of `torch.nn.utils.parameters_to_vector`.
    The views of a vector come from one `split`, so that the gradient of the vector is one concatenation.
    """

    def __init__(self, module: nn.Module) -> None:
        """Take names and shapes from `module`. Raises ValueError if it has no trainable parameter."""
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if any(isinstance(p, nn.UninitializedParameter) for _, p in trainable):
            raise InputError(f"model {type(module).__name__} has lazy layers; pass one batch through it first")
        if not trainable:
            raise InputError(f"model {type(module).__name__} has no trainable parameter")
        _check_types({p.dtype: name for name, p in trainable})
        self.shapes = {name: p.shape for name, p in trainable}
        self.sizes = [p.numel() for _, p in trainable]
        self.d = sum(self.sizes)

    def flatten(self, module: nn.Module) -> Tensor:
        """Return the parameters of `module` as one detached vector, (d,)."""
        named = dict(module.named_parameters())
        parameters = [named[name].detach() for name in self.shapes]
        return torch.cat([(p.permute(0, 2, 3, 1) if p.ndim == 4 else p).reshape(-1) for p in parameters])

    def write(self, module: nn.Module, w: Tensor) -> None:
        """Copy `w` (d,) into the parameters of `module`."""
        named = dict(module.named_parameters())
        with torch.no_grad():
            for name, view in self.views(w).items():
                named[name].copy_(view)

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """Return the parameters inside `w` (*clients, d), each (*clients, *shape), without a copy."""
        pieces = zip(self.shapes.items(), torch.split(w, self.sizes, dim=-1), strict=True)
        return {name: _view(piece, shape) for (name, shape), piece in pieces}

    def row_major(self, w: Tensor) -> Tensor:
        """Return `w` (*clients, d) row-major, in the order of `torch.nn.utils.parameters_to_vector`."""
        return torch.cat([view.flatten(w.ndim - 1) for view in self.views(w).values()], dim=-1)

    def layers(self) -> Iterator[tuple[str, slice]]:
        """Yield every parameter's name and its slice of the last axis."""
        start = 0
        for name, size in zip(self.shapes, self.sizes, strict=True):
            yield name, slice(start, start + size)
            start += size

    def is_weight(self, device: torch.device | str = "cpu") -> Tensor:
        """Return a mask (d,) bool: True where the parameter's name has "weight" in it (Caldarola et al., 2022)."""
        marks = [torch.full((size,), "weight" in name) for name, size in zip(self.shapes, self.sizes, strict=True)]
        return torch.cat(marks).to(device)


def _check_types(kinds: dict[torch.dtype, str]) -> None:
    """Raise InputError unless all parameters have one type that can be trained; `kinds` names one of each type."""
    for dtype, name in kinds.items():
        if dtype not in TYPES:
            raise InputError(f"model: parameter {name!r} is {dtype}; trainable types are {', '.join(map(str, TYPES))}; "
                             "a complex number is two real ones, see torch.view_as_complex")  # fmt: skip
    if len(kinds) > 1:
        listed = " and ".join(f"{name!r} {dtype}" for dtype, name in kinds.items())
        raise InputError(f"model: its trainable parameters have several types, {listed}; make them one, such as by "
                         "model.float(), or give dtype=torch.float32")  # fmt: skip


def _view(piece: Tensor, shape: torch.Size) -> Tensor:
    """Return the parameter of `shape` as a view of its part (*clients, size) of a vector."""
    if len(shape) != 4:
        return piece.reshape(*piece.shape[:-1], *shape) if shape else piece[..., 0]
    outputs, inputs, height, width = shape
    return piece.reshape(*piece.shape[:-1], outputs, height, width, inputs).movedim(-1, -3)
