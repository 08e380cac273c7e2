"""Adapters of embeddings: the algebra is that of a linear layer on one-hot vectors."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat.adapters import adapted, factors, merged
from fedflat.adapters.adapted import is_factor
from fedflat.adapters.peft_files import export_adapter
from fedflat.core.errors import InputError
from fedflat.core.torch_module import Space

PADDING, WORDS = 3, 9


class Words(nn.Module):
    """Tokens, and a layer of the same name that is linear."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.e, self.second = nn.Embedding(WORDS, 4, **options), nn.ModuleDict({"e": nn.Linear(4, 5)})
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second["e"](self.e(x).mean(1))))


def data() -> ff.FederatedData:
    g = torch.Generator().manual_seed(1)
    clients = [(torch.randint(WORDS, (8, 3), generator=g), torch.arange(8) % 2) for _ in range(3)]
    return ff.FederatedData.from_clients(clients)


def simulation(mode: str, executor: str = "sequential", **options: Any) -> ff.Simulation:
    adapter = ff.LoRA(targets=("e",), r=2, mode=mode, **options)
    return ff.Simulation(Words(padding_idx=PADDING).double(), data(), ff.methods.FedSAM(rho=0.05), rounds=3,
                         client=ff.Client(lr=0.5, epochs=2, batch_size=4, weight_decay=0.01), adapter=adapter,
                         probes=["aggregation-error"], probe_every=1, executor=executor)  # fmt: skip


@pytest.mark.parametrize("mode", ["both", "freeze_a", "alternate"])
def test_each_mode_trains_the_factors_that_it_says_and_averages_them_so(mode: str) -> None:
    sim, stacked = simulation(mode), simulation(mode, "stacked")
    for t in range(3):
        before = {name: p.detach().clone() for name, p in sim.model.named_parameters()}
        sim.round()
        stacked.round()
        after = dict(sim.model.named_parameters())
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        for factor, in_turn in (("A", t % 2 == 1), ("B", t % 2 == 0)):
            every = {name for name in before if is_factor(name, factor)}
            assert len(every) == 2, "of the embedding and of the linear layer"
            trained = mode == "both" or (in_turn if mode == "alternate" else factor == "B")
            # While B is zero, A has no gradient, and only the decay of weights moves it.
            assert every <= moved if trained else not every & moved
        error = sim.history[-1]["aggregation_error_largest"]
        assert error < 1e-12 if mode != "both" else error > 1e-6
    torch.testing.assert_close(stacked.w, sim.w, rtol=1e-9, atol=1e-11)
    A = next(p for name, p in sim.model.named_parameters() if "embedding_A" in name)
    assert A.shape == (2, WORDS)
    assert not A[:, PADDING].any(), "the embedding of the padding stays as it is"
    assert A[:, 0].abs().min() > 0


@pytest.mark.parametrize("r", [2, 4 * WORDS])
def test_merged_weights_are_those_of_the_product_and_keep_the_scores(r: int) -> None:
    module = adapted(Words(), ff.LoRA(targets=("e",), r=r)).double()
    space, x = Space(module), torch.arange(WORDS)[:, None]
    w = torch.randn(space.d, generator=torch.Generator().manual_seed(1)).double() / 4
    made = merged(module, space, w).eval()
    space.write(module, w)
    torch.testing.assert_close(made(x), module.eval()(x), rtol=1e-12, atol=1e-12)
    assert [one.layer for one in factors(module)] == ["e", "second.e"]
    parts = dict(module.named_parameters())
    product = parts[factors(module)[0].B] @ parts[factors(module)[0].A]
    change = made.e.weight - module.base_model.model.e.base_layer.weight
    torch.testing.assert_close(change, 16 / r * product.T, rtol=1e-10, atol=1e-12)
    assert {name for name, p in made.named_parameters() if p.requires_grad} == {"e.weight", "second.e.weight"}


def test_peft_reads_the_adapter_of_an_embedding(tmp_path: Path) -> None:
    import peft  # takes seconds, also of every process that only collects the tests

    sim = simulation("both")
    sim.round()
    export_adapter(sim.model, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft, about models without a name
        loaded = peft.PeftModel.from_pretrained(Words(padding_idx=PADDING).double(), str(tmp_path)).eval()
    x = data().x
    torch.testing.assert_close(loaded(x), sim.model.eval()(x), rtol=1e-6, atol=1e-6)
    again = simulation("both", start=str(tmp_path))
    torch.testing.assert_close(again.w, sim.w, rtol=1e-6, atol=1e-6)


class Tied(Words):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, WORDS, bias=False)
        self.out.weight = self.e.weight


@pytest.mark.parametrize(
    ("module", "target", "line"),
    [
        (Tied(), "e", r"^adapter.targets: e has one weight with out, and an adapter would part them; "),
        (Tied(), "out", r"^adapter.targets: out has one weight with e, and an adapter would part them; "),
        (Words(max_norm=1.0), "e", r"^adapter.targets: e has max_norm, which no adapter goes with; "),
        (Words(sparse=True), "e", r"^adapter.targets: e has sparse, which no adapter goes with; "),
        (nn.Sequential(nn.EmbeddingBag(5, 2), nn.Linear(2, 2)), "0", r"^adapter: .*EmbeddingBag"),
    ],
)
def test_an_embedding_that_cannot_be_adapted_is_one_line(module: nn.Module, target: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        adapted(module, ff.LoRA(targets=(target,)))
