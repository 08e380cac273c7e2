"""`fedflat predict`: a finished run's predictions for samples in files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import fedflat as ff
from fedflat.federation.flower.directory import STUDY

SIZE = 8
WORDS = ["apple", "bridge", "cloud", "dance"]


def encoded(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def sample_texts(y: np.ndarray) -> list[str]:
    return [" ".join([WORDS[2 * label], WORDS[2 * label + i % 2]]) for i, label in enumerate(y)]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Data of pictures and of texts, whose pictures and labels it gives."""
    g, y = np.random.default_rng(0), np.arange(24) % 2
    pixels = (g.integers(0, 100, (24, SIZE, SIZE, 3)) + 150 * y[:, None, None, None]).astype(np.uint8)
    for name, column, values in (
        ("pics", "image", [encoded(one) for one in pixels]),
        ("news", "text", sample_texts(y)),
    ):
        (tmp_path / name).mkdir()
        for part, some in (("train", slice(12)), ("test", slice(12, 24))):
            pq.write_table(pa.table({column: values[some], "label": y[some]}), tmp_path / name / f"{part}.parquet")
    return pixels[12:], y[12:]


def trained(fedflat, data: str, more: str) -> None:
    code, _, err = fedflat(f"run --data.name parquet --data-dir {data} --data.clients 2 --rounds 2 --out runs/{data} "
                           f"--flatness [] --last 1 {more}")  # fmt: skip
    assert code == 0, err


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_pictures_are_predicted_alike_by_every_input(fedflat, folders, tmp_path: Path) -> None:
    """From a folder, a parquet file, an npz and in Python, without the data of training."""
    pixels, y = folders
    trained(fedflat, "pics", "--model.name mlp --client.lr 0.1")
    (tmp_path / "new" / "sub").mkdir(parents=True)
    for i, one in enumerate(pixels):
        Image.fromarray(one).save(tmp_path / "new" / ("sub" if i % 2 else "") / f"{i:02}.png")
    np.savez("x.npz", x=pixels.transpose(0, 3, 1, 2))
    test = (tmp_path / "pics" / "test.parquet").rename(tmp_path / "test.parquet")
    (tmp_path / "pics" / "train.parquet").unlink()
    code, out, err = fedflat("predict runs/pics --input new")
    assert (code, out, err) == (0, "12 predictions: predictions.csv\n", "")
    fedflat(f"predict runs/pics --input {test} --out a.parquet --scores --probabilities")
    fedflat("predict runs/pics --input x.npz --out b.csv")
    by_path = {row["sample"]: row["class"] for row in rows(tmp_path / "predictions.csv")}
    table = pq.read_table(tmp_path / "a.parquet").to_pydict()
    scores = ff.load_run("runs/pics").predict(pixels.transpose(0, 3, 1, 2))
    assert table["class"] == [by_path[f"sub/{i:02}.png" if i % 2 else f"{i:02}.png"] for i in range(12)]
    assert table["class"] == [row["class"] for row in rows(tmp_path / "b.csv")]
    assert table["class"] == list(map(str, scores.argmax(-1).tolist()))
    torch.testing.assert_close(torch.tensor([table["score_0"], table["score_1"]]).T, scores)
    shares = torch.tensor([table["probability_0"], table["probability_1"]]).T
    torch.testing.assert_close(shares, scores.softmax(-1), rtol=1e-5, atol=1e-6)
    before = (tmp_path / "predictions.csv").read_text()
    problems = {
        "--input new": "--out predictions.csv is there already; choose another name, or remove it",
        "--input nowhere --out c.csv": "--input nowhere is not there",
        "--input x.npz --out c.txt": "--out c.txt must end in .csv or .parquet",
        "--input x.npz --out no/c.csv": "--out no/c.csv: there is no folder no",
        "--input float.npz --out c.csv": "predict: x has floats, and samples of training are pixels (uint8), which",
        "--input flat.npz --out c.csv": "predict: x has shape (3, 4), and samples of training have (3, 8, 8): ",
        "--input bad.npz --out c.csv": "data file bad.npz: not a readable npz file",
        "--input y.npz --out c.csv": "data file y.npz: has no array 'x' of shape (n, ...)",
        "--input bad.png --out c.csv": "data file bad.png: not a readable picture",
        "--input small.png --out c.csv": "data file small.png: a picture of (5, 5), expected 8 x 8",
        "--input grey.png --out c.csv": "data file grey.png: a grey picture, but a picture of training is coloured",
        "--input empty --out c.csv": "--input empty has no pictures",
        "--input t.txt --out c.csv": "predict: x has texts, and samples of training are pixels (uint8), which",
        "--input bad.parquet --out c.csv": "data file bad.parquet: truncated or not parquet",
        "--input x.json --out c.csv": "--input x.json must be .npz, .parquet, .txt, a picture or a folder of pictures",
    }
    np.savez("float.npz", x=pixels.transpose(0, 3, 1, 2) / 255)
    np.savez("flat.npz", x=np.zeros((3, 4), np.uint8))
    np.savez("y.npz", y=y)
    Image.new("RGB", (5, 5)).save("small.png")
    Image.new("L", (SIZE, SIZE)).save("grey.png")
    (tmp_path / "empty").mkdir()
    for name in ("bad.npz", "bad.png", "bad.parquet", "t.txt", "x.json"):
        Path(name).write_text("no such thing")
    for line, problem in problems.items():
        code, _, err = fedflat(f"predict runs/pics {line}")
        assert (code, err.count("\n")) == (2, 1), err
        assert err.startswith(f"fedflat: {problem}")
    assert not (tmp_path / "c.csv").exists()
    assert (tmp_path / "predictions.csv").read_text() == before


