"""Flags of a method inside a method, over files and over each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedflat.cli.flags import AS_JSON, keys, override, resolve
from fedflat.core.errors import InputError
from fedflat.core.object_references import allow_code
from fedflat.experiments.spec import RunSpec, StudySpec

SWA = ["--method", "swa", "--method.begin", "0.5"]


def base_of(*words: str) -> dict[str, object]:
    return resolve(RunSpec, [*SWA, *words]).method.base.values()


def test_a_name_and_fields() -> None:
    asam = {"name": "FedASAM", "server_lr": 1.0, "rho": 0.5, "eta": 0.2}
    assert base_of("--method.base", "fedasam") == asam
    assert base_of("--method.base.name", "FedASAM", "--method.base.rho", "0.7") == asam | {"rho": 0.7}
    assert base_of("--method.base.name=fed-asam", "--method.base.rho=0.7") == asam | {"rho": 0.7}
    table = '{"name": "SWA", "base": {"name": "FedASAM", "rho": 0.3}}'
    assert resolve(RunSpec, ["--method", table]).method.base.values() == asam | {"rho": 0.3}
    entry = '{"name": "SWA", "base": "FedASAM"}'
    found = resolve(StudySpec, ["--methods", entry, "--methods", "FedASAM"])
    assert [one.label for one in found.methods] == ["SWA-FedASAM", "FedASAM"]


def test_flags_go_over_a_file_field_by_field(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[method]\nname = "SWA"\ncycle = 5\n[method.base]\nname = "FedASAM"\nrho = 0.7\neta = 0.1\n')
    changed = resolve(RunSpec, [str(file), "--method.base.rho", "0.3"]).method
    assert (changed.cycle, changed.base.rho, changed.base.eta) == (5, 0.3, 0.1)
    other = resolve(RunSpec, [str(file), "--method.base.name", "fedsam"]).method
    assert (other.cycle, other.base.values()) == (5, {"name": "FedSAM", "server_lr": 1.0, "rho": 0.1})
    assert resolve(RunSpec, [str(file), "--method", "fedsam"]).method.label == "FedSAM"
    spec = resolve(RunSpec, [str(file), "--method.lr_low", "none"])
    assert spec.method.lr_low is None
    assert override(spec, ["--seed", "3"]).method == spec.method


def test_options_of_a_model_are_flags(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = { name = "mlp", options = { hidden = [64, 32], dropout = 0.1 } }')
    changed = resolve(RunSpec, [str(file), "--model.options.dropout", "0.2"]).model
    assert (changed.name, changed.options) == ("mlp", {"hidden": [64, 32], "dropout": 0.2})
    other = resolve(RunSpec, [str(file), "--model", "transformer", "--model.options.path=my folder"]).model
    assert (other.name, other.options) == ("transformer", {"path": "my folder"})
    assert resolve(RunSpec, ["--model.options.hidden", "[8]"]).model.options == {"hidden": [8]}


def test_a_base_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from fedflat.methods import FedSAM\n\n\nclass Mine(FedSAM):\n    '''client  server  '''\n")
    with allow_code():
        found = base_of("--method.base.name", f"{file}:Mine", "--method.base.rho", "0.4")
        assert (found["name"], found["rho"]) == (f"{file}:Mine", 0.4)
        with pytest.raises(InputError, match="Mine has no field 'rh'"):
            base_of("--method.base.name", f"{file}:Mine", "--method.base.rh", "0.4")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--method.base.rh 1", r"^--method\.base\.rh: unknown flag; did you mean --method\.base\.rho\?$"),
        ("--method.base.name fedsam --method.base.eta 1", r"^method\.base\.eta: unknown key; known are name, rho, ser"),
        ("--method.base.name swa", r"^method\.base: SWA goes around another one itself"),
        ("--method.base.rho 1 --method.base.rho 2", r"^--method\.base\.rho is given twice$"),
        ("--rho 1", r"^--rho: unknown flag; did you mean --method\.rho\?$"),
    ],
)  # fmt: skip
def test_bad_flags_are_one_line(words: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        resolve(RunSpec, [*SWA, *words.split()])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", ['["FedAvg", {name = "FedSAM"}]', '["FedAvg"'])
def test_a_list_that_is_no_json_is_one_line_with_an_example(words: str) -> None:
    with pytest.raises(InputError, match=r"^--methods: a list or a table is JSON on the command line, such"):
        resolve(StudySpec, ["--methods", words])
    example = AS_JSON.strip("'")
    assert [one.label for one in resolve(StudySpec, ["--methods", example]).methods] == ["FedAvg", "FedSAM"]


def test_the_keys_are_listed_with_their_meaning() -> None:
    found = keys(RunSpec)
    assert "radius" in found["method.base.rho"] or "own meaning" in found["method.base.rho"]
    assert "method.base.begin" not in found
    assert {"FedSWA", "FedSAM"} < set(found["method.base.name"].split(", "))
    assert "SWA" not in found["method.base.name"].split(", ")
