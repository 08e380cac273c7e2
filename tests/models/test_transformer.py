"""Classifiers of `transformers` from folders: texts and pictures, trained federated, alone and stacked."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.objective import Batch, Objective
from fedflat.metrics.flatness.passes import gradient_with_graph
from fedflat.models.blocks import pretrained
from support.transformers import picture_folder, saved, text_folder


def most_memory() -> int:
    """Bytes that this process has had in memory, at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


SMALL = {"vocab_size": 50, "max_position_embeddings": 20, "num_labels": 3}
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
# By the names of their classes: to look those up imports their modules, also where tests are only collected.
NETWORKS = {
    "bert": ("Bert", BERT, 0, ("query", "value")),
    "roberta": ("Roberta", BERT, 1, ("query", "value")),
    "deberta": ("DebertaV2", BERT, 0, ("query_proj", "value_proj")),
    "distilbert": (
        "DistilBert", {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}, 0, ("q_lin", "v_lin"),
    ),
}  # fmt: skip


def folder_with(name: str, folder: Path, classes: int = 3) -> tuple[Path, int, tuple[str, ...]]:
    prefix, sizes, padding, targets = NETWORKS[name]
    network, config = (getattr(transformers, prefix + kind) for kind in ("ForSequenceClassification", "Config"))
    torch.manual_seed(0)
    made = network(config(**SMALL | sizes | {"num_labels": classes}, pad_token_id=padding))
    return saved(made, folder / name), padding, targets


def texts(n: int, padding: int, length: int = 12, seed: int = 0) -> torch.Tensor:
    """Token numbers (n, length) of texts of different lengths, padded at the end."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(2, 50, (n, length), generator=g)
    for row in range(n):
        x[row, length - row % 7 :] = padding
    return x


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_scores_are_those_of_transformers_and_padding_does_not_matter(name: str, tmp_path: Path) -> None:
    folder, padding, _ = folder_with(name, tmp_path)
    model = ff.models.build("transformer", classes=3, shape=(12,), path=str(folder)).eval()
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    x = texts(7, padding)
    with torch.no_grad():
        expected = plain(input_ids=x, attention_mask=(x != padding).long()).logits
        torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)
        longer = torch.cat([x, torch.full((7, 4), padding)], 1)
        torch.testing.assert_close(model(longer), expected, rtol=1e-4, atol=1e-5)
    assert expected.std() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_adapters_are_the_same_stacked_and_one_by_one(name: str, tmp_path: Path) -> None:
    """With the dropout of the network and of the adapter, on texts of different lengths; 1e-10 in float64."""
    folder, padding, targets = folder_with(name, tmp_path)
    clients = [(texts(n, padding, seed=n), torch.arange(n) % 3) for n in (5, 3, 7)]
    data, runs = ff.FederatedData.from_clients(clients, classes=3), []
    for executor in ("sequential", "stacked"):
        adapter = ff.LoRA(targets=targets, r=2, dropout=0.2)
        settings: dict[str, Any] = {"executor": executor, "dtype": torch.float64, "adapter": adapter, "rounds": 2}
        client = ff.Client(lr=0.3, epochs=2, batch_size=4)
        sim = ff.Simulation(
            "transformer", data, ff.methods.FedSAM(rho=0.05), client, model_options={"path": str(folder)}, **settings
        )
        start = sim.w.clone()
        for _ in sim:
            pass
        assert (sim.w - start).norm() > 1e-2
        runs.append(sim.w)
    assert (runs[0] - runs[1]).norm() <= 1e-10 * runs[0].norm()


def test_what_is_outside_the_encoder_is_trained_whole(tmp_path: Path) -> None:
    folder, _, targets = folder_with("distilbert", tmp_path)
    model = ff.models.build("transformer", classes=3, shape=(12,), path=str(folder))
    made = ff.adapters.adapted(model, ff.LoRA(targets=targets, r=2))
    whole = {name.split(".")[3] for name, p in made.named_parameters() if p.requires_grad and "lora_" not in name}
    assert whole == {"pre_classifier", "classifier"}


def test_second_derivatives_are_those_of_the_first(tmp_path: Path) -> None:
    """H v against central differences of the gradient; the attention's softmax has seven digits."""
    folder, padding, _ = folder_with("bert", tmp_path)
    model = ff.models.build("transformer", classes=3, shape=(12,), path=str(folder)).double().eval()
    objective = Objective(model)
    with objective.evaluating():
        w = objective.space.flatten(model)
        batch = Batch(texts(4, padding), torch.tensor([0, 1, 2, 0]))
        v = nn.functional.normalize(torch.randn_like(w), dim=0)
        w = w.requires_grad_()
        got = torch.autograd.grad(gradient_with_graph(objective, w, batch), w, v)[0]
        w = w.detach()
        expected = (objective.gradient(w + 1e-2 * v, batch) - objective.gradient(w - 1e-2 * v, batch)) / 2e-2
    assert (got - expected).norm() <= 1e-2 * expected.norm()


