"""The task loss of a model as a function of its flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from .errors import InputError, StackingError, first_line, is_out_of_memory, shortened
from .hidden_state import close
from .oracle import MovingStatistics
from .running_statistics import Buffers, RunningStatistics, keep_statistics
from .stacked_layers import EmbeddingGradients, SeededDropout, has_special_gradient, linear_layers, row_major
from .task import CROSS_ENTROPY, Task
from .torch_module import (
    OtherParameters,
    Space,
    copied,
    evaluating,
    own_modes,
    recompute_weights,
    scores_of,
    start_training,
)


@dataclass(frozen=True)
class Batch:
    """Samples for one client, or one batch for each client of a stack."""

    x: Tensor  # (*clients, b, *shape)
    y: Tensor  # (*clients, b) class indices, or (*clients, b, ...) labels of other tasks
    weight: Tensor | None = None  # (*clients, b), sums to 1 per client; None is the plain mean
    key: Tensor | None = None  # (*clients,) int64, determines the dropout masks; None: torch draws them

    def mean(self, x: Tensor) -> Tensor:
        """Compute the weighted mean over each client's samples of `x` (*clients, b): (*clients,), in float64.

        The mean is the same, up to float64 rounding, for padded and unpadded batches.
        """
        if self.weight is None:
            return x.mean(-1, dtype=torch.float64)
        weight = self.weight.to(x.device)
        return (x.double() * weight).sum(-1) / weight.sum(-1, dtype=torch.float64)


Penalty = Callable[[Tensor], Tensor]  # scores (*clients, b, classes) -> one number per sample (*clients, b)


class Objective:
    """The mean loss of `module` on a task at any parameter vector; the module's own parameters are not used.

    Losses and gradients are on the device of the vector, scores on that of the samples; these differ only if a device
    has no float64. The loss contains neither weight decay nor a penalty. Gradients are computed in training mode, which
    the module's own `train()` may define. Layers in evaluation mode inside a module in training mode stay in evaluation
    mode.
    """

    def __init__(
        self, module: nn.Module, bf16: bool = False, task: Task = CROSS_ENTROPY, buffers: Buffers | None = None
    ) -> None:
        """Prepare `module`. With `bf16`, gradients in training mode use torch's bfloat16 autocast.

        Gradients in evaluation mode never do. buffers: how running statistics are treated; "frozen" puts their layers
        into evaluation mode. Raises InputError if `buffers` does not fit the module, or if the module has a `train()`
        that cannot be called on a copy.
        """
        self._bf16, self.task = bf16, task
        start_training(module)
        keep_statistics(module, buffers)
        self.module, self.statistics = module, RunningStatistics(module)
        self.space = Space(module)
        self._linear, self._called = linear_layers(module), OtherParameters(module, self.space.shapes)
        self._embeddings = EmbeddingGradients if has_special_gradient(module) else nullcontext

    def logits(self, w: Tensor, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Compute the scores, such as (*clients, b, classes), at `w` (*clients, d) for `x` (*clients, b, *shape).

        Dropout draws its masks from `key` (*clients,), or from torch's random state if `key` is None.
        """
        return self._scores_at(self.space.view_list(w.to(x.device)), x, key, is_stacked=w.ndim > 1)

    def _scores_at(
        self,
        parameters: Sequence[Tensor],
        x: Tensor,
        key: Tensor | None,
        is_stacked: bool,
        moving: MovingStatistics | None = None,
    ) -> Tensor:
        """Compute the scores of `logits` with `parameters`, each (*clients, *shape); in training, update `moving`."""
        if not is_stacked:
            x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
            with self.statistics.replaced(moving) if self._has_moving_statistics else nullcontext():
                return self._scores(key, x, *parameters)
        if self._has_moving_statistics:
            raise StackingError("model: its running statistics cannot be updated for several clients at once; "
                                "set executor = 'sequential'")  # fmt: skip
        with row_major(self._linear), self._embeddings(), _stacking():
            if key is None:
                scores: Tensor = vmap(partial(self._scores, None))(x, *parameters)
            else:
                scores = vmap(self._scores)(key, x, *parameters)
        return scores

    def _scores(self, key: Tensor | None, x: Tensor, *parameters: Tensor) -> Tensor:
        """Compute one client's scores (b, classes); inside `vmap` the tensors are batched."""
        with nullcontext() if key is None else SeededDropout(key):
            try:
                output = self._called.call(parameters, x)
            finally:
                self._called.restore()
        return scores_of(output)

    def loss(self, w: Tensor, batch: Batch, penalty: Penalty | None = None) -> Tensor:
        """Compute the mean loss of each client, (*clients,), at `w` (*clients, d), plus a penalty on the scores."""
        return self.losses(w, batch, penalty)[0]

    @property
    def _has_moving_statistics(self) -> bool:
        """Whether a pass changes running statistics."""
        return self.statistics.width > 0 and self.module.training

    def losses(
        self, w: Tensor, batch: Batch, penalty: Penalty | None, moving: MovingStatistics | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute each client's `loss` (*clients,), and the unpenalised, detached loss of each sample (*clients, b)."""
        parameters = self.space.view_list(w.to(batch.x.device))
        mean, plain = self._losses_at(parameters, w.ndim > 1, batch, penalty, False, moving)
        return mean.to(w.device), plain.to(w.device)

    def _losses_at(
        self,
        parameters: Sequence[Tensor],
        is_stacked: bool,
        batch: Batch,
        penalty: Penalty | None,
        alone: bool,
        moving: MovingStatistics | None,
    ) -> tuple[Tensor, Tensor]:
        """Compute `losses` with `parameters`, each (*clients, *shape); `alone`: the mean penalty instead of `loss`."""
        scores = self._scores_at(parameters, batch.x, batch.key, is_stacked, moving)
        last = int(is_stacked)  # axis of the samples
        samples = scores.shape[: last + 1]
        each = self.task.each(scores.flatten(0, last), batch.y.flatten(0, last)).view(samples)
        plain = each.detach()
        if penalty is not None:
            each = penalty(scores) if alone else each + penalty(scores)
        mean = each.mean(-1) if batch.weight is None else (each * batch.weight).sum(-1)
        return mean, plain

    def gradient(self, w: Tensor, batch: Batch, penalty: Penalty | None = None) -> Tensor:
        """Compute the gradient of `loss`, (*clients, d), for each client at its own row of `w` (*clients, d)."""
        return self._gradient_and_losses(w, batch, penalty, False)[0]

    def _gradient_and_losses(
        self,
        w: Tensor,
        batch: Batch,
        penalty: Penalty | None,
        penalty_alone: bool,
        moving: MovingStatistics | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradient (*clients, d), and the unpenalised loss of each sample (*clients, b).

        Each parameter is a leaf of autograd: a gradient of the whole vector would be cut into views and joined again,
        which takes a quarter of a step of a small model.
        """
        leaves = [x.requires_grad_() for x in self.space.view_list(w.detach().to(batch.x.device))]
        with torch.enable_grad(), nullcontext() if penalty_alone else self.training_precision():
            mean, plain = self._losses_at(leaves, w.ndim > 1, batch, penalty, penalty_alone, moving)
            total = mean.sum() if mean.ndim else mean
        found = torch.autograd.grad(total, leaves, materialize_grads=True)
        return self.space.joined(found, w.ndim - 1).to(w.device), plain.to(w.device)

    def loss_and_gradient(
        self,
        w: Tensor,
        batch: Batch,
        penalty: Penalty | None = None,
        penalty_alone: bool = False,
        moving: MovingStatistics | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the mean loss without the penalty, (*clients,), float64, and `gradient`, in one pass.

        moving: the client's running statistics, which this pass updates.

        With `penalty_alone` the gradient is that of the penalty, never in bfloat16: near the teacher, where every round
        starts, a teacher's penalty is so flat that its gradient would be only rounding error.
        """
        gradient, plain = self._gradient_and_losses(w, batch, penalty, penalty_alone, moving)
        return batch.mean(plain), gradient

    def training_precision(self) -> AbstractContextManager[Any]:
        """Return a context with bfloat16 autocast, if it is selected and the module is in training mode."""
        if not (self._bf16 and self.module.training):
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def show(self, statistics: Tensor | None) -> None:
        """Evaluate with the running `statistics` (s,) from now on; None leaves them as they are."""
        if statistics is not None:
            self.statistics.write(statistics)

    def show_module(self, module: nn.Module) -> Tensor:
        """Evaluate with the running statistics of `module` from now on, and return its parameters (d,)."""
        buffers = dict(module.named_buffers())
        if self.statistics.width:
            self.statistics.write(torch.cat([buffers[name] for name in self.statistics.sizes]))
        return self.space.flatten(module)

    def module_at(self, w: Tensor, statistics: Tensor | None = None) -> nn.Module:
        """Return a new module with the parameters `w` (d,) and running statistics (s,), in evaluation mode."""
        module = copied(self.module)
        self.space.write(module, w)
        if statistics is not None:
            RunningStatistics(module).write(statistics)
        recompute_weights(module)
        return module.eval()

    @property
    def device(self) -> torch.device:
        """The device of the module's parameters, where samples have to be."""
        return next(self.module.parameters()).device

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context with every layer in evaluation mode. Raises InputError if a layer stays in training mode."""
        return evaluating(self.module)

    def check_own_modes(self, w: Tensor, x: Tensor) -> None:
        """Raise InputError if an overridden `train()` makes the scores at `w` (d,) in evaluation mode wrong or random.

        The check runs samples `x` (b, *shape) twice: with parameters copied into the module, and passed as a vector.
        """
        if next(own_modes(self.module), None) is None:
            return
        moved = w + torch.linspace(-1, 1, len(w), dtype=w.dtype, device=w.device).mul(300).cos() / 100
        self.space.write(self.module, moved)
        with torch.no_grad(), self.evaluating():
            inside = scores_of(self.module(x))
        self.space.write(self.module, w)
        with torch.no_grad(), self.evaluating():
            beside = self.logits(moved, x)
        if not close(inside, beside, 1e-3):
            raise InputError(
                f"model: train() of {type(self.module).__name__}, or of a layer in it, changes more than the mode: "
                "evaluated, it has other scores than its parameters give, as if an adapter was merged into its weights"
            )


@dataclass(frozen=True)
class BatchOracle:
    """The gradient oracle of one batch (see `core.oracle.MinibatchOracle`).

    `seeded` returns a context for each gradient; the context seeds torch's random state for draws other than dropout.
    """

    objective: Objective
    batch: Batch
    seeded: Callable[[], AbstractContextManager[None]] = nullcontext
    penalty: Penalty | None = None
    moving: MovingStatistics | None = None  # updated by the functions that return the loss

    def __call__(self, w: Tensor) -> Tensor:
        """Compute the gradient at `w` (*clients, d)."""
        with self.seeded():
            return self.objective.gradient(w, self.batch, self.penalty)

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean loss at `w` without a penalty, (*clients,), float64, and the gradient, in one pass."""
        with self.seeded():
            return self.objective.loss_and_gradient(w, self.batch, self.penalty, moving=self.moving)

    def with_statistics(self, moving: MovingStatistics) -> BatchOracle:
        """Return the oracle whose passes with a loss update the running statistics in `moving`."""
        return replace(self, moving=moving)

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> BatchOracle:
        """Return the oracle of the loss with a teacher's penalty; see `core.oracle.with_teacher`.

        Raises InputError for a task other than classification.
        """
        return replace(self, penalty=self._teacher(e, weight * tau**2, tau))

    def teacher_gradient(self, w: Tensor, e: Tensor, tau: float) -> Tensor:
        """Return the gradient of a teacher's penalty alone; see `core.oracle.teacher_gradient`."""
        return self.teacher_gradient_with_loss(w, e, tau)[1]

    def teacher_gradient_with_loss(self, w: Tensor, e: Tensor, tau: float) -> tuple[Tensor, Tensor]:
        """Compute the mean loss at `w` without the penalty, and the gradient of the penalty alone."""
        with self.seeded():
            penalty = self._teacher(e, 1.0, tau)
            return self.objective.loss_and_gradient(w, self.batch, penalty, penalty_alone=True, moving=self.moving)

    def _teacher(self, e: Tensor, weight: float, tau: float) -> Penalty:
        """Return the penalty weight KL(softmax(z_e / tau) || softmax(z_w / tau)).

        Raises InputError for a task other than classification.
        """
        if self.objective.task.kind != "classification":
            raise InputError(
                f"method: its teacher compares scores of classes, and the task is {self.objective.task.kind}"
            )

        def penalty(scores: Tensor) -> Tensor:
            # Computed here, inside `seeded`, so that what the teacher draws is seeded too. Its dropout masks are the
            # student's, so that the two differ only by their parameters.
            with torch.no_grad():
                teacher = (self.objective.logits(e, self.batch.x, self.batch.key) / tau).log_softmax(-1)
            student = (scores / tau).log_softmax(-1)
            return weight * (teacher.exp() * (teacher - student)).sum(-1)

        return penalty

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients with respect to `w`, `matrix` and `shift`; see `core.oracle.wrt_inputs`."""
        return self.wrt_inputs_with_loss(w, matrix, shift)[1]

    def wrt_inputs_with_loss(
        self, w: Tensor, matrix: Tensor, shift: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Compute the mean loss on the mapped samples A x + b, and the gradients of `wrt_inputs`."""
        inputs = [x.detach().requires_grad_() for x in (w, matrix, shift)]
        with self.seeded(), torch.enable_grad(), self.objective.training_precision():
            moved = replace(self.batch, x=_transformed(self.batch, w.ndim, *inputs[1:]))
            loss, plain = self.objective.losses(inputs[0], moved, self.penalty, self.moving)
            by_w, by_matrix, by_shift = torch.autograd.grad(loss.sum(), inputs)
        return self.batch.mean(plain), (by_w, by_matrix, by_shift)


def _transformed(batch: Batch, axes: int, matrix: Tensor, shift: Tensor) -> Tensor:
    """Return the samples A x + b, in the shape of the batch's samples, whose first `axes` axes are (*clients, b)."""
    channels = round(matrix.shape[-1] ** 0.5)
    numbers = prod(batch.x.shape[axes:])
    if shift.shape[-1] != numbers:
        raise InputError(f"inputs of {channels} channels and {shift.shape[-1]} numbers do not fit samples of {numbers}")
    x = batch.x.reshape(*batch.x.shape[:axes], channels, -1)
    A = matrix.to(x.device).reshape(*matrix.shape[:-1], 1, channels, channels)
    b = shift.to(x.device).reshape(*shift.shape[:-1], 1, channels, -1)
    return (A @ x + b).reshape(batch.x.shape)


@contextmanager
def _stacking() -> Iterator[None]:
    """Raise StackingError for an error of `vmap` in the block: `vmap` cannot run every model for several clients."""
    try:
        yield
    except (InputError, Warning):  # a warning that a filter raises as an error is no failure of torch
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        problem = first_line(error)
        raise StackingError(
            "model: torch cannot run it for several clients at once; set executor = 'sequential' "
            f"({shortened(problem, 120)})"
        ) from error
