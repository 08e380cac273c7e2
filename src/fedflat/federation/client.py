"""A client of a real federation. It trains on its own samples, and stores its state after each round in a file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..core.compressed import compressed_fields
from ..core.errors import InputError
from ..core.method import Method
from ..core.model_check import check_tokens, randomness_of
from ..core.native_libraries import fix_product_rounding
from ..core.objective import Objective
from ..core.partial_model import sent_part
from ..core.records import Record
from ..data.federated import FederatedData
from ..files import create_folder, read_bytes, sweep, system_errors, write_atomically
from ..metrics.accuracy import drift
from ..rounds.aggregation import Weights
from ..rounds.batches import Batches
from ..rounds.device import aligned, one_thread
from ..rounds.exact_sum import ExactSum
from ..rounds.executor import Sequential
from ..rounds.guard import Guard, GuardState
from ..rounds.local_training import ContextFactory
from ..rounds.run_plan import RunPlan
from .messages import RefusedError, TrainReply, TrainRequest, pack, unpack
from .secure_sum.messages import KeysRequest, summand
from .update_aggregator import ExpectedReply, UpdateAggregator


class FederatedClient:
    """Trains on request as the simulator would train this client: same loop, same batches, bitwise equal results."""

    def __init__(
        self,
        method: Method,
        objective: Objective,
        data: FederatedData,
        plan: RunPlan,
        folder: Path,
        digest: str,
    ) -> None:
        """Raise InputError for data whose labels are not those of the study's task.

        data: this client's samples, with its number in the federation (see `FederatedData.alone`). folder: for the
        client's records. digest: of the study.
        """
        fix_product_rounding()
        method.check_rounds(plan.rounds)
        self._method, self._digest = method.fitted(data.shape), digest
        self._objective, module = objective, objective.module
        if data.task != objective.task.kind:
            raise InputError(f"the study is of {objective.task.kind}, and the labels are those of {data.task}")
        like = sent_part(self._method, objective.space.flatten(module))
        self._data = data.to(self._objective.device, like.dtype)
        check_tokens(module, self._data.x)
        randomness = randomness_of(module, self._data.inputs(torch.arange(min(4, len(data.y)))), data.classes,
                                   objective.task)  # fmt: skip
        batches = Batches(self._data, plan.client, plan.seed, like.dtype, plan.participation)
        batches.check_smallest(objective)
        self._executor = Sequential(self._method, self._objective, batches, plan.seed, randomness)
        self._state = ClientState(folder, method.client)
        self._like = like
        self._contexts = ContextFactory(self._method, self._objective.space, plan.client, plan.rounds, like.device)

    def train(self, request: TrainRequest) -> TrainReply:
        """Train in the round that the server asks for.

        Raises RefusedError for a request that is not for this study and client, or whose broadcast does not fit the
        model; NonFiniteError if training diverges; and InputError if the client's record cannot be read or written.
        """
        self._check(request)
        widths = self._method.down.widths(self._like.shape[-1], self._method)
        message = unpack(self._method.down, widths, self._like.dtype, request.down)
        down: Any = message.map(lambda x: aligned(x.to(self._like.device)))  # (width,), aligned as in a simulation
        initial = self._method.init_client(down.map(lambda x: x[None])).map(lambda x: x[0])
        record = self._state.load(request.since, initial).map(lambda x: aligned(x.to(self._like.dtype)[None]))
        ctx = self._contexts.of(request.t, request.share, request.sampled)
        with one_thread(self._like.device):
            result = self._executor.train(np.array([self._data.first]), record, down, ctx)
        self._state.save(request.t, result.client.map(lambda x: x[0]), {request.since, *request.safe})
        return TrainReply(
            t=request.t,
            samples=len(self._data.y),
            steps=int(result.steps),
            gradients=result.gradients,
            drift=float(drift(sent_part(self._method, result.w), down.w)),
            up=pack(result.up.map(lambda x: x[0].to(down.w.dtype)), compressed_fields(self._method)),
        )

    def summand(
        self, request: KeysRequest, guard: Guard | None, weights: Weights
    ) -> tuple[TrainReply, dict[str, ExactSum]]:
        """Train; return the reply, and the sums, by name, that the server would compute from this reply alone.

        guard: clips the client's record before it is added. weights: how the mean weights clients. Raises the errors of
        `train`, and RefusedError if the weight in the request cannot be that of this client.
        """
        _check_weight(request.weight, len(self._data.y), guard, weights)
        reply = self.train(request)
        expected = {"": ExpectedReply(reply.samples, reply.steps, reply.gradients, request.weight)}
        ctx = self._contexts.of(request.t, request.share, request.sampled)
        bounds = GuardState.new(guard, self._method, self._like)
        aggregator = UpdateAggregator(self._method, self._like, ctx, expected, bounds)
        with one_thread(self._like.device):
            aggregator.add("", reply)
        for reason in aggregator.missing.values():
            raise RefusedError(reason)
        return reply, summand(aggregator.mean, aggregator.metrics())

    def _check(self, request: TrainRequest) -> None:
        """Raise RefusedError unless the request is for this study and this client."""
        expected = {"study": (request.digest, self._digest), "client": (request.number, self._data.first)}
        for what, (found, mine) in expected.items():
            if found != mine:
                raise RefusedError(f"the order is for {what} {found}, this is {what} {mine}")


def _check_weight(weight: float, samples: int, guard: Guard | None, weights: Weights) -> None:
    """Raise RefusedError for a weight that a client with this number of samples cannot have.

    If the weights of some clients were too low, the sum would expose the records of the other clients.
    """
    highest = 1 if weights == "uniform" else samples
    limited = guard is not None and guard.max_weight is not None  # by the median weight, which is unknown here
    if not (1 if limited else highest) <= weight <= highest:
        raise RefusedError(f"the weight is {weight}, which is not that of {samples} samples, weights = {weights!r}")


R = TypeVar("R", bound=Record)
_FILE = re.compile(r"round-(\d{8})\.safetensors")
DIGEST = "sha256"  # name of an additional tensor (32,), the SHA-256 of the content
HEADER = 64 * 2**10  # bytes that a file may have in addition to its numbers
READ_ERRORS = (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError)
OWNER_ONLY = 0o700


class ClientState:
    """The folder with a client's records: one for each round to which the server may return.

    Each request names the round whose record the client must use, because the server does not accept every update, and
    may return to an earlier checkpoint. Records reveal gradients on the client's samples, so only their owner can read
    the files.
    """

    def __init__(self, folder: Path, record: type[Record]) -> None:
        """`folder` is created at the first `save`."""
        self._folder, self._per_round = folder, record.marked("per_round")

    @property
    def newest(self) -> int:
        """The last round whose record is in the folder; -1 if there is none."""
        found = [int(match[1]) for path in self._folder.glob("round-*") if (match := _FILE.fullmatch(path.name))]
        return max(found, default=-1)

    def load(self, t: int, initial: R) -> R:
        """Return the record after round `t`, or `initial` for t = -1.

        Raises InputError, naming the file, if the file is missing or damaged, or does not fit the method or the model.
        """
        expected = self._kept_fields(initial)
        if t < 0 or not expected:
            return initial
        kept = self._read(t, expected)
        return type(initial)(**initial.tensors() | {name: x.to(expected[name].device) for name, x in kept.items()})

    def save(self, t: int, record: Record, needed: Set[int]) -> None:
        """Write the record after round `t`, and remove the records of earlier rounds that are not in `needed`.

        Records of later rounds are kept, because a request may arrive twice, or after the request of the next round.
        Nothing is written for a method without client state. Raises InputError if the file cannot be written.
        """
        tensors = {name: x.detach().cpu().contiguous() for name, x in self._kept_fields(record).items()}
        if not tensors:
            return
        content = {**tensors, DIGEST: _digest(t, tensors)}
        with system_errors(self._folder, "written"):
            create_folder(self._folder, OWNER_ONLY)
            self._folder.chmod(OWNER_ONLY)  # also a folder that exists already
            sweep(self._folder)  # temporary files of a process that was killed; nobody waits for its reply any more
            write_atomically(self._file(t), lambda path: path.write_bytes(save(content)), private=True)
            for path in list(self._folder.glob("round-*")):
                match = _FILE.fullmatch(path.name)
                if match and int(match[1]) < t and int(match[1]) not in needed:
                    path.unlink(missing_ok=True)

    def _read(self, t: int, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Read the fields in the file of round `t` into newly allocated memory."""
        path = self._file(t)
        limit = HEADER + sum(x.nbytes for x in expected.values())
        try:
            kept: dict[str, Tensor] = load(read_bytes(path, limit))
        except InputError as error:
            raise InputError(f"client record {error}") from error
        except READ_ERRORS as error:
            raise InputError(f"client record {path} cannot be read: {' '.join(str(error).split())[:200]}") from error
        digest = kept.pop(DIGEST, None)
        found, needed = ({name: (x.shape, x.dtype) for name, x in one.items()} for one in (kept, expected))
        if found != needed:
            raise InputError(f"client record {path} does not fit the method or the model")
        if digest is None or not torch.equal(digest, _digest(t, kept)):
            raise InputError(f"client record {path} is damaged: it is not what was written after round {t}")
        return kept

    def _kept_fields(self, record: Record) -> dict[str, Tensor]:
        return {name: x for name, x in record.tensors().items() if name not in self._per_round and x.numel()}

    def _file(self, t: int) -> Path:
        return self._folder / f"round-{t:08d}.safetensors"


def _digest(t: int, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the SHA-256 (32,) of the round's number, and of the names, shapes, dtypes and contents of the tensors."""
    digest = hashlib.sha256(f"round {t}".encode())
    for name, x in sorted(tensors.items()):
        digest.update(f"\n{name} {tuple(x.shape)} {x.dtype}\n".encode())
        digest.update(x.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
