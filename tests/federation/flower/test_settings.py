"""Configurations of runs and nodes that cannot work, and where a client's state is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedflat.core.errors import InputError
from fedflat.federation.flower.settings import NodeSettings, RunSettings
from support.flower_fixtures import OWN_SAMPLES, GridFederation, failing, study_of


@pytest.mark.parametrize(
    ("settings", "line"),
    [({"quorum": 0.0}, "run-config: quorum"), ({"deadline": -1}, "run-config: deadline"),
     ({"clients": 4}, "clients is 4, and the study's data.clients 5: not equal"),
     ({"shape": "3x3"}, "shape and classes go together"), ({"shape": "3 3", "classes": 2}, "shape must be up to four"),
     ({"test": "folder"}, "test goes with own samples"), ({"rounds": 3}, "run-config: rounds: unknown key"),
     ({"wait": True}, "wait must be a number")],
)  # fmt: skip
def test_settings_that_make_no_sense(tmp_path: Path, settings, line: str) -> None:
    with failing(InputError, line):
        _ = GridFederation(study_of(), tmp_path / "federation", **settings).study


def test_the_default_folder_for_clients_state_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert NodeSettings().state_folder == tmp_path / "fedflat" / "federations"
    assert NodeSettings(state="~/x").state_folder == Path.home() / "x"


@pytest.mark.parametrize(
    ("members", "line"),
    [("a=1", "run-config: members names 1 clients, and clients is 2: too few are named"),
     ("a=1 a=2", "run-config: members must be such as clinic-a=1200 clinic-b=800, each once, got 'a=2'"),
     ("a=1 b", "each once, got 'b'"), ("a=1 b=0", "each once, got 'b=0'"), ("a=1 ../b=3", "each once, got '../b=3'"),
     ("a=1 b=1e3", "each once, got 'b=1e3'"), ("a=1 b=" + "9" * 5000, "each once, got 'b=999")],
)  # fmt: skip
def test_members_that_make_no_sense(members: str, line: str) -> None:
    with failing(InputError, line):
        RunSettings.parse("run-config", {**OWN_SAMPLES, "clients": 2, "members": members})


@pytest.mark.parametrize(
    ("setting", "line"),
    [({"max-samples": 0}, "run-config: max-samples"), ({"max-samples": 2**53}, "run-config: max-samples"),
     ({"norm-multiple": 0.5}, "run-config: norm-multiple"), ({"norm-multiple": float("nan")}, "run-config: norm-mult")],
)  # fmt: skip
def test_bounds_that_make_no_sense(setting, line: str) -> None:
    with failing(InputError, line):
        RunSettings.parse("run-config", {**OWN_SAMPLES, **setting})
