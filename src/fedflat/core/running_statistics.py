"""The running statistics of normalisation layers, such as BatchNorm's mean and variance, as one flat vector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from .errors import InputError
from .oracle import MovingStatistics
from .torch_module import WITHOUT_FLOAT64

Buffers = Literal["frozen", "averaged", "local"]
STATISTICS = ("running_mean", "running_var")
COUNTER = "num_batches_tracked"


class RunningStatistics:
    """The running statistics of the layers of a module that are in training mode: s numbers, layer after layer.

    Layers in evaluation mode use their statistics and do not change them, so theirs are not among the s numbers.
    """

    def __init__(self, module: nn.Module) -> None:
        """Find the layers of `module`. Raises InputError for a layer whose statistics cannot be sent."""
        kept = [(name, layer) for name, layer in normalising_layers(module) if layer.training]
        for name, layer in kept:
            _check(name, layer)
        self._layers = [layer for _, layer in kept]
        self._places = [(layer._buffers, key, _of(layer, key)) for layer in self._layers for key in STATISTICS]
        self.sizes = {
            f"{name}.{key}".lstrip("."): _of(layer, key).numel() for name, layer in kept for key in STATISTICS
        }
        self.width = sum(self.sizes.values())

    def flatten(self) -> Tensor | None:
        """Return a copy of the statistics (s,), on the device where methods compute; None if there are none."""
        if not self._places:
            return None
        found = torch.cat([buffer.detach() for _, _, buffer in self._places])
        return found.cpu() if found.device.type in WITHOUT_FLOAT64 else found

    def write(self, statistics: Tensor) -> None:
        """Copy `statistics` (s,) into the module."""
        with torch.no_grad():
            for (_, _, buffer), new in zip(self._places, self._split(statistics), strict=True):
                buffer.copy_(new)

    @contextmanager
    def replaced(self, moving: MovingStatistics | None) -> Iterator[None]:
        """Let passes in the block change the statistics in `moving`, or copies if it is None, in place of the module's.

        The numbers of batches are not counted.
        """
        given = [buffer for _, _, buffer in self._places] if moving is None else self._split(moving.current)
        copies = [new.to(own.device, copy=True) for new, (_, _, own) in zip(given, self._places, strict=True)]
        counters = [(layer._buffers, layer._buffers.get(COUNTER)) for layer in self._layers]
        try:
            for (buffers, key, _), copy in zip(self._places, copies, strict=True):
                buffers[key] = copy
            for buffers, _ in counters:
                buffers[COUNTER] = None
            yield
            if moving is not None:
                moving.current = torch.cat(copies).to(moving.current.device)
        finally:
            for buffers, key, own in self._places:
                buffers[key] = own
            for buffers, counter in counters:
                buffers[COUNTER] = counter

    def _split(self, statistics: Tensor) -> tuple[Tensor, ...]:
        return torch.split(statistics, list(self.sizes.values()))


def normalising_layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name and the layer, for each layer that keeps running statistics or normalises with a batch's."""
    for name, layer in module.named_modules():
        if getattr(layer, "track_running_stats", False) or isinstance(layer, nn.modules.batchnorm._BatchNorm):
            yield name, layer


def all_statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics of all layers, also of those in evaluation mode, by name."""
    return {f"{name}.{key}".lstrip("."): found for name, layer in normalising_layers(module) for key in STATISTICS
            if (found := layer._buffers.get(key)) is not None}  # fmt: skip


def keep_statistics(module: nn.Module, buffers: Buffers | None) -> None:
    """Prepare the layers of `module` with running statistics; with `buffers` "frozen", put them into evaluation mode.

    Raises InputError if the module has such layers and `buffers` is None, or if it has none and `buffers` is given.
    """
    layers = [(name, layer) for name, layer in normalising_layers(module) if layer.training]
    if buffers is None:
        for name, layer in layers:
            raise InputError(
                f"model: layer {name or 'itself'!s} is {type(layer).__name__}, whose batch statistics differ between "
                "clients: set buffers = 'averaged', 'local' or 'frozen' (model.buffers), or replace it with GroupNorm "
                "by fedflat.models.to_group_norm(module)"
            )
    elif buffers not in ("frozen", "averaged", "local"):
        raise InputError(f"buffers = {buffers!r} is unknown; known are frozen, averaged, local")
    elif not any(True for _ in normalising_layers(module)):
        raise InputError(f"buffers = {buffers!r}: the model has no layer with running statistics; leave buffers out")
    elif buffers == "frozen":
        for name, layer in layers:
            _check(name, layer)
            layer.eval()


def _of(layer: nn.Module, key: str) -> Tensor:
    found: Tensor = layer._buffers[key]  # type: ignore[assignment]
    return found


def _check(name: str, layer: nn.Module) -> None:
    """Raise InputError for a layer without statistics for evaluation, or whose statistics are a cumulative mean."""
    what = f"model: layer {name or 'itself'!s} ({type(layer).__name__})"
    if isinstance(layer, nn.SyncBatchNorm):
        raise InputError(f"{what} computes statistics over several processes; make it BatchNorm2d")
    if any(layer._buffers.get(key) is None for key in STATISTICS):
        raise InputError(f"{what} keeps no running statistics, so evaluation would depend on the batch; set "
                         "track_running_stats=True")  # fmt: skip
    if getattr(layer, "momentum", 0.1) is None:
        raise InputError(f"{what} has momentum=None, a mean over all batches so far, which differ in number between "
                         "clients; give a momentum, such as 0.1")  # fmt: skip
