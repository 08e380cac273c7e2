"""The simulation of a federation, round by round, on one machine or by several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..adapters import LoRA, base_shapes
from ..core.compression import Compression
from ..core.errors import InputError, NonFiniteError
from ..core.hyper import plain_numbers, takes_numbers
from ..core.method import Context, Method
from ..core.native_libraries import fix_product_rounding, tune_allocator
from ..core.own_model import own_field, own_model_of
from ..core.partial_model import partial_model, sent_part, statistics_of, whole_model
from ..core.perturbation import Perturbation
from ..core.progress import Progress, no_progress
from ..core.running_statistics import Buffers
from ..core.structure import text_of
from ..core.task import SampleLoss
from ..core.user_code import is_installed, method_errors_named
from ..core.wrapper import label_of, serves_another
from ..data.federated import FederatedData
from ..data.partition_statistics import partition_statistics
from ..data.sample_kind import SampleKind
from ..data.types import Index
from ..metrics.classification import check_metrics
from ..metrics.flatness import Flatness, Measure, Subject, check_measures, measure
from ..metrics.flatness.subject import MAX_SAMPLES, NextRound, RoundObserver
from ..rounds import checkpoint
from ..rounds.accountant import Privacy
from ..rounds.aggregation import Weights, mean_weights
from ..rounds.attack import Attack, Attackers, with_flipped_labels
from ..rounds.batches import Batches
from ..rounds.cost import MethodCost, method_cost, upload_bytes
from ..rounds.device import one_thread, usable_device
from ..rounds.executor import Executor, stacked
from ..rounds.guard import Guard
from ..rounds.local_training import Client
from ..rounds.model_parts import as_patterns, check_parts, method_of_run, with_head
from ..rounds.participation import Explicit, pooled
from ..rounds.participation import participation as as_rule
from ..rounds.private_rounds import PrivateRounds
from ..rounds.run_model import InitialModel
from ..rounds.run_plan import RunPlan
from ..rounds.segments import Segment
from ..rounds.server import Server, metrics_table
from ..rounds.settings import table_of
from .callbacks import Callback, check_callbacks, wants_to_stop
from .choice import Choice, agreed, check_name, choose, stands_alone
from .client_store import BUDGET, ClientStore
from .cohort import Arrivals, Cohort, CohortResult, InProcess, Trainer, train
from .evaluation import EVALUATED, Evaluated, OwnModels, PersonalModels, ServerModel, predict
from .problem import Problem, check_arguments, check_privacy, check_ranks, check_same_settings
from .ranks import ALONE, Ranks
from .run import OF_CLIENTS, Run, summarise, without_client_values
from .workers import Workers

DEFAULT_ROUNDS = 100


@dataclass(frozen=True)
class Round:
    """The report of one round."""

    t: int  # number of the round, from 0
    metrics: dict[str, float]


class Simulation:
    """Federated training of one model with one method; iterate over the simulation, or call `run`.

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
        buffers: Buffers | None = None,
        keep: Sequence[str] = (),
        probes: Sequence[str | Measure] = (),
        probe_every: int = 10,
        workers: int | Literal["auto"] = "auto",
        store_budget: int = BUDGET,
        store_folder: str | Path | None = None,
        ranks: Ranks = ALONE,
        callbacks: Sequence[Callback] = (),
        metrics: Sequence[str] = (),
        adapter: LoRA | None = None,
        privacy: Privacy | None = None,
        guard: Guard | None = None,
        attack: Attack | None = None,
        perturbation: Perturbation | None = None,
        compress: Compression | None = None,
    ) -> None:
        """Prepare round 0. The same arguments always give the same rounds.

        model: a name from `fedflat.models.model_names()` with `model_options`, or any module. The
            module's weights are the initial model; the module is not changed. method: from `fedflat.methods`.
        rounds: number of rounds; default 100, or the number of cohorts that an explicit participation lists.
        participation: a share of the clients, a number of clients per round, `Bernoulli(p)`, or a list of cohorts
            [[0, 1], ...]. Around one of these rules, `Unreliable(rule, dropouts=0.1, stragglers=0.3)` adds clients that
            do not reply or take only a part of their steps, and `HeldOut(rule, 0.2)` adds clients that never train but
            are evaluated.
        weights: weights of the clients in the mean, "uniform" or "samples" (n_i). dtype: default the model's dtype.
        loss: "cross-entropy", "multi-label" (binary cross-entropy with logits), "regression" (squared error), or a
            function from scores (b, k) and labels (b, ...) to the loss of each sample (b,). Default: by the task of the
            data.
        precision: "bf16" computes training gradients, and nothing else, in bfloat16 autocast. It is faster on hardware
            that supports it, and distorts the effect of small perturbations, see docs/performance.md.
        executor: "sequential", "stacked", "compiled", "graphed" (on a GPU), or "auto", the fastest on the first steps.
        eval_every: rounds between evaluations.
        last: number of evaluations at the end of a run over which the reported accuracy is averaged.
        buffers: running statistics of normalisation layers such as BatchNorm: "frozen" (they stay as they are),
            "averaged" (sent beside the parameters and averaged) or "local" (they stay with each client). Needed for a
            model with such layers; see docs/howto/model_parts.md.
        keep: patterns of the names of parameters and buffers that stay with each client, such as ["head.*", "*.bn1"].
            A method whose clients keep a head, such as FedRep, keeps the last layer without patterns.
        probes: measures of flatness taken after every `probe_every` rounds, and after the last; they
            become metrics of that round and change nothing else.
        workers: number of worker processes that train clients in parallel on the CPU, each on one thread. "auto" starts
            as many as torch has threads, after 10 seconds of training. Workers change no bit of the result.
        store_budget: bytes of memory for the records that clients keep between their rounds. Records that may take more
            are kept in a file in `store_folder`, or in a temporary file that is removed when the process ends.
        ranks: the processes that compute this simulation together, from `fedflat.joined()`; each constructs it with the
            same arguments and makes the same calls. Ranks change no bit of the result, see docs/ranks.md.
        callbacks: called after every round and at the end of a run, such as `fedflat.EarlyStopping()`.
        metrics: further metrics of the test samples in every evaluation: "recall" of each class, "macro-f1",
            "balanced-accuracy", "auc" for two classes, "calibration-error".
        adapter: `fedflat.LoRA(targets=("query", "value"))`: low-rank adapters and the head are trained and sent; the
            other parameters are frozen and stored once. Needs the package peft.
        privacy: `fedflat.Privacy(epsilon=8, delta=1e-4, clip=1, rate=0.1)`: client-level differential privacy, in place
            of `participation`; see docs/privacy.md. Needs the package dp-accounting.
        guard: `fedflat.Guard(multiple=3.0)`: bounds on the norm of a client's update, and on its weight.
        attack: `fedflat.Attack(kind="sign-flip", share=0.2)`: an attack on the mean by a share of the clients.
        perturbation: `fedflat.Perturbation(schedule="cosine")`: options of a sharpness-aware method's perturbation; see
            docs/howto/perturbation.md.
        compress: `fedflat.Compression(kind="top-k", share=0.1)`: compression of what clients send; see
            docs/howto/compression.md.

        Raises ValueError, naming the argument, for invalid or incompatible arguments.
        """
        fix_product_rounding()
        tune_allocator()
        check_arguments(method, data, client, weights, precision, workers, rounds=rounds, seed=seed, last=last,
                        eval_every=eval_every, probe_every=probe_every, store_budget=store_budget)  # fmt: skip
        self.method = method.fitted(data.shape)
        check_ranks(ranks.number, workers, probes, self.method)
        self.client, self.weights, self.seed, self._ranks = client or Client(), weights, seed, ranks
        self.eval_every, self.last, self.probe_every = eval_every, last, probe_every
        self.device, self.precision = usable_device(device), precision
        self.adapter, self.guard, self.attack, self.perturbation = adapter, guard, attack, perturbation
        self.buffers, self.keep, self.compress = buffers, as_patterns(keep), compress
        self._plan_rounds(rounds, participation, privacy, data.clients)
        options = plain_numbers(model_options or {})
        initial = InitialModel(model, data.classes, data.shape, seed, options, dtype, adapter)
        self._architecture = initial.architecture()
        self._problem = Problem(initial, loss, data, self.device, precision == "bf16", buffers)
        self.task, self.objective, self.data = self._problem.task, self._problem.objective, self._problem.data
        self.keep = with_head(self.method, self.keep, self.objective)
        self.probes = tuple(check_measures(probes, self.objective.module))
        self.metrics = check_metrics(metrics, self.task.kind, data.classes)
        check_name(executor, self._problem.randomness, self.device)
        self._asked = executor  # the requested name; `prepare` makes the choice
        self._choice: Choice | None = None
        self._workers = Workers(
            lambda: self.executor, workers, self.device, lambda: stands_alone(self.executor, self.trial_cohort)
        )
        self._make_server(store_budget, store_folder)
        self._evaluated = self._evaluation()
        self.callbacks, self._stopped = check_callbacks(callbacks), False

    def _plan_rounds(self, rounds: int | None, participation: Any, privacy: Privacy | None, clients: int) -> None:
        """Set the number of rounds and the participation; with privacy, also the noise and the accountant."""
        rule = as_rule(participation)
        self.rounds = rounds or (len(rule.cohorts) if isinstance(rule, Explicit) else DEFAULT_ROUNDS)
        self._private: PrivateRounds | None = None
        if privacy is not None:
            check_privacy(privacy, participation, self.weights, self.adapter, self.guard or self.attack)
            self._private = PrivateRounds(privacy, self.method, self.client, clients, self.rounds, self.seed,
                                          self._ranks.first, self._ranks.index == 0)  # fmt: skip
            rule = self._private.rule
        self.participation = rule
        self.participation.check(clients, self.rounds)

    def _make_server(self, store_budget: int, store_folder: str | Path | None) -> None:
        """Make the server with the initial model, the executor's batches and the store of clients' records."""
        w = self._problem.initial_parameters()
        method = method_of_run(self.method, self.objective, self.client, self.adapter, self.buffers, self.keep,
                               self.perturbation, self.compress)  # fmt: skip
        check_parts(method, self.guard, self._private is not None, self.attack is not None)
        rule, self._trained_on = self.participation, self.data
        if method.training == "centralised":
            self._trained_on, rule = pooled(self.data, self.client, rule)
        self._attackers = None if self.attack is None else self._make_attackers(self.attack, method)
        batches = Batches(self._trained_on, self.client, self.seed, w.dtype, rule)
        self._make = lambda kind: kind(method, self.objective, batches, self.seed, self._problem.randomness)
        batches.check_smallest(self.objective)
        sent = sent_part(method, w)
        self._cost, clients = method_cost(method, len(sent)), self._trained_on.clients
        self.upload_bytes = upload_bytes(method, len(sent), w.element_size())  # of a client in a round
        plan = RunPlan(self.client, rule, self.seed, self.rounds, self.guard)
        with method_errors_named(method):
            self._server = Server(method, self.objective, w, plan, clients)
        folder = store_folder if self._ranks.number == 1 else None
        self._store = ClientStore(method, clients, sent, store_budget, folder, self._ranks.owned)

    def prepare(self) -> Choice:
        """Choose the executor, if not yet chosen; for `auto`, time a few steps with each executor.

        All ranks must call this at the same time. The first round calls this if nothing has called it before.
        """
        if self._choice is None:
            with one_thread(self._server.state.w.device), method_errors_named(self.method):
                cohort = self.trial_cohort
                steps = float(self.client.local_steps(self._trained_on.sizes_of(cohort)).sum()) * self.rounds
                self._choice = agreed(
                    self._ranks, self._make, cohort, lambda: choose(self._asked, self._make, cohort, steps)
                )
        return self._choice

    @property
    def choice(self) -> Choice:
        """The executor, and the reason for it."""
        return self.prepare()

    @property
    def executor(self) -> Executor:
        """The executor of local training."""
        return self.choice.executor

    @property
    def t(self) -> int:
        """The number of completed rounds."""
        return self._server.t

    @property
    def cost(self) -> MethodCost:
        """What the run sends in a round and keeps, in numbers."""
        return self._cost

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
        """The segments of the run: which versions and which code computed which rounds."""
        return self._server.segments

    @property
    def w(self) -> Tensor:
        """The server's model, (d,), row-major."""
        return self._server.w

    def served_model(self) -> Tensor:
        """Return the server's model (d,) in the order of `objective.space`; `objective` then has its statistics."""
        return self._server.show()

    @property
    def model(self) -> nn.Module:
        """A new module with the parameters of the server's model, in evaluation mode."""
        return self._server.model

    def predict(self, x: Any, classes: bool = False) -> Tensor:
        """Predict with the server's current model, as `Run.predict` does with the final one.

        Raises InputError if a part of the model stays with the clients.
        """
        if self.keeps_parts:
            raise InputError("predict: a part of the model stays with the clients; use client_model(i)")
        return predict(self.model, SampleKind.of(self.data), x, classes)

    @property
    def has_secret_noise(self) -> bool:
        """Whether the rounds depend on a secret key, which only this run's checkpoints hold."""
        return self._private is not None and self._private.is_secret

    @property
    def trial_cohort(self) -> Index:
        """The clients of trial steps: the cohort of round 0 or, if privacy keeps cohorts secret, the first clients."""
        return self.cohort(0) if self._private is None else np.arange(max(1, round(self._private.expected)))

    @property
    def keeps_parts(self) -> bool:
        """Whether a part of the model stays with each client, as `keep` and `buffers` say, and the rest is sent."""
        part = partial_model(self._server.method)
        return self.method.training == "federated" and part is not None and part.kept_width + part.own_width > 0

    @property
    def has_whole_model(self) -> bool:
        """Whether the server has all parts of the model; it has not if clients train alone or keep some parts."""
        return self.method.training != "local" and not self.keeps_parts

    @property
    def has_own_models(self) -> bool:
        """Whether each client has a model of its own: trained alone or beside the server's, or with parts it keeps."""
        return not self.has_whole_model or own_field(self._server.method) is not None

    def own_model(self, client: int) -> Tensor:
        """Return a client's own model (d,), if clients train one, alone or beside the server's, or keep a part.

        What a client keeps has its initial values before the client's first round; the rest is the server's. Raises
        InputError if clients have no models of their own.
        """
        return self._own(client)[0]

    def client_model(self, client: int) -> nn.Module:
        """Return a new module with the client's own model, see `own_model`, and its running statistics.

        The module is in evaluation mode.
        """
        return self.objective.module_at(*self._own(client))

    def _own(self, client: int) -> tuple[Tensor, Tensor | None]:
        """Return a client's own model (d,), and its running statistics (s,) if the model has any that change."""
        if not self.has_own_models:
            raise InputError(f"clients of {label_of(self.method)} keep no models of their own; the server's is `w`")
        if not 0 <= client < self._trained_on.clients:
            raise InputError(f"client = {client} is not in 0..{self._trained_on.clients - 1}")
        clients, method, server = np.array([client]), self._server.method, self._server.state
        record: Any = self._store.get(clients, stacked(self._server.broadcast(), clients)).map(lambda x: x[0])
        return own_model_of(method, server.w, record), statistics_of(method, server, record)

    def _show_own(self, client: int) -> Tensor:
        """Put a client's running statistics into the objective, and return its own model (d,)."""
        w, statistics = self._own(client)
        self.objective.show(statistics)
        return w

    def __iter__(self) -> Iterator[Round]:
        while not self.is_over():
            result = self.round()
            self.call_back(result)
            yield result

    def is_over(self) -> bool:
        """Tell whether no round is left, or a callback wants to stop. All ranks must call this."""
        if self.callbacks and not self._stopped:
            with self._ranks.together():
                wanted = self._ranks.index == 0 and any(
                    wants_to_stop(callback, self.history) for callback in self.callbacks
                )
            self._stopped = bool(self._ranks.most(int(wanted)))
        return self._stopped or self.t >= self.rounds

    def call_back(self, ended: Round | Run) -> None:
        """Call the callbacks after a round or at the end of the run, as iterating and `run` do.

        All ranks must call this. An error of a callback is raised on all ranks.
        """
        with self._ranks.together():
            for callback in self.callbacks if self._ranks.index == 0 else ():
                if isinstance(ended, Run):
                    callback.run_ended(ended)
                else:
                    callback.round_ended(self, ended)

    def run(self, flatness: Sequence[str | Measure] = ()) -> Run:
        """Compute all remaining rounds, and the measures `flatness` of the final model."""
        for _ in self:
            pass
        run = self.result(flatness)
        self.call_back(run)
        return run

    def result(self, flatness: Sequence[str | Measure] = (), progress: Progress = no_progress) -> Run:
        """Return the result of the rounds so far, at least one, with the measures `flatness`."""
        if not self.history:
            raise InputError("there is no result before the first round")
        size = self.server.w.element_size()
        summary = summarise(self._evaluated, self.objective.space.d, size, self.history, self.last)
        if self.message_bytes is not None:
            summary |= zip(("message_bytes", "message_bytes_full"), self.message_bytes, strict=True)
        if self._private is not None:
            summary = without_client_values(summary) | self._private.spent(self.t)
        code = None if is_installed(type(self.method)) else text_of(self.method).rpartition(" #")[2]
        split = vars(partition_statistics(self.data))
        return Run(
            method=label_of(self.method),
            seed=self.seed,
            metrics=metrics_table(self.history),
            summary=summary,
            flatness=self.flatness(flatness, progress=progress),
            settings=self.settings() | {"label": label_of(self.method), "method_code": code, "split": split},
            model=self.model,
            w=self.w,
            cost=self._cost,
            counts=self.data.counts(),
            samples=SampleKind.of(self.data),
            architecture=self._architecture,
            clients=None if self._private is not None else self._evaluated.client_scores(),
        )

    def round(self) -> Round:
        """Compute one communication round.

        Raises NonFiniteError if training diverges. A round that raises an error leaves server, clients and counters
        unchanged.
        """
        started = perf_counter()
        if self._private is not None:
            self._private.check_budget(self.t + 1)
        try:
            trainer = self._workers if self._ranks.number == 1 else InProcess(self.executor)
            trained, state = self._compute(self.cohort(self.t), trainer, keep=True, ranks=self._ranks)
            with self._ranks.together():
                self._store.commit()
        except BaseException:
            self._store.discard()
            raise
        ctx, arrivals = trained.cohort.ctx, trained.cohort.arrivals
        self._server.take(state, trained.mean, ctx, arrivals.next_guard() if arrivals else None)
        metrics = self._training_metrics(trained) | self._evaluate()
        if self._private is not None and self._is_evaluated():
            metrics["epsilon"] = self._private.epsilon(self.t)
        metrics |= self._spent(trained) | {"seconds": perf_counter() - started}
        metrics |= self._probed(metrics)
        self._server.report(metrics)
        return Round(ctx.t, metrics)

    def _training_metrics(self, trained: CohortResult) -> dict[str, float]:
        """Return the metrics of a round's local training, by name."""
        cohort, metrics = trained.cohort, {"lr": trained.cohort.ctx.lr}
        if self._private is None:  # these depend on who took part, and on clients' samples
            metrics |= {"clients": float(len(trained.drifts)), "drift": float(trained.drifts.mean())}
            metrics["train_loss"] = trained.loss
        metrics |= cohort.arrivals.metrics() if cohort.arrivals else {}
        # Numbers that the server sends beside vectors, such as FedGF's c.
        return metrics | {name: float(x) for name, x in cohort.down.tensors().items() if x.numel() == 1 and name != "w"}

    def flatness(
        self,
        measures: Sequence[str | Measure],
        max_samples: int = MAX_SAMPLES,
        progress: Progress = no_progress,
    ) -> Flatness:
        """Take `measures` of the server's model, its clients or the next round; see `fedflat.flatness`.

        If clients train alone or keep a part of the model, the server has no whole model, and nothing is measured.
        """
        measures = measures if self.has_whole_model else ()
        subject = Subject(self.objective, self._server.show(), self._trained_on, max_samples,
                          dry_round=self.dry_round, iterate=self._server.iterate, direction=self._server.direction,
                          weights=self.weights)  # fmt: skip
        return measure(subject, measures, progress)

    def dry_round(self, clients: Index | None, observer: RoundObserver) -> NextRound:
        """Compute the next round, with its cohort or with `clients` (c,), for `observer`; do not change the run.

        If an explicit participation lists no further cohort, its last one is used again. Raises InputError if clients'
        records are on several ranks, or if `clients` are given for centralised training.
        """
        if self._ranks.number > 1 and self._store.keeps:
            raise InputError(
                "clients' records are with several ranks; load the checkpoint in one process to look at a round"
            )
        if clients is not None and self.method.training == "centralised":
            raise InputError(f"{type(self.method).__name__} trains one model on all samples; clients have none")
        cohort = self.cohort(self.t) if clients is None else clients
        _, state = self._compute(cohort, InProcess(self.executor, observer), keep=False)
        return NextRound(cohort, whole_model(self._server.method, state.w))

    def _compute(self, cohort: Index, trainer: Trainer, keep: bool, ranks: Ranks = ALONE) -> tuple[CohortResult, Any]:
        """Compute the next round with `cohort` (c,); return its result and the server's next state.

        The state is not applied yet. With `keep`, the clients' new records are staged.
        """
        clients = self.executor.batches.longest_first(self.t, cohort)
        weights = mean_weights(self.weights, self._trained_on.sizes_of(clients), self._server.state.w.device)
        private, mean, arrivals = self._private, None, None
        ctx = self._server.context(*((len(clients),) if private is None else private.known_of_a_round))
        if self.guard is not None or self._attackers is not None:
            weights, arrivals = self._screening(clients, weights, ctx)
        with one_thread(self._server.state.w.device), method_errors_named(self.method):
            down = self._server.broadcast()
            if private is not None:
                mean = private.mean(self._server.method, down, ctx)
            trained = train(trainer, self._store, Cohort(clients, weights, down, ctx, arrivals), keep, ranks, mean)
            if private is not None and mean is not None and keep:
                with ranks.together():
                    private.release(ctx.t, mean)
            try:
                state = self._server.updated(trained.mean, ctx)
            except NonFiniteError as error:
                raise NonFiniteError(f"training diverged: {error}") from error
        return trained, state

    def _screening(self, clients: Index, weights: Tensor, ctx: Context) -> tuple[Tensor, Arrivals]:
        """Return the weights (c, 1) that the server uses for `clients` (c,), and the `Arrivals` for their records."""
        if self._attackers is not None and self.weights == "samples":
            weights = self._attackers.claimed(clients, weights)
        if self.guard is not None:
            weights = self.guard.limited(weights)
        follows = self.client.steps is None  # the number of samples that a client claims determines its local steps
        guard = self._server.guard
        return weights, Arrivals(self._server.method, ctx, clients, weights, guard, self._attackers, follows)

    def _make_attackers(self, attack: Attack, method: Method) -> Attackers:
        """Draw the attackers among the clients, and flip their labels for `attack.kind = "label-flip"`."""
        candidates = np.setdiff1d(np.arange(self.data.clients), self.participation.held_out(self.data.clients))
        attackers = Attackers(attack, method, candidates, self.seed)
        if attackers.collude and self._ranks.number > 1:
            raise InputError(f"attack.kind = {attack.kind!r} must know all messages of a round, which no one of "
                             f"{self._ranks.number} ranks does; use workers")  # fmt: skip
        if attack.kind == "label-flip":
            self._trained_on = with_flipped_labels(self._trained_on, attackers.clients)
        return attackers

    def cohort(self, t: int) -> Index:
        """Return the clients of round `t` (c,), ascending; they are known before the round is computed.

        With privacy, raises InputError for any round except the next one.
        """
        if self._private is None:
            return self._server.cohort(t)
        if t != self.t:
            raise InputError(f"privacy: who takes part in round {t} is drawn when that round is the next one")
        return self._private.cohort(t)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint to `path`, atomically: everything that the next round depends on.

        If clients' records are in a file in the same folder (`store_folder`), only references to them are written.
        The file of records has those of the last three checkpoints in the folder, not of older ones. With privacy the
        checkpoint is secret, because it has the key of the next rounds; the log of releases is written beside it. All
        ranks must call this; rank 0 writes.
        """
        path = Path(path)
        private = {} if self._private is None else self._private.kept(self.t)
        with self._ranks.together(), self._ranks.collected(self._store, path.parent) as kept:
            if kept is not None:
                tensors = self._server.tensors() | {f"clients.{name}": x for name, x in kept.items()}
                meta = self._server.meta() | {"settings": self.settings()}
                # Callbacks are not saved: a run that one has stopped stays stopped, unless `rounds` is raised.
                meta |= {"stopped of": self.rounds} if self._stopped and self.t < self.rounds else {}
                if self._private is not None:
                    meta["privacy"] = {"rounds": self.t} | self._private.spent(self.t) | private
                    self._private.log_in(path.parent)
                checkpoint.save(path, tensors, meta)
        self._store.saved()

    def load(self, path: str | Path, strict: bool = False) -> None:
        """Continue from the checkpoint `path`: the next rounds have the same bits as in the run that wrote it.

        Bits may differ if the checkpoint was written with other versions, or with other code of the method: this warns
        with a ChangedWarning, or with `strict` raises InputError. Raises DamagedError if the checkpoint, or the file of
        clients' records beside it, is damaged; InputError if it has other settings, or more than `rounds` rounds.
        """
        path = Path(path)
        with self._ranks.together():
            tensors, meta = checkpoint.load(path, streamed=("clients.",))
            settings = checkpoint.settings_of(meta, path)
        if self._asked == "auto" and self._choice is None:  # the run keeps its executor
            try:
                check_name(str(settings.get("executor")), self._problem.randomness, self.device)
            except InputError as error:
                raise InputError(f"checkpoint {path}: {error}") from error
            self._asked = str(settings.get("executor"))
        check_same_settings(settings, self.settings(), path, label_of(self.method))
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
        """Remove the metrics that only a final round has, because more rounds follow the last computed one."""
        last = self.history[-1] if self.history else {}
        if self.t % self.eval_every:
            for name in [name for name in last if name.startswith(EVALUATED)]:
                del last[name]
        if self.t % self.probe_every:
            names = list(last)  # values of probes come after the seconds
            for name in names[names.index("seconds") + 1 :] if "seconds" in last else ():
                del last[name]

    def close(self) -> None:
        """End the workers and close the file of clients' records, if any; afterwards only `load` works."""
        self._workers.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def workers(self) -> int:
        """The largest number of worker processes; they are started only if that saves time."""
        return self._workers.number

    @property
    def store_bytes(self) -> int:
        """The largest number of bytes of memory that clients' records can take."""
        return self._store.most_bytes(self.executor.chunk)

    @property
    def message_bytes(self) -> tuple[int, int] | None:
        """Bytes that a client sends in a round, and those in full fine-tuning, or else those without compression.

        None without adapters and compression.
        """
        shapes, size = base_shapes(self.objective.module), self.server.w.element_size()
        if shapes is None:
            return None if self.compress is None else (self.upload_bytes, size * self._cost.up)
        full = method_cost(self.method.on_model(shapes), sum(map(prod, shapes)))
        return self.upload_bytes, size * full.up

    def settings(self) -> dict[str, Any]:
        """Return a table of the settings that determine the rounds.

        The number of rounds is among them only if the method depends on it.
        """
        parts = {"guard": self.guard, "attack": self.attack, "method": self.method, "client": self.client,
                 "participation": self.participation, "augmentation": self.data.augmentation,
                 "adapter": self.adapter}  # fmt: skip
        return {
            "loss": self.task.loss,
            **{name: None if part is None else table_of(part) for name, part in parts.items()},
            "privacy": None if self._private is None else self._private.settings(),
            "weights": self.weights,
            "seed": self.seed,
            **self._problem.settings(),
            "executor": self.choice.name,
            "precision": self.precision,
            "keep": list(self.keep) or None,
            "layout": "convolutions channels-last",
            **self._perturbation_settings(),
            **({} if self.compress is None else {"compress": table_of(self.compress)}),
            "rounds": self.rounds if self._server.method.depends_on_rounds or self.client.depends_on_rounds else None,
            "layers": self._problem.layers,  # last: a difference in adapter or parameters is reported before it
        }

    def _perturbation_settings(self) -> dict[str, Any]:
        """Return the options of the perturbation; without any, settings are those from before there were options."""
        options = self.perturbation
        return {"perturbation": table_of(options)} if options is not None and options.changed else {}

    def _evaluate(self) -> dict[str, float]:
        if not self._is_evaluated() or (self._ranks.index and not self.has_own_models):
            return {}
        with self._ranks.together() if self.has_own_models else nullcontext():
            scores = self._evaluated.round_scores()
        hidden = () if self._private is None else OF_CLIENTS
        return {name: value for name, value in scores.items() if not name.startswith(hidden)}

    def _is_evaluated(self) -> bool:
        return self.t % self.eval_every == 0 or self.t == self.rounds

    def _evaluation(self) -> Evaluated:
        """Return the evaluation of the server's model, beside it or in its place that of the clients' own models."""
        held_out = self.participation.held_out(self.data.clients)
        clients = np.setdiff1d(np.arange(self.data.clients), held_out)
        if self.method.training == "local":
            return OwnModels(self.objective, self.data, clients, self._show_own, self.metrics)
        iterate = (lambda: self._server.iterate) if serves_another(self.method) else None
        server = ServerModel(self.objective, self.data, held_out, self._server.show, self.metrics, iterate)
        if not self.has_own_models:
            return server
        return PersonalModels(server, clients, self._show_own, self._ranks)

    def _probed(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the values of the probes after this round, by name; none if no probe is due.

        `NAME_error` is half of a 95 % interval, or a residual. `NAME_samples` is the number of samples used, if not
        all. Raises InputError for a value that has the name of one of the round's `metrics`.
        """
        if not self.probes or (self.t % self.probe_every and self.t != self.rounds):
            return {}
        values = self.flatness(self.probes)
        errors = {f"{name}_error": x.error for name, x in values.items() if x.error is not None}
        samples = {f"{name}_samples": float(x.samples[0]) for name, x in values.items() if x.samples is not None}
        columns = {name: x.value for name, x in values.items()} | errors | samples
        if both := sorted(columns.keys() & metrics.keys()):
            raise InputError(f"a probe measures {both[0]!r}, which is a metric of every round; give it another name")
        return columns

    def _spent(self, trained: CohortResult) -> dict[str, float]:
        """Return the totals so far: minibatch gradients, and bytes in each direction."""
        before = self.history[-1] if self.history else {"gradients": 0.0, "bytes_down": 0.0, "bytes_up": 0.0}
        private, sent, gradients = self._private, float(len(trained.cohort.clients)), float(trained.gradients)
        if private is not None:  # expected values, because the number of clients is secret
            sent, gradients = private.expected, private.expected_gradients(self.method, self.data.sizes)
        return {
            "gradients": before["gradients"] + gradients,
            "bytes_down": before["bytes_down"] + sent * self.server.w.element_size() * self._cost.down,
            "bytes_up": before["bytes_up"] + sent * self.upload_bytes,
        }
