"""The hook that pre-commit runs on a commit message refuses subjects of more than 72 characters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

CONFIGURATION = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-config.yaml").read_text())
HOOKS = {hook["id"]: hook for repository in CONFIGURATION["repos"] for hook in repository["hooks"]}


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        ("x" * 72, False),
        ("x" * 72 + "\n\n" + "A body may have lines of any length. " * 9 + "\n# and comments\n", False),
        ("x" * 73, True),
        ("x" * 73 + "\n\nA body.\n", True),
    ],
)
def test_the_first_line_has_at_most_72_characters(tmp_path: Path, message: str, refused: bool) -> None:
    (tmp_path / "message").write_text(message)
    hook = HOOKS["subject"]
    pygrep = [sys.executable, "-m", "pre_commit.languages.pygrep", *hook["args"], hook["entry"]]
    found = subprocess.run([*pygrep, str(tmp_path / "message")], capture_output=True, check=False)
    assert found.returncode == refused, found.stderr


def test_it_is_installed_for_messages_and_the_others_for_commits() -> None:
    assert HOOKS["subject"]["stages"] == ["commit-msg"]
    assert CONFIGURATION["default_install_hook_types"] == ["pre-commit", "commit-msg"]
    assert CONFIGURATION["default_stages"] == ["pre-commit"], "or the others would run twice for each commit"
