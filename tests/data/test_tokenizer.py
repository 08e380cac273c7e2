"""Token numbers of a model's own tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import transformers

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.data.tokenizer import Tokenizer
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
