"""Objects outside the package: found by file, module or entry point, run only where that is allowed."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from inspect import isclass
from pathlib import Path

import pytest

from fedflat.core import object_references
from fedflat.core.errors import InputError
from fedflat.core.object_references import (
    ExtensionPoint,
    allow_code,
    find_outside,
    is_code_allowed,
    is_outside,
    load_object,
    origin,
    portable,
    relative_to,
    resolved,
    short_name,
)

CLASSES = ExtensionPoint("classes", "a class", isclass)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file of the user's, which leaves a mark when it is run."""
    path = tmp_path / "own.py"
    mark = f"with open({str(tmp_path / 'mark')!r}, 'a') as mark:\n    mark.write('run ')\n"
    path.write_text(f"{mark}class Mine:\n    inner = str\nvalue = 3\n")
    return path


def test_a_file_is_not_run_unless_that_is_allowed(own: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"own.py:Mine names code, which is not run without permission: .*--allow-code"
    ):
        load_object(f"{own}:Mine", CLASSES)
    assert not (tmp_path / "mark").exists()
    with allow_code():
        assert load_object(f"{own}:Mine", CLASSES).__name__ == "Mine"
    assert not is_code_allowed()
    with pytest.raises(InputError, match="names code"):
        load_object(f"{own}:Mine", CLASSES)


def test_a_file_is_run_once(own: Path, tmp_path: Path) -> None:
    with allow_code():
        first, second = load_object(f"{own}:Mine", CLASSES), load_object(f"{own}:Mine", CLASSES)
    assert first is second
    assert (tmp_path / "mark").read_text() == "run "


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(f"class Mine:\n    value = {value}\n")
    with allow_code():
        assert [load_object(f"{tmp_path}/{folder}/same.py:Mine", CLASSES).value for folder in "ab"] == [1, 2]


def test_a_module_and_what_is_in_a_class_can_be_named(own: Path) -> None:
    with allow_code():
        assert load_object("collections:OrderedDict", CLASSES).__name__ == "OrderedDict"
        assert load_object(f"{own}:Mine.inner", CLASSES) is str


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_own.py").write_text("class Base:\n    pass\n")
    (tmp_path / "own.py").write_text("from beside_own import Base\nclass Mine(Base):\n    pass\n")
    with allow_code():
        assert load_object(f"{tmp_path}/own.py:Mine", CLASSES).__base__.__name__ == "Base"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Mine(:\n", "line 1 raises SyntaxError: invalid syntax"),
        ("x = 1\nx = 1 / 0\n", "line 2 raises ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "line 1 raises SystemExit: 3"),
        ("import no_such_module\n", "line 1 raises ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise ValueError('one\\ntwo \\x1b[2J')\n", "line 1 raises ValueError: one"),
        ("class Mind:\n    pass\n", "there is no 'Mine'; did you mean Mind?"),
        ("Mine = 3\n", "own.py:Mine is a int, not a class"),
    ],
)
def test_what_cannot_be_had_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own.py").write_text(text)
    with allow_code(), pytest.raises(InputError) as caught:
        load_object(f"{tmp_path}/own.py:Mine", CLASSES)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_file_that_failed_can_be_mended(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("1 / 0")
    with allow_code():
        with pytest.raises(InputError):
            load_object(f"{own}:Mine", CLASSES)
        own.write_text("class Mine:\n    pass\n")
        assert load_object(f"{own}:Mine", CLASSES).__name__ == "Mine"


def test_missing_files_and_modules_are_named(tmp_path: Path) -> None:
    with allow_code():
        with pytest.raises(InputError, match=f"there is no file {tmp_path}/gone.py"):
            load_object(f"{tmp_path}/gone.py:Mine", CLASSES)
        with pytest.raises(
            InputError, match=r"gone_too.module:Mine: there is no module 'gone_too' that Python can import"
        ):
            load_object("gone_too.module:Mine", CLASSES)


def test_a_point_may_refuse_what_cannot_work(own: Path) -> None:
    def refuse(_: object) -> None:
        raise InputError("Mine is too short")

    with allow_code(), pytest.raises(InputError, match=r"own.py:Mine: Mine is too short"):
        load_object(f"{own}:Mine", ExtensionPoint("classes", "a class", isclass, refuse))


def test_an_entry_point_is_found_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"ordered": EntryPoint("ordered", "collections:OrderedDict", "fedflat.classes"),
               "broken": EntryPoint("broken", "gone_too:Mine", "fedflat.classes")}  # fmt: skip
    monkeypatch.setattr(object_references, "_entry_points", lambda group: entries if group == "fedflat.classes" else {})
    assert is_outside("Ordered", CLASSES)
    assert not is_outside("Order", CLASSES)
    assert find_outside("Ordered", CLASSES).__name__ == "OrderedDict"
    assert find_outside("Order", CLASSES) is None
    with pytest.raises(InputError, match=r"broken \(gone_too:Mine\): there is no module 'gone_too'"):
        find_outside("broken", CLASSES)


def test_names_with_and_without_their_folder(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolved("own.py:Mine") == f"{own}:Mine"
    assert relative_to(Path("a"), "own.py:Mine") == "a/own.py:Mine"
    assert relative_to(Path("a"), f"{own}:Mine") == f"{own}:Mine"
    assert portable(f"{own}:Mine") == "own.py:Mine"
    assert short_name(f"{own}:Mine") == "Mine"
    for name in ("fedavg", "package.module:Name"):
        assert resolved(name) == relative_to(Path("a"), name) == portable(name) == name


def test_the_origin_is_the_file_with_its_digest(own: Path) -> None:
    import hashlib

    with allow_code():
        found = origin(f"{own}:Mine", CLASSES)
    assert found is not None
    assert (found.file, found.sha256) == (str(own), hashlib.sha256(own.read_bytes()).hexdigest())


def test_no_installed_module_is_hidden_by_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("hidden = True\n")
    (tmp_path / "own.py").write_text("import json\nclass Mine:\n    hidden = hasattr(json, 'hidden')\n")
    with allow_code():
        assert not load_object(f"{tmp_path}/own.py:Mine", CLASSES).hidden
    assert str(tmp_path) in sys.path
