"""The commit of a clone, and none for a package that only happens to lie in somebody's repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fedflat.rounds import segments

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("git") is None, reason="no git on this machine")]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a package of one file, which is the one that is looked at."""
    package = tmp_path / "src" / "fedflat"
    package.mkdir(parents=True)
    (package / "file.py").write_text("1\n")
    for words in ("init", "add .", "-c user.name=a -c user.email=a@b commit -m first"):
        subprocess.run(["git", "-C", str(tmp_path), *words.split()], check=True, capture_output=True)
    monkeypatch.setattr(segments, "PACKAGE", package)
    segments.commit_of_code.cache_clear()
    yield tmp_path
    segments.commit_of_code.cache_clear()


def head(clone: Path) -> str:
    told = subprocess.run(["git", "-C", str(clone), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return told.stdout.strip()


def test_it_is_the_head_of_the_clone(clone: Path) -> None:
    assert segments.commit_of_code() == head(clone)[:12]


def test_changed_files_are_told(clone: Path) -> None:
    (clone / "src/fedflat/file.py").write_text("2\n")
    assert segments.commit_of_code() == f"{head(clone)[:12]}-dirty"


def test_texts_and_results_in_docs_are_no_code(clone: Path) -> None:
    """Also where a ledger there was committed, and has got an entry since."""
    (clone / "docs").mkdir()
    for file, expected in (("docs/ledger.json", ""), ("studies.py", "-dirty")):
        (clone / file).write_text("1\n")
        for words in ("add .", "-c user.name=a -c user.email=a@b commit -m next"):
            subprocess.run(["git", "-C", str(clone), *words.split()], check=True, capture_output=True)
        (clone / file).write_text("2\n")
        segments.commit_of_code.cache_clear()
        assert segments.commit_of_code() == f"{head(clone)[:12]}{expected}"


def test_a_file_that_was_touched_and_not_changed_is_as_committed(clone: Path) -> None:
    os.utime(clone / "src/fedflat/file.py", (1e9, 1e9))
    assert segments.commit_of_code() == head(clone)[:12]


@pytest.mark.parametrize("setting", ["diff.external", "diff.own.textconv", "diff.own.command"])
def test_no_program_that_compares_files_is_started(clone: Path, setting: str) -> None:
    program = clone / ".git" / "program"
    program.write_text(f"#!/bin/sh\ntouch {clone}/.git/started\n")
    program.chmod(0o755)
    subprocess.run(["git", "-C", str(clone), "config", setting, str(program)], check=True)
    (clone / ".git" / "info" / "attributes").write_text("*.py diff=own\n")
    (clone / "src/fedflat/file.py").write_text("2\n")
    assert segments.commit_of_code() == f"{head(clone)[:12]}-dirty"
    assert not (clone / ".git" / "started").exists()
    subprocess.run(["git", "-C", str(clone), "diff"], check=True, capture_output=True)
    assert (clone / ".git" / "started").exists(), "git itself starts it"


def test_no_program_of_the_clone_is_started(clone: Path) -> None:
    program = clone / "fsmonitor"
    program.write_text(f"#!/bin/sh\ntouch {clone}/started\n")
    program.chmod(0o755)
    subprocess.run(["git", "-C", str(clone), "config", "core.fsmonitor", str(program)], check=True)
    assert segments.commit_of_code()
    assert not (clone / "started").exists()
    subprocess.run(["git", "-C", str(clone), "status"], check=True, capture_output=True)
    assert (clone / "started").exists(), "git itself starts it"


def test_an_installed_package_has_none(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = clone / "lib" / "fedflat"
    installed.mkdir(parents=True)
    monkeypatch.setattr(segments, "PACKAGE", installed)
    assert segments.commit_of_code() is None


def test_without_a_repository_or_git_there_is_none(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.move(clone / ".git", clone / "elsewhere")
    assert segments.commit_of_code() is None
    shutil.move(clone / "elsewhere", clone / ".git")
    segments.commit_of_code.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert segments.commit_of_code() is None