@pytest.mark.slow
def test_classes_have_the_names_that_labels_had(fedflat, tmp_path: Path) -> None:
    """The samples of one class are all below zero, those of the other above."""
    sign = np.where(np.arange(24) % 2, 1, -1)
    x, names = (sign[:, None] * np.ones((24, 6))).astype(np.float32), np.array(["cat", "dog"])
    (tmp_path / "own").mkdir()
    for part, some in (("train", slice(12)), ("test", slice(12, 24))):
        np.savez(tmp_path / "own" / f"{part}.npz", x=x[some], y=names[(sign[some] > 0).astype(int)])
    code, _, err = fedflat("run --data.name npz --data-dir own --data.clients 2 --data.labels names --model.name mlp "
                           "--client.lr 0.5 --rounds 3 --flatness [] --out runs/own")  # fmt: skip
    assert code == 0, err
    np.savez("x.npz", x=x)
    fedflat("predict runs/own --input x.npz --probabilities")
    found = rows(tmp_path / "predictions.csv")
    assert [row["class"] for row in found] == names[(sign > 0).astype(int)].tolist()
    assert {"probability_cat", "probability_dog"} < found[0].keys()


@pytest.mark.parametrize("task", ["regression", "multi-label"])
def test_other_tasks_have_a_column_for_each_output(fedflat, task: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4)).astype("float32"), rng.normal(size=(12, 2)).astype("float32")
    labels = y if task == "regression" else (y > 0).astype("int64")
    data = ff.FederatedData.from_clients([(x[:6], labels[:6]), (x[6:], labels[6:])], task=task)
    run = ff.Simulation("mlp", data, ff.methods.FedAvg(), loss=task, rounds=1).run()
    run.save(tmp_path / "run")
    np.savez("x.npz", x=x)
    scores = run.predict(x)
    assert fedflat("predict run --input x.npz --out p.parquet --scores")[0] == 0
    table = pq.read_table("p.parquet").to_pydict()
    assert list(table) == ["sample", "prediction_0", "prediction_1", "score_0", "score_1"]
    expected = scores if task == "regression" else (scores > 0).to(torch.int64)
    for kind, values in (("prediction", expected), ("score", scores)):
        assert [table[f"{kind}_{i}"] for i in range(2)] == values.T.tolist()
    code, _, err = fedflat("predict run --input x.npz --out q.csv --probabilities")
    assert (code, "a regression has none" in err) == ((2, True) if task == "regression" else (0, False))


@pytest.mark.parametrize("line", ["predict site --input x.npz --out c.csv", "export site out"])
def test_the_folder_of_a_federation_is_refused(fedflat, line: str, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / STUDY).touch()
    code, _, err = fedflat(line)
    assert (code, err.count("\n")) == (2, 1)
    assert "load site/model.safetensors into a model" in err
    assert "site holds a federation, whose server does not know the kind of its clients' samples" in err


@pytest.mark.slow
def test_texts_are_encoded_by_the_words_of_training(fedflat, folders, tmp_path: Path) -> None:
    trained(fedflat, "news", "--model.name textcnn --client.lr 0.05 --data.text_length 6")
    y = folders[1]
    Path("new.txt").write_text("".join(f"{text}\n" for text in sample_texts(y)))
    fedflat("predict runs/news --input new.txt --out lines.csv --scores")
    fedflat("predict runs/news --input news/test.parquet --out column.csv --scores")
    assert rows(tmp_path / "lines.csv") == rows(tmp_path / "column.csv")
    x = ff.data.load("parquet", 2, data_dir="news", text_length=6).test[0]
    run = ff.load_run("runs/news")
    assert torch.equal(run.predict(sample_texts(y)), run.predict(x))
    assert run.predict(x, classes=True).tolist() == [int(row["class"]) for row in rows(tmp_path / "lines.csv")]
