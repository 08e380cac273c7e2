"""Tables of a user's own: csv, tsv and jsonl, from all clients in one file or from each in its own."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv as arrow
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fedflat as ff
from fedflat.data.loading import prepare
from fedflat.data.schema import Schema
from support.files import refused

HEADER = "age,bmi,sex,smoker,outcome"
CLASSES = ("benign", "malignant", "unclear")


def lines(n: int, seed: int, classes: int = 3, missing: bool = True) -> list[str]:
    """Rows with two numbers, two categories and a label; every ninth row has no bmi."""
    rng, rows = np.random.default_rng(seed), []
    for i in range(n):
        y = i % classes
        bmi = "" if missing and i % 9 == 4 else f"{rng.normal(25, 2):.2f}"
        rows.append(f"{rng.normal(50 + 8 * y, 4):.2f},{bmi},{'fm'[i % 2]},{['no', 'yes', 'ex'][i % 3]},{CLASSES[y]}")
    return rows


def write(path: Path, rows: list[str], header: str = HEADER) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def sites(folder: Path) -> Path:
    """Three sites with a test file each; the third has only two of the classes."""
    for seed, (site, classes) in enumerate({"north": 3, "south": 3, "west": 2}.items()):
        write(folder / f"{site}.csv", lines(40, seed, classes))
        write(folder / "test" / f"{site}.csv", lines(12, 10 + seed, classes))
    return folder


def load(folder: Path, name: str = "csv", clients: int = 1, **options) -> ff.FederatedData:
    for train in folder.glob("train.*"):  # which is the test set, too, if there is none
        test = train.with_name(f"test{train.suffix}")
        if not test.exists():
            shutil.copy(train, test)
    return ff.data.load(name, clients=clients, data_dir=str(folder), **options)


def by_other_libraries(folder: Path) -> tuple[np.ndarray, list[int]]:
    """Return the features and classes of the training rows of three sites, by pyarrow and scikit-learn."""
    table = pa.concat_tables([arrow.read_csv(folder / f"{site}.csv") for site in ("north", "south", "west")])
    numbers = np.stack([table[name].to_numpy() for name in ("age", "bmi")], axis=1)
    categories = np.stack([table[name].to_numpy() for name in ("sex", "smoker")], axis=1)
    encoded = OneHotEncoder(sparse_output=False).fit_transform(categories)
    x = np.concatenate([np.nan_to_num(StandardScaler().fit_transform(numbers)), encoded], axis=1)
    return x, [CLASSES.index(name) for name in table["outcome"].to_pylist()]


def test_three_sites_are_three_clients_with_the_numbers_of_other_libraries(tmp_path: Path) -> None:
    data = load(sites(tmp_path), clients=3, partition=ff.Natural(), label_columns="outcome", missing="fill")
    x, y = by_other_libraries(tmp_path)
    assert data.x.dtype == torch.float32
    assert np.allclose(data.x.numpy(), x, atol=1e-6)
    assert data.y.tolist() == y
    assert data.class_names == CLASSES
    assert data.counts().tolist() == [[14, 13, 13], [14, 13, 13], [20, 20, 0]]
    assert len(data.test[1]) == 36


def test_a_column_that_names_each_row_is_no_category_unless_stated(tmp_path: Path) -> None:
    """Its texts would be stated to all sites as categories. Nine rows may have nine categories."""
    rows = [f"p{i},{i},{CLASSES[i % 3]}" for i in range(10)]
    write(tmp_path / "train.csv", rows, "patient_id,age,outcome")
    with refused("column 'patient_id' has another text in each of its 10 rows, such as 'p0'", "categorical_columns"):
        load(tmp_path, label_columns="outcome")
    assert load(tmp_path, label_columns="outcome", numeric_columns="age").shape == (1,)
    stated = {"numeric_columns": "age", "categorical_columns": "patient_id"}
    assert load(tmp_path, label_columns="outcome", **stated).shape == (11,)
    write(tmp_path / "few" / "train.csv", rows[:9], "patient_id,age,outcome")
    assert load(tmp_path / "few", label_columns="outcome").shape == (10,)


def test_a_site_without_a_class_numbers_the_others_as_the_study_does(tmp_path: Path) -> None:
    """The third site has benign and malignant; in the study malignant is the first of three."""
    write(tmp_path / "train.csv", ["1,yes", "2,no", "3,yes"], "age,outcome")
    stated = {"label_columns": "outcome", "class_names": ("no", "perhaps", "yes")}
    assert load(tmp_path, **stated).counts().tolist()[0] == [1, 0, 2]
    with refused("label 'yes', which is none of class_names"):
        load(tmp_path, label_columns="outcome", class_names=("no", "perhaps"))


def test_numbers_that_name_classes_are_not_taken_for_their_places(tmp_path: Path) -> None:
    """A site that has only the classes 1 and 2 of 1, 2 and 3."""
    write(tmp_path / "train.csv", ["1,1", "2,2", "3,1"], "age,outcome")
    data = load(tmp_path, label_columns="outcome", class_names=("1", "2", "3"))
    assert data.counts().tolist() == [[2, 1, 0]]


def test_other_columns_and_another_order_are_the_same_samples(tmp_path: Path) -> None:
    first = write(tmp_path / "one" / "train.csv", ["1,4,0", "2,7,1", "5,9,1"], "age,bmi,label")
    other = write(tmp_path / "other" / "train.csv", ["0,x,4,1", "1,y,7,2", "1,z,9,5"], "label,name,bmi,age")
    stated = {"numeric_columns": ("age", "bmi"), "means": (0, 0), "deviations": (1, 1)}
    found = [load(path.parent, **stated) for path in (first, other)]
    assert torch.equal(found[0].x, found[1].x)
    assert found[0].x.tolist() == [[1, 4], [2, 7], [5, 9]]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_separator_is_that_of_the_first_row(tmp_path: Path, delimiter: str) -> None:
    name = "train.tsv" if delimiter == "\t" else "train.csv"
    with (tmp_path / name).open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=delimiter).writerows([["note", "label"], ['a "b", c\nd', 0], ["e; f", 1]] * 1)
    data = load(tmp_path, text_column="note", text_length=4)
    assert data.x.tolist() == [[2, 3, 4, 5], [6, 7, 0, 0]]


def test_missing_values_are_refused_dropped_or_filled(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ["1,f,0", ",m,1", "3,NA,1", "5,f,0"], "age,sex,label")
    with refused("train.csv", "row 2: 'age' has no value", "data.missing"):
        load(tmp_path)
    dropped = load(tmp_path, missing="drop")
    assert dropped.y.tolist() == [0, 0]
    assert dropped.x.tolist() == [[-1, 1], [1, 1]]
    filled = load(tmp_path, missing="fill")
    half = 1 / np.sqrt(8 / 3)
    assert np.allclose(filled.x, [[-2 * half, 1, 0], [0, 0, 1], [0, 0, 0], [2 * half, 1, 0]])
    assert prepare("csv", str(tmp_path), missing="drop").notes == (
        "train: dropped 2 rows without a value", "test: dropped 2 rows without a value",
    )  # fmt: skip


def test_large_numbers_lose_no_digits_in_their_scale(tmp_path: Path) -> None:
    values = 1e9 + np.arange(10_000) % 7
    write(tmp_path / "train.csv", [f"{value!r},{i % 2}" for i, value in enumerate(values.tolist())], "time,label")
    data = load(tmp_path)
    assert np.allclose(data.x[:, 0], (values - values.mean()) / values.std(), atol=1e-6)


def test_a_column_that_never_varies_is_zero(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ["0.1,0", "0.1,1", "0.1,0"], "age,label")
    assert load(tmp_path).x.abs().max() < 1e-6


def test_clients_may_be_in_a_column(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ["1,b,0", "2,a,1", "3,b,1"], "age,clinic,label")
    write(tmp_path / "test.csv", ["1,b,0", "2,a,1"], "age,clinic,label")
    data = load(tmp_path, clients=2, partition=ff.Natural(), client_column="clinic")
    assert data.counts().tolist() == [[0, 1], [1, 1]]


def test_labels_may_be_numbers_to_predict_or_several_labels(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ["1,0.5,0,1", "2,1.5,1,1", "3,2.25,0,0"], "age,dose,nausea,pain")
    named = {"numeric_columns": "age", "partition": ff.IID()}
    dose = load(tmp_path, label_columns="dose", task="regression", **named)
    assert dose.y.tolist() == [[0.5], [1.5], [2.25]]
    both = load(tmp_path, label_columns=("nausea", "pain"), task="multi-label", **named)
    assert both.y.tolist() == [[0, 1], [1, 1], [0, 0]]


def test_whole_numbers_may_be_numbers_to_predict(tmp_path: Path) -> None:
    """A site may have whole numbers alone where another one has fractions."""
    write(tmp_path / "train.csv", ["1,20", "2,31", "3,44"], "age,dose")
    stated = {"label_columns": "dose", "partition": ff.IID()}
    assert load(tmp_path, task="regression", **stated).y.tolist() == [[20], [31], [44]]
    write(tmp_path / "train.csv", ["1,low", "2,high", "3,low"], "age,dose")
    (tmp_path / "test.csv").unlink()
    with refused("names of classes go with classification; for regression labels are numbers"):
        load(tmp_path, task="regression", **stated)


def test_jsonl_has_texts_labels_and_users(tmp_path: Path) -> None:
    rows = [{"text": f"the {word} mail", "label": word, "user": i % 3} for i, word in enumerate(["spam", "ham"] * 15)]
    (tmp_path / "mails.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = load(tmp_path, "jsonl", clients=3, partition=ff.Natural(), text_length=4)
    assert data.class_names == ("ham", "spam")
    assert data.vocabulary[:4] == ("<pad>", "<unk>", "mail", "the")
    assert (data.sizes.tolist(), len(data.test[1])) == ([9, 9, 9], 3)
    stated = load(tmp_path, "jsonl", text_length=4, vocabulary=("ham", "the"))
    assert stated.x[0].tolist() == [3, 1, 1, 0]


def test_jsonl_may_be_a_table(tmp_path: Path) -> None:
    rows = [{"age": 1, "ok": True, "label": 0}, {"age": 2.5, "ok": False, "label": 1}, {"label": 1, "age": None}]
    (tmp_path / "train.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    data = load(tmp_path, "jsonl", missing="fill", means=(0,), deviations=(1,))
    assert data.x.tolist() == [[1, 0, 1], [2.5, 1, 0], [0, 0, 0]]


BAD_TABLES = {
    "no such label": (["1,0"], "age,y", {}, ("has no column 'label'; it has age, y",)),
    "a row too short": (["1,0", "2"], "age,label", {}, ("row 2 has 1 values", "2 columns")),
    "a text among numbers": (["1,0", "old,1"], "age,label", {"numeric_columns": "age"},
                             ("row 2: 'age' has 'old', which is not a number",)),
    "infinity": (["1,0", "inf,1"], "age,label", {"numeric_columns": "age"}, ("row 2: 'age' has 'inf'",)),
    "an unknown category": (["f,0", "x,1"], "sex,label", {"categorical_columns": "sex", "categories": [["f", "m"]]},
                            ("row 2: 'sex' has 'x', which is none of its categories f, m",)),
    "a column of names": ([f"p{i},{i % 2}" for i in range(200)], "patient,label", {},
                          ("column 'patient' has more than 100 different texts", "numeric_columns")),
    "a typing error": (["51,0", "fifty,1", "49,0"], "age,label", {},
                       ("column 'age' has numbers, and texts such as 'fifty'",)),
    "decimal commas in every row": (["1,5;0", "2,5;1"], "age;label", {}, ("column 'age' has decimal commas, such as",)),
    "a number that is infinite": (["1,0", "1e999,1"], "age,label", {}, ("numbers, and texts such as '1e999'",)),
    "a category of control characters": (["x\x1b[2J,0", "y,1"], "sex,label", {}, ()),
    "an index": (["0,1,0", "1,2,1"], ",age,label", {}, ("a column without a name", "without an index")),
    "two columns of one name": (["1,2,0"], "age,age,label", {}, ("several columns named 'age'",)),
    "a missing label": (["1,0", "2,"], "age,label", {"missing": "fill"}, ("row 2: 'label' has no value",)),
    "nothing": ([], "age,label", {}, ("no value in any row",)),
    "a column with no value": ([",0", ",1"], "age,label", {"missing": "fill", "numeric_columns": "age"},
                               ("column 'age' has no value in any row",)),
    "cut off inside quotes": (['"1,0', "2,1"], "age,label", {}, ("truncated or not comma-separated",)),
    "decimal commas": (["1,5;0", "2,5;1"] * 60, "age;label", {"numeric_columns": "age"}, ("has '1,5', which is not",)),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_bad_table_is_one_line(tmp_path: Path, name: str) -> None:
    rows, header, options, words = BAD_TABLES[name]
    path = write(tmp_path / "train.csv", rows, header)
    with refused(*([str(path)] if words else ["data: a category of sex is named"]), *words):
        load(tmp_path, **options)


BAD_JSONL = {
    "not JSON": ('{"text": "a", "label": 0', ("line 1", "not JSON")),
    "a list": ("[1, 2]", ("line 1 is no object",)),
    "a list as text": ('{"text": ["a"], "label": 0}', ("row 1: 'text' is a list or an object",)),
    "no label": ('{"text": "a"}', ("has no column 'label'",)),
    "nothing": ("", ("0 columns; 1 to 10,000 are read",)),
    "blank lines alone": ("\n \n", ("0 columns",)),
    "a text that is missing": (
        '{"text": "a", "label": 0}\n{"text": null, "label": 1}',
        ("row 2: 'text' has no value",),
    ),
    "a label that is missing": ('{"text": "a", "label": 0}\n{"text": "b"}', ("row 2: 'label' has no value",)),
    "a zero byte": ('{"text": "a\0", "label": 0}', ("not a text: it has a zero byte",)),
    "two objects in a line": ('{"text": "a", "label": 0} {"text": "b", "label": 1}', ("line 1", "not JSON")),
    "an object as label": ('{"text": "a", "label": {"b": 1}}', ("row 1: 'label' is a list or an object",)),
    "nested too deep": ('{"text": ' + "[" * 100_000, ("line 1", "not JSON")),
}


@pytest.mark.parametrize("name", BAD_JSONL)
def test_bad_jsonl_is_one_line(tmp_path: Path, name: str) -> None:
    content, words = BAD_JSONL[name]
    (tmp_path / "train.jsonl").write_text(content)
    with refused(str(tmp_path / "train.jsonl"), *words):
        load(tmp_path, "jsonl")


def test_files_that_do_not_fit_each_other_are_one_line(tmp_path: Path) -> None:
    sites(tmp_path)
    write(tmp_path / "south.csv", ["1,benign"], "age,outcome")
    with refused("other columns than north.csv", "bmi, sex, smoker"):
        load(tmp_path, label_columns="outcome")
    write(tmp_path / "south.csv", lines(9, 0))
    write(tmp_path / "test" / "East.csv", lines(9, 0))
    with refused("client 'East' has samples for test, and none for training"):
        load(tmp_path, label_columns="outcome", missing="drop")
    (tmp_path / "test" / "East.csv").unlink()
    write(tmp_path / "train.csv", lines(9, 0))
    with refused("train.csv is of all clients"):
        load(tmp_path, label_columns="outcome", missing="drop")


def test_what_is_not_utf_8_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes("größe,label\n1,0\n".encode("latin-1"))
    with refused("train.csv", "is not UTF-8"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"numeric_columns": ["a", "a"]}, "column 'a' is named twice"),
        ({"categorical_columns": "a", "categories": [["x", "x"]]}, "one of them is given twice"),
        ({"categorical_columns": "a", "categories": [["x"], ["y"]]}, "2 lists, and data.categorical_columns 1"),
        ({"means": [0.0]}, "means has 1 numbers and deviations 0"),
        ({"means": [0.0], "deviations": [0.0]}, "deviations and means must be finite"),
        ({"means": ["x"]}, "data.means must be a list of numbers, got ('x',)"),
        ({"numeric_columns": 3}, "data.numeric_columns must be a list of texts, got 3"),
        ({"categories": "f"}, "data.categories must be a list of lists of texts, got 'f'"),
        ({"missing": "ignore"}, "data.missing must be one of 'refuse', 'drop', 'fill'"),
        ({"channels": 2}, "data.channels must be 1 (grey) or 3 (coloured)"),
        ({"text_column": "t", "numeric_columns": "a"}, "leave out numeric_columns"),
        ({"vocabulary": ["a", "a"]}, "data.vocabulary has a word twice"),
    ],
)  # fmt: skip
def test_a_schema_that_means_nothing_is_one_line(options: dict, words: str) -> None:
    with refused(words):
        Schema(**options)


def test_settings_of_tables_are_refused_elsewhere(tmp_path: Path) -> None:
    with refused("data.label_columns = ('outcome',) has no use with this set"):
        ff.data.load("digits", 2, label_columns="outcome")
    with refused("data.vocabulary = ('a',) has no use with tables of features"):
        load(write(tmp_path / "train.csv", ["1,0"], "age,label").parent, vocabulary=["a"])
