"""Workflows may do little, end in time and run known code; forms for issues are forms."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

GITHUB = Path(__file__).parents[2] / ".github"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((GITHUB / "workflows").glob("*.yml"))}
JOBS: dict[str, dict[str, Any]] = {
    f"{name}: {job}": content for name, workflow in WORKFLOWS.items() for job, content in workflow["jobs"].items()
}
# What a job may do beside reading, and why a job of that name needs it.
MAY = {
    "docs: publish": {"pages": "write", "id-token": "write"},
    "release: attest": {"id-token": "write", "attestations": "write"},
    "release: pypi": {"id-token": "write"},
    "release: github": {"contents": "write"},
}
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")


@pytest.mark.parametrize("name", WORKFLOWS)
def test_nothing_may_be_written_unless_a_job_says_so(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_may_do_what_it_needs_and_ends_in_time(name: str) -> None:
    """A job that may write checks out no code and installs nothing: what it uses was built by one that may not."""
    job = JOBS[name]
    assert job.get("permissions", {}) == MAY.get(name, {})
    assert job["timeout-minutes"] <= 75
    if name in MAY:
        assert not re.search(r"actions/checkout|\bpip\b|\bmake\b", str(job["steps"]))


@pytest.mark.parametrize("name", JOBS)
def test_a_job_keeps_no_credentials_and_pastes_no_text_into_a_command(name: str) -> None:
    """A branch's name with a quotation mark in it would be a command."""
    for step in JOBS[name]["steps"]:
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "a variable of the environment is no part of the command"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_an_action_is_its_commit_with_its_version_beside_it(name: str) -> None:
    """A tag can be moved to other code; the version is for readers, and for those who renew it."""
    used = re.findall(r"^ *(?:- )?uses: *(.*)$", (GITHUB / "workflows" / f"{name}.yml").read_text(), re.MULTILINE)
    assert used
    assert [one for one in used if not PINNED.fullmatch(one)] == []


def test_a_version_of_an_action_is_one_commit() -> None:
    lines = {
        line for path in (GITHUB / "workflows").glob("*.yml") for line in re.findall(r"uses: (.*)", path.read_text())
    }
    versions = [tuple(re.split(r"@\w+  # ", line)) for line in lines]
    assert len(set(versions)) == len(versions)
    assert len({action for action, _ in versions}) == len(versions), "one version of each action"


@pytest.mark.parametrize("path", sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem)
def test_a_form_asks_something_and_its_fields_have_names(path: Path) -> None:
    """What GitHub's page on the syntax of forms requires."""
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert all({"name", "url", "about"} == link.keys() for link in form["contact_links"])
        return
    assert {"name", "description", "body"} <= form.keys()
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names) > 1
    assert all(field["type"] in ("input", "textarea", "checkboxes", "dropdown") for field in form["body"])
    assert all(field["attributes"]["label"] for field in form["body"])
    assert any(field.get("validations", {}).get("required") for field in form["body"])
