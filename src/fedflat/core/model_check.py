"""One pass of a model before it is trained on: does it fit the data, and does it draw or remember anything?"""

from __future__ import annotations

import warnings
from enum import Enum

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .dropout import SeededDropout
from .errors import InputError
from .model_output import scores_of
from .task import CROSS_ENTROPY, Task


class Randomness(Enum):
    """What a model draws at random in training."""

    NOTHING = "nothing"
    DROPOUT = "dropout"  # and nothing else: `SeededDropout` makes the masks
    OTHER = "other"  # from torch's random state, which has to be seeded for one client at a time


def check_tokens(module: nn.Module, *samples: Tensor) -> None:
    """Raise InputError if `samples` (n, tokens) have token numbers that a text model, or one within it, does not take.

    A text model says in `vocabulary` how many it takes, from 0.
    """
    for vocabulary in (found for part in module.modules() if type(found := getattr(part, "vocabulary", None)) is int):
        for x in samples:
            low, high = (int(end) for end in x.aminmax()) if len(x) else (0, 0)
            if low < 0 or high >= vocabulary:
                wrong = low if low < 0 else high
                raise InputError(f"model: takes token numbers 0..{vocabulary - 1}, and the data have {wrong}")


def randomness_of(module: nn.Module, x: Tensor, classes: int, task: Task = CROSS_ENTROPY) -> Randomness:
    """What `module` draws in training mode, seen in one pass over the samples `x` (b, *shape), there and back.

    `classes` is the number of scores that `task` needs; scores that look like probabilities are warned of.

    Raises InputError if the module cannot take the samples, does not give one score per class, or
    changes a buffer: what it remembers of one client's samples would leak into the next client.
    The random state of torch is left as it was.
    """
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        found = _found(module, x, classes, task)
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, buffers[name]):
            raise InputError(f"model: buffer {name!r} changes in training; a federated mean covers parameters only")
    return found


def _found(module: nn.Module, x: Tensor, classes: int, task: Task) -> Randomness:
    """What still moves although dropout is covered."""
    before = _random_state(x)
    leaves = {name: p.detach().requires_grad_(p.requires_grad) for name, p in module.named_parameters()}
    with torch.enable_grad(), SeededDropout(torch.zeros((), dtype=torch.int64, device=x.device)) as covered:
        scores = _scores(module, leaves, x)
    if scores.shape != (len(x), classes):
        what = {"classification": "classes", "multi-label": "labels", "regression": "number(s)"}[task.kind]
        raise InputError(f"model: gives scores of shape {tuple(scores.shape)} for {len(x)} samples of {classes} {what}")
    if task is CROSS_ENTROPY:
        _warn_of_probabilities(scores)
    _back(module, scores, [leaf for leaf in leaves.values() if leaf.requires_grad])
    if not torch.equal(before, _random_state(x)):
        return Randomness.OTHER
    return Randomness.DROPOUT if covered.calls else Randomness.NOTHING


def _back(module: nn.Module, scores: Tensor, leaves: list[Tensor]) -> None:
    """The way back to `leaves`. Raises InputError if there is a way but it cannot be gone."""
    if not scores.requires_grad:
        return
    hooks = [layer.register_forward_pre_hook(_refuse_recomputing) for layer in module.modules()]
    try:
        torch.autograd.grad(scores.sum(), leaves, allow_unused=True)
    except RuntimeError as error:
        raise InputError(f"model: has no gradient: {str(error).splitlines()[0]}") from error
    finally:
        for hook in hooks:
            hook.remove()


def _refuse_recomputing(layer: nn.Module, _: object) -> None:
    """A layer that runs again on the way back finds the module's own parameters there, not those in training."""
    raise InputError(
        f"model: a {type(layer).__name__} is computed again for the gradient (activation checkpointing), "
        "which would be wrong here; switch that off"
    )


def _scores(module: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    try:
        output = functional_call(module, parameters, (x,))
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        problem = (str(error).splitlines() or [""])[0]
        problem = problem if isinstance(error, RuntimeError) and problem else f"{type(error).__name__}: {problem}"
        shape = tuple(x.shape[1:])
        raise InputError(f"model: cannot take samples of shape {shape} and type {x.dtype}: {problem}") from error
    return scores_of(output)


def _warn_of_probabilities(scores: Tensor) -> None:
    """Warn if the scores (b, classes) of every sample are probabilities: the loss takes their softmax once more."""
    rows = scores.detach().double()
    if rows.shape[-1] > 1 and bool((rows >= 0).all()) and torch.allclose(rows.sum(-1), rows.new_ones(len(rows))):
        warnings.warn(
            "model: its scores are all in [0, 1] and sum to 1, as after a softmax; cross-entropy takes the softmax "
            "itself, so leave that layer out",
            stacklevel=2,
        )


def _random_state(x: Tensor) -> Tensor:
    return torch.cuda.get_rng_state(x.device) if x.is_cuda else torch.get_rng_state()
