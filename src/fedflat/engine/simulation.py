"""A federation on one machine, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import InputError, NonFiniteError
from ..core.method import Context, Method
from ..core.model_check import draws
from ..core.objective import Objective
from ..data.facts import partition_facts
from ..data.federated import FederatedData, Index, digest
from ..metrics.accuracy import score, validation_accuracies
from ..metrics.flatness import Flatness, Measure, ProgressCallback, Subject, measure, no_progress
from ..metrics.flatness.subject import MAX_SAMPLES, NextRound, RoundObserver
from ..rounds import checkpoint
from ..rounds.batches import Batches
from ..rounds.checkpoint import DamagedError, Stream
from ..rounds.context import ContextFactory
from ..rounds.cost import method_cost
from ..rounds.device import usable_device
from ..rounds.executor import Executor
from ..rounds.history import metrics_table
from ..rounds.initial_model import fresh_module
from ..rounds.local_training import Client
from ..rounds.participation import participation as as_rule
from ..rounds.randomness import Purpose, generator
from ..rounds.segments import Segment, following, stored
from ..rounds.segments import read as read_segments
from ..rounds.threads import one_thread
from .arguments import check_arguments, check_precision, check_ranks, check_workers, default_rounds
from .client_store import BUDGET, ClientStore
from .cohort import CohortResult, InTurn, Trainer, train
from .dry_round import ObservedExecutor
from .executors import Choice, agreed, check_name, choose
from .ranks import ALONE, Ranks
from .run import Run, summarise
from .workers import Workers

Weights = Literal["uniform", "samples"]


@dataclass(frozen=True)
class _State:
    """What a checkpoint holds."""

    t: int
    gradients: int
    history: list[dict[str, float]]
    settings: dict[str, Any]
    segments: list[Segment]
    tensors: dict[str, Tensor | Stream]
    path: Path

    @classmethod
    def read(cls, path: Path) -> _State:
        """Raises DamagedError, naming the file, if it is damaged, or no state of a simulation."""
        tensors, meta = checkpoint.load(path, streamed=("clients.",))
        try:
            history, settings = list(meta["history"]), dict(meta["settings"])
            segments = read_segments(meta.get("segments"))
            return cls(int(meta["t"]), int(meta["gradients"]), history, settings, segments, tensors, path)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedError(
                f"checkpoint {path} is no state of a simulation: {error!r} is missing or wrong"
            ) from error

    def server(self, like: Any, device: torch.device) -> Any:
        """The server's record, with the fields and shapes of `like`."""
        fields = like.tensors()
        found = {name: self.tensors.get(f"server.{name}") for name in fields}
        for name, x in found.items():
            if not isinstance(x, Tensor) or (x.shape, x.dtype) != (fields[name].shape, fields[name].dtype):
                raise DamagedError(f"checkpoint {self.path} has no server.{name} of {tuple(fields[name].shape)}")
        return type(like)(**{name: x.to(device) for name, x in found.items() if isinstance(x, Tensor)})

    @property
    def clients(self) -> dict[str, Tensor | Stream]:
        """What the store of clients' records wrote."""
        return {n.removeprefix("clients."): x for n, x in self.tensors.items() if n.startswith("clients.")}


@dataclass(frozen=True)
class Round:
    """What one round reports."""

    t: int  # from 0
    metrics: dict[str, float]


