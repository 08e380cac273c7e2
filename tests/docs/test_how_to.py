"""Every command of the how-to pages, and of the tutorials, is accepted, and is run in the order of its page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from typer.main import get_command

from fedflat.cli import main
from fedflat.cli.app import app
from fedflat.cli.flags import resolve, split_file
from fedflat.core.errors import InputError
from fedflat.core.object_references import allow_code
from fedflat.experiments.spec import Experiment, RunSpec, StudySpec
from fedflat.experiments.tuning_spec import TuningSpec
from support.effort import in_test_all
from support.fresh_process import SOURCE

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(bash|\{code-block\} \w+)\n(?::caption: (\S+)\n)?(.*?)^```", re.MULTILINE | re.DOTALL)
# A cell of a notebook that writes a file, as the block with a caption that it stands for.
FILE_CELL = re.compile(
    r"^```\{code-cell\} ipython3\n[^`]*?^Path\(\"(\S+?)\"\)\.write_text\('''\n(.*?)'''\);\n```", re.M | re.S
)


def blocks_of(path: Path) -> list[tuple[str, str, str]]:
    """Commands and files, in their order; of federations, what can be done on one machine."""
    text = path.read_text().partition("\n## A federation of your own")[0]
    return BLOCK.findall(FILE_CELL.sub(r"```{code-block} toml\n:caption: \1\n\2```", text))


PAGES = {
    str(path.relative_to(DOCS)): blocks
    for path in sorted(
        [*DOCS.glob("howto/*.md"), *DOCS.glob("tutorials/*.md"), DOCS / "deploy.md", DOCS / "flatness.md"]
    )
    if (blocks := blocks_of(path))
}


# Their commands start a federation, or train what the tests of the same commands in `tests/cli` train.
LONG = {"deploy.md"} | {
    f"howto/{name}.md"
    for name in ("adapters", "coming_from", "own_files", "participation", "resume", "sweeps", "tune", "use_the_model")
}
SPECS: dict[str, type[Experiment]] = {"run": RunSpec, "compare": StudySpec, "work": StudySpec, "tune": TuningSpec}


def test_there_are_pages_with_commands() -> None:
    assert {"howto/own_parts.md", "howto/sweeps.md", "howto/resume.md", "deploy.md"} <= set(PAGES)
    assert {"howto/participation.md", "howto/clusters.md", "flatness.md"} <= set(PAGES)


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
        for line in text.replace("\\\n", " ").splitlines():
            accept(shlex.split(line, comments=True), written)


def accept(command: list[str], written: set[str]) -> None:
    """Parse a command and check its settings; what it would write is then among `written`."""
    program, *words = command
    if program == "python":
        assert Path(words[0]).is_file(), command
        return
    assert program == "fedflat"
    context = parsed(words)
    kind = SPECS.get(context.info_name or "")
    if kind is not None:
        file, flags = split_file(context.args)
        if file is not None and not file.is_file():  # one that an earlier command writes, there alone or with others
            assert any(str(file).startswith(one) for one in written), command
            file = None
        with allow_code():
            can_be_planned(resolve(kind, context.args if file else flags))
    if out := context.params.get("out"):
        written.add(str(Path(out).with_suffix("")))


def parsed(words: list[str]) -> click.Context:
    """The command that is called, with its options; wrong words raise an error of click's."""
    command: click.Command = get_command(app)
    name = "fedflat"
    while isinstance(command, click.Group):
        name, *words = words
        command = command.commands[name]
    return command.make_context(name, list(words))


def can_be_planned(spec: Experiment) -> None:
    """Every run of a study, and every configuration of a search, has settings that go together."""
    if isinstance(spec, StudySpec):
        assert spec.runs()
    elif isinstance(spec, TuningSpec):
        assert all(spec.configurations_of(method) for method in spec.methods)


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
