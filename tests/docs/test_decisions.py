"""The page of decisions is complete, its statuses are true of each other, and what refers to it finds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedflat.methods import find

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "decisions.md").read_text()
DECISIONS = {int(number): body for number, body in re.findall(r"^### (\d+)\. (.*?)(?=^##|\Z)", PAGE, re.M | re.S)}
NUMBERS = r"\d+(?:(?:, | and )\d+)*"
STATUS = re.compile(rf"stands|superseded(?: in part)? by {NUMBERS}|stands, amended by {NUMBERS}")


def status(number: int) -> re.Match[str] | None:
    """The status line of a decision, None if there is none or it is not one of the four."""
    [line] = re.findall(r"^Status: (.*)$", DECISIONS[number], re.M) or [""]
    return STATUS.fullmatch(line)


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def test_numbers_are_unique_and_complete() -> None:
    found = re.findall(r"^### (\d+)\.", PAGE, re.M)
    assert sorted(map(int, found)) == list(range(1, len(found) + 1))


@pytest.mark.parametrize("number", DECISIONS)
def test_a_status_is_valid_and_names_later_decisions(number: int) -> None:
    found = status(number)
    assert found is not None
    by = numbers(found[0])
    assert all(later in DECISIONS and later > number for later in by)
    if by:
        assert "**Changed since:**" in DECISIONS[number], "says what the later decision changed"


def test_what_moved_to_a_method_is_on_its_page() -> None:
    moved = re.findall(r"^Moved to the page of \[(.+)\]\((.+)\)\.$", PAGE, re.M)
    assert moved
    for name, page in moved:
        assert (ROOT / "docs" / page).read_text().startswith(f"# {name}\n")
        assert find(name).sources.readings


def test_the_contents_have_every_decision_once_and_lead_to_it() -> None:
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in re.findall(r"^##+ (.*)$", PAGE, re.M)]
    anchors = {heading.replace(" ", "-") for heading in plain}
    contents = PAGE.split("<!-- end of contents -->")[0]
    rows = re.findall(r"^\| (\d+) \| \[.*\]\(#(.*)\) \| (.*) \|$", contents, re.M)
    assert sorted(int(number) for number, _, _ in rows) == sorted(DECISIONS)
    assert set(re.findall(r"\]\(#(.*?)\)", contents)) <= anchors
    assert all(target.startswith(f"{number}-") for number, target, _ in rows)
    assert all((found := status(int(number))) and found[0] == line for number, _, line in rows)


def test_every_decision_that_is_mentioned_exists() -> None:
    places = [ROOT / name for name in ("docs", "src", "tests", "benchmarks", "examples")]
    files = [*ROOT.glob("*.md"), *(path for place in places for path in place.rglob("*"))]
    texts = {path: path.read_text() for path in files if path.suffix in (".md", ".py", ".toml")}
    mentions = [
        (path, number)
        for path, text in texts.items()
        for found in re.findall(rf"(?i)\bdecisions?(?:\.md`,)? ({NUMBERS})", text)
        for number in numbers(found)
    ]
    assert len(mentions) >= 5
    assert [(path, number) for path, number in mentions if number not in DECISIONS] == []
