"""One forward pass of a model before it is trained on: does it fit the data, and does it draw or remember anything?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .errors import InputError


def is_random(module: nn.Module, x: Tensor, classes: int) -> bool:
    """True if `module` draws random numbers in training mode, seen in one pass over the samples `x` (b, *shape).

    Raises InputError if the module cannot take the samples, does not give one score per class, or
    changes a buffer: what it remembers of one client's samples would leak into the next client.
    The random state of torch is left as it was.
    """
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.no_grad():
        before = _random_state(x)
        scores = _scores(module, x)
        drew = not torch.equal(before, _random_state(x))
    if scores.shape != (len(x), classes):
        raise InputError(
            f"model: gives scores of shape {tuple(scores.shape)} for {len(x)} samples of {classes} classes"
        )
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, buffers[name]):
            raise InputError(f"model: buffer {name!r} changes in training; a federated mean covers parameters only")
    return drew


def _scores(module: nn.Module, x: Tensor) -> Tensor:
    try:
        scores: Tensor = module(x)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        problem = str(error).splitlines()[0]
        shape = tuple(x.shape[1:])
        raise InputError(f"model: cannot take samples of shape {shape} and type {x.dtype}: {problem}") from error
    return scores


def _random_state(x: Tensor) -> Tensor:
    return torch.cuda.get_rng_state(x.device) if x.is_cuda else torch.get_rng_state()
