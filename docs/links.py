"""The links between the pages of the repository, and to them from its code: each leads to a file, and to a heading.

The README's links are absolute, because package indexes show it, too.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ("*.md", "docs/**/*.md", "benchmarks/*.md", "studies/*/*.md", "examples/**/*.md")
CODE = ("src/**/*.py", "src/**/*.toml", "benchmarks/*.py", "deploy/*", "examples/**/*", "studies/**/*.py")
FENCED = re.compile(r"^(`{3,}|~{3,}).*?^\1`*$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+?) *$", re.MULTILINE)
NAMED = re.compile(r"(?<![\w/.])(docs/[\w/]+\.md(?:#[\w-]+)?)")  # such as docs/deploy.md, in a message or a comment
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
HOME = f"{REPOSITORY}/blob/main/"
PICTURES = f"{REPOSITORY.replace('github.com', 'raw.githubusercontent.com')}/main/"
ELSEWHERE = re.compile(r"[a-z]+:")


def broken_links(root: Path = ROOT) -> list[str]:
    """Return a line for each link that leads nowhere: the file that has it, and where it leads."""
    pages = [page for pattern in PAGES for page in sorted(root.glob(pattern))]
    links = [(page, target, page.parent) for page in pages for target in links_of(page)]
    code = [file for pattern in CODE for file in sorted(root.glob(pattern)) if file.is_file()]
    links += [(file, target, root) for file in code for target in NAMED.findall(file.read_text(errors="replace"))]
    return [
        f"{file.relative_to(root)}: {target} leads nowhere"
        for file, target, at in links
        if leads_nowhere(target, file, at)
    ]


def links_of(page: Path) -> Iterator[str]:
    """Yield where the links of a page lead that stay in the repository."""
    text = INLINE_CODE.sub("", FENCED.sub("", page.read_text())).replace(HOME, "").replace(PICTURES, "")
    yield from (target for target in LINK.findall(text) if not ELSEWHERE.match(target))


def absolute(text: str) -> str:
    """Return `text` with links to pages of docs/ that also work outside the repository."""
    return text.replace("](docs/", f"]({HOME}docs/")


def leads_nowhere(target: str, file: Path, folder: Path) -> bool:
    """Tell whether a link of `file`, relative to `folder`, lacks its file or its heading."""
    path, _, heading = target.partition("#")
    found = folder / path if path else file
    return not found.exists() or bool(heading and found.suffix == ".md" and heading not in anchors(found))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return where links into a page can lead: its headings, as code hosts and the site name them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    slugs = Counter[str]()
    return frozenset(_numbered(anchor(heading), slugs) for heading in headings)


def _numbered(slug: str, seen: Counter[str]) -> str:
    """Return the anchor of the next heading with this slug: later ones end in a number."""
    seen[slug] += 1
    return slug if seen[slug] == 1 else f"{slug}-{seen[slug] - 1}"


def anchor(heading: str) -> str:
    """Return where a link to `heading` leads, as code hosts make it."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.lower())
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
