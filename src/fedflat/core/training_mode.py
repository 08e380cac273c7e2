"""Training and evaluation mode of modules that override `train()`, such as one whose frozen part is never trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType

from torch import nn

from .errors import InputError


def start_training(module: nn.Module) -> None:
    """Put `module` into training mode, by its own `train()` wherever that is overridden.

    Layers that are in evaluation mode inside a module in training mode stay so. Raises InputError for a function that
    was put in the place of a `train()`: it cannot know the copy that is trained.
    """
    for name, layer in module.named_modules():
        for method in {"train", "eval"} & set(vars(layer)):
            if isinstance(vars(layer)[method], FunctionType):
                raise InputError(f"model: {method}() of {name or 'the module'} is a function set on the object, which "
                                 "does not know the copy that is trained; override it in a class")  # fmt: skip
    if not module.training:
        module.train()
        return
    evaluated = [layer for layer in module.modules() if not layer.training]
    for layer in own_modes(module):
        if layer.training:
            layer.train()
    for layer in evaluated:
        layer.training = False


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put every layer into evaluation mode inside the block, and back into its own mode after it.

    Raises InputError if a layer stays in training mode.
    """
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        _refuse_training_layers(module)
        yield
    finally:
        for layer, training in modes:
            layer.training = training
        if modes[0][1]:
            start_training(module)  # a `train()` of its own may change more than the mode


def own_modes(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost layers of `module` that override `train()`."""
    if "train" in vars(module) or type(module).train is not nn.Module.train:
        yield module
        return
    for child in module.children():
        yield from own_modes(child)


def _refuse_training_layers(module: nn.Module) -> None:
    """Raise InputError if a layer of `module`, on which `eval()` was called, is in training mode."""
    for name, layer in module.named_modules():
        if layer.training:
            raise InputError(
                f"model: {name or 'the module'} ({type(layer).__name__}) stays in training mode after eval(), so that "
                "no two evaluations need agree; let its train() obey the mode"
            )
