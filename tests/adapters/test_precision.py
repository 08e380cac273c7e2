"""A base in bfloat16 under adapters in single precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.core.errors import InputError
from support.federation import federation
from support.transformers import news_folder, text_folder

MODES = ["both", "freeze_a", "alternate"]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 3))


def simulation(base_dtype: str, mode: str = "both", head: str = "auto", **settings) -> ff.Simulation:
    adapter = ff.LoRA(targets=("0",), r=2, mode=mode, head=head, base_dtype=base_dtype)
    data = federation().to("cpu", torch.float32)
    settings = {"client": ff.Client(lr=0.1, steps=3, batch_size=4), "rounds": 3} | settings
    return ff.Simulation(network(), data, ff.methods.FedSAM(rho=0.05), adapter=adapter, **settings)


@pytest.mark.parametrize("mode", MODES)
def test_only_what_is_frozen_is_halved(mode: str) -> None:
    sim = simulation("bfloat16", mode)
    kept = {name: p for name, p in sim.model.named_parameters() if p.dtype == torch.float32}
    halved = {name: p for name, p in sim.model.named_parameters() if p.dtype == torch.bfloat16}
    assert all(p.requires_grad or ".lora_A." in name for name, p in kept.items())
    assert not any(p.requires_grad or ".lora_" in name for name, p in halved.items())
    assert len(halved) == 6, "of the first layer, of the norm between, and the original head"
    assert sim.w.dtype == torch.float32


@pytest.mark.parametrize("head", ["auto", "frozen"])
def test_scores_are_single_and_those_of_the_rounded_base(head: str) -> None:
    """Of the network with all its weights rounded to bfloat16; what is between layers is rounded, too."""
    sim, x = simulation("bfloat16", head=head), torch.randn(20, 6)
    rounded = network()
    for p in rounded.parameters():
        p.data = p.data.bfloat16().float()
    found = sim.model.eval()(x)
    assert found.dtype == torch.float32
    expected = rounded(x)
    assert 0 < (found - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("mode", MODES)
def test_training_is_near_that_on_a_whole_base(mode: str) -> None:
    """bfloat16 has eight bits, so a step is off by about a percent."""
    moves = []
    for base_dtype in ("same", "bfloat16"):
        sim = simulation(base_dtype, mode)
        start = sim.w.clone()
        sim.run()
        moves.append(sim.w - start)
    whole, halved = moves
    assert 0 < (whole - halved).norm() < 0.05 * whole.norm()


def test_executors_agree_to_the_rounding_of_bfloat16() -> None:
    runs = []
    for executor in ("sequential", "stacked"):
        sim = simulation("bfloat16", executor=executor)
        start = sim.w.clone()
        sim.run()
        runs.append(sim.w - start)
    one, many = runs
    assert (one - many).norm() < 0.02 * one.norm()


def test_a_run_goes_on_on_the_same_base_only(tmp_path: Path) -> None:
    first = simulation("bfloat16")
    first.round()
    first.save(tmp_path / "state.safetensors")
    again = simulation("bfloat16")
    again.load(tmp_path / "state.safetensors")
    again.run()
    first.run()
    assert torch.equal(first.w, again.w)
    with pytest.raises(InputError, match="adapter"):
        simulation("same").load(tmp_path / "state.safetensors")


@pytest.mark.slow
def test_a_transformer_trains_on_such_a_base(tmp_path: Path) -> None:
    folder = str(text_folder(tmp_path / "bert"))
    news_folder(tmp_path / "news")
    data = ff.data.load("parquet", 3, data_dir=str(tmp_path / "news"), tokenizer=folder, text_length=8)
    adapter = ff.LoRA(targets=("query", "value"), r=2, base_dtype="bfloat16")
    for executor in ("sequential", "stacked"):
        sim = ff.Simulation(
            "transformer", data, ff.methods.FedAvg(), ff.Client(lr=0.5, epochs=1, batch_size=4), rounds=2,
            adapter=adapter, model_options={"path": folder}, executor=executor,
        )  # fmt: skip
        start = sim.w.clone()
        sim.run()
        assert torch.isfinite(sim.w).all()
        assert (sim.w - start).norm() > 1e-2
