"""A federation that is simulated on one machine, or by several ranks, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..adapters import LoRA, base_parameters, by_turns
from ..core.errors import InputError, NonFiniteError
from ..core.matrix_products import fix_product_rounding
from ..core.method import Context, Method
from ..core.model_check import check_tokens, randomness_of
from ..core.objective import Objective
from ..core.plain_numbers import plain_numbers, takes_numbers
from ..core.progress import Progress, no_progress
from ..core.structure import is_own, layers_of, telling_apart, text_of
from ..core.task import SampleLoss
from ..core.user_code import method_errors_named
from ..core.wrapper import label_of, serves_another
from ..data.federated import FederatedData, digest
from ..data.partition_statistics import partition_statistics
from ..data.sample_kind import SampleKind
from ..data.types import Index
from ..metrics.flatness import Flatness, Measure, Subject, check_measures, measure
from ..metrics.flatness.subject import MAX_SAMPLES, NextRound, RoundObserver
from ..rounds import checkpoint
from ..rounds.aggregation import Weights, mean_weights
from ..rounds.attack import Attack, Attackers, with_flipped_labels
from ..rounds.batches import Batches
from ..rounds.cost import method_cost
from ..rounds.device import one_thread, usable_device
from ..rounds.executor import Executor, stacked
from ..rounds.guard import Guard
from ..rounds.local_training import Client
from ..rounds.participation import participation as as_rule
from ..rounds.participation import pooled
from ..rounds.privacy.accountant import Privacy
from ..rounds.run_model import InitialModel, frozen_hash
from ..rounds.segments import Segment
from ..rounds.server import Server, metrics_table
from ..rounds.settings import CLASS, first_difference, table_of
from .arguments import (
    check_arguments,
    check_callbacks,
    check_precision,
    check_ranks,
    check_task,
    check_tokenizer,
    check_workers,
    default_rounds,
    wants_to_stop,
)
from .arrivals import Arrivals
from .callbacks import Callback
from .client_store import BUDGET, ClientStore
from .cohort import CohortResult, InTurn, Trainer, train
from .evaluation import Evaluated, OwnModels, ServerModel, predict
from .executors import Choice, agreed, check_name, choose
from .private import private_rounds, without_client_values
from .ranks import ALONE, Ranks
from .run import Run, summarise
from .workers import Workers


@dataclass(frozen=True)
class Round:
    """What one round reports."""

    t: int  # from 0
    metrics: dict[str, float]


@dataclass(frozen=True)
class _Computed:
    """A round that was computed; the server does not have its result yet."""

    ctx: Context
    down: Any  # the server's message
    clients: CohortResult
    state: Any  # the server's next state


class Simulation:
    """Federated training of one model with one method; iterate over it, or call `run`.

    The server's model is `w`, a flat vector (d,) in the order of the model's `parameters()`.
    """

    @takes_numbers
    def __init__(
        self,
        model: str | nn.Module,
        data: FederatedData,
        method: Method,
        client: Client | None = None,
        rounds: int | None = None,
        participation: Any = 1.0,
        weights: Weights = "uniform",
        loss: str | SampleLoss | None = None,
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
        callbacks: Sequence[Callback] = (),
        adapter: LoRA | None = None,
        privacy: Privacy | None = None,
        guard: Guard | None = None,
        attack: Attack | None = None,
    ) -> None:
        """Set up round 0. The same arguments always give the same rounds.

        model: a name from `fedflat.models.model_names()` with `model_options`, or any module; its
            weights are the initial model, and it is not changed. method: from `fedflat.methods`.
        rounds: default 100, or as many as an explicit participation lists.
        participation: share of the clients, number per round, `Bernoulli(p)`, or [[0, 1], ...]. `Unreliable(rule,
            dropouts=0.1, stragglers=0.3)` and `HeldOut(rule, 0.2)` around one of them add clients that never answer,
            that take a part of their steps, and that never train and are evaluated on.
        weights: of the clients in the mean, "uniform" or "samples" (n_i). dtype: default the model's.
        loss: "cross-entropy", "multi-label" (binary cross-entropy with logits), "regression" (squared error), or a
            function from scores (b, k) and labels (b, ...) to the loss of each sample (b,). Default: as the data need.
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
        callbacks: called after every round and at the end of a run, such as `fedflat.EarlyStopping()`.
        adapter: `fedflat.LoRA(targets=("query", "value"))`: low-rank adapters and the head are trained and sent, all
            else of the model is frozen and held once. Needs the package peft.
        privacy: `fedflat.Privacy(epsilon=8, delta=1e-4, clip=1, rate=0.1)`: client-level differential privacy, in place
            of `participation`; see docs/privacy.md. Needs the package dp-accounting.
        guard: `fedflat.Guard(multiple=3.0)`: bounds on the norm of what is averaged of a client, and on its weight.
        attack: `fedflat.Attack(kind="sign-flip", share=0.2)`: what a share of the clients does to the mean.

        Raises ValueError, naming the argument, for anything that cannot work.
        """
        fix_product_rounding()
        model_options = plain_numbers(model_options or {})
        check_arguments(method, data, client, weights, rounds=rounds, seed=seed, eval_every=eval_every, last=last,
                        probe_every=probe_every, store_budget=store_budget)  # fmt: skip
        check_workers(workers)
        check_precision(precision)
        check_tokenizer(model, model_options, data)
        self.method = method.fitted(data.shape)
        check_ranks(ranks.number, workers, probes, self.method)
        self.client, self.weights, self.seed, self._ranks = client or Client(), weights, seed, ranks
        self.eval_every, self.last, self.probe_every = eval_every, last, probe_every
        self.device, self.precision = usable_device(device), precision
        self.adapter, self.guard, self.attack = adapter, guard, attack
        self._plan_rounds(rounds, participation, privacy, data.clients)
        initial = InitialModel(model, data.classes, data.shape, seed, model_options, dtype, adapter)
        self._architecture = initial.architecture()
        w = self._make_model(initial, loss, data)
        self.probes = tuple(check_measures(probes, self.objective.module))
        check_name(executor, self._randomness, self.device)
        self._asked = executor
        self._choice: Choice | None = None
        self._workers = Workers(lambda: self.executor, workers, self.device)
        self._make_server(w, store_budget, store_folder)
        self._evaluated = self._evaluation(self.participation.held_out(data.clients))
        self.callbacks, self._stopped = check_callbacks(callbacks), False

    def _plan_rounds(self, rounds: int | None, participation: Any, privacy: Privacy | None, clients: int) -> None:
        """How many rounds there are, and who takes part in them."""
        rule = as_rule(participation)
        self.rounds = rounds if rounds is not None else default_rounds(rule)
        self._private = private_rounds(
            privacy, self.method, self.client, clients, self.rounds, self.seed, self._ranks, self.weights,
            participation, self.adapter, self.guard or self.attack,
        )  # fmt: skip
        self.participation = rule if self._private is None else self._private.rule
        self.participation.check(clients, self.rounds)

    def _make_model(self, initial: InitialModel, loss: str | SampleLoss | None, data: FederatedData) -> Tensor:
        """The model's loss, and the samples on its device; returns the initial parameters (d,)."""
        module = initial.module().to(self.device)
        is_partly_frozen = not all(p.requires_grad for p in module.parameters())
        self._base_hash = frozen_hash(module) if is_partly_frozen else None
        self.task = check_task(loss, data)
        self.objective = Objective(module, bf16=self.precision == "bf16", task=self.task)
        self._layers = layers_of(module)
        w = self.objective.space.flatten(module)
        self.data = data.to(self.device, w.dtype)
        self._data_hash, self._model_hash = self.data.contents_hash(), digest([self.objective.space.row_major(w)])
        check_tokens(module, self.data.x, *(self.data.test or ())[:1])
        samples = self.data.inputs(torch.arange(min(4, len(data.y)), device=self.device))
        self._randomness = randomness_of(module, samples, data.classes, self.task)
        self.task.check(data.classes, self.data.y[:2], w.dtype)
        self.objective.check_own_modes(w, samples)
        return w

    def _make_server(self, w: Tensor, store_budget: int, store_folder: str | Path | None) -> None:
        """The server with the initial parameters `w` (d,), and what clients are trained on, and keep."""
        method = by_turns(self.method, self.adapter, self.objective.space, w.device)
        rule, self._trained_on = self.participation, self.data
        if method.training == "centralised":
            self._trained_on, rule = pooled(self.data, self.client, rule)
        self._attackers = None if self.attack is None else self._made_attackers(self.attack, method)
        batches = Batches(self._trained_on, self.client, self.seed, w.dtype, rule)
        self._make = lambda kind: kind(method, self.objective, batches, self.seed, self._randomness)
        self._cost, clients = method_cost(method, len(w)), self._trained_on.clients
        with method_errors_named(method):
            self._server = Server(method, self.objective, w, self.client, rule, clients, self.seed, self.rounds,
                                  self.guard)  # fmt: skip
        folder = store_folder if self._ranks.number == 1 else None
        self._store = ClientStore(method, clients, w, store_budget, folder, self._ranks.owned)

    def prepare(self) -> Choice:
        """Choose the executor, unless that has been done; `auto` tries a few steps with each.

        Several ranks must all call this at the same time. The first round calls it if nobody has.
        """
        if self._choice is None:
            with one_thread(self.device), method_errors_named(self.method):
                cohort = self.trial_cohort
                steps = float(self.client.local_steps(self._trained_on.sizes_of(cohort)).sum()) * self.rounds
                self._choice = agreed(
                    self._ranks, self._make, cohort, lambda: choose(self._asked, self._make, cohort, steps)
                )
        return self._choice

    @property
    def choice(self) -> Choice:
        """The executor, and why it is this one."""
        return self.prepare()

    @property
    def executor(self) -> Executor:
        """How clients are run."""
        return self.choice.executor

    @property
    def t(self) -> int:
        """Rounds that are over."""
        return self._server.t

    @property
    def server(self) -> Any:
        """The method's server record."""
        return self._server.state

    @property
    def history(self) -> list[dict[str, float]]:
        """The metrics of every round so far."""
        return self._server.history

    @property
    def segments(self) -> list[Segment]:
        """The versions and the code that computed the rounds."""
        return self._server.segments

    @property
    def w(self) -> Tensor:
        """The server's model, (d,), row-major."""
        return self._server.w

    @property
    def model(self) -> nn.Module:
        """A new module with the server's model in it, in evaluation mode."""
        return self._server.model

    def predict(self, x: Any, classes: bool = False) -> Tensor:
        """Predict as `Run.predict` does, by the server's present model."""
        return predict(self.model, SampleKind.of(self.data), x, classes)

    @property
    def has_secret_noise(self) -> bool:
        """Whether the rounds need a key that only states of this run have."""
        return self._private is not None and self._private.is_secret

    @property
    def trial_cohort(self) -> Index:
        """The clients with whom steps are taken on trial: those of round 0, which nobody may know with privacy."""
        return self.cohort(0) if self._private is None else np.arange(max(1, round(self._private.expected)))

    def own_model(self, client: int) -> Tensor:
        """The model (d,) that a client keeps, where clients train alone; before its first round, the initial one.

        Raises InputError for a method whose clients keep none.
        """
        if self.method.training != "local":
            raise InputError(
                f"clients of {type(self.method).__name__} keep no models of their own; the server's is `w`"
            )
        one = np.array([client])
        record: Any = self._store.get(one, stacked(self._server.broadcast(), one))
        w: Tensor = record.w[0]
        return w

    def __iter__(self) -> Iterator[Round]:
        while not self.is_over():
            result = self.round()
            self.call_back(result)
            yield result

    def is_over(self) -> bool:
        """Whether no round is left, or a callback wants to stop. Several ranks must all call this."""
        if self.callbacks and not self._stopped:
            with self._ranks.together():
                wanted = self._ranks.index == 0 and any(wants_to_stop(one, self.history) for one in self.callbacks)
            self._stopped = bool(self._ranks.most(int(wanted)))
        return self._stopped or self.t >= self.rounds

    def call_back(self, ended: Round | Run) -> None:
        """Tell the callbacks that a round, or the run, has ended, as iterating and `run` do.

        Several ranks must all call this. An error of a callback is raised on all.
        """
        with self._ranks.together():
            for callback in self.callbacks if self._ranks.index == 0 else ():
                if isinstance(ended, Run):
                    callback.run_ended(ended)
                else:
                    callback.round_ended(self, ended)

    def run(self, flatness: Sequence[str | Measure] = ()) -> Run:
        """Compute all remaining rounds, and the measures named by `flatness` of the final model."""
        for _ in self:
            pass
        run = self.result(flatness)
        self.call_back(run)
        return run

    def result(self, flatness: Sequence[str | Measure] = (), progress: Progress = no_progress) -> Run:
        """The result of the rounds so far, at least one, with the measures named by `flatness`."""
        if not self.history:
            raise InputError("there is no result before the first round")
        w = self.server.w
        summary = summarise(self._evaluated, len(w), w.element_size(), self.history, self.last)
        if self.message_bytes is not None:
            summary |= zip(("message_bytes", "message_bytes_full"), self.message_bytes, strict=True)
        if self._private is not None:
            summary = without_client_values(summary) | self._private.spent(self.t)
        return Run(
            method=label_of(self.method),
            seed=self.seed,
            metrics=metrics_table(self.history),
            summary=summary,
            flatness=self.flatness(flatness, progress=progress),
            settings=self._reported_settings(),
            model=self.model,
            w=self.w,
            cost=self._cost,
            counts=self.data.counts(),
            samples=SampleKind.of(self.data),
            architecture=self._architecture,
        )

    def round(self) -> Round:
        """Compute one communication round.

        Raises NonFiniteError if training diverges. A round that fails, for whatever reason, leaves server, clients and
        counters as they were.
        """
        started = perf_counter()
        if self._private is not None:
            self._private.check_budget(self.t + 1)
        try:
            trainer = self._workers if self._ranks.number == 1 else InTurn(self.executor)
            computed = self._compute(self.cohort(self.t), trainer, keep=True, ranks=self._ranks)
            with self._ranks.together():
                self._store.commit()
        except BaseException:
            self._store.discard()
            raise
        clients = computed.clients
        guard = clients.arrivals.next_guard() if clients.arrivals else None
        self._server.take(computed.state, clients.mean, computed.ctx, guard)
        metrics = {"lr": computed.ctx.lr}
        if self._private is None:  # these say who took part, or what clients' samples are like
            metrics |= {"clients": float(len(clients.drifts)), "drift": float(clients.drifts.mean())}
            metrics["train_loss"] = clients.loss
        metrics |= clients.arrivals.metrics() if clients.arrivals else {}
        # Numbers that the server sends beside vectors, such as FedGF's c, are worth watching.
        metrics |= {name: float(x) for name, x in computed.down.tensors().items() if x.numel() == 1 and name != "w"}
        metrics |= self._evaluate() if self._ranks.index == 0 else {}
        if self._private is not None and self._is_evaluated():
            metrics["epsilon"] = self._private.epsilon(self.t)
        metrics |= self._spent(clients) | {"seconds": perf_counter() - started}
        metrics |= self._probed(metrics)
        self._server.report(metrics)
        return Round(computed.ctx.t, metrics)

    def flatness(
        self,
        measures: Sequence[str | Measure],
        max_samples: int = MAX_SAMPLES,
        progress: Progress = no_progress,
    ) -> Flatness:
        """Measure the server's model, its clients and the round that follows; see `fedflat.flatness`.

        Where clients train alone there is no such model, and nothing is measured.
        """
        measures = () if self.method.training == "local" else measures
        subject = Subject(self.objective, self._server.served, self._trained_on, max_samples,
                          dry_round=self.dry_round, iterate=self.server.w, direction=self._server.direction,
                          weights=self.weights)  # fmt: skip
        return measure(subject, measures, progress)

    def dry_round(self, clients: Index | None, observer: RoundObserver) -> NextRound:
        """Compute the round that follows, or one with other `clients` (c,), for `observer`; it changes nothing.

        After the last cohort of an explicit participation, that cohort is taken again. Raises InputError on one of
        several ranks, if it does not have all clients' records.
        """
        if self._ranks.number > 1 and self._store.keeps:
            raise InputError(
                "clients' records are with several ranks; load the checkpoint in one process to look at a round"
            )
        if clients is not None and self.method.training == "centralised":
            raise InputError(f"{type(self.method).__name__} trains one model on all samples; clients have none")
        cohort = self.cohort(self.t) if clients is None else clients
        computed = self._compute(cohort, InTurn(self.executor, observer), keep=False)
        return NextRound(cohort, computed.state.w)

    def _compute(self, cohort: Index, trainer: Trainer, keep: bool, ranks: Ranks = ALONE) -> _Computed:
        """The next round with `cohort`, which the server has not taken yet; with `keep` clients' records are staged."""
        clients = self.executor.batches.longest_first(self.t, cohort)
        weights = mean_weights(self.weights, self._trained_on.sizes_of(clients), self.device)
        private, mean, arrivals = self._private, None, None
        ctx = self._server.context(*((len(clients),) if private is None else private.known_of_a_round))
        if self.guard is not None or self._attackers is not None:
            weights, arrivals = self._screening(clients, weights, ctx)
        with one_thread(self.device), method_errors_named(self.method):
            down = self._server.broadcast()
            if private is not None:
                mean = private.mean(self._server.method, down.w, ctx)
            trained = train(trainer, self._store, clients, weights, down, ctx, keep, ranks, mean, arrivals)
            if private is not None and mean is not None and keep:
                with ranks.together():
                    private.release(ctx.t, mean)
            try:
                state = self._server.updated(trained.mean, ctx)
            except NonFiniteError as error:
                raise NonFiniteError(f"training diverged: {error}") from error
        return _Computed(ctx, down, trained, state)

    def _screening(self, clients: Index, weights: Tensor, ctx: Context) -> tuple[Tensor, Arrivals]:
        """The weights (c, 1) of `clients` (c,) that the server has, and what it does with their records."""
        if self._attackers is not None and self.weights == "samples":
            weights = self._attackers.claimed(clients, weights)
        if self.guard is not None:
            weights = self.guard.limited(weights)
        follows = self.client.steps is None  # local steps follow from the samples that a client claims
        guard = self._server.guard
        return weights, Arrivals(self.method, ctx, clients, weights, guard, self._attackers, follows)

    def _made_attackers(self, attack: Attack, method: Method) -> Attackers:
        """The attackers among the clients, whose labels are flipped if they do that."""
        candidates = np.setdiff1d(np.arange(self.data.clients), self.participation.held_out(self.data.clients))
        found = Attackers(attack, method, candidates, self.seed)
        if found.collude and self._ranks.number > 1:
            raise InputError(f"attack.kind = {attack.kind!r} must know all messages of a round, which no one of "
                             f"{self._ranks.number} ranks does; use workers")  # fmt: skip
        if attack.kind == "label-flip":
            self._trained_on = with_flipped_labels(self._trained_on, found.clients)
        return found

    def cohort(self, t: int) -> Index:
        """The clients of round `t`, in rising order; known before the round is computed.

        Raises InputError, with privacy, for any other round than the next one.
        """
        if self._private is None:
            return self._server.cohort(t)
        if t != self.t:
            raise InputError(f"privacy: who takes part in round {t} is drawn when that round is the next one")
        return self._private.cohort(t)

    def save(self, path: str | Path) -> None:
        """Write everything that the next round depends on to `path`, atomically.

        If clients' records are in a file in the same folder (`store_folder`), only references to them are written.
        That file serves the last three checkpoints in the folder, and no older ones. With privacy the file is secret:
        it has the key of the rounds that follow, whose releases are noted beside it. Several ranks must all call this;
        the first one writes.
        """
        path = Path(path)
        private = {} if self._private is None else self._private.kept(self.t)
        with self._ranks.together(), self._ranks.collected(self._store, path.parent) as kept:
            if kept is not None:
                tensors = self._server.tensors() | {f"clients.{name}": x for name, x in kept.items()}
                meta = self._server.meta() | {"settings": self.settings()}
                # Callbacks are not kept: a run that one has ended stays as it is, unless it is to have more rounds.
                meta |= {"stopped of": self.rounds} if self._stopped and self.t < self.rounds else {}
                if self._private is not None:
                    meta["privacy"] = {"rounds": self.t} | self._private.spent(self.t) | private
                    self._private.log_in(path.parent)
                checkpoint.save(path, tensors, meta)
        self._store.saved()

    def load(self, path: str | Path, strict: bool = False) -> None:
        """Continue from `path`: the rounds that follow have the same bits as those of the run that wrote it.

        They may not if the checkpoint was written with other versions, or another code of the method: this warns with
        a ChangedWarning, or with `strict` raises InputError. Raises DamagedError if the file, or the file of clients'
        records beside it, is damaged; InputError if it belongs to other settings, or has more than `rounds` rounds.
        """
        path = Path(path)
        with self._ranks.together():
            tensors, meta = checkpoint.load(path, streamed=("clients.",))
            settings = checkpoint.settings_of(meta, path)
        if self._asked == "auto" and self._choice is None:  # the executor remains what it was
            try:
                check_name(str(settings.get("executor")), self._randomness, self.device)
            except InputError as error:
                raise InputError(f"checkpoint {path}: {error}") from error
            self._asked = str(settings.get("executor"))
        self._check_same(settings, path)
        snapshot = self._server.read(tensors, meta, path, strict)
        if snapshot.t > self.rounds:
            raise InputError(f"checkpoint {path} has {snapshot.t} rounds, rounds = {self.rounds} is less")
        with self._ranks.together():
            private = self._private and self._private.restored(meta.get("privacy"), snapshot.t, path)
        records = {n.removeprefix("clients."): x for n, x in tensors.items() if n.startswith("clients.")}
        with self._ranks.together():
            try:
                self._store.restore(records, path.parent)
            except InputError as error:
                raise type(error)(f"checkpoint {path}: {error}") from error
        self._server.restore(snapshot)
        self._private = private
        self._stopped = meta.get("stopped of") == self.rounds
        if self.t < self.rounds:
            self._forget_last_evaluation()

    def _forget_last_evaluation(self) -> None:
        """Remove from the last round what it was only evaluated for because it was the last one, and is no more."""
        last = self.history[-1] if self.history else {}
        if self.t % self.eval_every:
            for name in [name for name in last if name.startswith(("test_", "validation_"))]:
                del last[name]
        if self.t % self.probe_every:
            names = list(last)  # what probes found stands behind the seconds
            for name in names[names.index("seconds") + 1 :] if "seconds" in last else ():
                del last[name]

    def _check_same(self, before: Mapping[str, Any], path: Path) -> None:
        """Raise InputError, naming the first difference, unless the settings `before` are those of this simulation."""
        found = first_difference(before, self.settings(), eq)
        if found is None:
            return
        name, then, now = found
        if name == "rounds":
            raise InputError(f"checkpoint {path}: {label_of(self.method)} trains by how many rounds are planned, "
                             f"which were {then}, now they are {now}")  # fmt: skip
        if name == "layers" and isinstance(then, str):
            then, now = telling_apart([then, now])
            raise InputError(f"checkpoint {path}: the model is another one: it had {then}, now it has {now}")
        raise InputError(f"checkpoint {path}: {name} was {then}, now it is {now}")

    def close(self) -> None:
        """End the workers, and close the file of clients' records, if there is one; after that only `load` works."""
        self._workers.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def workers(self) -> int:
        """The most worker processes that train clients; they are started when it pays."""
        return self._workers.number

    @property
    def store_bytes(self) -> int:
        """The most memory that clients' records may come to take."""
        return self._store.most_bytes(self.executor.chunk)

    @property
    def message_bytes(self) -> tuple[int, int] | None:
        """Bytes that a client sends in a round, and would send in full fine-tuning; None without adapters."""
        full, size = base_parameters(self.objective.module), self.server.w.element_size()
        return None if full is None else (size * self._cost.up, size * method_cost(self.method, full).up)

    def settings(self) -> dict[str, Any]:
        """Return a table of what the rounds depend on; how many there are only for a method that needs to know."""
        parts = {"guard": self.guard, "attack": self.attack, "method": self.method, "client": self.client,
                 "participation": self.participation, "augmentation": self.data.augmentation,
                 "adapter": self.adapter}  # fmt: skip
        scheme = self.data.partition
        return {
            "loss": self.task.loss,
            **{name: None if part is None else table_of(part) for name, part in parts.items()},
            "privacy": None if self._private is None else self._private.settings(),
            "weights": self.weights,
            "seed": self.seed,
            "data": {
                "name": self.data.name,
                "clients": self.data.clients,
                "partition": scheme if isinstance(scheme, str) else table_of(scheme),
            },
            "partition_hash": self.data.partition_hash(),
            "data_hash": self._data_hash,
            "model_hash": self._model_hash,
            "base_hash": self._base_hash,
            "model": {
                CLASS: type(self.objective.module).__name__,
                "parameters": self.objective.space.d,
                "dtype": str(self.server.w.dtype).removeprefix("torch."),
            },
            "executor": self.choice.name,
            "precision": self.precision,
            "layout": "convolutions channels-last",
            "rounds": self.rounds if self.method.depends_on_rounds else None,
            "layers": self._layers,  # last: an adapter, or a number of parameters, says better what differs
        }

    def _reported_settings(self) -> dict[str, Any]:
        """Return the settings as results keep them, with the method's label and code, and how the data are split."""
        code = text_of(self.method).rpartition(" #")[2] if is_own(self.method) else None
        split = vars(partition_statistics(self.data))
        return self.settings() | {"label": label_of(self.method), "method_code": code, "split": split}

    def _evaluate(self) -> dict[str, float]:
        return self._evaluated.round_scores() if self._is_evaluated() else {}

    def _is_evaluated(self) -> bool:
        return self.t % self.eval_every == 0 or self.t == self.rounds

    def _evaluation(self, held_out: Index) -> Evaluated:
        """What this simulation evaluates."""
        if self.method.training != "local":
            iterate = (lambda: self._server.state.w) if serves_another(self.method) else None
            return ServerModel(self.objective, self.data, held_out, lambda: self._server.served, iterate)
        clients = np.setdiff1d(np.arange(self.data.clients), held_out)
        return OwnModels(self.objective, self.data, clients, self.own_model)

    def _probed(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the values of the probes after this round, by name.

        `NAME_error` is half an interval, or a residual; `NAME_samples` the number of samples used, if not all.

        Raises InputError for a value with the name of one of the round's `metrics`.
        """
        if not self.probes or (self.t % self.probe_every and self.t != self.rounds):
            return {}
        found = self.flatness(self.probes)
        errors = {f"{name}_error": x.error for name, x in found.items() if x.error is not None}
        samples = {f"{name}_samples": float(x.samples[0]) for name, x in found.items() if x.samples is not None}
        columns = {name: x.value for name, x in found.items()} | errors | samples
        if both := sorted(columns.keys() & metrics.keys()):
            raise InputError(f"a probe measures {both[0]!r}, which is a metric of every round; give it another name")
        return columns

    def _spent(self, clients: CohortResult) -> dict[str, float]:
        """Totals so far: minibatch gradients, and bytes each way."""
        before = self.history[-1] if self.history else {"gradients": 0.0, "bytes_down": 0.0, "bytes_up": 0.0}
        sent = float(len(clients.drifts) if clients.arrivals is None else len(clients.arrivals.of_clients[0]))
        private, gradients = self._private, float(clients.gradients)
        if private is not None:  # on average, for how many there were is secret
            sent, gradients = private.expected, private.expected_gradients(self.method, self.data.sizes)
        size = sent * self.server.w.element_size()
        return {
            "gradients": before["gradients"] + gradients,
            "bytes_down": before["bytes_down"] + size * self._cost.down,
            "bytes_up": before["bytes_up"] + size * self._cost.up,
        }
