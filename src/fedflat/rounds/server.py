"""The server of a run: its state, its cohorts, its message, and its update from the mean of the replies."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.errors import NonFiniteError
from ..core.method import Context, Method
from ..core.objective import Objective
from ..core.partial_model import statistics_of, whole_model
from ..core.records import is_finite
from ..core.user_code import check_record
from ..core.wrapper import label_of
from ..data.types import Index
from .aggregation import RunningMean
from .checkpoint import DamagedError
from .guard import GuardState
from .local_training import ContextFactory, check_scopes, reason_of_experiment
from .randomness import Purpose, generator
from .run_plan import RunPlan
from .segments import Segment, following

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """The state of the server between two rounds, as a checkpoint contains it."""

    state: Any
    t: int
    history: list[dict[str, float]]
    segments: list[Segment]
    guard: GuardState | None = None
    direction: Tensor | None = None


class Server:
    """Holds the server's state and advances it round by round.

    The same class serves one process, several ranks, and a federation over a network.
    """

    def __init__(self, method: Method, objective: Objective, w: Tensor, plan: RunPlan, clients: int) -> None:
        """Start from the model `w` (d,) with `clients` clients in all.

        Raises InputError if the planned number of rounds does not suit the method.
        """
        method.check_rounds(plan.rounds)
        self.method, self.objective, self.plan, self.clients = method, objective, plan, clients
        check_scopes(method, plan.client)
        if reason := reason_of_experiment(method, plan.client):
            log.warning("%s is an experiment here, and not the method of its paper: %s", label_of(method), reason)
        self._population = clients - len(plan.participation.held_out(clients))  # how many may take part
        self._contexts = ContextFactory(method, objective.space, plan.client, plan.rounds, w.device)
        self.state = check_record(method, "init_server", method.init_server(w), method.server)
        self.guard = None if plan.guard is None else GuardState.new(plan.guard, method, w)  # for the next round
        self.direction: Tensor | None = None  # (d,) see `take`
        self.t = 0  # finished rounds
        self.history: list[dict[str, float]] = []  # the metrics of each finished round
        self.segments = [Segment.now(0, method)]  # versions and code that computed the rounds

    @property
    def served(self) -> Tensor:
        """The model that is evaluated, (d,), in the order of `objective.space`."""
        return self.method.served(self.state)

    @property
    def iterate(self) -> Tensor:
        """The model that clients train from, (d,), in the order of `objective.space`."""
        return whole_model(self.method, self.state.w)

    def show(self) -> Tensor:
        """Put the server's running statistics, if it has any, into `objective`, and return `served`."""
        self.objective.show(statistics_of(self.method, self.state))
        return self.served

    @property
    def w(self) -> Tensor:
        """The model that is evaluated, (d,), row-major."""
        return self.objective.space.row_major(self.served)

    @property
    def model(self) -> nn.Module:
        """A new module with the parameters of the evaluated model, in evaluation mode."""
        return self.objective.module_at(self.served, statistics_of(self.method, self.state))

    def cohort(self, t: int) -> Index:
        """Return the clients of round `t`, in rising order; known before the round is computed."""
        return self.plan.participation.cohort(t, self.clients, generator(self.plan.seed, Purpose.COHORT, t))

    def resize(self, clients: int) -> None:
        """Continue with `clients` clients in all; more than before are new ones, which have no record yet.

        A field of the state that is a mean over all clients is scaled for new ones, whose parts are zero. When clients
        leave, it is kept: their parts are not known to the server, and count as the mean of the others.
        """
        if clients > self.clients:
            scale = self.clients / clients
            means = {name: getattr(self.state, name) * scale for name in self.state.marked("mean_of_clients")}
            self.state = replace(self.state, **means)
        self.clients = clients
        self._population = clients - len(self.plan.participation.held_out(clients))

    def context(self, sampled: int, share: float | None = None) -> Context:
        """Return the context of the next round, in which `sampled` clients take part, a `share` of all."""
        return self._contexts.of(self.t, sampled / self._population if share is None else share, sampled)

    def broadcast(self) -> Any:
        """Return the message of the next round, (width,) in every field."""
        return check_record(self.method, "broadcast", self.method.broadcast(self.state), self.method.down)

    def updated(self, mean: RunningMean, ctx: Context) -> Any:
        """Compute the next state, from the mean of the received records and local steps; do not apply it.

        Raises NonFiniteError, naming the field, if the next state has NaN or infinity.
        """
        ctx = replace(ctx, steps=mean.steps, lr_sum=mean.lr_factors * ctx.lr)
        found = self.method.update(self.state, mean.value(), ctx)
        state = check_record(self.method, "update", found, self.method.server)
        tensors = state.tensors()
        finite = torch.stack([is_finite(x) for x in tensors.values()]).tolist()  # a device is waited for once
        for name, fine in zip(tensors, finite, strict=True):
            if not fine:
                raise NonFiniteError(f"the server's {name} became NaN or infinite in round {self.t}")
        return state

    def take(self, state: Any, mean: RunningMean, ctx: Context, guard: GuardState | None = None) -> None:
        """Advance to the next round with `state` and `guard`, which follow from the `mean` of the round of `ctx`.

        The attribute `direction` is h in w^{t+1} = w^t - eta h. Here eta is the server's rate: server_lr times the mean
        over clients of the sum of step sizes, or server_lr alone if `server_lr_mode` is absolute. `direction` is not
        finite if no client has taken a step.
        """
        is_absolute = getattr(self.method, "server_lr_mode", "relative") == "absolute"
        rate = 1.0 if is_absolute else mean.lr_factors * ctx.lr
        self.direction = (self.state.w - state.w) / (rate * getattr(self.method, "server_lr", 1.0))
        self.state, self.guard, self.t = state, guard, self.t + 1

    def report(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of the last round to the history."""
        self.history.append({"t": self.t - 1, **metrics})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        direction = {} if self.direction is None else {"direction": self.direction}
        return {f"server.{name}": x for name, x in self.state.tensors().items()} | direction

    def meta(self) -> dict[str, Any]:
        """Return the JSON-able values of a checkpoint."""
        guard = {} if self.guard is None else {"guard": list(self.guard.medians)}
        segments = [asdict(segment) for segment in self.segments]
        return {"t": self.t, "history": self.history, "segments": segments} | guard

    def read(self, tensors: Mapping[str, Any], meta: Mapping[str, Any], path: Path, strict: bool) -> Snapshot:
        """Read the server from the content of the checkpoint `path`; `restore` continues from it.

        Warns with a ChangedWarning, or with `strict` raises InputError, if the checkpoint was written with other
        versions or with other code of the method. Raises DamagedError if a field is missing or of another shape.
        """
        try:
            t, history, stored = int(meta["t"]), list(meta["history"]), meta["segments"]
            segments = [Segment(int(one["start"]), dict(one["versions"]), str(one["code"])) for one in stored]
            if not segments:
                raise ValueError("segments")
            guard = None if self.guard is None else self.guard.restored(meta["guard"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedError(f"checkpoint {path} is no state of a run: {error!r} is missing or wrong") from error
        segments = following(segments, Segment.now(t, self.method), path, strict)
        state = {}
        for name, like in self.state.tensors().items():
            x = tensors.get(f"server.{name}")
            if not isinstance(x, Tensor) or (x.shape, x.dtype) != (like.shape, like.dtype):
                raise DamagedError(f"checkpoint {path} has no server.{name} of {tuple(like.shape)}")
            state[name] = x.to(like.device)
        direction = tensors.get("direction")
        if direction is not None and (direction.shape, direction.dtype) != (state["w"].shape, state["w"].dtype):
            raise DamagedError(f"checkpoint {path} has no direction of {tuple(state['w'].shape)}")
        direction = None if direction is None else direction.to(state["w"].device)
        return Snapshot(type(self.state)(**state), t, history, segments, guard, direction)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from `snapshot`."""
        self.state, self.t, self.guard = snapshot.state, snapshot.t, snapshot.guard
        self.history, self.segments, self.direction = snapshot.history, snapshot.segments, snapshot.direction


def metrics_table(history: list[dict[str, float]]) -> pa.Table:
    """Return a table with a row per round and a column per metric."""
    import pyarrow as pa  # a part of a second; the command line starts without it

    columns = dict.fromkeys(name for row in history for name in row)
    return pa.table({name: [row.get(name) for row in history] for name in columns})
