"""Every command of the how-to pages, and of the tutorials, is run in the order of its page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedflat.cli import main
from support.effort import in_test_all
from support.fresh_process import SOURCE

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(bash|\{code-block\} \w+)\n(?::caption: (\S+)\n)?(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {
    str(path.relative_to(DOCS)): blocks
    for folder in ("howto", "tutorials")
    for path in sorted((DOCS / folder).glob("*.md"))
    if (blocks := BLOCK.findall(path.read_text()))
}


LONG = {"howto/federation.md"}  # starts a federation, as the tests of `federation.launch` do


def test_there_are_pages_with_commands() -> None:
    assert {"howto/own_parts.md", "howto/sweeps.md", "howto/resume.md", "howto/federation.md"} <= set(PAGES)
    assert "howto/participation.md" in PAGES


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(page, marks=in_test_all) if page in LONG else page for page in PAGES])
def test_its_commands_run_as_written_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block with a caption is a file, which the commands find under that name."""
    monkeypatch.chdir(tmp_path)
    for kind, name, text in PAGES[page]:
        if kind != "bash":
            assert name, f"{page}: a file without a name"
            (tmp_path / name).write_text(text)
            continue
        for line in text.replace("\\\n", " ").splitlines():
            carry_out(shlex.split(line, comments=True), monkeypatch)


def carry_out(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = command
    if program == "python":
        monkeypatch.setenv("PYTHONPATH", str(SOURCE))
        subprocess.run([sys.executable, *words], check=True)
        return
    assert program == "fedflat"
    monkeypatch.setattr(sys, "argv", ["fedflat", *words])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code, command
