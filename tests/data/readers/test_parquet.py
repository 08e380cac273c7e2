from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedflat.data.readers import encoded_files, parquet_columns
from fedflat.data.readers.encoded_files import Parquet
from fedflat.data.readers.layouts import Shape
from support.files import encoded, picture_column, random_labels, random_pictures, refused, write_parquet

GREY, COLOUR = Shape(channels=1, size=28), Shape(channels=3, size=32)
IMAGES = Parquet(image="image")


def columns(n: int = 4, shape: Shape = GREY, seed: int = 0, **changes: Any) -> dict[str, Any]:
    pictures = random_pictures(n, shape.channels, shape.size, seed)
    return {"image": picture_column(list(pictures)), "label": random_labels(n, seed=seed)} | changes


@pytest.mark.parametrize("shape", [GREY, COLOUR])
def test_pictures_and_labels_come_back(tmp_path: Path, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_columns, "ROWS_AT_ONCE", 3)
    for seed, part in enumerate(["train", "test"]):
        write_parquet(tmp_path / f"{part}-00000-of-00001.parquet", columns(8, shape, seed))
    parts = IMAGES.parts(tmp_path, shape)
    assert parts.keys() == {"train", "test"}
    for seed, part in enumerate(["train", "test"]):
        expected = random_pictures(8, shape.channels, shape.size, seed)
        assert np.array_equal(np.stack(list(parts[part].samples)), expected)
        assert np.array_equal(parts[part].labels, random_labels(8, seed=seed))
        assert parts[part].labels.dtype == np.int64


def test_the_files_of_a_part_are_read_in_order(tmp_path: Path) -> None:
    sizes = [2, 1, 3, 1, 1, 1, 1, 1, 1, 1, 2]
    for i in reversed(range(11)):
        folder = tmp_path / str(-i)  # so that neither paths nor times are in order
        write_parquet(folder / f"train-{i:05}-of-00011.parquet", columns(sizes[i], seed=i))
    part = IMAGES.parts(tmp_path, GREY)["train"]
    expected = np.concatenate([random_pictures(n, seed=i) for i, n in enumerate(sizes)])
    assert np.array_equal(np.stack(list(part.samples)), expected)
    assert part.labels.tolist() == [y for i, n in enumerate(sizes) for y in random_labels(n, seed=i)]


@pytest.mark.parametrize(
    "name", ["train.parquet", "train-00000-of-00001.parquet", "data/train-00000-of-00001-c5caa3fdba57b3d1.parquet"]
)
def test_names_of_files(tmp_path: Path, name: str) -> None:
    write_parquet(tmp_path / name, columns())
    (tmp_path / "retrain.parquet").write_bytes(b"not read")
    assert IMAGES.parts(tmp_path, GREY).keys() == {"train"}


@pytest.mark.parametrize("name", ["validation-00000-of-00001.parquet", "valid.parquet"])
def test_a_validation_part_stands_in_for_a_missing_test_part(tmp_path: Path, name: str) -> None:
    for seed, file in enumerate(["train.parquet", name]):
        write_parquet(tmp_path / file, columns(seed=seed))
    assert IMAGES.parts(tmp_path, GREY)["test"].labels.tolist() == random_labels(4, seed=1).tolist()
    write_parquet(tmp_path / "test.parquet", columns(seed=2))
    assert IMAGES.parts(tmp_path, GREY)["test"].labels.tolist() == random_labels(4, seed=2).tolist()


def test_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(b"")
    assert IMAGES.parts(tmp_path, GREY) is None


def test_plain_bytes_without_a_path(tmp_path: Path) -> None:
    pictures = random_pictures(3)
    image = pa.array([encoded(picture) for picture in pictures])
    write_parquet(tmp_path / "train.parquet", columns(3, image=image))
    assert np.array_equal(np.stack(list(IMAGES.parts(tmp_path, GREY)["train"].samples)), pictures)


DOMAINS = Parquet(image="image", domain="domain", user="writer")
NUMBERS = [2, 0, 1, 2]


@pytest.mark.parametrize(
    ("values", "names", "expected"),
    [
        (["photo", "art", "photo", "art"], None, ["photo", "art", "photo", "art"]),
        (NUMBERS, ["art", "cartoon", "photo"], ["photo", "art", "cartoon", "photo"]),
        (NUMBERS, {"2": "photo", "0": "art", "1": "cartoon"}, ["photo", "art", "cartoon", "photo"]),
        (NUMBERS, None, NUMBERS),
        (pa.array(["a", "b", "a", "a"]).dictionary_encode(), None, ["a", "b", "a", "a"]),
    ],
    ids=["texts", "named", "named by a table", "unnamed", "categories"],
)
def test_domains_and_users(tmp_path: Path, values: Any, names: Any, expected: list[str]) -> None:
    described = {"label": ["x"] * 10} | ({} if names is None else {"domain": names})
    writers = ["w3", "w1", "w1", "w2"]
    write_parquet(tmp_path / "train.parquet", columns(domain=values, writer=writers), described)
    part = DOMAINS.parts(tmp_path, GREY)["train"]
    assert part.domain == expected
    assert part.user == writers
    assert np.array_equal(part.labels, random_labels(4))


