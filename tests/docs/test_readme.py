"""What the README says is what happens."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from docs.links import HOME, PICTURES
from fedflat.cli import main
from fedflat.methods import all_methods
from support.blank_figures import blank_figures  # noqa: F401 (used by every test)
from support.readme import README, ROOT, commands, python_example

MOST_WORDS = 700
NUMBER = re.compile(r"[+-]?\d[\d,]*\.?\d*")


@pytest.mark.slow
def test_the_program_prints_what_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Machines round differently, which moves an accuracy by far less than the interval: the words are the same."""
    monkeypatch.setenv("COLUMNS", "120")
    exec(compile(python_example(), "README.md", "exec"), {})
    printed = lines(capsys.readouterr().out)
    [block] = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    shown = lines(block)
    assert [words(one) for one in printed[: len(shown)]] == [words(one) for one in shown]
    for line, found in zip(shown, printed, strict=False):
        assert numbers(found) == pytest.approx(numbers(line), rel=0.05, abs=2.0)
    assert len(shown) == 4, "a sentence, the head of the table, and two methods"


def lines(text: str) -> list[str]:
    """The lines that have words."""
    return [line.strip() for line in text.splitlines() if re.search(r"\w", line)]


def words(line: str) -> list[str]:
    return NUMBER.sub("0", line).split()


def numbers(line: str) -> list[float]:
    return [float(one.replace(",", "")) for one in NUMBER.findall(line)]


@pytest.mark.slow
def test_the_commands_run_as_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer rounds, seeds, methods and measures, which changes nothing but the time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert len(commands()) >= 7
    for command in commands():
        assert command[0] == "fedflat"
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as exit_:
            main()
        assert not exit_.value.code, command


def test_it_is_short() -> None:
    """Without where its links lead, and without the lines of its tables."""
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)", "", README)
    assert len(re.findall(r"[^\s|]*\w[^\s|]*", text)) <= MOST_WORDS


def test_its_links_also_work_elsewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)", README)
    assert all(target.startswith("https://") for target in targets), targets
    own = [target.removeprefix(HOME).removeprefix(PICTURES) for target in targets if "fedflat/fedflat" in target]
    assert len(own) > 10
    assert [target for target in own if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/tutorials/index.md"])
def test_the_demo_is_as_large_as_front_pages_say(page: str) -> None:
    demo = tomllib.loads((ROOT / "examples" / "digits.toml").read_text())
    assert (len(demo["methods"]), demo["data"]["clients"]) == (9, 50)
    assert "nine methods on 50 clients" in (ROOT / page).read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_numbers_of_front_pages_are_written_by_programs_or_compared_by_tests(page: str) -> None:
    """What is left when generated parts, code and what it prints, links and names are taken away."""
    text = (ROOT / page).read_text()
    for known in (r"<!-- (\w+): written.*?<!-- end of \1 -->", r"^```.*?^```", r"\]\([^)]*\)", r"`[^`]*`"):
        text = re.sub(known, "", text, flags=re.DOTALL | re.MULTILINE)
    left = re.sub(r"nine methods on 50 clients|Python 3\.11|95 % interval|Apache-2\.0", "", text)
    assert re.findall(r"[\w.]*\d[\w.]*", left) == []


def test_no_more_is_said_of_papers_than_the_ledger_has() -> None:
    assert "No paper's experiment was repeated in full yet" in README
    assert "reproductions at full protocol: 0." in (ROOT / "docs" / "published.md").read_text()


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo"} <= set(re.findall(r"`make ([a-z-]+)`", README)) <= targets


def test_every_method_is_named_once() -> None:
    part = README.split("## Methods")[1].split("## ")[0]
    assert sorted(re.findall(r"\b[A-Z]\w+", re.sub(r"\*\*.*?\*\*|<!--.*?-->|`.*?`|BibTeX", "", part))) == sorted(
        cls.__name__ for cls in all_methods().values()
    )
