"""Every command of the how-to pages, and of the tutorials, is accepted, and is run in the order of its page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from fedflat.core.errors import InputError
from support.blank_figures import blank_figures  # noqa: F401 (used by every test)
from support.documented_commands import accept, carry_out, commands_of
from support.effort import in_test_all

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(bash|\{code-block\} \w+)\n(?::caption: (\S+)\n)?(.*?)^```", re.MULTILINE | re.DOTALL)
# A cell of a notebook that writes a file, as the block with a caption that it stands for.
FILE_CELL = re.compile(
    r"^```\{code-cell\} ipython3\n[^`]*?^Path\(\"(\S+?)\"\)\.write_text\('''\n(.*?)'''\);\n```", re.M | re.S
)
INCLUDED = re.compile(r"^```\{literalinclude\} (\S+)\n:language: (\w+)\n(:caption: \S+\n)```", re.MULTILINE)


def blocks_of(page: Path) -> list[tuple[str, str, str]]:
    """Commands and files, also included ones, in their order; of federations, what can be done on one machine."""
    text = page.read_text().partition("\n## A federation of your own")[0]
    text = INCLUDED.sub(
        lambda found: f"```{{code-block}} {found[2]}\n{found[3]}{(page.parent / found[1]).read_text()}```", text
    )
    return BLOCK.findall(FILE_CELL.sub(r"```{code-block} toml\n:caption: \1\n\2```", text))


PAGES = {
    str(path.relative_to(DOCS)): blocks
    for path in sorted(
        [
            *DOCS.glob("howto/*.md"),
            *DOCS.glob("tutorials/*.md"),
            DOCS / "deploy.md",
            DOCS / "flatness.md",
            DOCS / "privacy.md",
        ]
    )
    if (blocks := blocks_of(path))
}
# Their commands start a federation, or train what the tests of the same commands in `tests/cli` train.
LONG = {"deploy.md", "privacy.md"} | {
    f"howto/{name}.md"
    for name in (
        "adapters",
        "coming_from",
        "own_files",
        "participation",
        "resume",
        "sweeps",
        "tasks",
        "tune",
        "use_the_model",
    )
}


def test_there_are_pages_with_commands() -> None:
    assert {"howto/own_parts.md", "howto/sweeps.md", "howto/resume.md", "deploy.md"} <= set(PAGES)
    assert {"howto/participation.md", "howto/clusters.md", "flatness.md"} <= set(PAGES)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize("page", [pytest.param(page, marks=in_test_all) if page in LONG else page for page in PAGES])
def test_its_commands_run_as_written_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block with a caption is a file, which the commands find under that name."""
    monkeypatch.chdir(tmp_path)
    for kind, name, text in PAGES[page]:
        if kind != "bash":
            assert name, f"{page}: a file without a name"
            (tmp_path / name).write_text(text)
            continue
        for command in commands_of(text):
            carry_out(command, monkeypatch)


@pytest.mark.parametrize("page", sorted(LONG))
def test_its_commands_and_files_are_accepted(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command, flag and name is known, every value fits, every program is Python; nothing is trained."""
    monkeypatch.chdir(tmp_path)
    written: set[str] = set()
    for kind, name, text in PAGES[page]:
        if kind != "bash":
            Path(name).write_text(text)
            if name.endswith(".py"):
                compile(text, name, "exec")
            continue
        for command in commands_of(text):
            accept(command, written)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("fedflat bets runs/sweep", KeyError),
        ("fedflat best runs/sweep --outt chosen.toml", click.NoSuchOption),
        ("fedflat compare nobody-wrote.toml", AssertionError),
        ("fedflat run --method fedfoo", InputError),
        ("fedflat run --data.client 5", InputError),
        ("fedflat compare --methods swa --rounds 2", InputError),
        ("python nobody_wrote.py", AssertionError),
    ],
)
def test_a_wrong_command_is_not_accepted(
    line: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        accept(shlex.split(line), set())