@pytest.mark.parametrize("described", [b"", b"{", b"[]", b'{"info": {"features": {"domain": []}}}', b'{"info": null}'])
def test_a_description_that_says_nothing_is_passed_over(tmp_path: Path, described: bytes) -> None:
    table = pa.table(columns(domain=NUMBERS, writer=NUMBERS)).replace_schema_metadata({b"huggingface": described})
    pa.parquet.write_table(table, tmp_path / "train.parquet")
    assert DOMAINS.parts(tmp_path, GREY)["train"].domain == [2, 0, 1, 2]


def test_texts(tmp_path: Path) -> None:
    rows = {"title": ["One", "", "Ünï\n"], "content": ["two, three", "four", ""], "label": [3, 0, 1]}
    write_parquet(tmp_path / "train.parquet", rows)
    part = Parquet(text=("title", "content")).parts(tmp_path, None)["train"]
    assert list(part.samples) == ["One two, three", "four", "Ünï\n"]
    assert part.labels.tolist() == [3, 0, 1]


def test_a_text_that_a_file_has_once_is_in_memory_once(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", {"text": ["a" * 1_000, "b"] * 50, "label": [0] * 100})
    samples = list(Parquet(text=("text",)).parts(tmp_path, None)["train"].samples)
    assert samples == ["a" * 1_000, "b"] * 50
    assert len({id(text) for text in samples}) == 2


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("dictionary", [True, False])
def test_texts_of_every_kind(tmp_path: Path, kind: pa.DataType, dictionary: bool) -> None:
    texts = [f"text {i % 7}" for i in range(3_000)]
    table = pa.table({"text": pa.array(texts, kind), "label": np.zeros(3_000, int)})
    pa.parquet.write_table(table, tmp_path / "train.parquet", use_dictionary=dictionary, row_group_size=700)
    assert list(Parquet(text=("text",)).parts(tmp_path, None)["train"].samples) == texts


def test_texts_may_be_as_long_as_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "train.parquet", {"text": ["a" * 10] * 10, "label": [0] * 10})
    monkeypatch.setattr(parquet_columns, "MAX_TEXT", 10)
    monkeypatch.setattr(parquet_columns, "file_limit", lambda packed: 100)
    assert len(Parquet(text=("text",)).parts(tmp_path, None)["train"].samples) == 10
    monkeypatch.setattr(parquet_columns, "file_limit", lambda packed: 99)
    with refused(str(path), "column 'text' unpacks to more than 99 characters"):
        Parquet(text=("text",)).parts(tmp_path, None)
    monkeypatch.setattr(parquet_columns, "MAX_TEXT", 9)
    with refused(str(path), "column 'text' has a text of 10 characters, more than 9"):
        Parquet(text=("text",)).parts(tmp_path, None)


def test_a_part_may_have_as_many_rows_as_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(2):
        write_parquet(tmp_path / f"train-{i:05}-of-00002.parquet", columns(4))
    monkeypatch.setattr(encoded_files, "MAX_SAMPLES", 8)
    assert len(IMAGES.parts(tmp_path, GREY)["train"].labels) == 8
    monkeypatch.setattr(encoded_files, "MAX_SAMPLES", 7)
    with refused("its part has 8 rows; at most 7 are read"):
        IMAGES.parts(tmp_path, GREY)


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.int64(), pa.uint64()])
def test_class_numbers_of_every_kind(tmp_path: Path, kind: pa.DataType) -> None:
    write_parquet(tmp_path / "train.parquet", columns(label=pa.array([3, 1, 2, 0], kind)))
    labels = IMAGES.parts(tmp_path, GREY)["train"].labels
    assert (labels.tolist(), labels.dtype) == ([3, 1, 2, 0], np.int64)


