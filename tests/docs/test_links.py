"""Links between pages, and from code to pages: what is broken is found, and here nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.links import anchor, broken_links, links_of

PAGE = "# One\n\n## What `--jobs` does, [again](other.md)\n\n## Twice\n\n## Twice\n\n```text\n# Not a heading\n```\n"


def tree(root: Path, text: str, code: str = "") -> Path:
    """A repository with a page, another one with `text`, and a module with `code`."""
    for name, content in {"docs/one.md": PAGE, "docs/other.md": text, "src/package/module.py": code}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.mark.parametrize(
    "text",
    [
        "[x](one.md)",
        "[x](one.md#what---jobs-does-again)",
        "[x](one.md#twice-1)",
        "# Here\n[x](#here)",
        "[x](https://example.org/none.md)",
        "`[x](none.md)`",
        "```text\n[x](none.md)\n```",
        "[x](../src/package/module.py)",
    ],
)
def test_what_leads_somewhere_is_accepted(text: str, tmp_path: Path) -> None:
    assert broken_links(tree(tmp_path, text)) == []


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("[x](none.md)", "none.md"),
        ("[x](one.md#twice-2)", "one.md#twice-2"),
        ("[x](one.md#not-a-heading)", "one.md#not-a-heading"),
        ("[x](#here)", "#here"),
        ("`code`, [x\ny](none.md), `code`", "none.md"),
    ],
)
def test_what_leads_nowhere_is_named(text: str, target: str, tmp_path: Path) -> None:
    assert broken_links(tree(tmp_path, text)) == [f"docs/other.md: {target} leads nowhere"]


@pytest.mark.parametrize("target", ["docs/none.md", "docs/one.md#none"])
def test_what_code_names_is_looked_for(target: str, tmp_path: Path) -> None:
    found = broken_links(tree(tmp_path, "", f'message = "see docs/one.md#twice, and {target}"'))
    assert found == [f"src/package/module.py: {target} leads nowhere"]


def test_nothing_here_is_broken() -> None:
    pages = list((Path(__file__).parents[2] / "docs").rglob("*.md"))
    assert sum(len(list(links_of(page))) for page in pages) > 500
    assert broken_links() == []


def test_an_anchor_is_that_of_code_hosts() -> None:
    assert anchor("Why `--allow-code`, in [one](two.md) line?") == "why---allow-code-in-one-line"
