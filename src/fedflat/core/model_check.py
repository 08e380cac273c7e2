"""Checks of a model by a few passes before training: its fit to the data, its random draws, and state that it keeps."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from .errors import InputError, first_line, is_out_of_memory, with_type
from .hidden_state import HiddenState, close, leaves_of, plain_state, same
from .running_statistics import RunningStatistics
from .stacked_layers import SeededDropout
from .task import CROSS_ENTROPY, DEFAULTS, Task
from .torch_module import OtherParameters, copied, evaluating, scores_of


class Randomness(Enum):
    """The random draws of a model in training."""

    NOTHING = "nothing"
    DROPOUT = "dropout"  # and nothing else: `SeededDropout` makes the masks
    OTHER = "other"  # from torch's random state, which has to be seeded for one client at a time
    # Seeded as OTHER. A sample's scores depend on the rest of its batch; only the executor `sequential` never pads.
    OF_BATCH = "of batch"


def check_tokens(module: nn.Module, *samples: Tensor) -> None:
    """Raise InputError if `samples` (n, tokens) have token numbers outside the vocabulary of a text model.

    `module`, or a module inside it, is a text model if it has an integer attribute `vocabulary`, the number of tokens.
    """
    for vocabulary in (found for part in module.modules() if type(found := getattr(part, "vocabulary", None)) is int):
        for x in samples:
            low, high = (int(end) for end in x.aminmax()) if len(x) else (0, 0)
            if low < 0 or high >= vocabulary:
                wrong = low if low < 0 else high
                raise InputError(f"model: takes token numbers 0..{vocabulary - 1}, and the data have {wrong}")


def randomness_of(module: nn.Module, x: Tensor, classes: int, task: Task = CROSS_ENTROPY) -> Randomness:
    """Find which random numbers `module` draws in training mode, by a few passes of samples `x` (b, *shape).

    `classes` is the number of scores that `task` needs; scores that look like probabilities cause a warning. Four
    samples are enough.

    A copy is made first. The module then runs some samples; after that, the module and its copy run the same other
    samples at the same other parameters. Their scores and gradients agree only if these depend on nothing but
    parameters, samples and torch's random state.

    Raises InputError if the module cannot take the samples, cannot be copied, or does not give one score per class; if
    the scores have no gradient, or a gradient with respect to tensors that are not trained; if the module changes a
    buffer other than running statistics, its input or a parameter, or draws random numbers that are not torch's; or if
    it keeps any other state between passes, which would leak from one client's samples to the next client. Torch's
    random state and running statistics are restored.
    """
    fresh, values = copied(module, with_parameters=False), {name: p.detach() for name, p in module.named_parameters()}
    moving = {name for name, p in module.named_parameters() if p.requires_grad}
    for name in sorted(moving):
        if not values[name].isfinite().all():
            raise InputError(f"model: its parameter {name!r} has NaN or infinite values before training")
    others = {name: p * 1.01 + 0.001 if name in moving else p for name, p in values.items()}
    first, second = x[:2], x[2:4] if len(x) >= 4 else x[:2].flip(0)
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        before = _random_state(x)
        found = _observe(module, values, first, classes, task)
        if task is DEFAULTS[task.kind] and task.form.are_classes:
            _warn_of_probabilities(found, task.form.class_axis)
        depends = found.drawn is not Randomness.OTHER and _depends_on_others(module, values, first, found.scores)
        again = []
        for one in (fresh, module):
            _set_random_state(x, before)
            again.append(_observe(one, others, second, classes, task))
    _refuse_memory(*again)
    return Randomness.OF_BATCH if depends else found.drawn


@dataclass(frozen=True)
class _Observation:
    """The outputs of a module for some samples at some parameters, and its state afterwards."""

    scores: Tensor  # in training mode, (b, classes)
    gradients: list[Tensor | None]
    evaluated: Tensor  # the scores in evaluation mode
    drawn: Randomness  # in training mode
    state: HiddenState


def _observe(module: nn.Module, values: dict[str, Tensor], x: Tensor, classes: int, task: Task) -> _Observation:
    """Run `x` at the parameters `values`, forward and backward, then in evaluation mode. Raises InputError."""
    before = _random_state(x)
    leaves = {name: values[name].clone().requires_grad_(p.requires_grad) for name, p in module.named_parameters()}
    statistics = RunningStatistics(module)
    with _watched(module, leaves), torch.enable_grad(), _dropout(x) as covered, statistics.replaced(None):
        scores = _scores(module, leaves, x, classes, task)
    gradients = _back(module, scores, leaves)
    after = _random_state(x)
    with _watched(module, values), torch.inference_mode(), evaluating(module):
        evaluated = _scores(module, values, x, classes, task)
    if not torch.equal(after, _random_state(x)):
        raise InputError("model: draws random numbers in evaluation mode, so its accuracy would not be the same again; "
                         "draw only `if self.training`, and give dropout training=self.training")  # fmt: skip
    moved = not torch.equal(before, after)
    drawn = Randomness.OTHER if moved else Randomness.DROPOUT if covered.calls else Randomness.NOTHING
    return _Observation(scores.detach(), gradients, evaluated.clone(), drawn, HiddenState(module))


@contextmanager
def _watched(module: nn.Module, parameters: dict[str, Tensor]) -> Iterator[None]:
    """Raise InputError if the block changes a parameter or buffer, or draws random numbers of Python or NumPy."""
    kept = {name: x.detach().clone() for name, x in (*parameters.items(), *module.named_buffers())}
    trained, drawn = {name: x.requires_grad for name, x in parameters.items()}, _other_random_states()
    yield
    for name, leaf in parameters.items():
        if leaf.requires_grad != trained[name]:
            raise InputError(
                f"model: changes requires_grad of its parameter {name!r} in forward; do that before training"
            )
        if not same(leaf.detach(), kept[name]):
            raise InputError(f"model: changes its parameter {name!r} in place in forward, where methods move them")
    for name, buffer in module.named_buffers():
        if name not in kept or not same(buffer, kept[name]):
            raise InputError(f"model: buffer {name!r} changes in training; a federated mean covers parameters only")
    if drawn != _other_random_states():
        raise InputError("model: draws random numbers of Python or NumPy, which are not the same again for a client; "
                         "draw them with torch, such as torch.rand(())")  # fmt: skip


def _refuse_memory(fresh: _Observation, used: _Observation) -> None:
    """Raise InputError if a module that has run other samples differs from a fresh copy in outputs or state."""
    if place := fresh.state.first_difference(used.state):
        raise InputError(f"model: what it keeps in {place!r} changes from pass to pass, and would go from a client to "
                         "the next; keep nothing there, or switch that off")  # fmt: skip
    pairs = zip(*((one.scores, one.evaluated, *one.gradients) for one in (fresh, used)), strict=True)
    if not all(a is b if a is None or b is None else same(a, b) for a, b in pairs):
        raise InputError("model: gives other scores or gradients for the same parameters and samples; it draws "
                         "numbers of a generator of its own, looks at a clock, or remembers something; draw by torch "
                         "without a generator, and keep nothing between passes")  # fmt: skip


def _depends_on_others(module: nn.Module, values: dict[str, Tensor], x: Tensor, scores: Tensor) -> bool:
    """Tell whether the `scores` of `x` change if a sample is added to the batch, as executors do to pad batches."""
    with torch.no_grad(), _dropout(x), RunningStatistics(module).replaced(None):
        found = scores_of(_called(module, values, torch.cat([x, x[:1]])))[: len(x)]
    return not close(found, scores, torch.finfo(scores.dtype).eps ** 0.5)


def _back(module: nn.Module, scores: Tensor, leaves: dict[str, Tensor]) -> list[Tensor | None]:
    """Return the gradients with respect to `leaves`. Raises InputError if none exists, or if another tensor has one."""
    trained = [leaf for leaf in leaves.values() if leaf.requires_grad]
    if not trained:
        return []
    if not scores.requires_grad:
        raise InputError("model: its scores have no gradient, so nothing would be trained; leave out detach, "
                         "torch.no_grad and argmax in forward")  # fmt: skip
    _refuse_others(module, scores, {id(leaf) for leaf in trained})
    hooks = [layer.register_forward_pre_hook(_refuse_recomputing) for layer in module.modules()]
    mixed = torch.linspace(0.5, 1.5, scores.numel(), dtype=scores.dtype, device=scores.device).view_as(scores)
    try:
        gradients = torch.autograd.grad((scores * mixed).sum(), trained, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        raise InputError(f"model: has no gradient: {first_line(error)}") from error
    finally:
        for hook in hooks:
            hook.remove()
    for name, gradient in zip((n for n, leaf in leaves.items() if leaf.requires_grad), gradients, strict=True):
        if gradient is not None and gradient.layout is not torch.strided:
            raise InputError(f"model: the gradient of {name!r} is sparse; make the embedding with sparse=False")
    if all(gradient is None for gradient in gradients):
        raise InputError("model: its scores depend on no trainable parameter")
    return list(gradients)


def _refuse_others(module: nn.Module, scores: Tensor, trained: set[int]) -> None:
    """Raise InputError if `scores` have a gradient with respect to a tensor that training would not change."""
    own = {id(p): name for name, p in module.named_parameters()}
    for leaf in leaves_of(scores):
        if id(leaf) not in trained:
            what = f"parameter {own[id(leaf)]!r}" if id(leaf) in own else f"a tensor of shape {tuple(leaf.shape)}"
            raise InputError(f"model: forward uses {what} that training would not move, since it is kept in a list, a "
                             "closure, a hook or another module; make it an attribute, ModuleList or ParameterList, "
                             "and use it as self.NAME")  # fmt: skip


def _refuse_recomputing(layer: nn.Module, _: object) -> None:
    """Refuse activation checkpointing: it re-runs a layer in the backward pass, with the module's own parameters."""
    raise InputError(
        f"model: a {type(layer).__name__} is computed again for the gradient (activation checkpointing), "
        "which would be wrong here; switch that off"
    )


