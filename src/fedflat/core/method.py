"""The interface of a federated optimisation method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, dataclass_transform

from torch import Tensor

from .hyper import by_name, check, hyper
from .oracle import (
    Oracle,
    adaptive_scale,
    as_descent_gradient,
    asam,
    ascent,
    sam,
    shifted,
    teacher_gradient,
    unit,
    with_teacher,
    wrt_inputs,
)
from .perturbation import ALONG_GRADIENT, ALONG_OTHER
from .records import Nothing, Record

__all__ = [  # with the records of `core.records`, all that the file of a method needs
    "ALONG_GRADIENT", "ALONG_OTHER", "Citation", "Context", "Method", "Oracle", "Sources", "adaptive_scale",
    "as_descent_gradient", "asam", "ascent", "hyper", "sam", "shifted", "teacher_gradient", "unit",
    "with_teacher", "wrt_inputs",
]  # fmt: skip


GROUPS = (  # in the order of lists
    "baselines",  # what other methods are compared with
    "drift correction",  # local training makes up for the differences between the clients' samples
    "flat",  # a flat minimum is sought, most often with gradients at perturbed models
    "server optimisers",  # the server's step is another one than that of FedAvg
    "personal",  # each client ends with a model of its own
    "averaging",  # models along the way are averaged, or step sizes are made for that
    "others",
)


@dataclass(frozen=True)
class Citation:
    """A paper, with the fields that a line of text and a BibTeX entry need."""

    key: str  # BibTeX key
    authors: str  # "Last, First and Last, First", the format of BibTeX
    title: str
    venue: str
    year: int
    arxiv: str | None = None

    def __str__(self) -> str:
        """Return one line, e.g. `Qu et al., ICML 2022, arXiv:2206.02618`."""
        return f"{self.short}, arXiv:{self.arxiv}" if self.arxiv else self.short

    @property
    def short(self) -> str:
        """Authors, venue and year, e.g. `Qu et al., ICML 2022`."""
        names = [author.split(",")[0] for author in self.authors.split(" and ")]
        who = names[0] if len(names) == 1 else " and ".join(names) if len(names) == 2 else f"{names[0]} et al."
        return f"{who}, {self.year}" if self.venue == "arXiv" else f"{who}, {self.venue} {self.year}"

    @property
    def bibtex(self) -> str:
        """The BibTeX entry."""
        kind = "misc" if self.venue == "arXiv" else "inproceedings"
        entries = {"author": self.authors, "title": self.title, "year": str(self.year)}
        if kind == "inproceedings":
            entries["booktitle"] = self.venue
        if self.arxiv:
            entries |= {"eprint": self.arxiv, "archivePrefix": "arXiv"}
        body = ",\n".join(f"  {name} = {{{value}}}" for name, value in entries.items())
        return f"@{kind}{{{self.key},\n{body}\n}}"


@dataclass(frozen=True)
class Sources:
    """Published hyper-parameters of a method, departures of released code from papers, and our readings of papers."""

    published: Mapping[str, str] = field(default_factory=dict)  # by field: "0.1 (FedSMOO), 0.05 (FedVSSAM)"
    grids: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # values that papers or code tried, by field
    departures: tuple[str, ...] = ()  # where released code, or a paper's text, computes something else
    readings: tuple[str, ...] = ()  # how we read what a paper leaves open, or states in two ways
    # Communication relative to FedAvg as FedSMOO's Table 3 and FedLESAM's Tables 5, 7 and 9 count it.
    charged: int | None = None


@dataclass(frozen=True)
class Context:
    """Facts about a round that every party may know, for any method.

    In the shapes d is the number of parameters that are trained, and *clients stands for one axis with a row for each
    client that is computed together, or for none. `finish` and `receive` see the values after the last local step.

    t: communication round, from 0.
    lr: local step size of the round, positive, in parameters per gradient: what `Method.round_lr` returns. Within the
        round `Method.lr_factor` multiplies it.
    share: sampled clients divided by all clients, in (0, 1].
    steps: local steps that the client has taken so far in the round, (*clients, 1). In `update` the mean over the
        sampled clients, (1,), with the weights of the model mean.
    lr_sum: sum of the step sizes of these steps, of the same shape, in parameters per gradient. A client's move divided
        by it has the scale of a gradient.
    is_weight: (d,) bool, True where the name of the coordinate's parameter has "weight" in it; None if
        no engine has set it.
    layers: for each parameter tensor of the model, in its order, the slice of the last axis that has its coordinates.
    sampled: number of clients that take part in the round.
    full_grad: the gradient of the client's loss on all of its samples, as a function of parameters (*clients, d), in
        `step` and `finish`; each call costs a pass over the samples.
    local_steps: K_i, local steps that the client takes in this round, (*clients, 1), in `step`, `lr_factor` and
        `finish`.
    rounds: planned rounds of the run; 0 unless the method says `depends_on_rounds`.
    """

    t: int
    lr: float
    share: float
    steps: Tensor | float = 0.0
    lr_sum: Tensor | float = 0.0
    is_weight: Tensor | None = None
    layers: tuple[slice, ...] = ()
    sampled: int = 1
    full_grad: Oracle | None = None
    local_steps: Tensor | float = 1.0
    rounds: int = 0


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(hyper,))
class Method(ABC):
    """One method: its hyper-parameters are fields, its algorithm is a handful of short functions.

    A subclass names its records as class keywords (`server=`, `client=`, `down=`, `up=`, and `mean=`
    where it is not `up`) and becomes a frozen dataclass. Its hooks are annotated with these records; here
    they are Any. Hooks are pure functions, reduce only over the last axis, and never branch on a tensor's
    value, so that the same code runs one client, a stack of clients, a part of them in each of several
    processes, or a client of a real federation. The server sees only a weighted mean over the clients:
    of their messages, or of the records that `receive` makes from each message.
    """

    group: ClassVar[str] = "others"  # one of `GROUPS`, by the idea that the paper adds
    paper: ClassVar[Citation]
    sources: ClassVar[Sources] = Sources()
    # "uniform" where the derivation needs equal weights; "any" where the experiment may choose.
    weights: ClassVar[Literal["uniform", "any"]] = "any"
    # "local": each client trains a model of its own, the field `w` of its record, and nothing is sent. "centralised":
    # one model is trained on the samples of all clients, for as many local steps as the cohort's clients take together.
    training: ClassVar[Literal["federated", "local", "centralised"]] = "federated"
    # Whether the direction of a step is `fresh_weight` times the descent gradient plus terms without it. Settings that
    # scale or clip this gradient within the direction are refused for methods where it is not.
    linear_in_gradient: ClassVar[bool] = True
    # Whether a round depends on the number of planned rounds, `ctx.rounds`: then a run cannot be extended later.
    depends_on_rounds: ClassVar[bool] = False
    # Whether clients keep a head of their own: what a run's `keep` names, or without it the model's last layer.
    keeps_head: ClassVar[bool] = False
    # The shapes of the model's parameters, in their order in a vector; empty until an engine calls `on_model`.
    shapes: ClassVar[tuple[tuple[int, ...], ...]] = ()

    server: ClassVar[type[Record]]  # kept by the server between rounds; has a field `w`, the model
    client: ClassVar[type[Record]] = Nothing  # kept by each client between its rounds
    down: ClassVar[type[Record]]  # sent to every sampled client; has a field `w`
    up: ClassVar[type[Record]]  # sent back
    mean: ClassVar[type[Record]]  # what the server averages; `up` unless the class says otherwise

    def __init_subclass__(cls, **records: type[Record]) -> None:
        roles = ("server", "client", "down", "up", "mean")
        if "up" in records:
            records = {"mean": records["up"], **records}
        for role, record in records.items():
            if role not in roles:
                raise TypeError(f"{cls.__name__}: unknown class keyword {role!r}; use {', '.join(roles)}")
            setattr(cls, role, record)
        by_name(dataclass(frozen=True, kw_only=True)(cls))

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs_equal_weights(self) -> bool:
        """Whether clients must have equal weights in the mean; this may depend on hyper-parameters."""
        return self.weights == "uniform"

    @property
    def penalty(self) -> float:
        """The weight of the proximal term weight * (w_i - w) in the step's direction; 0 if the method has none."""
        return 0.0

    @property
    def own_penalty(self) -> float:
        """The weight of the proximal term weight * (v_i - w) in the direction that `own_step` returns."""
        return 0.0

    @property
    def perturbation_options(self) -> frozenset[str]:
        """The fields of `Perturbation` that go with this method; none, unless it perturbs by `sam`, `asam` or `ascent`.

        `ALONG_GRADIENT` are those of a perturbation along a gradient of the step, `ALONG_OTHER` those of any other.
        """
        return frozenset()

    def fresh_weight(self, down: Any) -> Tensor | float:
        """Return the weight of the descent gradient in the direction; less than 1 if the method mixes in momentum."""
        return 1.0

    def fitted(self, shape: tuple[int, ...]) -> Self:
        """Return the method for samples of `shape`: itself, unless a hyper-parameter depends on this shape."""
        return self

    def on_model(self, shapes: tuple[tuple[int, ...], ...]) -> Self:
        """Return the method for a model whose parameters have these `shapes`: a copy that has them as an attribute."""
        return self._with(shapes=shapes)

    @property
    def tensors(self) -> int:
        """The number of parameter tensors of the model; the width of a field that has a number for each."""
        return len(self.shapes)

    def check_model(self) -> None:  # noqa: B027 (most methods have nothing to check)
        """Raise InputError, with the reason, if the method cannot work with a model of these `shapes`."""

    def _with(self, **attributes: Any) -> Self:
        """Return a copy with other attributes, which need not be fields: these are no settings and not compared."""
        made = copy(self)
        for name, value in attributes.items():
            object.__setattr__(made, name, value)
        return made

    def check_rounds(self, rounds: int) -> None:  # noqa: B027 (most methods have nothing to check)
        """Raise InputError, with the reason, if the method cannot work with this number of planned rounds."""

    def round_lr(self, ctx: Context) -> float:
        """Return the local step size of a round, a positive number; override this hook for a schedule over rounds.

        In this hook, `ctx.lr` is the step size of the experiment; in all other hooks, `ctx.lr` is the value that
        this hook returned. That value may depend on `ctx.t`, `ctx.lr` and `ctx.rounds` alone.
        """
        return ctx.lr

    def init_server(self, w: Tensor) -> Any:
        """Return the server state before round 0, from the initial model (d,): all fields but the model are zero."""
        zero: Any = self.server.zeros(w, self)
        return replace(zero, w=w)

    def broadcast(self, server: Any) -> Any:
        """Return the message to the clients of this round: by default the fields of the server state that `down` names.

        A field that the hyper-parameters do not need is sent with width 0.
        """
        widths = self.down.widths(server.w.shape[-1], self)
        return self.down(**{name: getattr(server, name)[..., :width] for name, width in widths.items()})

    def init_client(self, down: Any) -> Any:
        """Return the record of a client in its first round, made from the first message that it receives."""
        return self.client.zeros(down.w, self)

    def start(self, down: Any, client: Any) -> Tensor:
        """Return the model from which local training begins, (*clients, d)."""
        w: Tensor = down.w
        return w

    def moving(self, down: Any, ctx: Context) -> Tensor | None:
        """Return the coordinates that this local step moves, (*clients, d) bool; None, the default, means all.

        Others take part in no norm, and their decay and momentum rest.
        """
        return None

    def moving_parts(self, ctx: Context) -> tuple[Tensor | bool, Tensor | bool] | None:
        """Return whether this local step moves what is sent, and what stays; None, the default, means both.

        The step is `ctx.steps`, from 0, a number or a tensor of shape (). In a run without `keep` all is sent.
        """
        return None

    @abstractmethod
    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        """Take one local step: return the descent direction at `w` (*clients, d) and the client's next state."""

    def own_step(self, v: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> Tensor:
        """Return the descent direction of the clients' own models at `v` (*clients, d): by default their gradient.

        This hook is called after every `step`, with the same minibatch, if the client's record has a field marked
        `own_model`; `v` is this field. The local update clips, decays and steps as it does for w, with a momentum of
        its own, and writes the field.
        """
        return grad(v)

    @abstractmethod
    def finish(self, w: Tensor, client: Any, down: Any, ctx: Context) -> tuple[Any, Any]:
        """Return the message to send and the record to keep, after the last local step."""

    def lr_factor(self, ctx: Context) -> Tensor | float:
        """Return the positive factor on the step size of the next local step: a schedule within the round.

        The factor may depend on `ctx.t`, `ctx.lr`, `ctx.steps` and `ctx.local_steps` alone, so that a server can
        compute how far a client can move; `ctx.lr_sum` is `ctx.lr` times the sum of these factors.
        """
        return 1.0

    def public(self, down: Any, ctx: Context) -> Any:
        """Return the part of a client's message that the server computes by itself; by default None: no part.

        It depends on `down` (1, width), and on `ctx.steps` and `ctx.lr_sum` (1, 1) of a client, and is a message with
        these shapes. Privacy can then clip and noise what is left of the message alone.
        """
        return None

    def receive(self, up: Any, ctx: Context) -> Any:
        """Return the record that the server averages, from one client's message: by default the message itself.

        Override this hook to compute what the server can compute from the message and from the client's number of
        local steps in `ctx`: this costs no communication.
        """
        return up

    @abstractmethod
    def update(self, server: Any, mean: Any, ctx: Context) -> Any:
        """Return the next server state from the weighted mean of the received records."""

    def served(self, server: Any) -> Tensor:
        """Return the model (d,) that is evaluated and exported; clients still train from what `broadcast` sends."""
        w: Tensor = server.w
        return w
