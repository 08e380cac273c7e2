"""Models and data sets that hypothesis draws from a grammar, and the same training in plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

import fedflat as ff

CLASSES, TOKENS, WIDTH, ROUNDS, STEPS = 3, 11, 6, 2, 2
Block = tuple[str, int]  # a word of the grammar, and a number that chooses among its forms


class Stem(nn.Module):
    """Turns a sample of any shape into `WIDTH` features."""

    def __init__(self, layers: nn.Module, features: int) -> None:
        super().__init__()
        self.layers, self.out = layers, nn.Linear(features, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layers(x)
        return self.out((found[0] if isinstance(found, tuple) else found).flatten(1))


class Attending(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(8, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.attention(h, h, h, need_weights=self.need_weights)[0].mean(1)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Own(nn.Module):
    """A parameter of 0 to 5 dimensions, alone, in a list or in a dictionary, which scales or shifts the features."""

    def __init__(self, form: int) -> None:
        super().__init__()
        shape = ((), (WIDTH,), (2, 3), (1, 2, 3), (2, 1, 3, 1), (1, 2, 1, 3, 1))[form % 6]
        p = nn.Parameter(1 + 0.1 * torch.randn(shape))
        self.kept = (nn.ParameterList([p]), nn.ParameterDict({"p": p}))[form % 2]

    def forward(self, x: Tensor) -> Tensor:
        p = next(iter(self.kept.values() if isinstance(self.kept, nn.ParameterDict) else self.kept))
        return x * p.reshape(-1).expand(WIDTH) if p.ndim else x * p + p


class Tied(nn.Module):
    def __init__(self, form: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.b.weight = self.a.weight
        self.parts = nn.ModuleList([self.a] if form % 2 else [])

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh((self.parts[0] if len(self.parts) else self.a)(x)))


class Buffered(nn.Module):
    def __init__(self, form: int) -> None:
        super().__init__()
        self.register_buffer("order", torch.randperm(WIDTH), persistent=bool(form % 2))
        self.register_buffer("scale", torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.order] * self.scale


class Odd(nn.Module):
    """What cannot be trained as in plain PyTorch, or not in stacks."""

    def __init__(self, form: int) -> None:
        super().__init__()
        self.layer, self.form, self.calls = nn.Linear(WIDTH, WIDTH), form, 0
        self.hidden = [nn.Linear(WIDTH, WIDTH)]
        if form == 2:
            self.through = lambda x: 1 * self.layer(x)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        if self.form == 0:
            self.calls += 1
        kinds: tuple[Callable[[], Tensor], ...] = (
            lambda: h, lambda: self.hidden[0](x), lambda: self.through(x), lambda: h - h.mean(0),
            lambda: h * float(h.detach().sum().item() > 0), h.detach, lambda: h + float(np.random.rand()),
            lambda: h[torch.argsort(h[:, 0])].sort(0)[0], lambda: h + torch.tensor(h.detach().tolist()).to(h),
        )  # fmt: skip
        return kinds[self.form]()


def halved(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output * 0.5


def shifted(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0] + 0.1,)


def _linear(change: Callable[[nn.Linear], Any]) -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH)
    change(layer)
    return layer


def _pruned(layer: nn.Linear) -> nn.Module:
    return prune.l1_unstructured(layer, "weight", 0.5)


def _hooked(form: int) -> Callable[[nn.Linear], None]:
    def change(layer: nn.Linear) -> None:
        _ = layer.register_forward_hook(halved) if form % 2 else layer.register_forward_pre_hook(shifted)

    return change


BLOCKS: dict[str, tuple[Callable[[int], nn.Module], int]] = {  # by name: what makes it of a form, the number of forms
    "linear": (lambda i: nn.Linear(WIDTH, WIDTH, bias=bool(i)), 2),
    "norm": (lambda i: (nn.LayerNorm(WIDTH), nn.GroupNorm(2, WIDTH), nn.RMSNorm(WIDTH), nn.BatchNorm1d(WIDTH))[i], 4),
    "activation": (lambda i: (nn.Tanh(), nn.GELU(), nn.SiLU(inplace=True), nn.PReLU(), nn.Softplus())[i], 5),
    "dropout": (lambda i: (nn.Dropout(0.0), nn.Identity(), nn.AlphaDropout(0.0))[i], 3),
    "residual": (lambda i: Residual(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) if i else Own(1)), 2),
    "own parameter": (Own, 12),
    "tied": (Tied, 2),
    "frozen": (
        lambda i: _linear(lambda one: one.requires_grad_(False) if i else one.bias.requires_grad_(False)),
        2,
    ),
    "buffer": (Buffered, 2),
    "hook": (lambda i: _linear(_hooked(i)), 2),
    "normalised weight": (
        lambda i: _linear(
            (
                nn.utils.parametrizations.weight_norm,
                nn.utils.weight_norm,
                _pruned,
                nn.utils.parametrizations.orthogonal,
            )[i]
        ),
        4,
    ),
    "unused": (lambda i: nn.ModuleDict({"a": nn.Linear(2, 2)}) if i > 1 else nn.Identity(), 2),
    "odd": (Odd, 9),
}
# By the shape of a sample: what makes layers of a form, and how many features they give.
STEMS: dict[tuple[int, ...], list[tuple[Callable[[], nn.Module], int]]] = {
    (7,): [
        (nn.Identity, 7),
        (lambda: nn.Sequential(nn.Linear(7, 4), nn.ReLU()), 4),
        (lambda: nn.Sequential(nn.Linear(7, 2), nn.LogSigmoid()), 2),
    ],
    (3, 8): [
        (lambda: nn.Conv1d(3, 2, 3, stride=2), 6),
        (lambda: nn.LSTM(8, 2, batch_first=True), 6),
        (lambda: nn.GRU(8, 2, 2, batch_first=True, bidirectional=True), 12),
        (lambda: Attending(False), 4),
        (lambda: Attending(True), 4),
        (lambda: nn.TransformerEncoderLayer(8, 2, 4, dropout=0.0, batch_first=True), 24),
        (lambda: nn.Sequential(nn.InstanceNorm1d(3, affine=True), nn.Flatten()), 24),
    ],
    (2, 6, 6): [
        (lambda: nn.Conv2d(2, 2, 3, padding=1, groups=2), 72),
        (
            lambda: nn.Sequential(
                nn.Conv2d(2, 4, 3, padding="same", padding_mode="circular"),
                nn.GroupNorm(2, 4),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ),
            36,
        ),
        (lambda: nn.Sequential(nn.ConvTranspose2d(2, 2, 2), nn.AvgPool2d(7), nn.Dropout2d(0.0)), 2),
        (lambda: nn.Sequential(nn.Conv2d(2, 2, 3, dilation=2), nn.AdaptiveAvgPool2d(1), nn.Softplus()), 2),
        (lambda: nn.Sequential(nn.Unfold(3), nn.Linear(16, 2)), 36),
    ],
    (1, 3, 4, 4): [(lambda: nn.Conv3d(1, 2, 2), 36), (lambda: nn.Sequential(nn.ConvTranspose3d(1, 1, 2)), 100)],
    (5,): [
        (lambda: nn.Embedding(TOKENS, 3, padding_idx=0), 15),
        (lambda: nn.EmbeddingBag(TOKENS, 4, mode="mean"), 4),
        (lambda: nn.Embedding(TOKENS, 2, sparse=True), 10),
        (lambda: nn.Embedding(TOKENS, 2, max_norm=0.5), 10),
    ],
}


@dataclass(frozen=True)
class Problem:
    """A model, its data and how clients train."""

    shape: tuple[int, ...]
    stem: int
    blocks: tuple[Block, ...]
    dtype: torch.dtype
    stored: str  # how samples are stored
    sizes: tuple[int, ...]
    rho: float
    momentum: float

    def model(self) -> nn.Module:
        """The same one at every call."""
        torch.manual_seed(0)
        make, features = STEMS[self.shape][self.stem]
        blocks = [BLOCKS[name][0](form) for name, form in self.blocks]
        return nn.Sequential(Stem(make(), features), *blocks, nn.Linear(WIDTH, CLASSES)).to(self.dtype)

    def clients(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The samples of each client."""
        rng = np.random.default_rng(0)
        drawn = {"uint8": lambda n: rng.integers(256, size=(n, *self.shape), dtype=np.uint8),
                 "int64": lambda n: rng.integers(TOKENS, size=(n, *self.shape))}  # fmt: skip
        make = drawn.get(self.stored, lambda n: rng.normal(size=(n, *self.shape)).astype(self.stored))
        return [(make(n), rng.integers(CLASSES, size=n)) for n in self.sizes]

    def simulation(self, executor: str, workers: int = 1) -> ff.Simulation:
        """The training of the problem by the package."""
        client = ff.Client(lr=0.1, steps=STEPS, momentum=self.momentum)
        method = ff.methods.FedSAM(rho=self.rho) if self.rho else ff.methods.FedAvg()
        data = ff.FederatedData.from_clients(self.clients(), classes=CLASSES)
        return ff.Simulation(self.model(), data, method, client, ROUNDS, executor=executor, workers=workers)

    def in_plain_pytorch(self) -> dict[str, Tensor]:
        """The parameters after the same training in a loop of one's own."""
        model = self.model().train()
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        for _ in range(ROUNDS):
            start, ends = {name: p.detach().clone() for name, p in trained.items()}, []
            for x, y in self.clients():
                samples = torch.as_tensor(x).to(self.dtype) / (255 if self.stored == "uint8" else 1)
                samples = torch.as_tensor(x) if self.stored == "int64" else samples
                model.load_state_dict(start, strict=False)
                optimizer = torch.optim.SGD(trained.values(), lr=0.1, momentum=self.momentum)
                for _ in range(STEPS):
                    at = {name: p.detach().clone() for name, p in trained.items()}
                    for rho in (self.rho, 0.0) if self.rho else (0.0,):
                        optimizer.zero_grad(set_to_none=False)
                        functional.cross_entropy(model(samples), torch.as_tensor(y)).backward()
                        gradients = [p.grad for p in trained.values() if p.grad is not None]
                        norm = torch.stack([g.norm() for g in gradients]).norm()
                        for p in trained.values() if rho else ():
                            p.data += 0 if p.grad is None else rho * p.grad / norm.clamp(min=1e-12)
                    model.load_state_dict(at, strict=False)
                    optimizer.step()
                ends.append({name: p.detach().clone() for name, p in trained.items()})
            model.load_state_dict({name: sum(end[name] for end in ends) / len(ends) for name in trained}, strict=False)
        return {name: p.detach() for name, p in copy.copy(trained).items()}


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """A problem of the grammar."""
    shape = draw(st.sampled_from(list(STEMS)))
    block = st.sampled_from(list(BLOCKS)).flatmap(
        lambda name: st.tuples(st.just(name), st.integers(0, BLOCKS[name][1] - 1))
    )
    kinds = ["int64"] if shape == (5,) else ["float32", "float64", *(["uint8"] if len(shape) == 3 else [])]
    return Problem(
        shape=shape,
        stem=draw(st.integers(0, len(STEMS[shape]) - 1)),
        blocks=tuple(draw(st.lists(block, max_size=4))),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        stored=draw(st.sampled_from(kinds)),
        sizes=tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))),
        rho=draw(st.sampled_from([0.0, 0.05])),
        momentum=draw(st.sampled_from([0.0, 0.5])),
    )
