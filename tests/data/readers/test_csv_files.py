from __future__ import annotations

from pathlib import Path

import pytest

from fedflat.data.readers.layouts import Csv, join_texts
from support.files import refused, write_files, write_tar

TRAIN = (
    '"3","Oil, gas ""and"" coal","First line\nsecond, line"\r\n'
    "1,Plain,text\n"
    '"14","Ünïcode – ""quoted""",""\n'
    '"2","","only a body"\n'
)
TEST = '"1","A","B"\n'
TEXTS = ['Oil, gas "and" coal First line\nsecond, line', "Plain text", 'Ünïcode – "quoted"', "only a body"]


def test_quotes_newlines_and_commas(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.csv": TRAIN.encode(), "test.csv": TEST.encode()})
    parts = Csv(columns=2).parts(tmp_path, None)
    assert list(parts["train"].samples) == TEXTS
    assert parts["train"].labels.tolist() == [2, 0, 13, 1]
    assert (list(parts["test"].samples), parts["test"].labels.tolist()) == (["A B"], [0])


def test_from_the_published_archive(tmp_path: Path) -> None:
    content = {"train.csv": TRAIN.encode(), "test.csv": TEST.encode(), "classes.txt": b"World\n"}
    write_tar(tmp_path / "ag_news_csv.tar.gz", {f"ag_news_csv/{name}": c for name, c in content.items()})
    assert list(Csv(columns=2).parts(tmp_path, None)["train"].samples) == TEXTS


def test_a_field_longer_than_the_csv_module_takes_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.csv": f'1,"{"a" * 200_000}",b\n'.encode(), "test.csv": TEST.encode()})
    with refused("data file train.csv", "field limit"):
        Csv(columns=2).parts(tmp_path, None)


def test_other_files(tmp_path: Path) -> None:
    assert Csv(columns=2).parts(tmp_path, None) is None


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, {"train.csv": TRAIN.encode()})
    with refused("has no file test.csv"):
        Csv(columns=2).parts(tmp_path, None)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("1,a,b\n2,c\n", "row 2 is not a class number from 1 and 2 texts"),
        ("1,a,b\n2,c,d,e\n", "row 2 is not"),
        ("Class Index,Title,Description\n1,a,b\n", "row 1 is not"),
        ("0,a,b\n", "row 1 is not a class number from 1"),
        ("-1,a,b\n", "row 1 is not"),
        ("1.5,a,b\n", "row 1 is not"),
        ("²,a,b\n", "row 1 is not"),
        ('1,a,b\n"2","c","cut off he', "truncated"),
        ('1,a,"b\nnot closed\n', "truncated"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, content: str, problem: str) -> None:
    write_files(tmp_path, {"train.csv": content.encode(), "test.csv": TEST.encode()})
    with refused("data file train.csv", problem):
        Csv(columns=2).parts(tmp_path, None)


def test_empty_texts_leave_no_gap() -> None:
    assert join_texts(["", "b"]) == "b"
    assert join_texts(["a", "b"]) == "a b"
