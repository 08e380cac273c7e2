"""Rules that hold for the whole package, read off its source, and names that stay where they belong."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import fedflat
from fedflat.core.errors import InputError
from fedflat.federation.client_names import checked_name
from fedflat.federation.membership import checked_federation

SOURCE = Path(fedflat.__file__).parent
# What runs code that is in a file or came over a network, if it is given one: the call, and the files that may make it.
DANGEROUS = {
    "pickle.load": (),
    "pickle.loads": ("engine/workers/process.py", "engine/shared_memory.py"),  # what this program has just made itself
    "cloudpickle.load": (),
    "cloudpickle.loads": (),
    "pickle.Unpickler": (),
    "torch.load": (),
    "np.load": (
        "data/cache.py",
        "data/sources.py",
        "federation/flower/study.py",
        "metrics/flatness/surface.py",
    ),  # allow_pickle=False, see below
    "yaml.load": (),
    "os.system": (),
    "os.popen": (),
    "eval": (),
    "exec": (),
    "compile": (),
    "__import__": (),
}


@cache
def written() -> tuple[list[tuple[str, str, dict[str | None, str]]], list[tuple[str, str, list[str]]]]:
    """Find every call in the package (file, dotted name, keywords) and every class (file, name, bases)."""
    calls, classes = [], []
    for path in sorted(SOURCE.rglob("*.py")):
        file = str(path.relative_to(SOURCE))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                calls.append((file, ast.unparse(node.func), keywords))
            elif isinstance(node, ast.ClassDef):
                classes.append((file, node.name, [ast.unparse(base) for base in node.bases]))
    return calls, classes


@pytest.mark.slow
def test_nothing_that_comes_from_elsewhere_is_run() -> None:
    calls, _ = written()
    assert [(name, file) for file, name, _ in calls if name in DANGEROUS and file not in DANGEROUS[name]] == []
    assert {name for _, name, _ in calls} & {"pickle.loads", "np.load"}, "the walk finds calls"


def test_arrays_are_read_without_pickles() -> None:
    reads = [keywords.get("allow_pickle") for _, name, keywords in written()[0] if name == "np.load"]
    assert len(reads) >= 3
    assert set(reads) == {"False"}


def test_programs_are_started_without_a_shell() -> None:
    started = [keywords for _, name, keywords in written()[0] if name in ("subprocess.run", "subprocess.Popen")]
    assert len(started) >= 3
    assert not [keywords for keywords in started if "shell" in keywords]


def test_the_one_unpickler_takes_arrays_only() -> None:
    classes = [(file, name) for file, name, bases in written()[1] if any("Unpickler" in base for base in bases)]
    assert classes == [("data/readers/array_files.py", "_OnlyArrays")]


HOSTILE = (
    "", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\0b", "a\nb", " a", "a ", "-rf", ".hidden", "a" * 65, "~",
    "~root", "$HOME", "`id`", "a;b", "a|b", "C:", "ä", "％2e％2e", "a\u202eb", "con\r", None, 3, b"a",
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_clients_and_federations_are_refused_before_they_are_paths(name: object) -> None:
    for check in (checked_name, checked_federation):
        with pytest.raises(InputError) as told:
            check(name)
        assert str(told.value).isprintable()


@pytest.mark.parametrize("name", ["a", "clinic-a", "A.b_c-9", "x" * 64])
def test_usual_names_are_taken(name: str) -> None:
    assert checked_name(name) == name
