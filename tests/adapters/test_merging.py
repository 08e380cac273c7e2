"""The adapted layers by name, the network with its adapter merged in, and what is sent beside full fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

import fedflat as ff
from fedflat.adapters import adapted, base_shapes, factors, merged
from fedflat.core.method import Method
from fedflat.core.torch_module import Space
from fedflat.experiments.budget import simulation_budget
from fedflat.rounds.cost import compared_messages, method_cost
from support.federation import federation


class Wrapped(nn.Module):
    """A model of this package around a network of `transformers`, which alone gets the adapters."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(input_ids=x).logits


def encoder(**sizes: int) -> nn.Module:
    config = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"intermediate_size": 32, "num_labels": 3} | sizes
    return transformers.BertForSequenceClassification(transformers.BertConfig(**config)).eval()


def moved(module: nn.Module) -> tuple[nn.Module, Space, torch.Tensor]:
    """An adapted module, and parameters at which B is not zero."""
    space = Space(module)
    return module, space, torch.randn(space.d, generator=torch.Generator().manual_seed(1)).to(torch.float64) / 4


@pytest.mark.parametrize("mode", ["both", "freeze_a"])
def test_layers_are_called_as_in_the_network_without_adapters(mode: str) -> None:
    module = adapted(Wrapped(encoder()), ff.LoRA(targets=("query", "value"), r=2, mode=mode))
    plain = dict(encoder().named_modules())
    names = dict(module.named_parameters())
    found = factors(module)
    assert [one.layer for one in found] == [name for name in plain if name.endswith(("query", "value"))]
    assert all(names[one.A].shape == (2, 16) and names[one.B].shape == (16, 2) for one in found)
    assert factors(encoder()) == []


def test_merging_keeps_the_function_and_changes_nothing_of_the_module() -> None:
    x = torch.randint(0, 30, (4, 7))
    module, space, w = moved(adapted(Wrapped(encoder()), ff.LoRA(targets=("query", "dense"), r=2)).double())
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    made = merged(module, space, w).eval()
    assert all(torch.equal(p, before[name]) for name, p in module.named_parameters())
    space.write(module, w)
    torch.testing.assert_close(made(x), module.eval()(x), rtol=1e-12, atol=1e-12)
    trained = {name for name, p in made.named_parameters() if p.requires_grad}
    assert trained == {f"network.{one.layer}.weight" for one in factors(module)}


def test_a_convolution_is_merged_as_the_product_of_its_factors() -> None:
    """B (outputs, r, 1, 1) after A (r, inputs, h, w) is the kernel of the matrix product, times alpha / r."""
    module, space, w = moved(
        adapted(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten()), ff.LoRA(targets=("0",), r=2)).double()
    )
    parts = {name.rpartition("lora_")[2][0]: view for name, view in space.views(w).items()}
    made = merged(module, space, w)[0].weight
    change = made.detach() - module.base_model.model[0].base_layer.weight.detach()
    expected = 16 / 2 * parts["B"].flatten(1) @ parts["A"].flatten(1)
    torch.testing.assert_close(change, expected.view(3, 2, 3, 3), rtol=1e-10, atol=1e-12)


def test_a_base_of_lower_precision_does_not_round_the_product_away() -> None:
    layer = nn.Linear(4, 3, bias=False).to(torch.bfloat16)
    module = adapted(nn.Sequential(layer), ff.LoRA(targets=("0",), r=2, alpha=2, head="frozen"))
    space = Space(module)
    w = torch.full((space.d,), 1e-2, dtype=torch.float32)
    made = merged(module, space, w)[0].weight
    torch.testing.assert_close(made - layer.weight.float(), torch.full((3, 4), 2e-4), rtol=1e-3, atol=0)
    assert made.dtype == torch.float32


@pytest.mark.parametrize("mode", ["both", "freeze_a", "alternate"])
def test_a_base_of_twenty_million_parameters_sends_two_per_cent_at_most(mode: str) -> None:
    """By arithmetic: r = 8 on query and value of four layers of width 512, and a head of 3 x 512 + 3."""
    with torch.device("meta"):
        network = encoder(vocab_size=30522, hidden_size=512, num_hidden_layers=4, intermediate_size=2048)
        full = sum(p.numel() for p in network.parameters())
        module = adapted(Wrapped(network), ff.LoRA(targets=("query", "value"), r=8, mode=mode))
    trained = Space(module).d
    factor = 4 * 2 * 8 * 512
    assert trained == (1 if mode == "freeze_a" else 2) * factor + 3 * 512 + 3
    assert sum(prod(shape) for shape in base_shapes(module)) == full >= 20_000_000
    assert method_cost(ff.methods.FedAvg(), trained).up <= 0.02 * method_cost(ff.methods.FedAvg(), full).up


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))


