"""Settings of local training that all methods share, and the context of a round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import numpy as np
import torch

from ..core.ascent import check_options
from ..core.descent import AdamW, ClipScope, Descent, WeightDecayScope
from ..core.errors import InputError
from ..core.hyper import by_name, check, hyper
from ..core.kept_optimizer import KeptOptimizer
from ..core.method import Context, Method
from ..core.perturbation import Perturbation
from ..core.torch_module import Space
from ..core.wrapper import Wrapper, chain, label_of
from ..data.types import Index
from .cost import uses_step_sizes
from .schedule import PLANNED, Schedule, check_schedule, check_warmup, step_size

MOST = 10**9  # epochs, steps and samples: their products with a set's batches and a run's rounds fit in 64 bits


@by_name
@dataclass(frozen=True, kw_only=True)
class Client:
    """Local training: either `epochs` over the client's samples (default 1) or a number of `steps`."""

    lr: float = hyper(0.1, "local step size of round 0", low=0, open_low=True)
    lr_decay: float = hyper(1.0, "factor on the local step size per round, or per `step_rounds`", low=0, open_low=True)
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
    clip_scope: ClipScope = hyper(
        "full", "what is clipped: the direction, the loss gradient in it, as FL-Simulator, or each gradient"
    )

    optimizer: Literal["sgd", "adamw"] = hyper(
        "sgd", "the rule that moves the iterate along a method's direction", later=True
    )
    beta1: float = hyper(0.9, "adamw: factor of the mean of directions", low=0, high=1, later=True)
    beta2: float = hyper(0.999, "adamw: factor of the mean of their squares", low=0, high=1, later=True)
    epsilon: float = hyper(1e-8, "adamw: added to the root of the mean of squares", low=0, open_low=True, later=True)
    optimizer_state: Literal["zero", "kept"] = hyper(
        "zero",
        "momentum or moments: zero at the start of a round, or kept by each client between its rounds",
        later=True,
    )
    accumulate: int = hyper(
        1,
        "batches of a step, one at a time in memory; the step has the mean gradient of their samples",
        low=1,
        high=MOST,
        later=True,
    )
    schedule: Schedule = hyper("exponential", "the local step size over the rounds", later=True)
    step_rounds: int | None = hyper(
        None, "schedule 'step': rounds between two factors lr_decay", low=1, high=MOST, later=True
    )
    lr_end: float = hyper(
        0.0, "schedules 'cosine' and 'linear': the step size after the planned rounds", low=0, later=True
    )
    warmup: int = hyper(0, "first rounds, in which the step size rises linearly to lr", low=0, high=MOST, later=True)

    def __post_init__(self) -> None:
        """Check the fields. Raises ValueError for a value out of range, and for fields that exclude each other."""
        check(self)
        if self.epochs is not None and self.steps is not None:
            raise InputError("client.epochs and client.steps exclude each other; give one of them")
        if self.accumulate > 1 and self.batch_size is None:
            raise InputError(f"client.accumulate = {self.accumulate} needs client.batch_size; without it, a batch has "
                             "all samples")  # fmt: skip
        self._check_optimizer()
        check_schedule(self)

    def _check_optimizer(self) -> None:
        """Raise InputError for fields that the local optimiser does not use."""
        adamw = self.optimizer == "adamw"
        moments = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
        unused: dict[str, object] = {"momentum": 0.0, "wd_scope": "outside"} if adamw else dict(moments)
        for name, default in unused.items():
            if getattr(self, name) != default:
                raise InputError(f"client.{name} = {getattr(self, name)!r} is not used by client.optimizer = "
                                 f"{self.optimizer!r}; leave it out")  # fmt: skip
        if max(self.beta1, self.beta2) >= 1:
            raise InputError("client.beta1 and client.beta2 must be less than 1")
        if self.optimizer_state == "kept" and not adamw and not self.momentum:
            raise InputError("client.optimizer_state = 'kept': sgd without client.momentum has no state; leave it out")

    @property
    def depends_on_rounds(self) -> bool:
        """Whether the step sizes depend on the number of planned rounds."""
        return self.schedule in PLANNED

    @property
    def samples_per_step(self) -> int | None:
        """The most samples of one local step; None for all samples of the client."""
        return None if self.batch_size is None else self.batch_size * self.accumulate

    def batches_per_epoch(self, sizes: Index) -> Index:
        """Return the number of steps' batches in one pass over the samples of each client, (clients,)."""
        return np.ones_like(sizes) if self.samples_per_step is None else -(-sizes // self.samples_per_step)

    def local_steps(self, sizes: Index) -> Index:
        """Return K_i, the local steps of clients with `sizes` samples, (clients,)."""
        if self.steps is not None:
            return np.full_like(sizes, self.steps)
        return self.batches_per_epoch(sizes) * (self.epochs or 1)

    def lr_at(self, t: int, rounds: int) -> float:
        """Return the local step size of round `t` of a run of `rounds` planned rounds."""
        return step_size(self, t, rounds)

    def descent(self, lr: float) -> Descent:
        """Return the rule for local updates in a round with the step size `lr`."""
        shared = ("weight_decay", "max_norm", "momentum", "wd_scope", "clip_scope")
        settings = {name: getattr(self, name) for name in shared}
        if self.optimizer == "sgd":
            return Descent(lr, **settings)
        return AdamW(lr, **settings, beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon)


def reason_of_experiment(method: Method, client: Client) -> str | None:
    """Return why local training by `client` is not what the derivation of `method` assumes; None if it may be.

    A derivation that computes with step sizes assumes steps of SGD; a method with a schedule of its own assumes no
    other one.
    """
    if client.optimizer != "sgd" and uses_step_sizes(method):
        return (f"client.optimizer = {client.optimizer!r}: the method computes with the step sizes of SGD, by which "
                "AdamW does not move")  # fmt: skip
    own = any(type(one).round_lr not in (Method.round_lr, Wrapper.round_lr) for one in chain(method))
    if own and client.schedule not in ("constant", "exponential"):
        return f"client.schedule = {client.schedule!r}: the method has a schedule of its own, which is applied to it"
    return None


def check_scopes(method: Method, client: Client) -> None:
    """Raise InputError for a scope that assumes a direction linear in the gradient, if the method's is not."""
    linear = {"clip_scope": ("loss_only", "full or gradient"), "wd_scope": ("inside", "outside")}
    for name, (scope, instead) in linear.items():
        if not method.linear_in_gradient and getattr(client, name) == scope:
            raise InputError(f"client.{name} = {scope!r} does not go with {label_of(method)}, whose direction is not "
                             f"linear in the gradient; use {instead}")  # fmt: skip


def check_perturbation(method: Method, client: Client, options: Perturbation | None) -> None:
    """Raise InputError, naming the field, for an option of a perturbation that does not go with the other settings."""
    if options is None:
        return
    if not isinstance(options, Perturbation):
        raise InputError(f"perturbation must be fedflat.Perturbation(...), got {options!r}")
    check_options(method, options)
    if options.schedule == "lr" and client.warmup:
        raise InputError(f"perturbation.schedule = 'lr' does not go with client.warmup = {client.warmup}, which has no "
                         "step size of round 0 to compare with; set perturbation.schedule = 'warmup'")  # fmt: skip


def with_kept_state(method: Method, client: Client, d: int) -> Method:
    """Return `method`, wrapped if clients keep the state of their local optimiser over `d` parameters."""
    return KeptOptimizer.of(method, client.descent(client.lr), d) if client.optimizer_state == "kept" else method


class ContextFactory:
    """Makes the context of each round of a run."""

    def __init__(self, method: Method, space: Space, client: Client, rounds: int, device: torch.device) -> None:
        """Prepare the contexts of a run of `rounds` planned rounds."""
        check_warmup(client, rounds)
        self._method, self._client, self._planned = method, client, rounds
        self._rounds = rounds if method.depends_on_rounds else 0
        self._is_weight = space.is_weight(device)
        self._layers = tuple(layer for _, layer in space.layers())

    def of(self, t: int, share: float, sampled: int) -> Context:
        """Return the context of round `t`, in which `sampled` clients take part, a `share` of all."""
        ctx = Context(t, self._client.lr_at(t, self._planned), share, is_weight=self._is_weight, layers=self._layers,
                      sampled=sampled, rounds=self._rounds)  # fmt: skip
        return replace(ctx, lr=self._method.round_lr(ctx))
