"""Every file of `examples` says at its top what it shows and how it is run, and what it says is what happens."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

from docs import example_headers
from docs.example_headers import EXAMPLES, comment, files, header
from support.blank_figures import blank_figures  # noqa: F401 (used by every test)
from support.documented_commands import accept, carry_out

NAMES = [str(path.relative_to(EXAMPLES)) for path in files()]
LONG = re.compile(r"\b(minutes?|hours?|FOLDER)\b")  # says so in its comment, or needs data that are downloaded
ELSEWHERE = {"pip", "sbatch", "kubectl"}
MOST_LINES = 60


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_its_commands_run_as_written_in_order(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A federation, and what takes minutes, is only planned: every flag and value must be accepted."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    written: set[str] = set()
    for command in map(shlex.split, header(EXAMPLES / name).commands):
        if command[0] in ELSEWHERE:
            continue
        if LONG.search(comment(EXAMPLES / name)) or command[:2] == ["fedflat", "flower"]:
            accept(command, written)
            continue
        if command[0] == "python":
            runpy.run_path(command[1], run_name="__main__")  # here, where torch has been imported
        else:
            carry_out(command, monkeypatch)
        assert capsys.readouterr().out, command


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(("slurm/", "kubernetes/"))])
def test_it_is_short_and_names_itself(name: str) -> None:
    """With the path from the folder of the repository, in which the commands are run."""
    assert len((EXAMPLES / name).read_text().splitlines()) <= MOST_LINES
    assert [one for one in header(EXAMPLES / name).commands if re.search(rf"(?<!\S)examples/{name}\b", one)]


@pytest.mark.parametrize("text", ["", "rounds = 1\n", "# It says what it shows.\nrounds = 1\n", "#     fedflat run\n"])
def test_a_file_that_does_not_say_what_it_shows_and_its_command_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_headers, "EXAMPLES", tmp_path)
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ValueError, match=r"^mine\.toml: "):
        example_headers.table()
