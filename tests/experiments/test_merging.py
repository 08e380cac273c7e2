"""A table over a table means the same through every door: flags, Python, the layers of recipes, and grids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedflat import study
from fedflat.cli.flags import resolve
from fedflat.core.errors import InputError
from fedflat.core.object_references import allow_code
from fedflat.experiments import studies
from fedflat.experiments.config_errors import validated
from fedflat.experiments.recipe import Base, Item, Recipe
from fedflat.experiments.settings_tables import flattened
from fedflat.experiments.spec import RunSpec, StudySpec

OWN = "from fedflat.data.partition import Dirichlet\n\n\nclass Mine(Dirichlet):\n    '''Mine.'''\n"
CASES = [  # a table, a table over it, and what then holds
    ({"partition": "balanced-dirichlet"}, {"partition": {"alpha": 0.3}},
     {"partition.name": "balanced-dirichlet", "partition.alpha": 0.3}),
    ({"partition": {"name": "Balanced_Dirichlet", "alpha": 0.7}}, {"partition": {"name": "balanced-dirichlet"}},
     {"partition.name": "balanced-dirichlet", "partition.alpha": 0.7}),
    ({"partition": {"alpha": 0.7}}, {"partition": "dirichlet"},
     {"partition.name": "dirichlet", "partition.alpha": 0.7}),
    ({"partition": {"alpha": 0.7}}, {"partition": "iid"}, {"partition.name": "iid"}),
    ({"partition": {"name": "./own.py:Mine", "alpha": 0.7}}, {"partition": {"name": "FOLDER/own.py:Mine"}},
     {"partition.alpha": 0.7}),
    ({"data": {"name": "npz", "clients": 7}}, {"data": {"name": "digits"}}, {"data.name": "digits", "data.clients": 7}),
    ({"model": {"name": "MLP", "options": {"hidden": [8], "bias": 1}}}, {"model": {"options": {"hidden": [9]}}},
     {"model.options.hidden": [9], "model.options.bias": 1}),
    ({"model": {"name": "mlp", "options": {"hidden": [8]}}}, {"model": "cnn"}, {"model.name": "cnn"}),
    ({"client": {"lr": 0.3, "epochs": 2}}, {"client": {"lr": 0.5}}, {"client.lr": 0.5, "client.epochs": 2}),
    ({"client_of": {"FedAvg": {"lr": 0.3, "momentum": 0.5}}}, {"client_of": {"fedavg": {"lr": 0.4}}},
     {"client_of.FedAvg.lr": 0.4, "client_of.FedAvg.momentum": 0.5}),
    ({"participation": {"share": 0.5, "dropouts": 0.1}}, {"participation": {"dropouts": 0.2}},
     {"participation": {"share": 0.5, "dropouts": 0.2}}),
    ({"participation": {"share": 0.5, "dropouts": 0.1}}, {"participation": 0.2}, {"participation": 0.2}),
    ({"rounds": 3}, {"rounds": 4}, {"rounds": 4}),
]  # fmt: skip


def by_flags(old: dict[str, Any], new: dict[str, Any]) -> StudySpec:
    words = [(key, value) for key, value in flattened(new).items() if not key.startswith("participation")]
    words += [("participation", new["participation"])] if isinstance(new.get("participation"), float) else []
    words = [("client_of", new["client_of"])] if "client_of" in new else words
    Path("flags.toml").write_text(tomli_w.dumps(old))
    if isinstance(new.get("participation"), dict):
        pytest.skip("participation is one text as a flag, and replaces the table")
    texts = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in words]
    return resolve(StudySpec, ["flags.toml", *(word for key, text in texts for word in (f"--{key}", text))])


def by_python(old: dict[str, Any], new: dict[str, Any]) -> StudySpec:
    Path("python.toml").write_text(tomli_w.dumps(old))
    found: Any = study("python.toml", out="out", **new)
    assert isinstance(found, StudySpec)
    return found


def by_recipe(old: dict[str, Any], new: dict[str, Any]) -> StudySpec:
    base, item = Base(paper="P", title="T", study=old), Item(title="T", items=["1"], study=new)
    return Recipe("p/table1", base, item).cells()[0].study()


def by_grid(old: dict[str, Any], new: dict[str, Any]) -> RunSpec:
    if "client_of" in new:
        pytest.skip("client_of is a setting of a study, and a grid has those of a run")
    run: RunSpec = StudySpec(**old, grid={key: [value] for key, value in new.items()}).runs()[0]
    return run


@pytest.mark.parametrize("door", [by_flags, by_python, by_recipe, by_grid])
@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_every_door_merges_alike(
    door: Any, old: Any, new: Any, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(studies, "carry_out_study", lambda spec, *_: spec)
    Path("own.py").write_text(OWN)
    new = json.loads(json.dumps(new).replace("FOLDER", str(tmp_path)))
    with allow_code():
        found = door(old, new)
    table = found.table()
    flat = flattened(table) | {"participation": table["participation"]}
    assert {key: flat.get(key) for key in expected} == expected
    if new.get("model") == "cnn":
        assert "model.options.hidden" not in flat


def test_a_name_drops_no_key_that_a_flag_before_it_gives() -> None:
    found = resolve(RunSpec, ["--method.rho", "0.3", "--method", "fedsam", "--partition.alpha", "2", "--partition.name",
                              "balanced-dirichlet"])  # fmt: skip
    assert (found.method.rho, found.partition.alpha) == (0.3, 2)


def test_a_grid_over_a_grid_keeps_one_value_for_a_key_in_two_spellings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(studies, "carry_out_study", lambda spec, *_: spec)
    for old in ('client = {epochs = [1]}\n"client.lr" = [0.1]', "client = {epochs = [1], lr = [0.1]}"):
        for new in ({"client.lr": [0.2]}, {"client": {"lr": [0.2]}}):
            Path("grid.toml").write_text(f"[grid]\n{old}\n")
            python: Any = study("grid.toml", out="out", grid=new)
            flags = resolve(StudySpec, ["grid.toml", "--grid", json.dumps(new)])
            assert python.grid == flags.grid == {"client.epochs": [1], "client.lr": [0.2]}


def test_a_key_of_a_grid_in_two_spellings_is_refused() -> None:
    for grid in ({"client.lr": [0.1], "client": {"lr": [0.2]}}, {"client": {"lr": [0.2]}, "client.lr": [0.1]}):
        with pytest.raises(InputError, match=r"client\.lr is given twice"):
            validated(StudySpec, {"grid": grid})
