"""Exported apps, and folders that are left alone."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from typer.testing import CliRunner

from fedflat.cli.app import app as cli
from fedflat.core.errors import InputError
from fedflat.core.object_references import allow_code
from fedflat.experiments.config_errors import validated
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower.export import export
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.flower.study import Study
from support.flower_fixtures import failing, study_of
from support.own_code import OWN, write_own_code
from support.studies import SMALL


def loaded(folder: Path, what: str) -> dict[str, object]:
    """What a file of an app defines, as Flower would load it."""
    names: dict[str, object] = {"__file__": str(folder / "federated" / f"{what}.py")}
    exec(compile((folder / "federated" / f"{what}.py").read_text(), what, "exec"), names)
    return names


def test_an_app_is_a_few_small_files_without_dependencies(tmp_path: Path) -> None:
    spec = study_of(method="fedsmoo").model_copy(update={"data_dir": "/srv/only/here"})
    export(spec, RunSettings(clients=5), tmp_path / "app")
    files = sorted(str(path.relative_to(tmp_path / "app")) for path in (tmp_path / "app").rglob("*") if path.is_file())
    assert files == [
        "federated/__init__.py",
        "federated/client.py",
        "federated/server.py",
        "pyproject.toml",
        "study.toml",
    ]
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == []
    assert project["tool"]["flwr"]["app"]["config"]["clients"] == 5
    assert "/srv/only/here" not in (tmp_path / "app" / "study.toml").read_text()
    assert isinstance(loaded(tmp_path / "app", "server")["app"], ServerApp)
    assert isinstance(loaded(tmp_path / "app", "client")["app"], ClientApp)


def test_an_app_for_own_samples_shows_where_they_come_from(tmp_path: Path) -> None:
    export(study_of(), RunSettings(clients=2, shape="3x8x8", classes=4), tmp_path / "app")
    names = loaded(tmp_path / "app", "client")
    assert "(n, 3, 8, 8)" in names["samples"].__doc__
    with failing(InputError, "node-config: data is missing"):
        names["samples"]({})


@pytest.mark.parametrize(
    ("changes", "settings", "line"),
    [({}, {"clients": 4}, "clients is 4, and the study's data.clients 5"),
     ({"loss": "regression"}, {"clients": 5}, "loss = 'regression': digits has other labels; let clients"),
     ({"data": {"name": "npz", "clients": 5}}, {"clients": 5}, "data.name = 'npz' is for simulations"),
     ({"participation": 5}, {"clients": 3, "shape": "6", "classes": 2}, "participation"),
     ({"probes": ["sharpness"]}, {"clients": 5}, "probes need all clients' samples"),
     ({"data": {"name": "digits", "clients": 5, "validation": 0.2}}, {"clients": 5, "shape": "6", "classes": 2},
      "data.validation is for named sets")],
)  # fmt: skip
def test_studies_that_no_federation_can_carry_out(tmp_path: Path, changes, settings, line: str) -> None:
    with failing(InputError, line):
        export(study_of(**changes), RunSettings(**settings), tmp_path / "app")
    assert not (tmp_path / "app").exists()


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with failing(InputError, "is there already; an app needs a new folder"):
        export(study_of(), RunSettings(clients=5), tmp_path)


def export_again(folder: Path, **changes) -> None:
    export(study_of(**changes), RunSettings(clients=5), folder, replace=True)


def test_an_app_is_written_over_one_that_was_exported(tmp_path: Path) -> None:
    """Also with other settings; files that running the app has left stay in the folder."""
    app = tmp_path / "app"
    export_again(app, rounds=3)
    (app / "federated" / "__pycache__").mkdir()
    (app / "federated" / "__pycache__" / "server.cpython-311.pyc").touch()
    export_again(app, rounds=7)
    assert "rounds = 7" in (app / "study.toml").read_text()
    fresh = tmp_path / "fresh"
    export(study_of(rounds=7), RunSettings(clients=5), fresh)
    for path in fresh.rglob("*.*"):
        assert (app / path.relative_to(fresh)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["thesis.tex", "federated/data.csv", "deep/er/x", ".git/config", "study.tomlx"])
def test_users_files_in_the_place_of_an_app_are_left_alone(name: str, tmp_path: Path) -> None:
    app = tmp_path / "app"
    export_again(app)
    (app / name).parent.mkdir(parents=True, exist_ok=True)
    (app / name).write_text("mine")
    before = {path: path.read_bytes() for path in app.rglob("*") if path.is_file()}
    first = app / name.split("/")[0] if "/" in name and not name.startswith("federated") else app / name
    with failing(InputError, f"{first} is not what fedflat exports; move it away"):
        export_again(app, rounds=9)
    assert {path: path.read_bytes() for path in app.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["pyproject.toml", "federated/client.py", "federated/server.py"])
def test_users_versions_of_an_apps_files_are_left_alone(name: str, tmp_path: Path) -> None:
    app = tmp_path / "app"
    export_again(app)
    (app / name).write_text("# mine\n")
    with failing(InputError, f"{app / name} is not what fedflat exports"):
        export_again(app)
    assert (app / name).read_text() == "# mine\n"


def test_an_app_that_is_somewhere_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for target in ("elsewhere", "nowhere"):
        link = tmp_path / f"to-{target}"
        link.symlink_to(tmp_path / target)
        with failing(InputError, f"{link} is not what fedflat exports"):
            export_again(link)
    (tmp_path / "file").write_text("mine")
    with failing(InputError, "is not what fedflat exports"):
        export_again(tmp_path / "file")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_command_writes_the_settings(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(study_of().to_toml())
    members = "clinic-a=9 clinic-b=4"
    words = ["flower", "export", str(tmp_path / "run.toml"), str(tmp_path / "app"), "--shape", "6", "--classes", "3"]
    done = CliRunner().invoke(cli, [*words, "--members", members, "--max-samples", "50", "--norm-multiple", "20"])
    assert done.exit_code == 0, done.output
    table = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    found = {key: table[key] for key in ("members", "clients", "max-samples", "norm-multiple")}
    assert found == {"members": members, "clients": 2, "max-samples": 50, "norm-multiple": 20.0}


def test_own_code_goes_with_the_app(tmp_path: Path) -> None:
    """Wherever the app is unpacked, it names the copy inside it; the study's digest changes with the code."""
    write_own_code(tmp_path)
    table = {"name": f"{tmp_path}/own.py:Mine", "scale": 3.0}
    with allow_code():
        spec = validated(RunSpec, {**SMALL, "method": table, "model": {"name": f"{tmp_path}/own.py:net"}})
        export(spec, RunSettings(clients=10), tmp_path / "app")
        digest = Study(spec, RunSettings(clients=10)).digest
    moved = tmp_path / "elsewhere"
    (tmp_path / "app").rename(moved)
    (tmp_path / "own.py").unlink()
    study = Study.load(moved, RunSettings(clients=10))
    assert (moved / "code" / "own.py").read_text() == OWN
    assert study.spec.method.values() == {**spec.method.values(), "name": f"{moved}/code/own.py:Mine"}
    with allow_code():
        assert study.digest == digest
        assert study.module()[1].out_features == 6
        (moved / "code" / "own.py").write_text(OWN + "# changed\n")
        assert study.digest != digest


def test_two_files_of_one_name_cannot_be_in_one_app(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_own_code(tmp_path / folder)
    names = {"method": f"{tmp_path}/a/own.py:Mine", "model": {"name": f"{tmp_path}/b/own.py:net"}}
    with allow_code(), pytest.raises(InputError, match=r"own\.py and .*own\.py have one name; .*rename one"):
        export(validated(RunSpec, {**SMALL, **names}), RunSettings(clients=10), tmp_path / "app")
