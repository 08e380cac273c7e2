"""Writes a study as a Flower app: a folder of a few small files, for `flwr run`."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomli_w

from ...core.errors import InputError
from ...core.object_references import file_of, portable
from ...experiments.spec import RunSpec, with_names
from ...files import TEMPORARY, read_text, read_toml, system_errors, write_text
from .settings import RunSettings
from .study import FILE, Study, version

PUBLISHER = "fedflat"
PACKAGE = "federated"
CODE = "code"  # the folder of the user's own files
SERVER = '''"""The server of the study in study.toml."""

from pathlib import Path

from fedflat.federation.flower.server_app import server_app

app = server_app(Path(__file__).parents[1])
'''
PLAIN_CLIENT = '''"""A client of the study in study.toml, whose node states which samples it has."""

from pathlib import Path

from fedflat.federation.flower.client_app import client_app

app = client_app(Path(__file__).parents[1])
'''
OWN_SAMPLES_CLIENT = '''"""A client of the study in study.toml, with its own samples."""

from pathlib import Path

from fedflat.federation.flower.client_app import client_app
from fedflat.federation.flower.study import stored


def samples(node):
    """Return this client's samples: x, {numbers} of shape (n, {shape}), and y (n,).

    y has class indices, or names from the study's class_names.

    node: the node's configuration, `flower-supernode --node-config`. Flower starts a process for every message, and
    each process calls this function: store the results of slow steps on disk. `stored` reads x.npy and y.npy in the
    folder that `data` in the configuration names.
    """
    return stored(node)


app = client_app(Path(__file__).parents[1], samples)
'''


def export(spec: RunSpec, settings: RunSettings, folder: Path, replace: bool = False) -> None:
    """Write the app of a study into a new folder; with `replace`, an app that was exported before may be overwritten.

    Raises InputError, naming the field, for a study that no federation can carry out, and InputError for a folder that
    holds any other file. In both cases nothing is written.
    """
    study = exported_study(spec, settings)
    if replace:
        for path in [folder, *sorted(folder.rglob("*"))]:
            if os.path.lexists(path) and not _is_exported(path, folder):
                raise InputError(f"{path} is not what fedflat exports; move it away")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already; an app needs a new folder")
    with system_errors(folder, "written"):
        (folder / PACKAGE).mkdir(parents=True, exist_ok=True)
    text, code = _with_code_inside(study.spec)
    client = OWN_SAMPLES_CLIENT.replace("{shape}", ", ".join(map(str, study.shape)))
    client = client.replace("{numbers}", study.numbers)
    files = {
        "pyproject.toml": tomli_w.dumps(_project(study)),
        FILE: text,
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/server.py": SERVER,
        f"{PACKAGE}/client.py": client if study.own_samples and not study.reads_files else PLAIN_CLIENT,
        **{f"{CODE}/{path.name}": read_text(path) for path in code},
    }
    if code:
        with system_errors(folder, "written"):
            (folder / CODE).mkdir(exist_ok=True)
    for name, content in files.items():
        write_text(folder / name, content)


def exported_study(spec: RunSpec, settings: RunSettings) -> Study:
    """Return the study of the app that `export` writes; nothing is written here.

    Raises InputError, naming the field, for a study that no federation can carry out.
    """
    study = Study(spec.model_copy(update={"data_dir": None}), settings)  # each machine has its own data folder
    study.private_rounds(spec.method.object)  # refuses rounds beyond the budget now, not when all have registered
    _with_code_inside(study.spec)
    return study


def _with_code_inside(spec: RunSpec) -> tuple[str, list[Path]]:
    """Return the TOML of `spec`, and the files of the user's code that `spec` names.

    The TOML names the code's files in the app's folder `code`. Raises InputError if two files have the same name.
    """
    files = sorted({path for name in spec.outside_names() if (path := file_of(name)) is not None})
    for one, other in pairwise(sorted(files, key=lambda path: path.name)):
        if one.name == other.name:
            raise InputError(f"{one} and {other} have one name; an app has both in one folder: rename one")
    table = spec.table()
    return tomli_w.dumps(with_names(table, lambda name: f"{CODE}/{portable(name)}" if file_of(name) else name)), files


def _is_exported(path: Path, folder: Path) -> bool:
    """Return whether a path in the folder of an app was written by `export`, or by running the app.

    The result is False for a program that the user has changed, or that another version of fedflat wrote differently.
    """
    name = path.relative_to(folder).as_posix()
    if path.is_symlink():
        return False
    if path.is_dir():
        return name in (".", PACKAGE, f"{PACKAGE}/__pycache__", CODE, f"{CODE}/__pycache__")
    if name == "pyproject.toml":
        table: object = read_toml(path)
        for key in ("tool", "flwr", "app", "publisher"):
            table = table.get(key) if isinstance(table, dict) else None
        return table == PUBLISHER
    if path.parent == folder / CODE:
        return name.endswith(".py")
    if name.endswith(".py"):
        programs = {f"{PACKAGE}/__init__.py": "", f"{PACKAGE}/server.py": SERVER}
        return read_text(path) == (programs | {f"{PACKAGE}/client.py": PLAIN_CLIENT}).get(name)
    caches = (f"{PACKAGE}/__pycache__/", f"{CODE}/__pycache__/")
    return name == FILE or name.startswith(caches) or bool(TEMPORARY.fullmatch(path.name))


def _project(study: Study) -> dict[str, Any]:
    """Return the app's pyproject.toml as a table."""
    return {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": study.spec.label.lower().replace("_", "-"),
            "version": "1.0.0",
            "description": f"{study.spec.label} by fedflat {version()}, which every machine has installed",
            "license": "Apache-2.0",
            "dependencies": [],  # nothing is installed when a run starts
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {
                "app": {
                    "publisher": PUBLISHER,
                    "components": {"serverapp": f"{PACKAGE}.server:app", "clientapp": f"{PACKAGE}.client:app"},
                    "config": study.settings.model_dump(by_alias=True, exclude_none=True),
                }
            },
        },
    }
