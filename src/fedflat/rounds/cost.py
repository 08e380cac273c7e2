"""The cost of a method, in numbers sent and kept, computed from its records."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.compressed import compressed_fields
from ..core.method import Context, Method
from ..core.oracle import ObservedOracle
from ..core.own_model import own_direction
from ..core.records import Record
from ..core.user_code import check_pair
from ..core.wrapper import EngineWrapper
from ..data.types import Index


@dataclass(frozen=True)
class MethodCost:
    """The cost of a method for a model of d parameters, counted in numbers, not in bytes."""

    down: int  # to each sampled client, per round
    up: int  # from each sampled client, per round
    client: int  # kept by each client between its rounds
    server: int  # kept by the server, the model included


def method_cost(method: Method, d: int) -> MethodCost:
    """Compute the cost of `method` for a model of `d` parameters; baselines that are not federated send nothing."""
    sends = method.training == "federated"
    kept = method.client.widths(d, method)
    passing = method.client.marked("per_round")
    return MethodCost(
        down=_total(method.down, d, method) if sends else 0,
        up=_total(method.up, d, method) if sends else 0,
        client=sum(width for name, width in kept.items() if name not in passing),
        server=_total(method.server, d, method),
    )


def upload_bytes(method: Method, d: int, number_bytes: int) -> int:
    """Return the bytes that a client sends in a round, compressed if `method` says so.

    d: the parameters of the model. number_bytes: the size of a number.
    """
    if method.training != "federated":
        return 0
    compressed = compressed_fields(method)
    return sum(compressed[name].bytes_of(width, number_bytes) if name in compressed else width * number_bytes
               for name, width in method.up.widths(d, method).items())  # fmt: skip


FULL, UNCOMPRESSED = "full fine-tuning", "an uncompressed message"  # what messages are compared with


def compared_messages(sent: float, full: float, of: str) -> str:
    """Describe the bytes that a client sends in a round, and their share of the `full` bytes `of` something else."""
    share = f", {100 * sent / full:.2g} % of the {full / 1e6:,.3g} MB of {of}" if full else ""
    return f"{sent / 1e6:,.3g} MB{share}"


def depends_on_shapes(method: Method) -> bool:
    """Tell whether the cost of `method` depends on the shapes of a model's parameters, beside their number."""
    return method_cost(method.on_model(((2,),)), 2) != method_cost(method.on_model(((1,), (1,))), 2)


class VectorCost(MethodCost):
    """The cost of a method in model-sized vectors; scalars and short windows do not count, as in the papers."""

    @property
    def stored(self) -> int:
        """Vectors that a client holds in a round: the model, its record, and the rest of the message."""
        return 1 + self.client + self.down - 1


def vector_cost(method: Method) -> VectorCost:
    """Compute the cost of `method` in model-sized vectors."""
    cost = method_cost(method.on_model(((1, _WIDE),)), _WIDE)
    return VectorCost(*(round(numbers / _WIDE) for numbers in (cost.down, cost.up, cost.client, cost.server)))


def gradients_per_step(method: Method) -> int:
    """Count the minibatch gradients of one local step, by taking a trial step."""
    return _trial(method).per_step


def full_passes_per_round(method: Method) -> int:
    """Count the gradients on all of a client's samples in one round, by computing a trial round."""
    return _trial(method).full


def gradients_in_round(method: Method, steps: Index, batches: Index, t: int = 0) -> Index:
    """Count the minibatch gradients of each client in round `t`, (c,).

    steps: the local steps of each client (c,). batches: the batches in one pass over the samples of each client (c,).
    """
    found = _trial(method, t)
    return steps * found.per_step + batches * found.full


def sends_move(method: Method) -> bool:
    """Tell whether the field `delta` of messages is w_i - w for any client record; a trial round decides this."""
    return not compressed_fields(method) and _trial(method).sends_move


def uses_step_sizes(method: Method) -> bool:
    """Tell whether what `method` computes depends on the step sizes of local training; a trial decides this."""
    return any(not torch.equal(a, b) for a, b in zip(_computed(method, 0.1), _computed(method, 0.2), strict=True))


def _computed(method: Method, lr: float) -> list[Tensor]:
    """Return what the hooks of `method` compute from the same numbers, with two local steps of size `lr`."""
    if isinstance(method, EngineWrapper):
        return _computed(method.base, lr)
    method = method.on_model(((3,),))
    w = torch.linspace(0.5, 1.5, 3, dtype=torch.float64)
    server = method.init_server(w).map(lambda x: x + 1)
    down = method.broadcast(server)
    ctx = Context(t=1, lr=lr, share=0.5, steps=2.0 * torch.ones(1), lr_sum=2 * lr * torch.ones(1), is_weight=w > 0,
                  layers=(slice(0, 3),), full_grad=_Identity(), rounds=4)  # fmt: skip
    d, client = method.step(w, method.init_client(down).map(lambda x: x + 1), down, ObservedOracle(_Identity()), ctx)
    own = own_direction(method, client, down, ObservedOracle(_Identity()), ctx)
    up, kept = method.finish(w - 0.3 * torch.sin(w), client, down, ctx)
    received = method.receive(up, ctx)
    after = method.update(server, received, ctx)
    directions = [d] if own is None else [d, own]
    return [*directions, *(x for record in (kept, up, received, after) for x in record.tensors().values())]


class _Identity:
    """An oracle whose gradient at w is w: enough to count the requests of a method."""

    def __call__(self, w: Tensor) -> Tensor:
        return w

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> _Identity:
        return self

    def teacher_gradient(self, w: Tensor, e: Tensor, tau: float) -> Tensor:
        return w

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self(w), matrix, shift


@dataclass(frozen=True)
class _Trial:
    """The observations of a method in a round of one step."""

    per_step: int  # minibatch gradients of a step
    full: int  # gradients on all samples in the round
    sends_move: bool


def _trial(method: Method, t: int = 0) -> _Trial:
    """Compute round `t` with one local step of one client.

    The client's record is its initial record plus 1, so that a message that depends on the record is not w_i - w.
    """
    if isinstance(method, EngineWrapper):  # its cost is that of its base, and it fits models of one size only
        return _trial(method.base, t)
    method = method.on_model(((3,),))
    w, step, full = torch.ones(3), ObservedOracle(_Identity()), ObservedOracle(_Identity())
    down = method.broadcast(method.init_server(w))
    ctx = Context(t=t, lr=0.1, share=1.0, is_weight=w > 0, layers=(slice(0, 3),), full_grad=full)
    found = method.step(w, method.init_client(down).map(lambda x: x + 1), down, step, ctx)
    d, client = check_pair(method, "step", found, (Tensor, method.client))
    own_direction(method, client, down, step, ctx)
    ended = replace(ctx, steps=torch.ones(1), lr_sum=torch.full((1,), 0.1))
    up, _ = check_pair(method, "finish", method.finish(w - d, client, down, ended), (method.up, method.client))
    return _Trial(step.calls, full.calls, torch.equal(getattr(up, "delta", torch.empty(0)), w - d - down.w))


_WIDE = 10**9  # a model size beside which windows and scalars vanish


def _total(record: type[Record], d: int, method: Method) -> int:
    return sum(record.widths(d, method).values())
