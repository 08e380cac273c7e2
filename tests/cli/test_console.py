"""One place prints, and what it is given stays text."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedflat.cli
from fedflat.cli.console import WIDE, Console, Described
from fedflat.reports.text_table import literal

HOSTILE = "[/x] [red]no[/red] :smile: \x1b[2J\rfedflat: \u202eall is well\nfedflat: done"
SPELLED = "[/x] [red]no[/red] :smile: \\x1b[2J\\x0dfedflat: \\x202eall is well\\x0afedflat: done"


def printed(write) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    write(console)
    return console.file.getvalue()


def test_a_line_is_text_on_one_line() -> None:
    assert printed(lambda console: console.say(HOSTILE)) == f"{SPELLED}\n"
    assert printed(lambda console: console.caution("[b]", HOSTILE)) == f"[b] {SPELLED}\n"
    assert printed(lambda console: console.say("a", "b")) == "a\nb\n"


def test_a_status_and_a_bar_show_text() -> None:
    from rich.progress import Progress

    assert "[/x]" in printed(lambda console: console.print(console.doing(HOSTILE).renderable.text))
    with Progress(Described(), console=Console(file=io.StringIO())) as bar:
        bar.add_task(HOSTILE)
        assert str(Described().render(bar.tasks[0])) == SPELLED


def test_tables_fit_where_there_is_no_terminal() -> None:
    from rich.table import Table

    table = Table()
    table.add_column(literal("[/x]"))
    table.add_row(literal("y" * (WIDE - 10)))
    console = Console(file=io.StringIO(), width=20)
    console.show(table)
    assert "[/x]" in console.file.getvalue()
    assert "y" * (WIDE - 10) in console.file.getvalue()


def calls(path: Path) -> list[str]:
    """The names of what is called in a file, of methods the last part."""
    found = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in found]


def test_nothing_but_the_console_prints() -> None:
    folder = Path(fedflat.cli.__file__).parent
    for path in folder.glob("*.py"):
        if path.name != "console.py":
            printing = {"print", "echo", "secho", "status", "rule", "log", "print_json", "out"} & set(calls(path))
            assert not printing, f"{path.name} prints by itself: {printing}"
            assert "from rich.console" not in path.read_text(), path.name
    assert "print" in calls(folder / "console.py"), "the test sees what it looks for"


def test_tables_of_the_reports_hold_text_only() -> None:
    """Every title and cell of a rich table is made by `literal`."""
    folder = Path(fedflat.cli.__file__).parent.parent
    for path in [*(folder / "reports").glob("*.py"), *(folder / "cli").glob("*.py")]:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_row":
                assert "literal" in ast.unparse(node), f"{path.name}:{node.lineno}"


@pytest.mark.slow
def test_a_folder_with_the_name_of_markup(fedflat) -> None:
    code, out, err = fedflat("run --data.clients 10 --rounds 1 --flatness [] --participation 2 --out '[/x]'")
    assert (code, err) == (0, "")
    assert out.endswith("results in [/x]\n")
    code, out, _ = fedflat("report '[/x]' --out '[red]'")
    assert code == 0
    assert out.endswith("report: [red]/report.html\n")
    code, out, _ = fedflat("flatness '[/x]' --measure gradient_norm")
    assert code == 0
    assert " x] " in out, "the folder's name"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_reader_that_is_gone_and_a_full_disk_behind_the_output() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(fedflat.cli.__file__).parents[2])}
    command = [sys.executable, "-m", "fedflat", "methods"]
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, b"")
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, check=False)
    assert (ended.returncode, ended.stderr) == (2, b"fedflat: No space left on device\n")
