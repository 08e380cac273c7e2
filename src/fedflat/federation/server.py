"""The server of a real federation: it chooses the clients of a round, checks their replies and updates the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core.compressed import compressed_fields
from ..core.errors import InputError, NonFiniteError
from ..core.method import Context, Method
from ..core.native_libraries import fix_product_rounding
from ..core.objective import Objective
from ..data.types import Index
from ..rounds import checkpoint
from ..rounds.aggregation import mean_weights
from ..rounds.cost import gradients_in_round
from ..rounds.device import one_thread
from ..rounds.guard import GuardState
from ..rounds.private_mean import PrivateMean
from ..rounds.private_rounds import PrivateRounds
from ..rounds.randomness import Purpose, generator
from ..rounds.run_plan import RunPlan
from ..rounds.server import Server
from .membership import Membership, RoundFailedError, first_reasons, fixed_members
from .messages import TrainRequest, Transport, pack
from .terms import RoundTerms
from .update_aggregator import ExpectedReply, UpdateAggregator

if TYPE_CHECKING:
    from .secure_sum.aggregator import SecureAggregator

DRAWS = 10_000  # most attempts to draw a cohort with a client that is not ejected


@dataclass(frozen=True)
class RoundReport:
    """The result of a round."""

    t: int
    metrics: dict[str, float]  # of the round; `gradients` is the sum over all rounds so far
    missing: Mapping[str, str]  # clients whose reply was not accepted, with the reason
    accepted: Sequence[str] = ()  # clients whose reply was accepted, sorted


class FederatedServer(Server):
    """A `Server` whose clients train on other machines. Its cohorts and models are bitwise those of a simulation."""

    guard: GuardState  # never None: without a `Guard` it bounds the norm of each field

    def __init__(
        self,
        method: Method,
        objective: Objective,
        plan: RunPlan,
        federation: Membership,
        weights: str,
        digest: str,
        shape: tuple[int, ...],
        terms: RoundTerms | None = None,
        private: PrivateRounds | None = None,
    ) -> None:
        """Raise InputError if there is no client, if a client has no samples, or if the guard does not fit `terms`.

        federation: all clients; a client's number is its place among them. shape: of a sample. A guard in `plan` that
        bounds norms replaces `norm_multiple` in `terms`. private: draws the cohorts and adds noise; who does not answer
        then counts as a client that sends zeros.
        """
        fix_product_rounding()
        self._set_members(federation)
        self._weights, self._digest, self._terms = weights, digest, terms or RoundTerms()
        self._terms.check(plan.guard, bool(compressed_fields(method)))
        w = objective.space.flatten(objective.module)
        super().__init__(method.fitted(shape), objective, w, plan, len(federation.present))
        self.guard = GuardState.new(plan.guard, self.method, self.state.w, self._terms.norm_multiple)
        self._private = private
        self.ejected: Set[str] = frozenset()  # members that are not asked
        self._counted: dict[str, int] = {}  # the last round in which each client's reply was accepted, by name
        self._saved: dict[int, dict[str, int]] = {}  # `_counted` in the kept checkpoints, by their `t`

    def round(self, transport: Transport) -> RoundReport:
        """Carry out one round.

        Raises RoundFailedError, and changes nothing, if fewer clients reply than the quorum requires, or if the next
        model is not finite. Raises InputError, before any client is asked, if the round would exceed the budget of
        privacy.
        """
        if self._private is not None:
            self._private.check_budget(self.t + 1)
        cohort = self.cohort(self.t)
        known = (len(cohort),) if self._private is None else self._private.known_of_a_round
        ctx, before = self.context(*known), self.history[-1]["gradients"] if self.history else 0.0
        aggregator = self._aggregator(cohort, ctx)
        with one_thread(self.state.w.device):
            requests = self._requests(cohort, ctx)
            aggregator.collect(transport, requests, self._terms.deadline, self._terms.enough(len(cohort)))
            self._check_quorum(aggregator, len(cohort))
            if self._private is not None and isinstance(aggregator.mean, PrivateMean):
                self._private.release(ctx.t, aggregator.mean)
            try:
                state = self.updated(aggregator.mean, ctx)
            except NonFiniteError as error:
                who = f"; the largest numbers came from {aggregator.largest}" if self._private is None else ""
                raise RoundFailedError(f"{error}; the model is unchanged{who}") from error
        self.take(state, aggregator.mean, ctx, aggregator.next_guard)
        self._counted |= dict.fromkeys(aggregator.accepted, ctx.t)
        metrics = aggregator.metrics() if self._private is None else self._private_metrics(ctx)
        metrics["gradients"] += before
        self.report(metrics)
        return RoundReport(ctx.t, metrics, aggregator.missing, aggregator.accepted)

    def cohort(self, t: int) -> Index:
        """Draw the cohort of round `t`; return the numbers of its clients that are not ejected, in ascending order.

        The cohort is drawn again only if all of its clients are ejected. In all other cases, ejecting one client does
        not change the rounds in which the other clients train. Raises RoundFailedError if each of `DRAWS` draws has
        ejected clients only; this can happen if the study lists the cohorts. A private round may have no client.
        """
        if self._private is not None:
            drawn = self._private.cohort(t)
            return drawn[[self.names[i] not in self.ejected for i in drawn]]
        random = generator(self.plan.seed, Purpose.COHORT, t)
        for _ in range(DRAWS):
            drawn = self._present[self.plan.participation.cohort(t, self.clients, random)]
            asked = drawn[[self.names[i] not in self.ejected for i in drawn]]
            if len(asked):
                return asked
        raise RoundFailedError(f"round {t}: all clients that may be drawn are ejected")

    def change_members(self, federation: Membership) -> None:
        """Continue with other members, from the next round: some have joined, or left for good.

        The fields of the server's state that are means over all clients follow, see `resize`. Raises InputError if the
        cohorts do not allow it.
        """
        if fixed := fixed_members(self.plan.participation, self._private is not None):
            raise InputError(fixed)
        number = len(federation.present)
        self.plan.participation.check(number, self.plan.rounds)
        self._set_members(federation)
        self.resize(number)

    def _set_members(self, federation: Membership) -> None:
        members = federation.members
        empty = [name for name, samples in members.items() if samples < 1]
        if empty or not federation.present:
            raise InputError(f"client {empty[0]} has no samples" if empty else "there is no client")
        self.federation, self.names = federation, list(members)  # by number, also those that have left
        self._samples = np.array(list(members.values()), dtype=np.int64)
        self._present = np.array([i for i, name in enumerate(members) if name not in federation.left], dtype=np.int64)

    def save(self, path: Path, further: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint with everything that the next round depends on to `path`, atomically.

        further: additional metadata, which must be convertible to JSON. Raises InputError if `path` cannot be written.
        """
        known = self._saved | {self.t: dict(self._counted)}
        saved = {t: known[t] for t in sorted(known)[-checkpoint.KEPT :]}
        meta = self.meta() | {
            "counted": self._counted, "saved": list(saved.items()), "norms": dict(self.guard.field_norms),
            "settings": self._settings(), **(further or {}),
        }  # fmt: skip
        if self._private is not None:
            secret = self._private.kept(self.t)
            meta["privacy"] = {"rounds": self.t} | self.spent | secret
            self._private.log_in(path.parent)
        checkpoint.save(path, self.tensors(), meta)
        self._saved = saved

    def load(self, path: Path) -> None:
        """Resume from the checkpoint `path`. Warns with a ChangedWarning if other versions of packages wrote it.

        Raises InputError if the checkpoint is damaged or belongs to another federation.
        """
        tensors, meta = checkpoint.load(path)
        before = checkpoint.settings_of(meta, path)
        for name, value in self._settings().items():
            if before.get(name) != value:
                raise InputError(f"checkpoint {path}: {name} was {before.get(name)}, now it is {value}")
        private = None if self._private is None else self._private.restored(meta.get("privacy"), meta["t"], path)
        self.restore(self.read(tensors, meta, path, strict=False))
        self._private = private
        self._counted = dict(meta["counted"])
        self._saved = dict(meta["saved"])
        self.guard = replace(self.guard, field_norms=meta["norms"])

    @property
    def spent(self) -> dict[str, float]:
        """The privacy that the rounds so far have spent, by name; empty without privacy."""
        return {} if self._private is None else self._private.spent(self.t)

    def _private_metrics(self, ctx: Context) -> dict[str, float]:
        """Return the metrics of a private round: nothing that depends on who took part, or on a single record."""
        assert self._private is not None  # noqa: S101 (for the type checker)
        gradients = self._private.expected_gradients(self.method, self._samples)
        return {"lr": ctx.lr, "gradients": gradients, "epsilon": self._private.epsilon(ctx.t + 1)}

    def _settings(self) -> dict[str, Any]:
        left = {"left": sorted(self.federation.left)} if self.federation.left else {}
        members = {"members": dict(self.federation.members)} | left
        private = {} if self._private is None else {"privacy": self._private.settings()}
        return {"digest": self._digest, "federation": self.federation.name} | members | private

    def _requests(self, cohort: Index, ctx: Context) -> dict[str, TrainRequest]:
        down = pack(self.broadcast().map(lambda x: x.to(self.state.w.dtype)))
        return {
            name: TrainRequest(
                t=ctx.t, since=self._counted.get(name, -1),
                safe=tuple(counted.get(name, -1) for counted in self._saved.values()),
                number=int(i), share=ctx.share, sampled=ctx.sampled,
                federation=self.federation.name, digest=self._digest, down=down,
            )
            for i, name in ((i, self.names[i]) for i in cohort)
        }  # fmt: skip

    def _expected(self, cohort: Index) -> dict[str, ExpectedReply]:
        """Return what the server knows in advance about the replies of a cohort, by client name."""
        sizes, plan = self._samples[cohort], self.plan
        steps = plan.participation.steps_taken(plan.seed, self.t, cohort, plan.client.local_steps(sizes))
        weights = self.guard.limited(mean_weights(self._weights, sizes, torch.device("cpu")))
        gradients = gradients_in_round(self.method, steps, plan.client.batches_per_epoch(sizes), self.t)
        known = zip(cohort, sizes, steps, gradients, weights, strict=True)
        return {
            self.names[i]: ExpectedReply(int(size), int(count), int(asked), float(weight))
            for i, size, count, asked, weight in known
        }

    def _aggregator(self, cohort: Index, ctx: Context) -> UpdateAggregator | SecureAggregator:
        """Return the aggregator that checks and adds up the replies of a cohort."""
        common = self.method, self.state.w, ctx, self._expected(cohort), self.guard
        if self._private is not None:
            return UpdateAggregator(*common, self._private.mean(self.method, self.broadcast(), ctx))
        if self._terms.secure_sum is None:
            return UpdateAggregator(*common)
        from .secure_sum.aggregator import (
            SecureAggregator,  # needs the extra flower, which inspecting a folder does not need
        )

        return SecureAggregator(*common, self._terms.secure_sum, self._terms.needed(len(cohort)), self._digest)

    def _check_quorum(self, aggregator: UpdateAggregator | SecureAggregator, asked: int) -> None:
        """Raise RoundFailedError if too few replies were accepted. asked: the number of clients that were asked."""
        counted, needed = len(aggregator.accepted), self._terms.needed(asked)
        if counted < needed:
            why = first_reasons(aggregator.missing)
            raise RoundFailedError(f"round {self.t}: {counted} of {asked} clients replied, {needed} must ({why})")
