"""What tells two losses, or two models, apart, and what does not."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedflat.core.structure import layers_of, telling_apart, text_of

LEVEL = 0.5


def focal(gamma: float, s: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(s, y, reduction="none")
    return (1 - torch.exp(-each)) ** gamma * each


def closed_over(gamma: Any) -> Callable[..., Tensor]:
    def loss(s: Tensor, y: Tensor) -> Tensor:
        return focal(gamma, s, y)

    return loss


class Focal:
    def __init__(self, gamma: Any) -> None:
        self.gamma = gamma

    def __call__(self, s: Tensor, y: Tensor) -> Tensor:
        return self.weighted(s, y)

    def weighted(self, s: Tensor, y: Tensor) -> Tensor:
        return focal(self.gamma, s, y)


class Plain(Focal):
    def weighted(self, s: Tensor, y: Tensor) -> Tensor:
        return focal(0, s, y) * self.gamma


@dataclass(slots=True)
class Slotted:
    gamma: float

    def __call__(self, s: Tensor, y: Tensor) -> Tensor:
        return focal(self.gamma, s, y)


class FocalModule(nn.Module):
    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, s: Tensor, y: Tensor) -> Tensor:
        return focal(self.gamma, s, y)


def leveled(s: Tensor, y: Tensor) -> Tensor:
    return focal(LEVEL, s, y)


def by_default(gamma: float) -> Callable[..., Tensor]:
    return lambda s, y, gamma=gamma: focal(gamma, s, y)


def taught(seed: int) -> Callable[..., Tensor]:
    torch.manual_seed(seed)
    return closed_over(nn.Linear(3, 3))


def weights(*values: float) -> Tensor:
    return torch.tensor(values)


cross = functools.partial(nn.CrossEntropyLoss, reduction="none")
LOSSES: dict[str, Callable[[], list[Any]]] = {  # each makes losses that differ
    "partial": lambda: [functools.partial(focal, gamma) for gamma in (0.0, 0, 5.0, True)],
    "keyword": lambda: [functools.partial(F.cross_entropy, label_smoothing=x) for x in (0.0, 0.1)],
    "options": lambda: [cross(), cross(label_smoothing=0.1), cross(weight=weights(1, 2)), cross(weight=weights(2, 1))],
    "tensors": lambda: [functools.partial(F.cross_entropy, weight=w) for w in (weights(1, 2), torch.arange(10.0))],
    "long tensors": lambda: [closed_over(torch.arange(100.0) + i) for i in range(2)],
    "arrays": lambda: [closed_over(np.arange(100) + i) for i in range(2)],
    "closure": lambda: [closed_over(gamma) for gamma in (1.0, 2.0, {"a": 1.0}, [1.0], (1.0, 2.0), focal, "x")],
    "default": lambda: [by_default(1.0), by_default(2.0)],
    "object": lambda: [Focal(1.0), Focal(2.0), Plain(1.0), Focal(1.0).weighted, Focal([1.0])],
    "slots": lambda: [Slotted(1.0), Slotted(2.0)],
    "module": lambda: [FocalModule(1.0), FocalModule(2.0)],
    "teacher": lambda: [taught(0), taught(1)],
    "lambda": lambda: [lambda s, y: focal(0, s, y), lambda s, y: focal(1, s, y)],
    "by name": lambda: [F.cross_entropy, F.mse_loss, torch.relu, torch.tanh, focal, leveled],
    "nested": lambda: [functools.partial(functools.partial(focal, 1.0), s=2), functools.partial(focal, 1.0)],
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_differ_have_different_texts_and_equal_ones_the_same(name: str) -> None:
    texts, again = (list(map(text_of, LOSSES[name]())) for _ in range(2))
    assert len(set(texts)) == len(texts)
    assert texts == again
    assert not any("0x" in text for text in texts)


def test_what_is_bound_can_be_read() -> None:
    assert text_of(functools.partial(focal, 5.0)).startswith("focal(gamma=5.0) #")
    assert text_of(functools.partial(F.cross_entropy, label_smoothing=0.1)) == (
        "torch.nn.functional.cross_entropy(label_smoothing=0.1)"
    )
    assert "label_smoothing=0.1" in text_of(nn.CrossEntropyLoss(label_smoothing=0.1))
    assert text_of(closed_over(2.0)).startswith("closed_over.<locals>.loss(gamma=2.0) #")


def test_a_global_number_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = text_of(leveled)
    monkeypatch.setitem(globals(), "LEVEL", 0.7)
    assert text_of(leveled) != before


class Net(nn.Module):
    def __init__(self, activation: Any = F.relu, scale: Any = 1.0) -> None:
        super().__init__()
        self.layer, self.activation, self.scale = nn.Linear(3, 2), activation, scale

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.activation(self.layer(x)) * self.scale
        return found


class Other(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean()


def hooked_back(scale: float) -> nn.Module:
    net = Net()
    net.register_full_backward_pre_hook(lambda module, found, scale=scale: (found[0] * scale,))
    return net


def hooked(scale: float) -> nn.Module:
    net = Net()
    net.register_forward_hook(lambda module, given, found, scale=scale: found * scale)
    return net


def buffered(value: float) -> nn.Module:
    net = Net()
    net.register_buffer("table", torch.full((20,), value))
    return net


def frozen_mode(module: nn.Module) -> nn.Module:
    module[0].eval()  # type: ignore[index,operator]
    return module


def patched() -> nn.Module:
    net = Net()
    net.forward = net.layer  # type: ignore[method-assign]
    return net


MODELS: dict[str, Callable[[], list[nn.Module]]] = {  # each makes models that differ, with parameters of equal shapes
    "activation": lambda: [nn.Sequential(nn.Linear(3, 2), one) for one in (nn.ReLU(), nn.GELU(), nn.Hardtanh())],
    "option": lambda: [nn.Sequential(nn.Linear(3, 2), one) for one in (nn.GELU(), nn.GELU("tanh"), nn.Hardtanh(-2))],
    "dropout": lambda: [nn.Sequential(nn.Linear(3, 2), nn.Dropout(rate)) for rate in (0.0, 0.1, 0.5)],
    "order": lambda: [nn.Sequential(*x) for x in ((nn.ReLU(), nn.Tanh(), nn.Linear(3, 2)),
                                                  (nn.Tanh(), nn.ReLU(), nn.Linear(3, 2)))],
    "function": lambda: [Net(F.relu), Net(F.gelu), Net(torch.relu), Net(nn.ReLU())],
    "attribute": lambda: [Net(scale=x) for x in (1.0, 2.0, (1, 2), "a", {"b": 1}, torch.tensor(2.0), None)],
    "forward": lambda: [Net(), Other(), patched()],
    "hook": lambda: [Net(), hooked(1.0), hooked(2.0)],
    "hook on the way back": lambda: [Net(), hooked_back(1.0), hooked_back(2.0)],
    "buffer": lambda: [buffered(0.0), buffered(1.0)],
    "mode": lambda: [nn.Sequential(nn.Dropout()), frozen_mode(nn.Sequential(nn.Dropout()))],
    "stride": lambda: [nn.Conv2d(1, 2, 3, stride=x) for x in (1, 2)] + [nn.Conv2d(1, 2, 3, padding_mode="circular")],
    "heads": lambda: [nn.MultiheadAttention(8, heads) for heads in (2, 4)],
    "encoder": lambda: [nn.TransformerEncoderLayer(8, 2, 8, activation=x, norm_first=y) for x, y in
                        (("relu", False), ("gelu", False), ("relu", True))],
    "normalisation": lambda: [nn.GroupNorm(x, 8) for x in (2, 4)] + [nn.GroupNorm(2, 8, eps=1e-3)],
    "recurrent": lambda: [nn.RNN(3, 3, nonlinearity=x) for x in ("tanh", "relu")],
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_that_differ_have_different_texts_and_equal_ones_the_same(name: str) -> None:
    texts, again = (list(map(layers_of, MODELS[name]())) for _ in range(2))
    assert len(set(texts)) == len(texts)
    assert texts == again
    assert len(set(telling_apart(texts))) == len(texts)


def test_weights_training_and_device_of_a_model_do_not_count() -> None:
    torch.manual_seed(0)
    one, other = Net(), Net()
    assert layers_of(one) == layers_of(other)
    assert layers_of(nn.Linear(3, 2).double()) == layers_of(nn.Linear(3, 2))


def test_what_differs_is_told() -> None:
    texts = [layers_of(nn.Sequential(nn.Linear(3, 2), one)) for one in (nn.ReLU(), nn.GELU(), nn.GELU("tanh"))]
    assert telling_apart(texts) == ["ReLU()", "GELU()", "GELU(approximate='tanh')"]
    assert telling_apart(["ReLU() #1", "ReLU() #2"]) == ["#1", "#2"]


def test_no_model_is_too_deep_or_holds_itself() -> None:
    deep: nn.Module = nn.Linear(2, 2)
    for _ in range(60):
        deep = nn.Sequential(deep)
    net, ring = Net(), list[Any]()
    ring.append(ring)
    net.owner = [net, ring]
    assert layers_of(deep)
    assert layers_of(net)


SOURCE = """
import sys, torch
from torch import nn
from fedflat.core.structure import layers_of, text_of
class Net(nn.Module):
    known = {"a", "b", "c", "d"}
    def __init__(self):
        super().__init__()
        self.layer, self.names = nn.Linear(2, 2), {"x", "y", "z"}
    def forward(self, x):
        return torch.relu(self.layer(x))
def loss(s, y):
    return (s - y).square().mean(-1)
print(layers_of(Net()), text_of(loss))
"""


@pytest.mark.slow
def test_texts_are_the_same_in_every_process_and_whatever_comments_say(tmp_path: Path) -> None:
    said = []
    for seed, note in (("1", ""), ("2", "'''A docstring.'''\n    # and a comment")):
        file = tmp_path / f"source{seed}.py"
        file.write_text(SOURCE.replace("(s, y):", f"(s, y):\n    {note}"))
        words = {"env": {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}}
        said.append(subprocess.run([sys.executable, str(file)], capture_output=True, check=True, text=True, **words))
    assert said[0].stdout == said[1].stdout