def _scores(module: nn.Module, parameters: dict[str, Tensor], x: Tensor, classes: int, task: Task) -> Tensor:
    """Compute the scores. Raises InputError unless they are floats in the task's shape and `x` stays unchanged."""
    given = x.clone()
    scores = scores_of(_called(module, parameters, given))
    expected = (len(x), *task.form.score_shape(classes, tuple(x.shape[1:])))
    if scores.shape != expected:
        raise InputError(f"model: gives scores of shape {tuple(scores.shape)} for {len(x)} samples of {classes} "
                         f"{task.form.outputs}, expected {expected}")  # fmt: skip
    if not scores.is_floating_point():
        raise InputError(f"model: gives scores of type {scores.dtype}, without a gradient; return those before argmax")
    if not same(given, x):
        raise InputError("model: changes its input in place, which the next pass would see; write x = x * 2")
    return scores


def _called(module: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Any:
    """Call `module` with `parameters` on `x`. Raises InputError if the call fails, but not if memory is short."""
    try:
        return OtherParameters(module, parameters).call(list(parameters.values()), x)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        if is_out_of_memory(error):
            raise
        problem = first_line(error) if isinstance(error, RuntimeError) else with_type(error)
        shape = tuple(x.shape[1:])
        if not x.is_floating_point() and _takes_floats(module, parameters, x):
            problem = "it takes floats, and whole numbers are tokens; give quantities as floats, x.astype('float32')"
        raise InputError(f"model: cannot take samples of shape {shape} and type {x.dtype}: {problem}") from error


def _takes_floats(module: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> bool:
    """Tell whether `module` accepts `x` if it is converted to the floating-point dtype of `parameters`."""
    floats = [p.dtype for p in parameters.values() if p.is_floating_point()]
    with suppress(Exception):
        OtherParameters(module, parameters).call(list(parameters.values()), x.to(floats[0]))
        return True
    return False


def _warn_of_probabilities(found: _Observation, class_axis: int) -> None:
    """Warn if the scores of every sample are probabilities, because the loss applies softmax to scores itself."""
    for scores, when in ((found.scores, ""), (found.evaluated, "in evaluation mode ")):
        rows = scores.movedim(class_axis, -1).flatten(0, -2).cpu().double()  # not every device has float64
        if rows.shape[-1] > 1 and bool((rows >= 0).all()) and torch.allclose(rows.sum(-1), rows.new_ones(len(rows))):
            warnings.warn(
                f"model: its scores {when}are all in [0, 1] and sum to 1, as after a softmax; cross-entropy takes the "
                "softmax itself, so leave that layer out",
                stacklevel=3,
            )
            return


def _other_random_states() -> tuple[object, ...]:
    """Return the random states of Python, and of NumPy if it is imported."""
    arrays: Any = sys.modules.get("numpy")
    return random.getstate(), arrays and plain_state(arrays.random.get_state(legacy=False))


def _dropout(x: Tensor) -> SeededDropout:
    return SeededDropout(torch.zeros((), dtype=torch.int64, device=x.device))


def _random_state(x: Tensor) -> Tensor:
    if x.device.type == "mps":
        return torch.mps.get_rng_state()
    return torch.cuda.get_rng_state(x.device) if x.is_cuda else torch.get_rng_state()


def _set_random_state(x: Tensor, state: Tensor) -> None:
    if x.device.type == "mps":
        return torch.mps.set_rng_state(state)
    torch.cuda.set_rng_state(state, x.device) if x.is_cuda else torch.set_rng_state(state)
