"""`fedflat data schema`: the settings that state how sites read their files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

RUN = "--partition natural --participation 1.0 --rounds 2 --client.batch_size 5 --flatness []"


def write_sites() -> None:
    for seed, site in enumerate(("north", "south")):
        for part, n in (("train", 20), ("test", 8)):
            rng = np.random.default_rng([seed, n])
            rows = [f"{rng.normal(50, 9):.2f},{rng.choice(['f', 'm'])},{('well', 'ill')[i % 2]}" for i in range(n)]
            path = Path("sites") / site / f"{part}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(["age,sex,state", *rows]) + "\n")


@pytest.mark.slow
def test_what_is_stated_is_what_a_simulation_finds_by_itself(fedflat) -> None:
    write_sites()
    given = "--data.name csv --data-dir sites --data.label_columns state"
    code, out, _ = fedflat(f"data schema {given} --out schema.toml")
    assert (code, 'class_names          ["ill", "well"]' in out) == (0, True), out
    stated = tomllib.loads(Path("schema.toml").read_text())
    assert stated["data"]["categories"] == [["f", "m"]]
    assert stated["data"]["clients"] == 2
    assert stated["partition"] == {"name": "natural"}
    for command, folder in ((f"run {given} --data.clients 2", "found"), ("run schema.toml --data-dir sites", "stated")):
        assert fedflat(f"{command} {RUN} --out {folder}")[0] == 0
    one, other = (json.loads(Path(folder, "summary.json").read_text()) for folder in ("found", "stated"))
    assert one["clients"] == other["clients"]
    assert one["clients"]["name"] == ["north", "south"]
    assert Path("found/model.safetensors").read_bytes() == Path("stated/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--data.name csv --data-dir sites --data.label_columns state --out sites", "--out sites exists"),
        ("--data.name csv --data-dir sites", "has no column 'label'; it has age, sex, state"),
        ("--data.name csv --data-dir sites --data.label_column state", "did you mean --data.label_columns"),
        ("--data.name csv --data-dir nothing", "data_dir = 'nothing' is not a folder"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_writes_nothing(fedflat, line: str, words: str) -> None:
    write_sites()
    code, _, err = fedflat(f"data schema {line}")
    assert (code, len(err.splitlines()), words in err) == (2, 1, True), err
    assert not Path("schema.toml").exists()
