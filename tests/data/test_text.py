from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.data.conversion import LENGTH, PADDING, UNKNOWN, build_vocabulary, encode, words
from support.files import write_files, write_parquet


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Oil prices: RISE 3.5% in U.S.!", ["oil", "prices", "rise", "3", "5", "in", "u", "s"]),
        ("the firm's don't 'quoted' rock'n", ["the", "firm's", "don't", "quoted", "rock'n"]),
        ("snake_case and-dashes #39;s &lt;b&gt;", ["snake", "case", "and", "dashes", "39", "s", "lt", "b", "gt"]),
        ("Zürich ÉTÉ 東京 ½", ["zürich", "été", "東京", "½"]),
        ("<pad> <unk>", ["pad", "unk"]),
        (" \n\t.,;", []),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def counted(texts: list[str]) -> dict[str, int]:
    """How often each word is there, with words taken apart letter by letter."""
    counts: dict[str, int] = {}
    for text in texts:
        for word in "".join(letter if letter.isalnum() else " " for letter in text.lower()).split():
            counts[word] = counts.get(word, 0) + 1
    return counts


def made_up(n: int, seed: int = 0) -> list[str]:
    """Texts of words of which some are common and many are equally rare."""
    rng = np.random.default_rng(seed)
    return [" ".join(f"Word{i}" for i in rng.zipf(1.5, rng.integers(1, 40)) % 500) + "." for _ in range(n)]


@pytest.mark.parametrize("size", [10, 100, 100_000])
def test_the_vocabulary_is_that_of_an_independent_count(size: int) -> None:
    texts = made_up(200)
    counts = counted(texts)
    vocabulary = build_vocabulary(texts, size)
    assert vocabulary[:2] == (PADDING, UNKNOWN)
    kept, left = vocabulary[2:], set(counts) - set(vocabulary)
    assert len(vocabulary) == min(size, len(counts) + 2) == len(set(vocabulary))
    frequencies = [counts[word] for word in kept]
    assert frequencies == sorted(frequencies, reverse=True)
    assert max((counts[word] for word in left), default=0) <= frequencies[-1]


def test_ties_are_in_alphabetical_order_whatever_comes_first() -> None:
    assert build_vocabulary(["b a c b", "a d"], 6)[2:] == ("a", "b", "c", "d")
    assert build_vocabulary(["d b", "c a a b"], 6)[2:] == ("a", "b", "c", "d")
    assert build_vocabulary(["d c b a"], 4)[2:] == ("a", "b")


def test_texts_as_numbers() -> None:
    rows = encode(["b a unknown B", "", "a " * 7], ("<pad>", "<unk>", "a", "b"), length=5)
    assert rows.tolist() == [[3, 2, 1, 3, 0], [0, 0, 0, 0, 0], [2, 2, 2, 2, 2]]
    assert rows.dtype == np.int16


def test_the_largest_number_fits() -> None:
    many = [f"w{i}" for i in range(29_998)]
    assert encode([many[-1]], ("<pad>", "<unk>", *many))[0, 0] == 29_999


def test_texts_come_back_from_a_set(tmp_path: Path) -> None:
    train, test = made_up(60), [*made_up(20, seed=1), "neverseen " * 200]
    for part, texts in (("train", train), ("test", test)):
        rows = {"text": texts, "label": [i % 4 for i in range(len(texts))]}
        write_parquet(tmp_path / "ag_news" / f"{part}-00000-of-00001.parquet", rows)
    data = ff.data.load("ag_news", clients=3, data_dir=str(tmp_path), partial=True)
    assert set(data.vocabulary[2:]) == set(counted(train)), "of the training texts alone"
    assert data.shape == (LENGTH,) == (128,)
    for texts, rows in ((train, data.x), (test, data.test[0])):
        for text, row in zip(texts, rows.tolist(), strict=True):
            known = [word if word in data.vocabulary else UNKNOWN for word in text.lower().rstrip(". ").split()]
            known = known[:LENGTH]
            assert [data.vocabulary[number] for number in row[: len(known)]] == known
            assert set(row[len(known) :]) <= {0}
    assert data.inputs(data.y[:3]).dtype == data.preparation(data.test[0]).dtype == data.y.dtype


def test_texts_are_cut_at_the_length_that_is_asked_for(tmp_path: Path) -> None:
    rows = {"text": ["a b c d e", "f"], "label": [0, 1]}
    for part in ("train", "test"):
        write_parquet(tmp_path / "ag_news" / f"{part}-00000-of-00001.parquet", rows)
    short, usual = (
        ff.data.load("ag_news", clients=1, data_dir=str(tmp_path), partial=True, text_length=length)
        for length in (3, None)
    )
    assert (short.shape, usual.shape) == ((3,), (LENGTH,))
    assert torch.equal(short.x, usual.x[:, :3])
    assert short.test[0].shape == (2, 3)


def test_csv_and_parquet_give_the_same_set(tmp_path: Path) -> None:
    texts = made_up(8)
    for part in ("train", "test"):
        rows = {"text": [f"Title {text}" for text in texts], "label": [i % 4 for i in range(8)]}
        write_parquet(tmp_path / "hub" / "ag_news" / f"{part}-00000-of-00001.parquet", rows)
        table = "".join(f'"{i % 4 + 1}","Title","{text}"\n' for i, text in enumerate(texts))
        write_files(tmp_path, {f"original/ag_news_csv/{part}.csv": table.encode()})
    hub, original = (
        ff.data.load("ag_news", clients=2, data_dir=str(tmp_path / folder), partial=True)
        for folder in ("hub", "original")
    )
    assert hub.vocabulary == original.vocabulary
    assert hub.contents_hash() == original.contents_hash()
