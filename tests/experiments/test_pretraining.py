"""A small encoder of one's own as a base for adapters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.data.conversion import Tokenizer, encode
from fedflat.experiments.pretraining import _write_tokenizer, pretrain
from support.files import write_parquet

TEXTS = ("Oil prices: RISE 3.5% in U.S.!", "the firm's don't", "Zürich ÉTÉ unheard", "", "snake_case and-dashes")
WORDS = ("<pad>", "<unk>", "oil", "prices", "in", "the", "firm's", "zürich", "été", "snake", "case", "5")


def news(folder: Path, classes: int, per_class: int = 40) -> Path:
    """A set called ag_news, in which every class has one word of its own."""
    rows = {"text": [f"so class{i % classes} said" for i in range(classes * per_class)],
            "label": [i % classes for i in range(classes * per_class)]}  # fmt: skip
    for part in ("train", "test"):
        write_parquet(folder / "ag_news" / f"{part}-0.parquet", rows)
    return folder


def test_its_tokenizer_gives_words_the_numbers_that_fedflat_does(tmp_path: Path) -> None:
    _write_tokenizer(WORDS, tmp_path / "tokenizer.json")
    (tmp_path / "config.json").write_text('{"pad_token_id": 0}')
    found = Tokenizer(str(tmp_path)).encode(TEXTS, 9)
    assert (found[:, 0] == len(WORDS)).all(), "the first token"
    assert (found[:, 1:] == encode(TEXTS, WORDS, 8)).all()


@pytest.mark.slow
def test_it_learns_the_first_half_of_the_classes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedflat.experiments.pretraining.TRAINED_LENGTH", 4)
    steps: list[tuple[str, int, int]] = []
    made = pretrain(
        "ag-news", tmp_path / "encoder", str(news(tmp_path, 4, per_class=240)), True, 0, lambda *at: steps.append(at)
    )
    assert (made.classes, made.samples, made.accuracy) == ((0, 1), 480, 1.0)
    assert steps == [("ag-news", i, 75) for i in range(1, 76)], "five epochs of 480 texts in batches of 32"
    assert {path.name for path in (tmp_path / "encoder").iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json"
    }  # fmt: skip
    data = ff.data.load(
        "ag-news", 2, data_dir=str(tmp_path), partial=True, tokenizer=str(tmp_path / "encoder"), text_length=6
    )
    sim = ff.Simulation(
        "transformer", data, ff.methods.FedSAM(), ff.Client(steps=1), rounds=1,
        adapter=ff.LoRA(targets=("query",)), model_options={"path": str(tmp_path / "encoder")},
    )  # fmt: skip
    base = {name: p for name, p in sim.model.named_parameters() if not p.requires_grad}
    assert torch.isfinite(torch.cat([p.flatten() for p in base.values()])).all()
    sim.round()


@pytest.mark.slow
def test_the_seed_alone_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedflat.experiments.pretraining.EPOCHS", 1)
    monkeypatch.setattr("fedflat.experiments.pretraining.TRAINED_LENGTH", 4)
    news(tmp_path, 4, per_class=8)
    files = []
    for i, seed in enumerate((0, 0, 1)):
        torch.rand(i)  # the state of torch does not matter, and stays as it is
        before = torch.get_rng_state()
        pretrain("ag-news", tmp_path / str(i), str(tmp_path), True, seed)
        assert torch.equal(torch.get_rng_state(), before)
        files.append((tmp_path / str(i) / "model.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]


def test_an_interruption_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedflat.experiments.pretraining.TRAINED_LENGTH", 4)
    news(tmp_path, 4, per_class=8)
    before = sorted(tmp_path.iterdir())

    def stop(name: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain("ag-news", tmp_path / "encoder", str(tmp_path), True, 0, stop)
    assert sorted(tmp_path.iterdir()) == before


def test_what_no_encoder_can_be_made_of_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^data.name = 'digits' has no texts to train an encoder on$"):
        pretrain("digits", tmp_path / "encoder")
    rows = {"text": ["a b", "c d"] * 4, "label": [0, 1] * 4}
    write_parquet(tmp_path / "two" / "train-0.parquet", rows)
    write_parquet(tmp_path / "two" / "test-0.parquet", rows)
    with pytest.raises(InputError, match=r"^data.name = 'parquet' has 2 classes, and a half needs at least two$"):
        pretrain("parquet", tmp_path / "encoder", str(tmp_path / "two"))
    assert not (tmp_path / "encoder").exists()
    with pytest.raises(InputError, match=r"two is there already; give a new folder$"):
        pretrain("parquet", tmp_path / "two", str(tmp_path / "two"))