def test_another_number_of_classes_gets_a_new_head(tmp_path: Path) -> None:
    folder, _, _ = folder_with("bert", tmp_path, classes=5)
    same, other = (ff.models.build("transformer", classes=k, shape=(12,), path=str(folder)) for k in (5, 3))
    assert other.network.classifier.weight.shape == (3, 16)
    assert torch.equal(same.network.bert.pooler.dense.weight, other.network.bert.pooler.dense.weight)
    assert same.training


@pytest.mark.slow
def test_pictures_go_the_same_way(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "vit")
    data = ff.data.load("digits", 4)
    sim = ff.Simulation(
        "transformer", data, ff.methods.FedAvg(), ff.Client(steps=2, batch_size=8), rounds=1, executor="stacked",
        model_options={"path": str(folder)}, adapter=ff.LoRA(targets=("q_proj", "v_proj"), r=2),
    )  # fmt: skip
    sim.round()
    assert sim.objective.space.d < 1000


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda _: None, r"^model 'transformer' needs its option path"),
        (
            lambda folder: str(folder / "missing" / "x"),
            r"path = '.*' is no folder; a repository on the hub is hub:OWNER/NAME$",
        ),
        (str, r"path = '.*' cannot be loaded: "),
    ],
)
def test_folders_that_cannot_be_used(change: Any, line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=line):
        ff.models.build("transformer", classes=3, shape=(12,), path=change(tmp_path))


def test_texts_that_are_too_long_and_models_without_padding_are_refused(tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "bert", length=16)
    with pytest.raises(InputError, match=r"path = '.*' takes 16 tokens, the data have 128$"):
        ff.models.build("transformer", classes=4, shape=(128,), path=str(folder))
    config = transformers.BertConfig(**SMALL, **BERT, pad_token_id=None)
    other = saved(transformers.BertForSequenceClassification(config), tmp_path / "other")
    with pytest.raises(InputError, match=r"its config.json has no pad_token_id"):
        ff.models.build("transformer", classes=3, shape=(12,), path=str(other))


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ({"num_hidden_layers": 10**6}, "num_hidden_layers = 1000000 is more than 10,000"),
        ({"num_hidden_layers": 300}, "its configuration makes more modules than fit the files"),
        ({"intermediate_size": 2**25}, "its configuration makes more bytes than fit the files"),
        ({"vocab_size": 2**26}, "its configuration makes more bytes than fit the files"),
        ({"max_position_embeddings": 2**40}, "max_position_embeddings = 1099511627776 is more than 67,108,864"),
        ({"model_type": "qwen2", "vision": {"depths": [2, 10**8]}}, "config.json: vision: depths: 1 = 100000000 is"),
        ({"pad_token_id": 2**40}, "pad_token_id = 1099511627776 is more than"),
        ({"pad_token_id": -1}, "its config.json says pad_token_id = -1"),
        ({"chunk_size_feed_forward": 7}, "cannot be loaded: The dimension to be chunked"),
    ],
)
def test_a_configuration_is_bounded_by_its_files_before_memory_is_taken(
    setting: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "MODULES", 1000)
    path = text_folder(tmp_path / "bert") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | setting))
    begin, before = time.monotonic(), most_memory()
    with pytest.raises(InputError, match=r"^model option path = ") as caught:
        ff.models.build("transformer", classes=4, shape=(12,), path=str(path.parent))
    assert line in str(caught.value)
    assert time.monotonic() - begin < 20
    assert most_memory() < before + 2**28


def test_missing_weights_of_the_encoder_are_refused(tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "bert")
    network = transformers.BertForSequenceClassification.from_pretrained(folder)
    kept = {name: x for name, x in network.state_dict().items() if "layer.1.output.dense" not in name}
    network.save_pretrained(folder, state_dict=kept)
    with pytest.raises(InputError, match=r"has no weights for bert.encoder.layer.1.output.dense.bias$"):
        ff.models.build("transformer", classes=4, shape=(12,), path=str(folder))


@pytest.mark.slow
def test_code_in_a_folder_is_neither_run_nor_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that names a class of the folder; `transformers` alone asks at the terminal, which says yes."""
    folder, _, _ = folder_with("bert", tmp_path)
    (folder / "mine.py").write_text("from pathlib import Path\n\nPath(__file__).with_name('ran').touch()\n")
    config = json.loads((folder / "config.json").read_text())
    named = {"AutoConfig": "mine.Mine", "AutoModelForSequenceClassification": "mine.Network"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine", "auto_map": named}))
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "y")
    with pytest.raises(InputError, match=r"^model option path = '.*' cannot be loaded: "):
        ff.models.build("transformer", classes=3, shape=(12,), path=str(folder))
    assert not asked
    assert not list(tmp_path.rglob("ran"))
