"""Flags of a method inside a method, over files and over each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedflat.cli.flag_names import LISTS, TABLES, check_flags
from fedflat.cli.flags import AS_JSON, _field, keys, override, resolve
from fedflat.core.errors import InputError
from fedflat.core.object_references import allow_code
from fedflat.experiments.schema import field_classes
from fedflat.experiments.settings_tables import is_list
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
        with pytest.raises(InputError, match=r"method\.base\.rh: unknown key; did you mean rho"):
            base_of("--method.base.name", f"{file}:Mine", "--method.base.rh", "0.4")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--method.base.rh 1", r"^--method\.base\.rh: unknown flag; did you mean --method\.base\.rho\?$"),
        ("--method.base.name fedsam --method.base.eta 1", r"^method\.base\.eta: unknown key; known are name, rho, ser"),
        ("--method.base.name swa", r"^method\.base: SWA is a wrapper itself"),
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
    assert "radius" in found["method.base.rho"] or "meaning and default differ" in found["method.base.rho"]
    assert "method.base.begin" not in found
    assert {"FedSWA", "FedSAM"} < set(found["method.base.name"].split(", "))
    assert "SWA" not in found["method.base.name"].split(", ")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--client.learning_rate 0.1", "unknown flag; did you mean --client.lr?"),
        ("--learning-rate 0.1", "unknown flag; did you mean --client.lr?"),
        ("--partition dirichlet --alpha 0.3", "unknown flag; did you mean --partition.alpha?"),
        ("--method fedsam --alpha 0.3", "unknown flag; did you mean --method.alpha?"),
        ("--partition iid --method feddyn --alpha 1",
         "unknown flag; did you mean --method.alpha or --partition.alpha?"),
        ("--clients 3", "unknown flag; did you mean --data.clients?"),
        ("--methd.rho=1", "unknown flag; did you mean --method.rho?"),
        ("--methods fedavg", "unknown flag; did you mean --method? `fedflat compare` takes --methods"),
        ("--xyzzy 1", "unknown flag; `--keys` lists them all"),
    ],
)  # fmt: skip
def test_a_mistyped_flag_has_one_answer_before_and_after_the_settings_are_known(words: str, problem: str) -> None:
    for refuse in (check_flags, lambda given: resolve(RunSpec, given)):
        with pytest.raises(InputError) as caught:
            refuse(words.split())
        assert str(caught.value).endswith(f": {problem}")


@pytest.mark.parametrize("spec", [RunSpec, StudySpec])
def test_no_flag_that_is_known_is_refused_before_the_settings_are_known(spec: type[RunSpec | StudySpec]) -> None:
    lists = {name for name, info in spec.model_fields.items() if is_list(info)}
    known = [key for key in keys(spec) if key.partition(".")[0] not in lists]
    assert [key for key in known if _field(spec, key) is None] == []
    kind = "study" if spec is StudySpec else "run"
    check_flags([f"--{key}=1" for key in (*known, *lists, "model.options.x", "method", "partition")[:-2]], kind)
    assert set(LISTS) & set(spec.model_fields) == {name for name in lists if field_classes(spec.model_fields[name])}
    tables = {name for name, info in spec.model_fields.items() if getattr(info.annotation, "__origin__", None) is dict}
    assert tables | {"participation"} == set(TABLES) & set(spec.model_fields)


def test_fields_of_a_class_outside_are_not_refused_before_it_is_loaded() -> None:
    check_flags(["--method", "my.py:Mine", "--method.zeta", "1"])
    check_flags(["run.toml", "--partition.zeta", "1"])
    with pytest.raises(InputError, match="unknown flag"):
        check_flags(["--method", "fedsam", "--method.zeta", "1"])


def test_the_file_of_a_study_is_no_run_and_the_other_way_round(tmp_path: Path) -> None:
    study, run = tmp_path / "study.toml", tmp_path / "run.toml"
    study.write_text('methods = ["FedAvg"]\n')
    run.write_text('method = "FedAvg"\n')
    with pytest.raises(InputError, match=r"^methods: .*study\.toml is the file of a study; use `fedflat compare .*`$"):
        resolve(RunSpec, [str(study)])
    with pytest.raises(InputError, match=r"^method: .*run\.toml is the file of a run; use `fedflat run .*`$"):
        resolve(StudySpec, [str(run)])


def test_lists_are_repeated_or_have_commas_or_are_json() -> None:
    for words in ("--seeds 3 --seeds 4", "--seeds 3,4", "--seeds [3,4]", "--seeds=[3] --seeds 4"):
        assert resolve(StudySpec, words.split()).seeds == [3, 4]
    for words in (
        "--methods fedavg,fedsam",
        '--methods ["fedavg","fedsam"]',
        '--methods fedavg --methods {"name":"fedsam"}',
    ):
        assert [one.label for one in resolve(StudySpec, words.split()).methods] == ["FedAvg", "FedSAM"]
    assert resolve(RunSpec, ["--flatness", "[]"]).flatness == []


@pytest.mark.parametrize(
    "words", ["--guard none --guard.multiple 3", "--rounds.x 3", "--guard 3", "--guard [3]", "--model.options 3", "--",
              "-x", "--=3", "--seeds 1", "--model.options.a.b 3", "--method", "--client {"],
)  # fmt: skip
def test_what_is_no_flag_is_one_line(words: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(RunSpec, words.split())
    assert "\n" not in str(caught.value)
