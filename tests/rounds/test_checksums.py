"""Digests of files: what has none where all have one, what a killed process leaves, and lists of other programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedflat.core.errors import InputError
from fedflat.rounds.checksums import FILE, Checksums, check_listed


def write(folder: Path, text: str = "a = 1\n", required: bool = True) -> Checksums:
    checksums = Checksums(folder, required)
    checksums.write("study.toml", lambda path: path.write_text(text))
    return checksums


def test_where_digests_are_required_a_file_without_one_is_damaged(tmp_path: Path) -> None:
    checksums = write(tmp_path)
    assert checksums.check("study.toml") == tmp_path / "study.toml"
    (tmp_path / FILE).write_text("")
    with pytest.raises(InputError, match=r"study.toml is missing or damaged: SHA256SUMS does not have its SHA-256"):
        checksums.check("study.toml")
    assert Checksums(tmp_path).problem("study.toml") is None
    (tmp_path / "study.toml").unlink()
    assert checksums.problem("study.toml") == "it is missing"


@pytest.mark.parametrize("old", [None, "old = 1\n"])
def test_a_process_that_is_killed_before_any_rename_leaves_nothing_damaged(
    old: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is there before the file: the new one and the old one are right, and a new file may be missing."""
    for number in range(2):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        if old:
            write(folder, old)
        replaced, rename = [], os.replace

        def stop(source: str, target: str, number: int = number, rename=rename, replaced=replaced) -> None:
            if len(replaced) == number:
                raise KeyboardInterrupt
            replaced.append(target)
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", stop)
            patch.setattr(Path, "unlink", lambda path, missing_ok=False: None)  # the process is gone
            with pytest.raises(KeyboardInterrupt):
                write(folder)
        checksums = Checksums(folder, required=True)
        assert not checksums.knows("study.toml") or checksums.problem("study.toml") is None
        write(folder)
        assert checksums.check("study.toml").read_text() == "a = 1\n"


def test_a_file_that_was_changed_by_hand_is_not_read_from_its_folder(tmp_path: Path) -> None:
    write(tmp_path)
    check_listed(tmp_path / "study.toml")
    check_listed(tmp_path / "other.toml")
    (tmp_path / "study.toml").write_text("a = 2\n")
    with pytest.raises(InputError, match=r"study.toml is not what was written: .*; to change its settings, copy it"):
        check_listed(tmp_path / "study.toml")


def test_a_list_of_another_program_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("rounds = 1\n")
    (tmp_path / FILE).write_text(f"{'0' * 64} *mine.toml\n")
    check_listed(tmp_path / "mine.toml")
