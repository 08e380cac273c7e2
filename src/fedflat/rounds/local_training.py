"""Settings of local training that all methods share, and the context of a round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import torch

from ..core.errors import InputError
from ..core.hyper import by_name, check, hyper
from ..core.local import ClipScope, Descent, WeightDecayScope
from ..core.method import Context, Method
from ..core.torch_module import Space
from ..data.types import Index

MOST = 10**9  # epochs, steps and samples: their products with a set's batches and a run's rounds fit in 64 bits


@by_name
@dataclass(frozen=True, kw_only=True)
class Client:
    """Local training: either `epochs` over the client's samples (default 1) or a number of `steps`."""

    lr: float = hyper(0.1, "local step size of round 0", low=0, open_low=True)
    lr_decay: float = hyper(1.0, "factor on the local step size per round", low=0, open_low=True)
    epochs: int | None = hyper(
        None, "passes over the client's samples per round; the last partial batch is kept", low=1, high=MOST
    )
    steps: int | None = hyper(None, "local steps per round, instead of epochs", low=1, high=MOST)
    batch_size: int | None = hyper(None, "samples per step; none is the client's full batch", low=1, high=MOST)
    weight_decay: float = hyper(0.0, "weight decay at the unperturbed iterate", low=0)
    max_norm: float = hyper(inf, "bound on the norm of the local direction", low=0, open_low=True)
    momentum: float = hyper(
        0.0,
        "heavy ball, zero at the start of a round; methods that divide moves by lr K see longer steps",
        low=0,
        high=1,
    )

    wd_scope: WeightDecayScope = hyper("outside", "decay added to the direction, or inside the gradient that is mixed")
    clip_scope: ClipScope = hyper("full", "what is clipped: the direction, the loss gradient, or as FL-Simulator does")

    def __post_init__(self) -> None:
        """Check the fields. Raises ValueError for a value out of range, or if both epochs and steps are given."""
        check(self)
        if self.epochs is not None and self.steps is not None:
            raise InputError("client.epochs and client.steps exclude each other; give one of them")

    def batches_per_epoch(self, sizes: Index) -> Index:
        """Return the number of batches in one pass over the samples of each client, (clients,)."""
        return np.ones_like(sizes) if self.batch_size is None else -(-sizes // self.batch_size)

    def local_steps(self, sizes: Index) -> Index:
        """Return K_i, the local steps of clients with `sizes` samples, (clients,)."""
        if self.steps is not None:
            return np.full_like(sizes, self.steps)
        return self.batches_per_epoch(sizes) * (self.epochs or 1)

    def lr_at(self, t: int) -> float:
        """Return the local step size of round `t`."""
        return self.lr * self.lr_decay**t

    def descent(self, lr: float) -> Descent:
        """Return the rule for local updates in a round with the step size `lr`."""
        shared = ("weight_decay", "max_norm", "momentum", "wd_scope", "clip_scope")
        return Descent(lr, **{name: getattr(self, name) for name in shared})


class ContextFactory:
    """Makes the context of each round of a run."""

    def __init__(self, method: Method, space: Space, client: Client, rounds: int, device: torch.device) -> None:
        """Prepare the contexts of a run of `rounds` planned rounds."""
        self._method, self._client = method, client
        self._rounds = rounds if method.depends_on_rounds else 0
        self._is_weight = space.is_weight(device)
        self._layers = tuple(layer for _, layer in space.layers())

    def of(self, t: int, share: float, sampled: int) -> Context:
        """Return the context of round `t`, in which `sampled` clients take part, a `share` of all."""
        ctx = Context(t, self._client.lr_at(t), share, is_weight=self._is_weight, layers=self._layers,
                      sampled=sampled, rounds=self._rounds)  # fmt: skip
        return replace(ctx, lr=self._method.round_lr(ctx))