def test_every_method_sends_less_by_what_it_does_not_train(covering_method: Method) -> None:
    """Messages of full fine-tuning are those of a run of the same method without the adapter."""
    if covering_method.keeps_head:
        pytest.skip("full fine-tuning is counted with the head, which the other run keeps at the clients")
    adapter = ff.LoRA(targets=("0",), r=1)
    small, full = (
        ff.Simulation(network(), federation().to("cpu", torch.float32), covering_method, rounds=1, adapter=one)
        for one in (adapter, None)
    )
    for sim in (small, full):
        sim.round()
    clients = small.history[-1]["clients"]
    expected = tuple(sim.history[-1]["bytes_up"] / clients for sim in (small, full))
    assert small.message_bytes == expected
    assert full.message_bytes is None


def test_what_a_client_sends_is_in_the_budget_and_in_the_summary() -> None:
    """A (2, 6), B (7, 2) and the head 3 x 7 + 3 of 7 x 7 + 8 x 3 parameters, in float32."""
    sim = ff.Simulation(network(), federation().to("cpu", torch.float32), ff.methods.FedAvg(), rounds=1,
                        adapter=ff.LoRA(targets=("0",), r=2))  # fmt: skip
    assert sim.message_bytes == (4 * (12 + 14 + 24), 4 * (49 + 24))
    line = "by a client a round   0.0002 MB, 68 % of the 0.000292 MB of full fine-tuning"
    assert line in replace(simulation_budget(sim), peak_bytes=None).lines()
    assert sim.run().summary.items() >= {"message_bytes": 200, "message_bytes_full": 292}.items()
    plain = ff.Simulation(network(), federation().to("cpu", torch.float32), ff.methods.FedAvg(), rounds=1)
    assert not any("by a client" in line for line in simulation_budget(plain).lines())
    assert "message_bytes" not in plain.run().summary


def test_a_method_that_sends_nothing_has_no_share() -> None:
    assert compared_messages(0, 0, "all") == "0 MB"


@pytest.mark.parametrize("orthogonal", [True, False])
def test_sam_on_factors_is_sam_on_merged_weights_only_for_an_orthogonal_a(orthogonal: bool) -> None:
    """From B = 0 with A fixed, SAM moves W along G A^T A; merged SAM along G. The next gradient is taken there."""
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(9, 4, generator=g).double(), torch.randint(3, (9,), generator=g)
    A = torch.randn(4, 4, generator=g).double()
    A = torch.linalg.qr(A)[0] if orthogonal else A
    torch.manual_seed(0)
    layer, rho, lr = nn.Linear(4, 3, bias=False).double(), 0.4, 0.3
    made = adapted(nn.Sequential(layer), ff.LoRA(targets=("0",), r=4, alpha=4, head="frozen", mode="freeze_a")).double()
    factor = next(p for name, p in made.named_parameters() if name.endswith("lora_A.default.weight"))
    factor.data = A.clone()
    data = ff.FederatedData.from_clients([(x, y)], classes=3)
    sim = ff.Simulation(made, data, ff.methods.FedSAM(rho=rho), ff.Client(lr=lr, steps=1), rounds=1)
    sim.round()

    def gradient(W: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(x @ W.T, -1) - nn.functional.one_hot(y, 3)).T @ x / len(y)

    W = layer.weight.detach()
    G = gradient(W)
    on_factors = -lr * gradient(W + rho * G @ A.T @ A / (G @ A.T).norm()) @ A.T @ A
    on_merged = -lr * gradient(W + rho * G / G.norm())
    moved = sim.server.w.view(3, 4) @ A
    torch.testing.assert_close(moved, on_factors, rtol=1e-11, atol=1e-12)  # SAM adds 1e-12 to a norm
    assert ((moved - on_merged).norm() < 1e-12) == orthogonal


@pytest.mark.slow
def test_the_page_of_a_study_has_the_error_by_round_and_what_is_sent(tmp_path: Path) -> None:
    """From the folders of the runs: columns of the table, the figure, the row of the settings."""
    probe = {"name": "aggregation-error", "layers": True}
    settings = {
        "adapter": {"targets": ["1"], "r": 2},
        "probes": [probe],
        "probe_every": 1,
        "flatness": [],
        "participation": 1.0,
    }
    runs = ff.study(out=tmp_path / "study", methods=["fedavg", "fedsam"], seeds=[0], rounds=3,
                    data={"name": "digits", "clients": 3}, **settings)  # fmt: skip
    for name in ("aggregation_error_mean", "aggregation_error_largest", "aggregation_error/1"):
        found = runs[0].metrics[name].to_pylist()
        assert len(found) == 3
        assert min(found) > 1e-6
    text = ff.compare(runs).to_html(tmp_path / "page.html").read_text()
    assert '<figure class="aggregation">' in text
    assert "% of the" in text.split("sent by a client in a round")[1][:200]
