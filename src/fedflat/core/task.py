"""The task of a model: the kind of its labels, and the loss of a sample's scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from .errors import InputError, printable, shortened, with_type
from .hidden_state import HiddenState, leaves_of, same
from .registry import known_names
from .structure import text_of

Kind = Literal["classification", "multi-label", "regression", "next-token", "segmentation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
IGNORED = -100  # label of a position that does not count, as in torch
SampleLoss = Callable[[Tensor, Tensor], Tensor]  # scores (n, ...) and labels (n, ...) -> loss of each sample (n,)


@dataclass(frozen=True)
class LabelForm:
    """The labels of one kind of task, and the scores that a model gives for them.

    In some kinds of task a sample has a label for each of its positions: tokens of a text, or pixels of a picture.
    """

    shape: str  # shape of the labels of n samples, in words
    axes: tuple[int, ...]  # numbers of axes that these labels may have
    outputs: str  # what a model's outputs are, in words
    loss: str  # the default loss, in words
    score: str = "test_accuracy"  # the number that reports compare, see `metrics.protocols.SCORES`
    are_classes: bool = True  # whether labels are indices of classes
    axes_of_positions: tuple[int, int | None] = (0, 0)  # first and last + 1 of a sample's axes that labels have, too
    class_axis: int = -1  # the axis of scores (n, ...) that belongs to the outputs
    has_accuracy: bool = True
    has_counts: bool = True  # whether samples can be counted by class or label

    @property
    def has_positions(self) -> bool:
        """Whether a sample has a label for each of its positions."""
        return self.axes_of_positions != (0, 0)

    def positions(self, sample: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the labels of one sample of shape `sample`, if each position has one, else ()."""
        return sample[slice(*self.axes_of_positions)]

    def score_shape(self, outputs: int, sample: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the scores of one sample of shape `sample` with this number of outputs."""
        places = self.positions(sample)
        return (*places, outputs) if self.class_axis == -1 else (outputs, *places)


FORMS: dict[Kind, LabelForm] = {
    "classification": LabelForm("(n,)", (1,), "classes", "cross-entropy"),
    "multi-label": LabelForm("(n, labels)", (2,), "labels", "binary cross-entropy", are_classes=False),
    "regression": LabelForm(
        "(n,) or (n, k)", (1, 2), "number(s)", "squared error", "test_r2", are_classes=False, has_accuracy=False,
        has_counts=False,
    ),
    "next-token": LabelForm(
        "(n, tokens)", (2,), "tokens", "cross-entropy of a text's tokens", "test_perplexity",
        axes_of_positions=(0, 1), has_counts=False,
    ),
    "segmentation": LabelForm(
        "(n, height, width)", (3,), "classes of pixels", "cross-entropy of a picture's pixels",
        "test_mean_iou", axes_of_positions=(-2, None), class_axis=1, has_counts=False,
    ),
}  # fmt: skip


def _binary_cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """Compute the binary cross-entropy of each sample: the mean over its labels."""
    return binary_cross_entropy_with_logits(scores, y.to(scores.dtype), reduction="none").mean(-1)


def _squared_error(scores: Tensor, y: Tensor) -> Tensor:
    """Compute the squared error of each sample: the mean over its numbers."""
    return (scores - y).square().mean(-1)


def position_losses(scores: Tensor, y: Tensor, form: LabelForm) -> Tensor:
    """Compute the cross-entropy at each position, in the shape of `y` (n, *positions); 0 where `y` is ignored."""
    rows = scores.movedim(form.class_axis, -1).flatten(0, -2)
    return cross_entropy(rows, y.flatten(), ignore_index=IGNORED, reduction="none").view(y.shape)


def _mean_over_positions(kind: Kind, scores: Tensor, y: Tensor) -> Tensor:
    """Compute the cross-entropy of each sample: the mean over its positions that are not ignored."""
    return position_losses(scores, y, FORMS[kind]).flatten(1).sum(1) / (y != IGNORED).flatten(1).sum(1)


@dataclass(frozen=True)
class Task:
    """A kind of labels and the loss that is minimised."""

    kind: Kind
    loss: str  # name of the loss; for a user's function, a description of its code
    each: SampleLoss

    @property
    def form(self) -> LabelForm:
        """The form of labels and scores."""
        return FORMS[self.kind]

    def check(self, outputs: int, y: Tensor, dtype: torch.dtype) -> None:
        """Raise InputError unless `each` returns one loss per sample, from the scores and labels of this sample alone.

        The check uses the labels `y` (n, ...) of some samples, and `outputs` made-up scores for each of them.
        """
        if LOSSES.get(self.loss) is self:
            return
        size = (len(y), *self.form.score_shape(outputs, tuple(y.shape[1:])))
        numbers = torch.linspace(-1, 1, prod(size), dtype=dtype, device=y.device).requires_grad_()
        scores, labels = numbers.view(size), y.clone()
        try:
            found, kept = self.each(scores, labels), HiddenState(self.each)
            again, later = self.each(scores, labels), HiddenState(self.each)
            first = self.each(scores[:1], labels[:1])
        except Exception as error:
            raise InputError(f"loss {self.loss}: fails with {with_type(error)}") from error
        shape = tuple(found.shape) if isinstance(found, Tensor) else None
        if shape != (len(y),) or not found.is_floating_point():
            got = f"a tensor of shape {shape}" if shape is not None else f"a value of type {type(found).__name__}"
            raise InputError(f"loss {self.loss}: gives {got} for {len(y)} samples, expected one number for each: "
                             f"({len(y)},)")  # fmt: skip
        if not torch.allclose(found[:1], first, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise InputError(f"loss {self.loss}: a sample's loss depends on the other samples of its batch")
        if place := kept.first_difference(later):
            raise InputError(f"loss {self.loss}: what it keeps in {place!r} changes from call to call")
        if not (same(found.detach(), again.detach()) and same(y, labels)):
            raise InputError(f"loss {self.loss}: gives other numbers for the same scores and labels, or changes them")
        if [id(leaf) for leaf in leaves_of(found)] != [id(numbers)]:
            raise InputError(
                f"loss {self.loss}: has no gradient with respect to the scores, or has parameters of its own"
            )


CROSS_ENTROPY = Task("classification", "cross-entropy", partial(cross_entropy, reduction="none"))
LOSSES = {
    "cross-entropy": CROSS_ENTROPY,
    "multi-label": Task("multi-label", "multi-label", _binary_cross_entropy),
    "regression": Task("regression", "regression", _squared_error),
    "next-token": Task("next-token", "next-token", partial(_mean_over_positions, "next-token")),
    "segmentation": Task("segmentation", "segmentation", partial(_mean_over_positions, "segmentation")),
}
DEFAULTS = {task.kind: task for task in LOSSES.values()}  # by kind


def task_of(loss: Any, kind: Kind) -> Task:
    """Return the task for labels of this `kind`; `loss` is a name, a function, or None for the default of the kind.

    Raises InputError for an unknown name, or for a loss that needs labels of another kind.
    """
    if loss is None:
        return DEFAULTS[kind]
    if callable(loss):
        return Task(kind, printable(text_of(loss)), loss)
    if not isinstance(loss, str) or loss not in LOSSES:
        raise InputError(f"loss = {shortened(repr(loss))} is unknown; {known_names(loss, LOSSES)}")
    if LOSSES[loss].kind != kind:
        raise InputError(
            f"loss = {loss!r} needs labels for {LOSSES[loss].kind}, and the data's are for {kind}; make the data "
            f"with task={LOSSES[loss].kind!r}, or use loss = {DEFAULTS[kind].loss!r}"
        )
    return LOSSES[loss]
