"""A version is said once in the package, and by the files about it alike; addresses are those of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

import yaml
from packaging.version import Version

import fedflat
from fedflat import __version__
from fedflat.rounds import segments

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
SECTIONS = re.findall(r"^## \[(.*?)\](?: - (\S+))?$", CHANGELOG, re.MULTILINE)


def test_the_version_is_said_once_in_code() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    assert str(Version(__version__)) == __version__
    said = re.compile(rf"(?<![\d.]){re.escape(__version__)}(?![\d.])")
    found = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*.py") if said.search(path.read_text())
    }
    assert found == {"src/fedflat/__init__.py"}


def test_runs_and_reports_state_the_version_of_the_code_and_not_of_an_installation(monkeypatch) -> None:
    """A clone that was updated and not installed again has the metadata of an earlier version."""
    monkeypatch.setattr(fedflat, "__version__", "9.8.7")
    segments._version.cache_clear()
    assert segments.versions(["fedflat"]) == {"fedflat": "9.8.7"}
    segments._version.cache_clear()


def test_the_citation_has_the_version_and_its_day() -> None:
    assert CITATION["version"] == __version__
    assert CITATION["title"].startswith(f"{PROJECT['name']}:")
    assert CITATION["license"] == PROJECT["license"]
    assert (CITATION["version"], CITATION["date-released"]) == SECTIONS[1]
    assert date.fromisoformat(CITATION["date-released"])


def test_the_changelog_begins_with_what_is_unreleased_and_then_this_version() -> None:
    """Each with the parts that Keep a Changelog names, and a link at the end."""
    assert [name for name, _ in SECTIONS[:2]] == ["Unreleased", __version__]
    parts = set(re.findall(r"^### (.*)$", CHANGELOG, re.MULTILINE))
    assert parts <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    links = dict(re.findall(r"^\[(\S+)\]: (\S+)$", CHANGELOG, re.MULTILINE))
    assert links.keys() == {name for name, _ in SECTIONS}
    repository = PROJECT["urls"]["Repository"]
    assert links["Unreleased"] == f"{repository}/compare/v{__version__}...main"
    assert links[__version__] == f"{repository}/releases/tag/v{__version__}"


def test_addresses_are_those_of_the_repository() -> None:
    urls = PROJECT["urls"]
    assert CITATION["repository-code"] == urls["Homepage"] == urls["Repository"]
    owner, name = re.fullmatch(r"https://github\.com/([\w-]+)/([\w-]+)", urls["Repository"]).groups()
    assert urls["Documentation"] == f"https://{owner}.github.io/{name}/"
    contacts = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/config.yml").read_text())["contact_links"]
    assert [
        one["url"] for one in contacts if not one["url"].startswith((urls["Repository"], urls["Documentation"]))
    ] == []
    assert (ROOT / "docs" / f"{contacts[1]['url'].rpartition('/')[2].removesuffix('.html')}.md").is_file()


def test_a_release_installs_with_hashes_what_builds_it() -> None:
    tools = (ROOT / "locked" / "release.txt").read_text()
    blocks = re.split(r"^(?=\S+==)", tools, flags=re.MULTILINE)[1:]
    assert {"build", "twine", "hatchling", "cyclonedx-bom"} <= {block.split("==")[0] for block in blocks}
    assert [block.split("==")[0] for block in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", block)] == []
    assert "--require-hashes --no-deps --requirement locked/release.txt" in MAKEFILE
    built = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["build"]["steps"]
    assert "make release" in [step.get("run") for step in built]


def test_the_page_for_assistants_names_rooms_and_commands_that_are_there() -> None:
    """Short, or nobody reads it whole."""
    page = (ROOT / "AGENTS.md").read_text()
    assert len(page.splitlines()) < 60
    rooms = set(re.findall(r"`(\w+)`", page.split("(`.venv/bin/lint-imports`):")[1].split(". ")[0]))
    folders = {path.parent.name for path in (ROOT / "src" / "fedflat").glob("*/__init__.py")}
    assert rooms == folders - {"templates"}, "which nothing imports"
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", page)) <= targets
    assert [path for path in re.findall(r"`((?:src|docs|tests)/[\w/.]+)`", page) if not (ROOT / path).exists()] == []
