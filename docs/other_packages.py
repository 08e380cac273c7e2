"""The README's table of other packages, from docs/other_packages.toml; as a command, look its cells up in clones.

python -m docs.other_packages FOLDER: FOLDER holds a clone of each repository, as OWNER+NAME or OWNER+NAME/repo. Files
are read at the commits that the table names.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from benchmarks.tables import Table
from fedflat.experiments.recipe import all_recipes
from fedflat.methods import all_methods
from fedflat.metrics.flatness import all_measures

FILE = Path(__file__).with_suffix(".toml")
Cell = dict[str, Any]


def contents() -> dict[str, Any]:
    """Return the packages and the rows of the table."""
    return tomllib.loads(FILE.read_text())


def own_cells() -> dict[str, str]:
    """Return the cells of fedflat by name; the counts are read off the package."""
    groups = Counter(cls.group for cls in all_methods().values())
    return {
        "methods": str(len(all_methods())),
        "flat": str(groups["flat"]),
        "personal": str(groups["personal"]),
        "measures": str(len(all_measures())),
        "recipes": f"[{len(all_recipes())} recipes](docs/recipes.md)",
        "intervals": "[yes](docs/reports.md)",
        "resume": "[bit for bit](docs/durability.md)",
        "privacy": "[yes](docs/privacy.md)",
        "federation": "[through Flower](docs/deploy.md)",
        "frameworks": "no",
    }


def packages_table() -> str:
    """Return the table as Markdown."""
    content, own = contents(), own_cells()
    packages = content["packages"]
    rows = [(row["what"], own[row["fedflat"]], *(shown(row[name]) for name in packages)) for row in content["rows"]]
    head = [f"[{name}](https://github.com/{one['repository']})" for name, one in packages.items()]
    return Table(("", "fedflat", *head), rows).markdown()


def shown(cell: Cell) -> str:
    """Return the text of a cell."""
    if "no" in cell:
        return str(cell.get("says", "no"))
    return (
        " ".join(map(str, (cell["found"], cell.get("unit", "")))).strip()
        if "count" in cell
        else cell.get("says", "yes")
    )


def problem_of(cell: Cell, clone: Path, commit: str) -> str:
    """Return what the files of a clone say against a cell; empty if they agree."""
    files = files_of(clone, commit)
    if "count" in cell:
        found = counted(files, cell["count"], cell.get("except", []))
        return "" if found == cell["found"] else f"{found} files match {cell['count']}"
    if "no" in cell:
        words = [word for name in cell["no"] for word in ("-e", name)]
        searched = [f":(glob)**/{cell['in']}" if "/" not in cell["in"] else cell["in"]]
        holding = git(clone, "grep", "--ignore-case", "--files-with-matches", "--fixed-strings", *words, commit, "--",
                      *searched)  # fmt: skip
        return f"stands in {holding.splitlines()[0]}" if holding else ""
    path = cell.get("yes") or cell["path"]
    if not any(file == path or file.startswith(f"{path}/") for file in files):
        return f"there is no {path}"
    return "" if cell.get("text", "") in git(clone, "show", f"{commit}:{path}") else f"{path} lacks {cell['text']!r}"


def counted(files: list[str], pattern: str, without: list[str]) -> int:
    """Count the files that match `pattern`, whose stars match no slash; but for those with a name in `without`.

    The name of a file called README.md is that of its folder.
    """
    matching = [PurePosixPath(file) for file in files if PurePosixPath(file).match(f"/{pattern}".lstrip("/"))]
    at_depth = [path for path in matching if len(path.parts) == pattern.count("/") + 1]
    names = [path.parent.name if path.name == "README.md" else path.stem for path in at_depth]
    return sum(not any(fnmatch(name, some) for some in without) for name in names)


@cache
def files_of(clone: Path, commit: str) -> list[str]:
    """Return the paths of the files of a commit."""
    return git(clone, "ls-tree", "-r", "--name-only", commit).splitlines()


def git(clone: Path, *words: str) -> str:
    """Return what a git command prints about a clone."""
    ended = subprocess.run(["git", "-C", str(clone), *words], capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1):  # 1: `git grep` has found nothing
        raise SystemExit(f"git {' '.join(words[:2])} failed in {clone}: {ended.stderr.strip()}")
    return ended.stdout


def problems(folder: Path) -> list[str]:
    """Return a line for each cell that the clones in `folder` contradict."""
    content, found = contents(), []
    for name, package in content["packages"].items():
        clone = folder / package["repository"].replace("/", "+")
        clone = clone / "repo" if (clone / "repo").is_dir() else clone
        for row in content["rows"]:
            if problem := problem_of(row[name], clone, package["commit"]):
                found.append(f"{name}, {row['what']}: {problem}")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    against = problems(Path(sys.argv[1]))
    print("\n".join(against) or "every cell is as the clones have it")
    sys.exit(bool(against))