class Simulation:
    """Federated training of one model with one method; iterate over it, or call `run`.

    The server's model is `w`, a flat vector (d,) in the order of the model's `parameters()`.
    """

    def __init__(
        self,
        model: str | nn.Module,
        data: FederatedData,
        method: Method,
        client: Client | None = None,
        rounds: int | None = None,
        participation: Any = 1.0,
        weights: Weights = "uniform",
        seed: int = 0,
        device: str | torch.device = "auto",
        dtype: torch.dtype | None = None,
        precision: Literal["fp32", "bf16"] = "fp32",
        executor: str = "auto",
        eval_every: int = 1,
        last: int = 10,
        model_options: dict[str, Any] | None = None,
        probes: Sequence[str | Measure] = (),
        probe_every: int = 10,
        workers: int | Literal["auto"] = "auto",
        store_budget: int = BUDGET,
        store_folder: str | Path | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Set up round 0. The same arguments always give the same rounds.

        model: a name from `fedflat.models.model_names()` with `model_options`, or any module; its
            weights are the initial model, and it is not changed. method: from `fedflat.methods`.
        rounds: default 100, or as many as an explicit participation lists.
        participation: share of the clients, number per round, `Bernoulli(p)`, or [[0, 1], ...].
        weights: of the clients in the mean, "uniform" or "samples" (n_i). dtype: default the model's.
        precision: "bf16" takes training gradients in bfloat16 autocast, everything else stays as it is. It is
            faster where the hardware has it, and it disturbs what small perturbations measure, see docs/performance.md.
        executor: "sequential", "stacked", "compiled", "graphed" (on a GPU), or "auto", the one that is faster on
            the first steps.
        eval_every: rounds between evaluations.
        last: evaluations at the end over which the reported accuracy is averaged.
        probes: measures of flatness taken after every `probe_every` rounds, and after the last; they
            become metrics of that round and change nothing else.
        workers: processes that train clients side by side on the CPU, each on one thread; "auto" is as many
            as torch has threads, once training has taken 10 seconds. They change no bit of the result.
        store_budget: bytes of memory for what clients keep between their rounds; what may take more is
            kept in a file in `store_folder`, or in a temporary one that is gone with the process.
        ranks: the processes that carry this simulation out together, from `fedflat.joined()`; each makes it with the
            same arguments and does the same with it. They change no bit of the result, see docs/ranks.md.

        Raises ValueError, naming the argument, for anything that cannot work.
        """
        check_arguments(method, data, client, weights, rounds=rounds, seed=seed, eval_every=eval_every, last=last,
                        probe_every=probe_every, store_budget=store_budget)  # fmt: skip
        check_workers(workers)
        check_ranks(ranks.number, workers, probes)
        self.method = method = method.fitted(data.shape)
        self.client, self.weights, self.seed = client or Client(), weights, seed
        self._participation = as_rule(participation)
        self.rounds = rounds if rounds is not None else default_rounds(self._participation)
        self._participation.check(data.clients, self.rounds)
        self.device, self.eval_every, self.last = usable_device(device), eval_every, last
        self._ranks = ranks
        module = fresh_module(model, data.classes, data.shape, seed, model_options or {}, dtype).to(self.device)
        self.objective = Objective(module, bf16=precision == "bf16")
        w = self.objective.space.flatten(module)
        self.data = data.to(self.device, w.dtype)
        self._data_hash, self._model_hash = self.data.contents_hash(), digest(self.objective.space.row_major(w))
        self._facts = ContextFactory(self.objective.space, self.client, self.device)
        drawn = draws(module, self.data.inputs(torch.arange(min(2, len(data.y)), device=self.device)), data.classes)
        batches = Batches(self.data, self.client, seed, w.dtype)
        check_name(executor, drawn, self.device)
        check_precision(precision)
        self._asked, self._drawn = executor, drawn
        self._make = lambda kind: kind(method, self.objective, batches, seed, drawn)
        self._workers = Workers(lambda: self.executor, workers, self.device)
        self._cost = method_cost(method, len(w))
        self.precision = precision
        self.t = 0
        self.server = method.init_server(w)
        self._store = ClientStore(
            method, data.clients, w, store_budget, store_folder if ranks.number == 1 else None, ranks.owned
        )
        self.history: list[dict[str, float]] = []
        self.segments = [Segment.now(0, method)]  # which versions and code the rounds so far were carried out with
        self.probes, self.probe_every = tuple(probes), probe_every

    @cached_property
    def choice(self) -> Choice:
        """The executor, and why it is this one; for `auto` the first question takes a few steps on trial."""
        with one_thread(self.device):
            cohort = self.cohort(0)
            steps = float(self.client.local_steps(self.data.sizes_of(cohort)).sum()) * self.rounds
            return agreed(self._ranks, self._make, cohort, lambda: choose(self._asked, self._make, cohort, steps))

    @property
    def executor(self) -> Executor:
        """How clients are run."""
        return self.choice.executor

    @property
    def w(self) -> Tensor:
        """The server's model, (d,), row-major."""
        return self.objective.space.row_major(self.server.w)

    @property
    def model(self) -> nn.Module:
        """A new module with the server's model in it."""
        module = deepcopy(self.objective.module)
        self.objective.space.write(module, self.server.w)
        return module

    def __iter__(self) -> Iterator[Round]:
        while self.t < self.rounds:
            yield self.round()

    def run(self, flatness: Sequence[str | Measure] = ()) -> Run:
        """All remaining rounds; then the measures named by `flatness` of the final model."""
        for _ in self:
            pass
        return self.result(flatness)

    def result(self, flatness: Sequence[str | Measure] = (), progress: ProgressCallback = no_progress) -> Run:
        """What the rounds so far have made, at least one, and the measures named by `flatness`."""
        if not self.history:
            raise InputError("there is no result before the first round")
        summary = summarise(self.objective, self.server.w, self.data, self.history, self.last)
        return Run(
            method=type(self.method).__name__,
            seed=self.seed,
            metrics=metrics_table(self.history),
            summary=summary,
            flatness=self.flatness(flatness, progress=progress),
            settings=self.settings() | {"hyper": vars(self.method), "split": vars(partition_facts(self.data))},
            model=self.model,
            w=self.w,
            cost=self._cost,
            counts=self.data.counts(),
        )

    def round(self) -> Round:
        """One communication round.

        Raises NonFiniteError if training diverges. A round that does not end, for whatever reason,
        leaves server, clients and counters as they were.
        """
        started = perf_counter()
        gradients = self.executor.gradients
        try:
            trainer = self._workers if self._ranks.number == 1 else InTurn(self.executor)
            ctx, down, trained, server = self._worked_out(self.cohort(self.t), trainer, keep=True, ranks=self._ranks)
            with self._ranks.together():
                self._store.commit()
        except BaseException:
            self.executor.gradients = gradients
            self._store.discard()
            raise
        clients = len(trained.drifts)
        self.executor.gradients = gradients + self._ranks.total(self.executor.gradients - gradients)
        self.server = server
        self.t += 1
        metrics = {"lr": ctx.lr, "clients": float(clients), "drift": float(trained.drifts.mean())}
        metrics |= _scalars(down)
        metrics |= self._evaluate() if self._ranks.index == 0 else {}
        metrics |= self._spent(clients) | {"seconds": perf_counter() - started} | self._probed()
        self.history.append({"t": ctx.t, **metrics})
        return Round(ctx.t, metrics)

    def flatness(
        self,
        measures: Sequence[str | Measure],
        max_samples: int = MAX_SAMPLES,
        progress: ProgressCallback = no_progress,
    ) -> Flatness:
        """Measure the server's model, its clients and the round that follows; see `fedflat.flatness`."""
        subject = Subject(self.objective, self.server.w, self.data, max_samples, dry_round=self.dry_round)
        return measure(subject, measures, progress)

    def dry_round(self, clients: Index | None, watch: RoundObserver) -> NextRound:
        """Work out the round that follows, or one with other `clients` (c,), for `watch`; nothing is changed by it.

        After the last cohort of an explicit participation, that cohort is taken again. Raises InputError on one of
        several ranks, if it does not have all clients' records.
        """
        if self._ranks.number > 1 and self._store.keeps:
            raise InputError(
                "clients' records are with several ranks; load the checkpoint in one process to look at a round"
            )
        cohort = self.cohort(self.t) if clients is None else clients
        ctx, _, trained, server = self._worked_out(cohort, InTurn(ObservedExecutor(self.executor, watch)), keep=False)
        return NextRound(cohort, server.w, float(trained.steps) * ctx.lr)

    def _worked_out(
        self, cohort: Index, trainer: Trainer, keep: bool, ranks: Ranks = ALONE
    ) -> tuple[Context, Any, CohortResult, Any]:
        """A round with `cohort`, not taken: its context, its message, what was trained, and the server's next state.

        With `keep` the clients' records are staged.
        """
        clients = self.executor.batches.longest_first(cohort)
        ctx = self._facts.of(self.t, len(clients) / self.data.clients, len(clients))
        down = self.method.broadcast(self.server)
        with one_thread(self.device):
            trained = train(trainer, self._store, clients, self._weights(clients), down, ctx, keep, ranks)
            at_server = replace(ctx, steps=trained.steps, lr_sum=trained.steps * ctx.lr)
            server = self.method.update(self.server, trained.mean, at_server)
        return ctx, down, trained, self._checked(server)

    def cohort(self, t: int) -> Index:
        """The clients of round `t`, in rising order; known before the round is computed."""
        return self._participation.cohort(t, self.data.clients, generator(self.seed, Purpose.COHORT, t))

    def save(self, path: str | Path) -> None:
        """Write everything that the next round depends on to `path`, atomically.

        Beside a file of client records, in `store_folder`, only what leads to them is written. That file serves the
        last three checkpoints there, and no older ones. Of several ranks the first writes, and all must call this.
        """
        path = Path(path)
        with self._ranks.together(), self._ranks.collected(self._store, path.parent) as kept:
            if kept is not None:
                tensors = {f"server.{name}": x for name, x in self.server.tensors().items()}
                tensors |= {f"clients.{name}": x for name, x in kept.items()}
                meta = {"t": self.t, "gradients": self.executor.gradients, "history": self.history}
                meta |= {"segments": stored(self.segments), "settings": self.settings()}
                checkpoint.save(path, tensors, meta)
        self._store.saved()

    def load(self, path: str | Path, strict: bool = False) -> None:
        """Go on from `path`: the rounds that follow are bit-identical to those of the run that wrote it.

        With other versions, or another code of the method, than it was written with, they may not be: that is a
        ChangedWarning, and with `strict` an InputError. Raises DamagedError if the file, or that of client records
        beside it, is not what was written; InputError if it belongs to other settings or has more rounds than wanted.
        """
        path = Path(path)
        with self._ranks.together():
            state = _State.read(path)
        if self._asked == "auto" and "choice" not in vars(self):
            self._stay_with(str(state.settings.get("executor")), path)
        segments = self._following(state, path, strict)
        server = state.server(self.server, self.device)
        with self._ranks.together():
            try:
                self._store.restore(state.clients, path.parent)
            except InputError as error:
                raise type(error)(f"checkpoint {path}: {error}") from error
        self.server, self.segments = server, segments
        self.t, self.executor.gradients, self.history = state.t, state.gradients, state.history

    def _following(self, state: _State, path: Path, strict: bool) -> list[Segment]:
        """The segments of a run that goes on from `state`. Raises InputError if it cannot."""
        for name, value in self.settings().items():
            if state.settings.get(name) != value:
                raise InputError(f"checkpoint {path}: {name} was {state.settings.get(name)}, now it is {value}")
        if state.t > self.rounds:
            raise InputError(f"checkpoint {path} has {state.t} rounds, rounds = {self.rounds} is less")
        return following(state.segments, Segment.now(state.t, self.method), path, strict)

    def _stay_with(self, executor: str, path: Path) -> None:
        """The executor remains what it was when the checkpoint was written, wherever the run goes on."""
        try:
            check_name(executor, self._drawn, self.device)
        except InputError as error:
            raise InputError(f"checkpoint {path}: {error}") from error
        self._asked = executor

    def close(self) -> None:
        """End the workers, and free the file of client records, if there is one; `load` opens the simulation again."""
        self._workers.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def workers(self) -> int:
        """The most processes that train clients side by side; there are none until it pays."""
        return self._workers.number

    @property
    def store_bytes(self) -> int:
        """The most memory that clients' records may come to take."""
        return self._store.most_bytes(self.executor.chunk)

    def settings(self) -> dict[str, Any]:
        """What the rounds depend on, in words and numbers, except how many there are."""
        d, dtype = self.objective.space.d, self.server.w.dtype
        return {
            "method": repr(self.method),
            "client": repr(self.client),
            "batches": f"{self.client.steps or f'{self.client.epochs or 1} epochs'}, {self.client.batch_size}",
            "participation": repr(self._participation),
            "weights": self.weights,
            "seed": self.seed,
            "data": f"{self.data.name}, {self.data.clients} clients, {self.data.partition}",
            "partition_hash": self.data.partition_hash(),
            "data_hash": self._data_hash,
            "augmentation": repr(self.data.augmentation),
            "model_hash": self._model_hash,
            "model": f"{type(self.objective.module).__name__}, {d} parameters, {dtype}",
            "executor": self.choice.name,
            "precision": self.precision,
            "layout": "convolutions channels-last",
        }

    def _weights(self, clients: Index) -> Tensor:
        """Weights of a cohort in the mean, (c, 1), float64: ones, or numbers of samples."""
        weights = np.ones(len(clients)) if self.weights == "uniform" else self.data.sizes_of(clients).astype(float)
        return torch.from_numpy(weights).to(self.device)[:, None]

    def _checked(self, server: Any) -> Any:
        for name, x in server.tensors().items():
            if not torch.isfinite(x).all():
                raise NonFiniteError(f"training diverged: the server's {name} is NaN or infinite after round {self.t}")
        return server

    def _evaluate(self) -> dict[str, float]:
        if self.t % self.eval_every and self.t != self.rounds:
            return {}
        values: dict[str, float] = {}
        if self.data.test is not None:
            scores = score(self.objective, self.server.w, *self.data.test, self.data.preparation)
            values |= {"test_accuracy": scores.accuracy, "test_loss": scores.mean_loss}
        if self.data.validation is not None:
            values["validation_accuracy"] = float(
                validation_accuracies(self.objective, self.server.w, self.data).mean()
            )
        return values

    def _probed(self) -> dict[str, float]:
        """What the probes see after this round; half an interval or a residual under `_error`."""
        if not self.probes or (self.t % self.probe_every and self.t != self.rounds):
            return {}
        found = self.flatness(self.probes)
        errors = {f"{name}_error": x.error for name, x in found.items() if x.error is not None}
        return {name: x.value for name, x in found.items()} | errors

    def _spent(self, clients: int) -> dict[str, float]:
        """Totals so far: minibatch gradients, and bytes each way."""
        before = self.history[-1] if self.history else {"bytes_down": 0.0, "bytes_up": 0.0}
        size = clients * self.server.w.element_size()
        return {
            "gradients": float(self.executor.gradients),
            "bytes_down": before["bytes_down"] + size * self._cost.down,
            "bytes_up": before["bytes_up"] + size * self._cost.up,
        }


def _scalars(down: Any) -> dict[str, float]:
    """The numbers that the server sends beside vectors, such as FedGF's c: worth watching in every round."""
    return {name: float(x) for name, x in down.tensors().items() if x.numel() == 1 and name != "w"}
