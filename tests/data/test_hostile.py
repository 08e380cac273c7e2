"""A hostile data file ends in one printable line that names it, soon and in little memory, and nothing is run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedflat.core.errors import printable
from support import hostile_data
from support.hostile_data import MIB, cases

MEMORY = (
    120 * MIB
)  # bytes; the largest of these files has some 5 MiB, and may unpack to a hundred times the packed part
SECONDS = 20.0  # a loading takes; machines are busy


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of each, in one process of its own, in which nothing is caught that a user would not see."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the system does not tell the peak of memory")
    command = [sys.executable, "-W", "error", "-m", "support.hostile_data", str(tmp_path_factory.mktemp("hostile"))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}


def test_there_are_as_many_as_were_ever_tried() -> None:
    assert len(cases()) >= 44


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
def test_it_is_refused_in_one_line_and_does_no_harm(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    one = outcomes[name]
    assert one["error"] == "InputError", one
    assert printable(one["message"]) == one["message"]
    assert one["message"].startswith("data")
    assert not one["ran"]
    assert one["seconds"] < SECONDS
    assert one["bytes"] < MEMORY


def test_the_marks_would_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a list of formats, Pillow starts `gs` from the PATH."""
    from PIL import Image

    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv(hostile_data.MARK, "")
    mark = hostile_data.watch_programs(tmp_path)
    path = tmp_path / "photo.jpg"
    path.write_bytes(hostile_data.POSTSCRIPT)
    with Image.open(path) as image, pytest.raises(OSError, match=r"."):
        image.convert("RGB")
    assert mark.exists()
