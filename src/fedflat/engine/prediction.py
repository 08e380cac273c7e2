"""What a trained model says of samples that nobody trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError, printable, shortened
from ..core.model_check import check_tokens
from ..core.torch_module import evaluating, scores_of
from ..data.sample_kind import Encoder, SampleKind
from ..metrics.accuracy import SAMPLES_AT_ONCE


def predict(
    module: nn.Module, kind: SampleKind, x: Any, classes: bool = False, encoder: Encoder | None = None
) -> Tensor:
    """Compute the scores (n, k) of samples `x`, or with `classes` what `classes_of` makes of them, on the CPU.

    They are computed in batches, on the module's device, in evaluation mode and without gradients. Raises InputError
    for samples that are not of the kind of training, see `SampleKind.stored`, and for scores that are NaN or infinite.
    """
    stored = kind.stored(x, encoder)
    check_tokens(module, *([] if stored.is_floating_point() else [stored]))
    parameters = list(module.parameters())
    first = next((p for p in parameters if p.requires_grad), parameters[0])
    found = [torch.empty(0, kind.outputs, dtype=first.dtype)] if not len(stored) else []
    with torch.inference_mode(), evaluating(module):
        for some in torch.split(stored, SAMPLES_AT_ONCE) if len(stored) else ():
            found.append(_scores(module, kind.prepared(some.to(first.device), first.dtype), kind.outputs).cpu())
    scores = torch.cat(found).clone()
    return classes_of(scores, kind) if classes else scores


def classes_of(scores: Tensor, kind: SampleKind) -> Tensor:
    """Return the class (n,) with the largest score, int64; in a multi-label task which labels are there, 0 or 1 (n, k).

    Raises InputError in regression.
    """
    if kind.task == "regression":
        raise InputError("predict: a regression has no classes; its scores are the numbers that it predicts")
    return scores.argmax(-1) if kind.task == "classification" else (scores > 0).long()


def _scores(module: nn.Module, x: Tensor, outputs: int) -> Tensor:
    try:
        scores = scores_of(module(x))
    except (RuntimeError, LookupError) as error:
        reason = shortened(printable((str(error).splitlines() or [type(error).__name__])[0]))
        raise InputError(f"predict: the model cannot take these samples: {reason}") from error
    if scores.shape != (len(x), outputs) or not torch.isfinite(scores).all():
        raise InputError("predict: the model gives scores that are NaN or infinite, or not one row for each sample")
    return scores
