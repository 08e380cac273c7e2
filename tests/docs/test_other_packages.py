"""The README's table of other packages: its cells are looked up in clones, and a wrong one is found."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from docs import other_packages
from docs.other_packages import Cell, contents, problem_of, problems, shown

FILES = {
    "methods/__init__.py": "",
    "methods/fedavg.py": "",
    "methods/fedsam.py": "rho = 0.1  # Sharpness",
    "methods/fedsam_test.py": "",
    "methods/old/fedprox.py": "",
    "papers/first/README.md": "",
    "notes.md": "hessian",
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A repository, and its commit."""
    folder = tmp_path_factory.mktemp("clones") / "owner+name"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "Begin"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    return folder, commit


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ({"found": 2, "count": "methods/*.py", "except": ["__init__", "*_test"]}, ""),
        ({"found": 2, "count": "methods/*.py"}, "4 files match methods/*.py"),
        ({"found": 1, "count": "papers/*/README.md"}, ""),
        ({"found": 1, "count": "papers/*/README.md", "except": ["first"]}, "0 files match papers/*/README.md"),
        ({"yes": "methods/fedsam.py", "text": "rho"}, ""),
        ({"yes": "methods/fedsam.py", "text": "beta"}, "methods/fedsam.py lacks 'beta'"),
        ({"yes": "methods"}, ""),
        ({"says": "some", "path": "method"}, "there is no method"),
        ({"no": ["hessian", "torch"], "in": "*.py"}, ""),
        ({"no": ["torch", "sharpness"], "in": "*.py"}, "stands in {commit}:methods/fedsam.py"),
        ({"no": ["sharpness"], "in": "papers/*"}, ""),
    ],
)
def test_a_cell_is_looked_up(clone: tuple[Path, str], cell: Cell, problem: str) -> None:
    folder, commit = clone
    assert problem_of(cell, folder, commit) == problem.format(commit=commit)


def test_every_package_and_row_is_looked_up(clone: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, commit = clone
    table: dict[str, Any] = {
        "packages": {"Other": {"repository": "owner/name", "commit": commit}},
        "rows": [{"what": "methods", "Other": {"yes": "nothing"}}, {"what": "papers", "Other": {"yes": "papers"}}],
    }
    monkeypatch.setattr(other_packages, "contents", lambda: table)
    assert problems(folder.parent) == ["Other, methods: there is no nothing"]


def test_what_git_cannot_read_ends_the_command(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="failed in"):
        problem_of({"yes": "a"}, tmp_path, "HEAD")


def test_every_cell_of_the_table_says_where_it_stands() -> None:
    table = contents()
    kinds = ({"count", "found"}, {"yes"}, {"says", "path"}, {"no", "in"})
    for row in table["rows"]:
        assert set(row) == {"what", "fedflat", *table["packages"]}
        assert row["fedflat"] in other_packages.own_cells()
        for name in table["packages"]:
            assert any(kind <= set(row[name]) for kind in kinds), (row["what"], name)
            assert shown(row[name])
