"""New rows of tables are scaled and encoded as those of training were, or refused: in Python, commands and exports."""

from __future__ import annotations

import csv
import json
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError

ROWS = 60
COLUMNS = ("age", "sex", "state")
DATA = "--data.name csv --data-dir sites --data.label_columns state --data.missing fill --data.clients 2"
TRAIN = "--model mlp --rounds 8 --client.lr 0.5 --participation 1.0 --flatness []"


@pytest.fixture
def table(fedflat) -> dict[str, list]:
    """The training rows of a finished run in the folder `run`: ages around 1000 decide the class."""
    rng = np.random.default_rng(0)
    states = [("ill", "well")[i % 2] for i in range(ROWS)]
    ages = [None if i == 7 else round(float(rng.normal(1000 + 8 * (i % 2), 1)), 3) for i in range(ROWS)]
    rows = {"age": ages, "sex": [str(rng.choice(["f", "m"])) for _ in range(ROWS)], "state": states}
    for part in ("train", "test"):
        write(Path("sites", f"{part}.csv"), rows)
    code, _, err = fedflat(f"run {DATA} {TRAIN} --out run")
    assert code == 0, err
    return rows


def write(path: Path, rows: dict[str, list], delimiter: str = ",") -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([list(rows), *zip(*rows.values(), strict=True)])


def by_hand(rows: dict[str, list]) -> np.ndarray:
    """Return the features (n, 3): the scaled age, and 0 or 1 for f and m."""
    ages = np.array([np.nan if age is None else age for age in rows["age"]])
    scaled = np.nan_to_num((ages - np.nanmean(ages)) / np.nanstd(ages))
    return np.stack([scaled, *(np.array(rows["sex"]) == sex for sex in "fm")], axis=1).astype(np.float32)


class Frame:
    """A table as those of pandas and polars: named columns, and an array of all values."""

    def __init__(self, rows: dict[str, list]) -> None:
        self.rows, self.columns = rows, list(rows)

    def __getitem__(self, name: str) -> list:
        return self.rows[name]

    def to_numpy(self) -> np.ndarray:
        return np.array(list(self.rows.values()), dtype=object).T


def test_every_door_encodes_rows_as_training_did(fedflat, table: dict[str, list]) -> None:
    run = ff.load_run("run")
    with torch.no_grad():
        expected = run.model(torch.from_numpy(by_hand(table)))
    assert torch.allclose(run.predict(pa.table(table)), expected, atol=1e-5)
    mixed = {"sex": table["sex"], "other": [0] * ROWS, "age": [np.nan if age is None else age for age in table["age"]]}
    assert torch.allclose(run.predict(Frame(mixed)), expected, atol=1e-5)
    write(Path("new.tsv"), mixed | {"age": table["age"]}, "\t")
    Path("new.jsonl").write_text(
        "\n".join(json.dumps({"age": a, "sex": s}) for a, s in zip(table["age"], table["sex"], strict=True))
    )
    for source in ("sites/test.csv", "new.tsv", "new.jsonl"):
        out = f"{Path(source).suffix[1:]}-found.csv"
        code, _, err = fedflat(f"predict run --input {source} --out {out}")
        assert code == 0, err
        with Path(out).open() as file:
            found = [row["class"] for row in csv.DictReader(file)]
        assert found == [("ill", "well")[i] for i in expected.argmax(1)]
    assert found.count("ill") == ROWS // 2  # which raw ages of 1000 would not be
    assert [a == b for a, b in zip(found, table["state"], strict=True)].count(False) <= 1


def test_a_run_in_memory_and_a_saved_one_take_the_same_tables(table: dict[str, list], tmp_path: Path) -> None:
    data = ff.data.load("csv", clients=2, data_dir="sites", label_columns="state", missing="fill")
    sim = ff.Simulation("mlp", data, ff.methods.FedAvg(), rounds=1)
    run = sim.run()
    run.save("saved")
    found = run.predict(pa.table(table))
    assert torch.equal(found, run.model(data.test[0]))
    assert torch.equal(found, sim.predict(pa.table(table)))
    assert torch.equal(found, ff.load_run("saved").predict(pa.table(table)))


def test_what_cannot_be_encoded_is_one_line(fedflat, table: dict[str, list]) -> None:
    run, few = ff.load_run("run"), {"age": [1.0, 2.0], "sex": ["f", "x"]}
    with pytest.raises(
        InputError, match=r"^predict: the run was trained on rows of a table.* columns age, sex.*ndarray has no names"
    ):
        run.predict(by_hand(table))
    with pytest.raises(InputError, match=r"no column 'sex'; it has age$"):
        run.predict(pa.table({"age": [1.0]}))
    with pytest.raises(InputError, match=r"x: row 2: 'sex' has 'x', which is none of its categories f, m$"):
        run.predict(pa.table(few))
    np.savez("x.npz", x=by_hand(table))
    code, _, err = fedflat("predict run --input x.npz --out p.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "must be .csv, .tsv or .jsonl with the columns age, sex" in err


def test_a_missing_value_is_refused_unless_training_filled_it(table: dict[str, list]) -> None:
    data = ff.data.load("csv", clients=2, data_dir="sites", label_columns="state", missing="drop")
    sim = ff.Simulation("mlp", data, ff.methods.FedAvg(), rounds=1)
    with pytest.raises(InputError, match=r"row 8: 'age' has no value"):
        sim.predict(pa.table(table))


@pytest.mark.parametrize("format", ["safetensors", "onnx"])
def test_an_export_has_the_code_that_encodes_rows(fedflat, format: str, table: dict[str, list]) -> None:
    assert fedflat(f"export run out --format {format}")[0] == 0
    space = runpy.run_path("out/load.py")
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*table.values(), strict=True)]
    x = np.array([space["encoded"](row) for row in rows], dtype=np.float32)
    assert np.allclose(x, by_hand(table), atol=1e-6)
    expected = ff.load_run("run").predict(pa.table(table)).numpy()
    found = space["scores"](x) if format == "onnx" else space["model"](torch.from_numpy(x)).detach().numpy()
    assert np.allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="sex has 'x'"):
        space["encoded"]({"age": 1.0, "sex": "x"})
    assert "scaled and encoded" in Path("out/README.md").read_text()
    if format == "onnx":
        [described] = onnx.load("out/model.onnx").metadata_props
        assert "rows of a table, encoded by" in described.value
        assert '"numeric_columns": ["age"]' in described.value


def rewrite_schema(change: Callable[[dict], object]) -> None:
    """Change the kind of samples in the run's summary."""
    path = Path("run/summary.json")
    content = json.loads(path.read_text())
    change(content["samples"])
    path.write_text(json.dumps(content))
    Path("run/SHA256SUMS").unlink()


def test_a_run_without_its_schema_asks_for_training_again(table: dict[str, list]) -> None:
    """As a folder of a version that did not keep it."""
    rewrite_schema(lambda samples: samples.pop("schema"))
    with pytest.raises(InputError, match="did not keep how rows are scaled and encoded; train it again"):
        ff.load_run("run").predict(pa.table(table))


def test_a_schema_that_does_not_fit_is_one_line(table: dict[str, list]) -> None:
    rewrite_schema(lambda samples: samples["schema"].update(means=[], deviations=[]))
    with pytest.raises(InputError, match=r"summary\.json.*not a schema of a table") as error:
        ff.load_run("run").predict(pa.table(table))
    assert len(str(error.value).splitlines()) == 1
