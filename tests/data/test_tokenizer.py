"""Token numbers of a model's own tokenizer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.data import conversion as module
from fedflat.data.conversion import Tokenizer
from support.transformers import WORDS, news_folder, text_folder


def test_token_numbers_are_those_of_transformers(tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "bert")
    texts = ["apple cloud", "forest", "nobody knows this apple", " ".join(WORDS)]
    found = Tokenizer(str(folder)).encode(texts, 6)
    reader = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    expected = reader(texts, padding="max_length", truncation=True, max_length=6)["input_ids"]
    assert np.array_equal(found, expected)


def test_a_folder_of_texts_has_the_tokenizers_numbers(tmp_path: Path) -> None:
    """The same folder without a tokenizer has words, and each way its own place in the cache."""
    tokenizer, texts = text_folder(tmp_path / "bert"), news_folder(tmp_path / "news")
    words = ff.data.load("parquet", 3, data_dir=str(texts))
    tokens = ff.data.load("parquet", 3, data_dir=str(texts), tokenizer=str(tokenizer))
    again = ff.data.load("parquet", 3, data_dir=str(texts))
    assert words.vocabulary
    assert not tokens.vocabulary
    assert (tokens.x[:, 0] == Tokenizer(str(tokenizer)).encode([""], 2)[0, 0]).all(), "all begin with [CLS]"
    assert (words.x == again.x).all()
    assert words.contents == again.contents != tokens.contents


def test_what_is_no_tokenizer_is_one_line(tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "bert")
    with pytest.raises(InputError, match=r"^data.tokenizer: .*empty has no tokenizer.json; save"):
        Tokenizer(str(tmp_path / "empty"))
    with pytest.raises(InputError, match=r"^data.tokenizer goes with texts, and this set has none; leave it out$"):
        ff.data.load("digits", 3, tokenizer=str(folder))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": None}))
    with pytest.raises(InputError, match=r"says no pad_token_id to pad texts with$"):
        Tokenizer(str(folder)).encode(["apple"], 4)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"^data.tokenizer: .*tokenizer.json is no tokenizer: "):
        Tokenizer(str(folder)).encode(["apple"], 4)


def test_a_model_with_a_tokenizer_takes_no_numbers_of_words(tmp_path: Path) -> None:
    tokenizer, texts = text_folder(tmp_path / "bert"), news_folder(tmp_path / "news")
    words = ff.data.load("parquet", 3, data_dir=str(texts))
    with pytest.raises(InputError, match=r"^model 'transformer' has a tokenizer of its own, .*; load them with tok"):
        ff.Simulation("transformer", words, ff.methods.FedAvg(), model_options={"path": str(tokenizer)})


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _growing(content: dict[str, Any]) -> None:
    """Every letter a becomes a thousand million of them."""
    ten = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    content["normalizer"] = {"type": "Sequence", "normalizers": [ten] * 9}


# What is done to the file, the texts, and what is said of it.
HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], list[str], str]] = {
    "token number of four thousand million": (
        lambda content: content["model"]["vocab"].update(apple=4_000_000_000), ["apple"], "out of bounds for int32"
    ),
    "expression whose search the library gives up": (
        lambda content: content.update(pre_tokenizer=_split("(a+)+b")), ["a" * 35], "retry-limit-in-match over"
    ),
    "expression that takes long": (
        lambda content: content.update(pre_tokenizer=_split("(a+)+b")), ["a" * 20] * 3000, "more than 1.02 seconds"
    ),
    "replacement that takes all memory": (_growing, ["a"], "ended by SIGABRT"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tokenizer_is_one_line_in_bounded_time_and_memory(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The bounds are smaller here, so that they are reached soon."""
    harm, texts, line = HOSTILE[case]
    monkeypatch.setattr(module, "MEMORY", 2**29)
    if case == "expression that takes long":
        monkeypatch.setattr(module, "SECONDS", 1.0)
        monkeypatch.setattr(module, "CHARACTERS_PER_SECOND", 3_000_000)
    path = text_folder(tmp_path / "bert") / "tokenizer.json"
    content = json.loads(path.read_text())
    harm(content)
    path.write_text(json.dumps(content))
    begin = time.monotonic()
    with pytest.raises(InputError) as caught:
        Tokenizer(str(path.parent)).encode(texts, 6)
    assert time.monotonic() - begin < 30
    assert str(caught.value).startswith(f"data.tokenizer: {path} ")
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert capfd.readouterr() == ("", ""), "a panic prints its stack"


def test_a_padding_that_no_token_has_is_refused(tmp_path: Path) -> None:
    path = text_folder(tmp_path / "bert") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token_id": 2**40}))
    with pytest.raises(InputError, match=r"config.json says pad_token_id = 1099511627776, at most 2147483647$"):
        Tokenizer(str(path.parent)).encode(["apple"], 4)


@pytest.mark.parametrize(("number", "place"), [(4000, "x"), (-5, "x"), (12, "test")])
def test_numbers_of_another_models_tokenizer_are_refused(number: int, place: str, tmp_path: Path) -> None:
    """The model has twelve tokens."""
    folder, y = text_folder(tmp_path / "bert"), torch.arange(8) % 4
    x, test = torch.randint(4, 12, (8, 12)), torch.randint(4, 12, (8, 12))
    (x if place == "x" else test)[7, 3] = number
    data = ff.FederatedData.from_clients([(x, y)], test=(test, y), classes=4)
    with pytest.raises(InputError, match=rf"^model: takes token numbers 0..11, and the data have {number}$"):
        ff.Simulation("transformer", data, ff.methods.FedAvg(), model_options={"path": str(folder)})
