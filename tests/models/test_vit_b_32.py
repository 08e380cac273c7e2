"""ViT-B/32 at the size of a thumb: two layers of 16 numbers, patches of 8 pixels. Its own count is in test_models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.objective import Batch, Objective
from fedflat.metrics.flatness.passes import gradient_with_graph
from fedflat.models import vit_b_32

SHAPE = (3, 16, 16)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    monkeypatch.setattr(vit_b_32, "SIZES", {**sizes, "patch_size": 8})


def small(classes: int = 3, shape: tuple[int, ...] = SHAPE, **options) -> nn.Module:
    return ff.models.build("vit-b-32", classes=classes, shape=shape, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small ViT in the Hugging Face layout."""
    torch.manual_seed(1)
    small(classes=5).network.save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def backbone(model: nn.Module) -> dict[str, torch.Tensor]:
    return model.network.vit.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 8, 24)])
def test_scores_have_one_column_per_class(shape: tuple[int, ...]) -> None:
    """Each from the sample's own pixels, and every parameter has a gradient."""
    torch.manual_seed(0)
    model, x = small(classes=7, shape=shape), torch.randn(4, *shape)
    scores = model(x)
    assert scores.shape == (4, 7)
    torch.testing.assert_close(model(x[1:2]), scores[1:2], rtol=1e-4, atol=1e-5)
    scores.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert sum(bool(p.grad.abs().sum() > 0) for p in model.parameters()) >= len(list(model.parameters())) - 2, (
        "all but the keys' biases, one in each layer, which cancel in the softmax"
    )


def test_second_derivatives_are_those_of_the_first() -> None:
    """H v against central differences of the gradient; the attention's softmax has seven digits."""
    torch.manual_seed(0)
    model = small().double()
    objective = Objective(model)
    w = objective.space.flatten(model)
    batch = Batch(torch.randn(4, *SHAPE).double(), torch.tensor([0, 1, 2, 0]))
    v = nn.functional.normalize(torch.randn_like(w), dim=0)
    w = w.requires_grad_()
    got = torch.autograd.grad(gradient_with_graph(objective, w, batch), w, v)[0]
    w = w.detach()
    expected = (objective.gradient(w + 1e-2 * v, batch) - objective.gradient(w - 1e-2 * v, batch)) / 2e-2
    assert (got - expected).norm() <= 1e-3 * expected.norm()


def test_a_folders_backbone_gets_a_new_head(folder: Path) -> None:
    torch.manual_seed(1)
    saved = backbone(small(classes=5))
    loaded = small(classes=7, pretrained=str(folder))
    assert backbone(loaded).keys() == saved.keys()
    assert all(torch.equal(saved[name], x) for name, x in backbone(loaded).items())
    assert loaded(torch.zeros(2, *SHAPE)).shape == (2, 7)
    assert all(layer.training for layer in loaded.modules())


def test_a_backbone_without_a_head_will_do_and_half_precision_becomes_single(folder: Path) -> None:
    """As the hub's checkpoints of ImageNet-21k are."""
    whole = transformers.ViTForImageClassification.from_pretrained(folder)
    whole.vit.half().save_pretrained(folder.parent / "base")
    loaded = small(pretrained=str(folder.parent / "base"))
    expected = {name: x.half().float() for name, x in backbone(small(pretrained=str(folder))).items()}
    assert all(torch.equal(expected[name], x) for name, x in backbone(loaded).items())


def test_two_rounds_of_fedsam() -> None:
    """From its name, with weights from the seed alone, and of one length for both executors."""
    g = torch.Generator().manual_seed(0)
    clients = [(torch.rand(n, *SHAPE, generator=g), torch.randint(3, (n,), generator=g)) for n in (4, 2, 3)]
    data, runs = ff.FederatedData.from_clients(clients, classes=3), []
    for user_seed, executor in enumerate(("sequential", "stacked")):
        torch.manual_seed(user_seed)
        client = ff.Client(lr=0.05, epochs=1, batch_size=2)
        settings = {"method": ff.methods.FedSAM(), "client": client, "rounds": 2, "executor": executor}
        sim = ff.Simulation("vit-b-32", data, **settings)
        start = sim.w.clone()
        for _ in sim:
            pass
        assert (sim.w - start).norm() > 1e-3
        runs.append(sim.w)
    assert (runs[0] - runs[1]).norm() <= 1e-5 * runs[0].norm()


@pytest.mark.parametrize("name", ["./missing", "missing", "somebody/vit", "hub:vit", "a/b/c", "/missing/vit", "../vit"])
def test_a_missing_folder_is_not_looked_for_elsewhere(name: str) -> None:
    with pytest.raises(InputError, match=r"pretrained = '.*' is no folder; a repository on the hub is hub:OWNER/NAME$"):
        small(pretrained=name)


def test_folders_that_cannot_be_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other images, another architecture, missing weights, and files that are no safetensors: one line each."""
    weights = folder / "model.safetensors"
    with pytest.raises(InputError, match=r"takes images \(3, 16, 16\), the data have \(3, 24, 24\)$"):
        small(shape=(3, 24, 24), pretrained=str(folder))
    with monkeypatch.context() as other:
        other.setitem(vit_b_32.SIZES, "num_hidden_layers", 3)
        with pytest.raises(InputError, match=r"is no ViT-B/32: num_hidden_layers is 2, not 3$"):
            small(pretrained=str(folder))
    network = transformers.ViTForImageClassification.from_pretrained(folder)
    kept = {name: x for name, x in network.state_dict().items() if name != "vit.layernorm.weight"}
    network.save_pretrained(folder, state_dict=kept)
    with pytest.raises(InputError, match=r"has no weights for vit.layernorm.weight$"):
        small(pretrained=str(folder))
    weights.write_bytes(b"not a safetensors file")
    with pytest.raises(InputError, match=r"pretrained = '.*' cannot be loaded: .+$"):
        small(pretrained=str(folder))
    weights.unlink()
    torch.save(kept, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"cannot be loaded: .*model.safetensors"):
        small(pretrained=str(folder))


@pytest.mark.parametrize("shape", [(3, 20, 16), (16, 16), (3, 0, 0)])
def test_images_are_cut_into_whole_patches(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="takes images whose sides are multiples of 8 pixels"):
        small(shape=shape)


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"needs the package transformers: pip install fedflat\[transformers\]$"):
        small()


@pytest.mark.slow
def test_nothing_is_imported_before_it_is_needed_and_nothing_is_said(folder: Path) -> None:
    """In a process of its own: no import with fedflat, and building and loading print nothing."""
    code = f"""
import sys
import fedflat as ff
assert "vit-b-32" in ff.models.model_names() and "transformers" not in sys.modules
from fedflat.models import vit_b_32
vit_b_32.SIZES = {vit_b_32.SIZES}
for pretrained in (None, {str(folder)!r}):
    ff.models.build("vit-b-32", classes=3, shape={SHAPE}, pretrained=pretrained)
from transformers.utils import logging
assert logging.get_verbosity() == logging.WARNING and logging.is_progress_bar_enabled()
"""
    done = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
