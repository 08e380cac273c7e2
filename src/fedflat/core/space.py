"""Between a module's parameters and one flat vector."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .errors import InputError


class Space:
    """The flat parameter space of a module: d numbers in `parameters()` order, row-major.

    The views of a vector come from one `split`, so the gradient of the vector is one concatenation.
    """

    def __init__(self, module: nn.Module) -> None:
        """Read names and shapes off `module`; raises ValueError if it has nothing to train."""
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if any(isinstance(p, nn.UninitializedParameter) for _, p in trainable):
            raise InputError(f"model {type(module).__name__} has lazy layers; pass one batch through it first")
        if not trainable:
            raise InputError(f"model {type(module).__name__} has no trainable parameter")
        self.shapes = {name: p.shape for name, p in trainable}
        self.sizes = [p.numel() for _, p in trainable]
        self.d = sum(self.sizes)

    def flatten(self, module: nn.Module) -> Tensor:
        """The parameters of `module` as one detached vector, (d,)."""
        named = dict(module.named_parameters())
        return torch.cat([named[name].detach().reshape(-1) for name in self.shapes])

    def write(self, module: nn.Module, w: Tensor) -> None:
        """Copy `w` (d,) into the parameters of `module`."""
        named = dict(module.named_parameters())
        with torch.no_grad():
            for name, view in self.views(w).items():
                named[name].copy_(view)

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """The parameters inside `w` (*clients, d), each (*clients, *shape), without a copy."""
        pieces = zip(self.shapes.items(), torch.split(w, self.sizes, dim=-1), strict=True)
        return {name: piece.reshape(*w.shape[:-1], *shape) for (name, shape), piece in pieces}

    def layers(self) -> Iterator[tuple[str, slice]]:
        """Every parameter's name and its slice of the last axis."""
        start = 0
        for name, size in zip(self.shapes, self.sizes, strict=True):
            yield name, slice(start, start + size)
            start += size

    def is_weight(self, device: torch.device | str = "cpu") -> Tensor:
        """(d,) bool: True where the parameter's name contains "weight" (Caldarola et al., 2022), False on biases."""
        marks = [torch.full((size,), "weight" in name) for name, size in zip(self.shapes, self.sizes, strict=True)]
        return torch.cat(marks).to(device)
