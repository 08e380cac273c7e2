"""The server of a real federation: whom to ask, what to believe, and the next model."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.method import Context, Method
from ..core.objective import Objective
from ..data.federated import Index
from ..engine import checkpoint
from ..engine.client import Client
from ..engine.facts import Facts
from ..engine.participation import Participation
from ..engine.randomness import Purpose, generator
from ..engine.segments import Segment, following, stored
from ..engine.segments import read as read_segments
from ..engine.threads import one_thread
from .federation import Federation, FederationError
from .messages import Carrier, Order
from .norms import Norms
from .tally import Expected, Tally
from .wire import pack

NAMED = 3  # clients in a message


class RoundFailedError(FederationError):
    """Too few clients have answered; the model is as it was before the round."""


@dataclass(frozen=True)
class Terms:
    """When a round is over, and what counts in it."""

    deadline: float = 600.0  # seconds for the answers of a round
    quorum: float = 0.5  # share of the cohort that must answer, more than 0
    norm_multiple: float = 100.0  # see `Norms`; at least 1, infinity is no bound

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise InputError(f"deadline must be more than 0 seconds, got {self.deadline}")
        if not 0 < self.quorum <= 1:
            raise InputError(f"quorum must be in (0, 1], got {self.quorum}")
        if not self.norm_multiple >= 1:
            raise InputError(f"norm-multiple must be at least 1, got {self.norm_multiple}")


@dataclass(frozen=True)
class Report:
    """What became of a round."""

    t: int
    metrics: dict[str, float]  # gradients are all so far
    missing: Mapping[str, str]  # clients whose answer did not count, and why


class Coordinator:
    """Holds the server's state and takes it from round to round; the same cohorts, sums and bits as the simulator."""

    def __init__(
        self,
        method: Method,
        module: nn.Module,
        client: Client,
        federation: Federation,
        participation: Participation,
        weights: str,
        seed: int,
        digest: str,
        shape: tuple[int, ...],
        terms: Terms | None = None,
    ) -> None:
        """federation: all clients. A client's number is its place among their names, sorted. shape: of a sample.
        Raises InputError for a client without samples."""
        members = federation.members
        self.names, self._federation = sorted(members), federation.name
        self._samples = np.array([members[name] for name in self.names], dtype=np.int64)
        empty = [name for name in self.names if members[name] < 1]
        if empty or not self.names:
            raise InputError(f"client {empty[0]} has no samples" if empty else "there is no client")
        self._method, self._client, self._participation = method.fitted(shape), client, participation
        self._weights, self._seed, self._digest, self._terms = weights, seed, digest, terms or Terms()
        self._objective = Objective(module)
        space = self._objective.space
        w = space.flatten(module)
        self._facts = Facts(space, client, w.device)
        self.server = self._method.init_server(w)
        self.t = 0
        self._counted: dict[str, int] = {}  # the last round that counted of each client that has had one
        self._saved: dict[int, dict[str, int]] = {}  # the same in the checkpoints that are kept, by their `t`
        with one_thread(w.device):  # or bits of the norm would depend on the number of threads
            norm = float(torch.linalg.vector_norm(w, dtype=torch.float64))
        # A model may begin at zero; then one is as good a size as any.
        self._norms = Norms(self._terms.norm_multiple, max(norm, 1.0))
        self.history: list[dict[str, float]] = []  # a row for every round, in the checkpoint
        self._segments = [Segment.now(0, self._method)]  # with which versions and code the server has computed them

    @property
    def w(self) -> Tensor:
        """The model, (d,), row-major."""
        return self._objective.space.row_major(self.server.w)

    @property
    def objective(self) -> Objective:
        """Of the model."""
        return self._objective

    @property
    def model(self) -> nn.Module:
        """A new module with the model in it."""
        module = deepcopy(self._objective.module)
        self._objective.space.write(module, self.server.w)
        return module

    def round(self, carrier: Carrier) -> Report:
        """One round. Raises RoundFailedError, and changes nothing, if fewer clients answer than the quorum."""
        cohort = self._participation.cohort(self.t, len(self.names), generator(self._seed, Purpose.COHORT, self.t))
        ctx = self._facts.of(self.t, len(cohort) / len(self.names), len(cohort))
        tally = Tally(self._method, self.server.w, ctx, self._expected(cohort), self._norms)
        with one_thread(self.server.w.device):
            for name, answer in carrier.exchange(self._orders(cohort, ctx), self._terms.deadline):
                tally.hear(name, answer)
            self._require(tally, len(cohort))
            mean, steps = tally.mean()
            server = self._method.update(self.server, mean, replace(ctx, steps=steps, lr_sum=steps * ctx.lr))
        self._take(server, tally)
        self._norms = tally.norms
        self._counted |= dict.fromkeys(tally.heard, ctx.t)
        metrics = tally.metrics()
        metrics["gradients"] += self.history[-1]["gradients"] if self.history else 0.0
        self.history.append({"t": ctx.t, **metrics})
        return Report(ctx.t, metrics, tally.missing)

    def save(self, path: Path) -> None:
        """Write all that the next round depends on to `path`, atomically.

        Raises InputError if it cannot be written.
        """
        tensors = {f"server.{name}": x for name, x in self.server.tensors().items()}
        saved = _newest(self._saved | {self.t: dict(self._counted)})
        meta = {
            "t": self.t, "history": self.history, "counted": self._counted,
            "saved": list(saved.items()), "norms": dict(self._norms.seen), "settings": self._settings(),
            "segments": stored(self._segments),
        }  # fmt: skip
        checkpoint.save(path, tensors, meta)
        self._saved = saved

    def load(self, path: Path) -> None:
        """Go on from `path`. With other versions than it was written with, that is a ChangedWarning.

        Raises InputError if it is damaged, or another federation's.
        """
        tensors, meta = checkpoint.load(path)
        for name, value in self._settings().items():
            if meta["settings"].get(name) != value:
                raise InputError(f"checkpoint {path}: {name} was {meta['settings'].get(name)}, now it is {value}")
        now = Segment.now(meta["t"], self._method)
        self._segments = following(read_segments(meta.get("segments")), now, path, strict=False)
        device = self.server.w.device
        kept = {name: tensors[f"server.{name}"].to(device) for name in self.server.tensors()}
        self.server = self._method.server(**kept)
        self.t, self.history = meta["t"], meta["history"]
        self._counted = dict(meta["counted"])
        # Checkpoints of the first releases have neither of these two.
        self._saved = dict(meta.get("saved", [(self.t, meta["counted"])]))
        self._norms = replace(self._norms, seen=meta.get("norms", {}))

    def _settings(self) -> dict[str, Any]:
        members = {name: int(n) for name, n in zip(self.names, self._samples, strict=True)}
        return {"digest": self._digest, "federation": self._federation, "members": members}

    def _orders(self, cohort: Index, ctx: Context) -> dict[str, Order]:
        down = pack(self._method.broadcast(self.server).map(lambda x: x.to(self.server.w.dtype)))
        return {
            self.names[i]: Order(
                t=ctx.t, since=self._counted.get(self.names[i], -1), safe=self._rounds_of(self.names[i]),
                number=int(i), share=ctx.share, sampled=ctx.sampled,
                federation=self._federation, digest=self._digest, down=down,
            )
            for i in cohort
        }  # fmt: skip

    def _rounds_of(self, name: str) -> tuple[int, ...]:
        """The last rounds of a client that counted, in the checkpoints that are kept; one each."""
        return tuple(saved.get(name, -1) for saved in self._saved.values())

    def _expected(self, cohort: Index) -> dict[str, Expected]:
        """What is known of the clients of a cohort."""
        sizes = self._samples[cohort]
        steps = self._client.local_steps(sizes)
        weights = np.ones(len(cohort)) if self._weights == "uniform" else sizes
        known = zip(cohort, sizes, steps, weights, strict=True)
        return {self.names[i]: Expected(int(size), int(count), float(weight)) for i, size, count, weight in known}

    def _require(self, tally: Tally, asked: int) -> None:
        """Raise RoundFailedError if too few answers count."""
        needed = ceil(Fraction(str(self._terms.quorum)) * asked)  # as written: the float 0.55 * 20 is more than 11
        if tally.counted < needed:
            why = "; ".join(f"{name}: {reason}" for name, reason in list(tally.missing.items())[:NAMED])
            raise RoundFailedError(
                f"round {self.t}: {tally.counted} of {asked} clients have answered, {needed} must ({why})"
            )

    def _take(self, server: Any, tally: Tally) -> None:
        for name, x in server.tensors().items():
            if not torch.isfinite(x).all():
                raise RoundFailedError(
                    f"round {self.t}: the server's {name} became NaN or infinite; the model is unchanged; "
                    f"the largest numbers came from {tally.loudest}"
                )
        self.server = server
        self.t += 1


def _newest(saved: dict[int, dict[str, int]]) -> dict[int, dict[str, int]]:
    """Of what was saved, by round, what is kept: the newest."""
    return {t: saved[t] for t in sorted(saved)[-checkpoint.KEPT :]}