NAME = "train-00000-of-00001.parquet"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"label": ["cat"] * 4}, "column 'label' holds string, expected class numbers"),
        ({"label": [0.0, 1.0, 2.0, 3.0]}, "column 'label' holds double, expected class numbers"),
        ({"label": pa.array([1, None, 2, 3])}, "column 'label' has rows without a value"),
        ({"domain": pa.array(["a", None, "b", "c"])}, "column 'domain' has rows without a value"),
        ({"domain": [0, 1, 2, 3]}, "column 'domain' has a number without a name"),
        ({"domain": [0, 1, -1, 2]}, "column 'domain' has a number without a name"),
        ({"image": None}, "has no column 'image', or several; it has label, domain, writer"),
        ({"label": None}, "has no column 'label', or several; it has image, domain, writer"),
        ({"domain": None}, "has no column 'domain', or several; it has image, label, writer"),
        ({"writer": None}, "has no column 'writer'"),
    ],
)
def test_wrong_columns_are_named(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    found = columns(domain=["a"] * 4, writer=["w"] * 4) | changes
    names = {"domain": ["art", "cartoon", "photo"]}
    path = write_parquet(tmp_path / NAME, {k: v for k, v in found.items() if v is not None}, names)
    with refused(str(path), problem):
        DOMAINS.parts(tmp_path, GREY)


def test_every_file_of_a_part_is_checked(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-00000-of-00002.parquet", columns())
    path = write_parquet(tmp_path / "train-00001-of-00002.parquet", columns(label=["0", "1", "2", "3"]))
    with refused(str(path), "column 'label' holds string"):
        IMAGES.parts(tmp_path, GREY)


@pytest.mark.parametrize("values", [[1, 2, 3], pa.array(["a", None, "b"])])
def test_texts_that_are_none(tmp_path: Path, values: Any) -> None:
    path = write_parquet(tmp_path / NAME, {"text": values, "label": [0, 1, 2]})
    with refused(str(path), "column 'text'"):
        Parquet(text=("text",)).parts(tmp_path, None)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"<html>\n</html>", "half"])
def test_files_that_are_not_parquet_or_cut_are_named(tmp_path: Path, content: Any) -> None:
    path = write_parquet(tmp_path / NAME, columns())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    with refused(str(path), "truncated or not parquet"):
        IMAGES.parts(tmp_path, GREY)


@pytest.mark.parametrize("column", ["label", "image"])
def test_damage_inside_a_file_is_named(tmp_path: Path, column: str) -> None:
    path = write_parquet(tmp_path / NAME, columns(50))
    content = bytearray(path.read_bytes())
    table = pa.parquet.ParquetFile(path).metadata.row_group(0)
    chunk = next(c for c in map(table.column, range(table.num_columns)) if c.path_in_schema.startswith(column))
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(bytes(content))
    with refused(str(path), f"column {column!r}", "damaged"):
        list(IMAGES.parts(tmp_path, GREY)["train"].samples)


@pytest.mark.parametrize(
    "names",
    [
        ["train-00000-of-00002"],
        ["train-00001-of-00002"],
        ["train-00000-of-00002", "train-00002-of-00002"],
        ["train-00000-of-00002", "train-00000-of-00002-0123abcd"],
        ["train-00000-of-00001", "train-00001-of-00002"],
        ["train-00000-of-00001", "more/train-00000-of-00001"],
        ["train", "more/train"],
        ["train", "train-00000-of-00001"],
        ["train-00000-of-00001", "train-00001-of-00001"],
    ],
)
def test_a_wrong_number_of_files_is_named(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        write_parquet(tmp_path / f"{name}.parquet", columns())
    with refused("data file", ".parquet: there are", f"{len(names)} of its part's"):
        IMAGES.parts(tmp_path, GREY)


@pytest.mark.parametrize("bad", [b"no picture", encoded(random_pictures(1)[0])[:-60], None])
def test_broken_pictures_are_named_by_file_and_row(tmp_path: Path, bad: bytes | None) -> None:
    write_parquet(tmp_path / "train-00000-of-00002.parquet", columns(3))
    image = picture_column([*random_pictures(2), bad])
    path = write_parquet(tmp_path / "train-00001-of-00002.parquet", columns(3, image=image))
    with refused(f"{path}, column 'image', row 2: not a readable picture"):
        list(IMAGES.parts(tmp_path, GREY)["train"].samples)


def test_an_image_column_of_numbers_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / NAME, columns(2, image=[[1, 2], [3, 4]]))
    with refused("column 'image' holds list<", "expected pictures as bytes"):
        list(IMAGES.parts(tmp_path, GREY)["train"].samples)


def test_pictures_of_another_size_are_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / NAME, columns(2, shape=COLOUR))
    with refused("column 'image', row 0", "(32, 32), expected 28 x 28"):
        list(IMAGES.parts(tmp_path, GREY)["train"].samples)
