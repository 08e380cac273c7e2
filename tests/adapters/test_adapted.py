"""What an adapter trains and freezes, the algebra of LoRA, and what cannot be adapted."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.adapters import adapted
from fedflat.core.errors import InputError


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def trained(module: nn.Module) -> set[str]:
    return {name.removeprefix("base_model.model.") for name, p in module.named_parameters() if p.requires_grad}


FACTORS = {"0.lora_A.default.weight", "0.lora_B.default.weight"}
HEAD = {"4.modules_to_save.default.weight", "4.modules_to_save.default.bias"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, FACTORS | HEAD),
        ({"mode": "alternate"}, FACTORS | HEAD),
        ({"mode": "freeze_a"}, {"0.lora_B.default.weight"} | HEAD),
        ({"head": "frozen"}, FACTORS),
        ({"head": "2"}, FACTORS | {name.replace("4.", "2.") for name in HEAD}),
        ({"targets": ("4",)}, {name.replace("0.", "4.", 1) for name in FACTORS}),
    ],
)
def test_only_factors_and_head_are_trained(options: dict[str, Any], expected: set[str]) -> None:
    assert trained(adapted(network(), ff.LoRA(**{"targets": ("0",), "r": 2} | options))) == expected


def test_a_fresh_adapter_changes_no_score() -> None:
    """B is zero, and the head is a copy of the model's own."""
    x = torch.randn(5, 6)
    assert torch.equal(adapted(network(), ff.LoRA(targets=("0", "2")))(x), network()(x))


def test_a_parameter_less_is_a_byte_less_to_send() -> None:
    """d counts A (r, in), B (out, r) and the head: 2 x 6 + 7 x 2 + 3 x 5 + 3; vectors of the cost have that width."""
    data = one_client(torch.randn(8, 6), torch.arange(8) % 3)
    sim = ff.Simulation(network(), data, ff.methods.FedAvg(), rounds=1, adapter=ff.LoRA(targets=("0",), r=2))
    sim.round()
    assert len(sim.w) == 12 + 14 + 18
    assert sim.history[-1]["bytes_up"] == sim.history[-1]["bytes_down"] == 4 * (12 + 14 + 18)


def one_client(x: torch.Tensor, y: torch.Tensor) -> ff.FederatedData:
    return ff.FederatedData.from_clients([(x, y)], classes=3)


def weight_gradient(W: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of the mean cross-entropy of x W^T: the closed form (softmax - one-hot)^T x / n."""
    return (torch.softmax(x @ W.T, -1) - nn.functional.one_hot(y, 3)).T @ x / len(y)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_first_step_of_full_rank_follows_full_fine_tuning(orthogonal: bool) -> None:
    """From B = 0 a step moves W by -lr s^2 G A^T A, s = alpha / r: full fine-tuning's if A^T A = I and s = 1."""
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(9, 4, generator=g).double(), torch.randint(3, (9,), generator=g)
    layer = nn.Linear(4, 3, bias=False).double()
    alpha = 4.0 if orthogonal else 6.0
    adapter = ff.LoRA(targets=("0",), r=4, alpha=alpha, head="frozen")
    made = adapted(nn.Sequential(layer), adapter).double()
    parts = dict(made.named_parameters())
    A, B = (parts[f"base_model.model.0.lora_{factor}.default.weight"] for factor in "AB")
    if orthogonal:
        A.data = torch.linalg.qr(torch.randn(4, 4, generator=g).double())[0]
    start, lr = A.detach().clone(), 0.3
    sim = ff.Simulation(made, one_client(x, y), ff.methods.FedAvg(server_lr=1.0), ff.Client(lr=lr, steps=1), rounds=1)
    sim.round()
    after = dict(sim.model.named_parameters())
    A, B = (after[f"base_model.model.0.lora_{factor}.default.weight"].detach() for factor in "AB")
    W, scale = layer.weight.detach(), alpha / 4
    G = weight_gradient(W, x, y)
    assert torch.equal(A, start), "A has no gradient while B is zero"
    expected = -lr * G if orthogonal else -lr * scale**2 * G @ start.T @ start
    torch.testing.assert_close(scale * B @ A, expected, rtol=1e-12, atol=1e-14)
    assert G.norm() > 0.1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"targets": ("7",)}, r"^adapter.targets: no layer is called '7'; the linear layers are called 0, 2, 4$"),
        ({"targets": ("0", "query")}, r"^adapter.targets: no layer is called 'query'; .*$"),
        ({"targets": ("1",)}, r"^adapter: .*Tanh.*$"),
        ({"targets": ("0",), "head": "top"}, r"^adapter.head: no layer is called 'top'"),
        ({"targets": ()}, r"^adapter.targets names no layer; give the names of linear layers, .*$"),
        ({"targets": ("0",), "r": 0}, r"^adapter.r must be a whole number in \[1, inf\), got 0$"),
        ({"targets": ("0",), "alpha": 0}, r"^adapter.alpha must be a number in \(0, inf\), got 0$"),
        ({"targets": ("0",), "mode": "a"}, r"^adapter.mode must be one of 'both', 'freeze_a', 'alternate', got 'a'$"),
        ({"targets": (3,)}, r"^adapter.targets must be a list of texts, got \(3,\)$"),
        ({"target": ("0",)}, r"^LoRA has no field 'target'; it has .*$"),
    ],
)
def test_what_cannot_be_adapted_is_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        adapted(network(), ff.LoRA(**options))


def test_adapters_upon_adapters_are_refused() -> None:
    with pytest.raises(InputError, match=r"^adapter: the model has adapters already"):
        adapted(adapted(network(), ff.LoRA(targets=("0",))), ff.LoRA(targets=("2",)))


def test_a_module_without_a_trained_part_is_refused() -> None:
    frozen = network().requires_grad_(False)
    data = one_client(torch.randn(8, 6), torch.arange(8) % 3)
    with pytest.raises(InputError, match=r"^model Sequential has no trainable parameter$"):
        ff.Simulation(frozen, data, ff.methods.FedAvg(), rounds=1)


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r"^adapter needs the package peft: pip install fedflat\[adapters\]$"):
        adapted(network(), ff.LoRA(targets=("0",)))


def test_an_adapter_depends_on_the_seed_alone() -> None:
    data = one_client(torch.randn(8, 6), torch.arange(8) % 3)

    def w(seed: int) -> torch.Tensor:
        torch.manual_seed(int(torch.randint(1000, ())))
        return ff.Simulation(
            network(), data, ff.methods.FedAvg(), rounds=1, seed=seed, adapter=ff.LoRA(targets=("0",))
        ).w

    assert torch.equal(w(3), w(3))
    assert not torch.equal(w(3), w(4))
