"""Checks the replies of a round and computes the mean of the accepted ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor

from ..core.compressed import compressed_fields
from ..core.local import lr_factors_of
from ..core.method import Context, Method
from ..core.records import Record
from ..metrics.accuracy import drift
from ..rounds.aggregation import RunningMean
from ..rounds.cost import sends_move
from ..rounds.guard import GuardState
from .messages import Failure, RefusedError, Reply, TrainReply, TrainRequest, Transport, quoted, unpack

NO_REPLY = "no answer before the deadline"
CLOSED = "no answer before the round was closed, since enough others had replied"
MAX_DRIFT = 1e150  # even the sum of the drifts of all clients is finite
# The name under which a reported drift is bounded like a norm, if the update does not contain the change of the model.
CLAIMED_DRIFT = "claimed drift"


@dataclass(frozen=True)
class ExpectedReply:
    """What the server knows in advance about a client's reply."""

    samples: int
    steps: int  # local steps in this round
    gradients: int  # minibatch gradients that these steps compute
    weight: float  # of the client in the mean


@dataclass(frozen=True)
class AcceptedReply:
    """The metrics of an accepted reply, which the server keeps after adding the reply's vectors to the sums."""

    drift: float
    norms: Mapping[str, float]  # norm of each field that is averaged
    largest: float  # the largest absolute value of the numbers that the client has sent
    norm: float  # of all fields of the averaged record together; 0 without a guard
    clipped: bool  # whether the guard has clipped the record


