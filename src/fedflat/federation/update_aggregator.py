"""The answers of a round: which of them count, and their mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.method import Context, Method
from ..rounds.aggregation import RunningMean
from .codec import RefusedError, unpack
from .messages import Failure, TrainReply
from .norm_bounds import NormBounds

LATE = "no answer before the deadline"
LARGEST = 1e150  # drift that is believed; sums of it are finite
SHOWN = 20  # characters of what was sent, in a message about it


@dataclass(frozen=True)
class Expected:
    """What is known of a client before it answers."""

    samples: int
    steps: int  # local steps in this round
    weight: float  # in the mean


class UpdateAggregator:
    """Adds up answers as they come; nothing that is not checked reaches the sum, which the order does not change."""

    def __init__(
        self, method: Method, like: Tensor, ctx: Context, expected: Mapping[str, Expected], norms: NormBounds
    ) -> None:
        """`like` (d,) gives size, precision and device; `expected` are the clients that were asked, by name; `norms`
        bounds what they send, as of the beginning of the round, so that it does not matter who answers first."""
        self._method, self._like, self._ctx, self._expected = method, like, ctx, expected
        self._norms, self._found = norms, dict[str, dict[str, float]]()
        self._widths = method.up.widths(like.shape[-1], method)
        self._mean = RunningMean(method, like)
        self._answers: dict[str, TrainReply] = {}
        self._refused: dict[str, str] = {}
        self._largest: dict[str, float] = {}  # number of each client's message

    def hear(self, name: str, answer: TrainReply | Failure) -> None:
        """Count an answer, or note why it does not count; what nobody has asked for is not noted."""
        if name not in self._expected or name in self._answers or name in self._refused:
            return
        try:
            if isinstance(answer, Failure):
                raise RefusedError(answer.reason)
            self._check(answer, self._expected[name])
            up = unpack(self._method.up, self._widths, self._like.dtype, answer.up)
            self._found[name] = self._add(up, self._expected[name])
            self._largest[name] = max(float(x.abs().max()) for x in up.tensors().values() if x.numel())
        except RefusedError as error:
            self._refused[name] = str(error)
        else:
            self._answers[name] = replace(answer, up={})

    @property
    def counted(self) -> int:
        """How many answers count."""
        return len(self._answers)

    @property
    def heard(self) -> list[str]:
        """The clients whose answers count."""
        return sorted(self._answers)

    @property
    def norms(self) -> NormBounds:
        """The bounds for the next round, of the answers that count."""
        return self._norms.after(self._found.values())

    @property
    def loudest(self) -> str:
        """The client whose message had the largest number, and that."""
        name = max(self._largest, key=lambda name: self._largest[name])
        return f"{name} ({self._largest[name]:.3g})"

    @property
    def missing(self) -> dict[str, str]:
        """The clients whose answers do not count, and why."""
        silent = {name: LATE for name in self._expected if name not in self._answers}
        return dict(sorted((silent | self._refused).items()))

    def mean(self) -> tuple[Any, Tensor]:
        """The mean record, and the mean of local steps (1,), of the answers that count."""
        return self._mean.value(), self._mean.steps

    def metrics(self) -> dict[str, float]:
        """What the round reports."""
        answers = [self._answers[name] for name in sorted(self._answers)]
        return {
            "lr": self._ctx.lr,
            "clients": float(len(answers)),
            "drift": sum(answer.drift for answer in answers) / len(answers),
            "gradients": float(sum(answer.gradients for answer in answers)),
        }

    def _check(self, answer: TrainReply, expected: Expected) -> None:
        """Raise RefusedError unless the numbers beside the vectors are what they must be."""
        known = {"t": self._ctx.t, "samples": expected.samples, "steps": expected.steps}
        for what, value in known.items():
            found = getattr(answer, what)
            if type(found) is not int or found != value:
                raise RefusedError(f"{what} is {_told(found)}, expected {value}")
        if type(answer.drift) is not float or not 0 <= answer.drift < LARGEST:
            raise RefusedError(f"drift is {_told(answer.drift)}, expected a finite number of at least 0")
        if type(answer.gradients) is not int or not 0 <= answer.gradients < 2**53:
            raise RefusedError(f"gradients is {_told(answer.gradients)}, expected a count")

    def _add(self, up: Any, expected: Expected) -> dict[str, float]:
        """Add what the server makes of a client's message, as the simulator does; gives the norms of its fields.

        Raises RefusedError if one of them is beyond its bound.
        """
        steps = self._like.new_full((1, 1), float(expected.steps))
        at_client = replace(self._ctx, steps=steps, lr_sum=steps * self._ctx.lr)
        received = self._method.receive(up.map(lambda x: x[None].to(self._like.device)), at_client)
        received = received.map(lambda x: x.to(self._like.dtype))
        norms = self._norms.of(received, expected.steps * self._ctx.lr)
        weight = self._like.new_full((1, 1), expected.weight, dtype=torch.float64)
        self._mean.add(received, steps, weight)
        return norms


def _told(value: object) -> str:
    return repr(value)[:SHOWN]