class UpdateAggregator:
    """Adds replies to running sums as they arrive, each one only after it has passed every check.

    The result does not depend on the order of the replies.
    """

    def __init__(
        self, method: Method, like: Tensor, ctx: Context, expected: Mapping[str, ExpectedReply], guard: GuardState,
        mean: RunningMean | None = None,
    ) -> None:  # fmt: skip
        """Begin a round.

        like: a vector (d,) with the model's size, precision and device. expected: what is known in advance about each
        asked client's reply, by client name. guard: the bounds at the beginning of the round; the replies of the round
        do not change them. mean: of the round, without a reply yet; by default that of the accepted replies.
        """
        self._method, self._like, self._ctx, self._expected, self._guard = method, like, ctx, expected, guard
        self._widths, self._sends_move = method.up.widths(like.shape[-1], method), sends_move(method)
        self._compressed = compressed_fields(method)
        self.mean = RunningMean(method, like) if mean is None else mean
        self._accepted: dict[str, AcceptedReply] = {}
        self._rejected: dict[str, str] = {}  # the reasons, by client name
        self._refused = 0  # number of replies that the guard has refused
        self._no_reply = NO_REPLY  # the reason for the clients that have not replied

    def collect(
        self, transport: Transport, requests: Mapping[str, TrainRequest], deadline: float, enough: int | None = None
    ) -> None:
        """Send each client its request, and add the replies that arrive within `deadline` seconds.

        requests: by client name. enough: number of accepted replies that close the round before; by default all.
        """
        for name, reply in transport.exchange(requests, deadline):
            self.add(name, reply)
            if len(self._accepted) == enough:
                self._no_reply = CLOSED
                return

    def add(self, client: str, reply: Reply) -> None:
        """Accept or reject a client's reply. An unrequested reply, or a client's second reply, is ignored."""
        if client not in self._expected or client in self._accepted or client in self._rejected:
            return
        try:
            if isinstance(reply, Failure):
                raise RefusedError(reply.reason)
            self._accepted[client] = self._add_to_sums(reply, self._expected[client])
        except RefusedError as error:
            self._rejected[client] = str(error)

    def _add_to_sums(self, reply: TrainReply, expected: ExpectedReply) -> AcceptedReply:
        """Check a reply, and add the result of the method's `receive` to the sums, as the simulator does.

        Raises RefusedError, before anything is added, if a check fails.
        """
        self._check_numbers(reply, expected)
        up = unpack(self._method.up, self._widths, self._like.dtype, reply.up, self._compressed)
        steps = self._like.new_full((1, 1), float(expected.steps))
        factors = lr_factors_of(self._method, self._ctx, steps)
        ctx = replace(self._ctx, steps=steps, lr_sum=factors * self._ctx.lr)
        received = self._method.receive(up.map(lambda x: x[None].to(self._like.device)), ctx)
        received = received.map(lambda x: x.to(self._like.dtype))
        claimed = {} if self._sends_move else {CLAIMED_DRIFT: reply.drift}
        norms = checked_norms(self._guard, received, float(factors) * self._ctx.lr, claimed)
        norm, clipped = 0.0, False
        if self._guard.guard is not None:
            screened = self._guard.screen(received, factors * self._ctx.lr)
            if not bool(screened.accepted):
                self._refused += 1
                sent, bound = float(screened.sent), self._guard.bound
                raise RefusedError(f"guard: norm is {sent:.3g}, at most {bound:.3g} is allowed")
            received, norm, clipped = screened.record, float(screened.norms), bool(screened.clipped)
        moved = self._drift(reply, up)
        largest = max(float(x.abs().max()) for x in up.tensors().values() if x.numel())
        weight = self._like.new_full((1, 1), expected.weight, dtype=torch.float64)
        self.mean.add(received, steps, weight, factors)
        return AcceptedReply(moved, norms, largest, norm, clipped)

    def _drift(self, reply: TrainReply, up: Record) -> float:
        """Return the norm of the client's change of the model, limited to the guard's bound.

        The norm is computed from the update if the update contains the change; otherwise the reported norm is used.
        """
        moved = reply.drift
        if self._sends_move:
            delta, zero = up.tensors()["delta"], torch.zeros(1)
            moved = float(drift(delta, zero))
            if not isfinite(moved):  # squares of 1e30 overflow single precision
                moved = float(drift(delta.double(), zero))
        moved = min(moved, self._guard.bound)
        _check_drift(moved)
        return moved

    def _check_numbers(self, reply: TrainReply, expected: ExpectedReply) -> None:
        """Raise RefusedError, naming the field, if a count in the reply is not as expected or the drift is invalid."""
        known = {"t": self._ctx.t, "samples": expected.samples, "steps": expected.steps,
                 "gradients": expected.gradients}  # fmt: skip
        for name, value in known.items():
            found = getattr(reply, name)
            if type(found) is not int or found != value:
                raise RefusedError(f"{name} is {quoted(found)}, expected {value}")
        _check_drift(reply.drift)

    @property
    def accepted(self) -> list[str]:
        """The clients whose replies are in the mean, sorted."""
        return sorted(self._accepted)

    @property
    def missing(self) -> dict[str, str]:
        """The clients whose replies are not in the mean, sorted, with the reason."""
        unanswered = {client: self._no_reply for client in self._expected if client not in self._accepted}
        return dict(sorted((unanswered | self._rejected).items()))

    @property
    def next_guard(self) -> GuardState:
        """The bounds for the next round."""
        accepted = self._accepted.values()
        return self._guard.updated([reply.norm for reply in accepted], [reply.norms for reply in accepted])

    @property
    def largest(self) -> str:
        """The client that sent the number with the largest absolute value, and this value, for an error message."""
        client = max(self._accepted, key=lambda name: self._accepted[name].largest)
        return f"{client} ({self._accepted[client].largest:.3g})"

    def metrics(self) -> dict[str, float]:
        """Return the metrics of this round; `gradients` counts this round only."""
        replies = [self._accepted[client] for client in self.accepted]
        clipped = float(sum(reply.clipped for reply in replies))
        guarded = {} if self._guard.guard is None else {"clipped": clipped, "refused": float(self._refused)}
        return {
            "lr": self._ctx.lr,
            "clients": float(len(replies)),
            "drift": sum(reply.drift for reply in replies) / max(len(replies), 1),
            "gradients": float(sum(self._expected[client].gradients for client in self.accepted)),
        } | guarded


def checked_norms(
    guard: GuardState, received: Record, lr_sum: float, claimed: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Check and return the norm of each field of one client's record (1, width).

    lr_sum: the sum of the client's local step sizes. claimed: further norms to check and return, in parameter units, by
    name. Raises RefusedError, naming the field, if a norm is above its bound.
    """
    bounded = {name: x for name, x in received.tensors().items() if name not in received.marked("running_statistics")}
    norms = {name: float(torch.linalg.vector_norm(x, dtype=torch.float64)) for name, x in bounded.items()}
    norms |= claimed or {}
    if excess := guard.excess(norms, received.marked("gradient_scale"), lr_sum):
        raise RefusedError(excess)
    return norms


def _check_drift(found: object) -> None:
    if type(found) is not float or not 0 <= found < MAX_DRIFT:
        raise RefusedError(f"drift is {quoted(found)}, expected a finite number of at least 0")
