"""Write the parts of the documentation that are read off the classes; with --check, fail if they are not current."""

from __future__ import annotations

import sys
from pathlib import Path

from fedflat.methods import all_methods
from fedflat.reports.catalogue import describe, markdown

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- methods: written by docs/generate.py -->", "<!-- end of methods -->"


def readme() -> str:
    """The README with its table of methods renewed."""
    text = (ROOT / "README.md").read_text()
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{markdown(all_methods())}\n{END}{rest.split(END)[1]}"


def method_page() -> str:
    """docs/methods.md: every method in full."""
    parts = ["# Methods", "", "Written by `docs/generate.py` from the classes; do not edit.", ""]
    for name, cls in all_methods().items():
        parts += [f"## {name}", "", "```text", describe(cls), "```", ""]
    return "\n".join(parts)


def main() -> int:
    """Write, or with --check compare; the exit code is 1 if something is not current."""
    pages = {ROOT / "README.md": readme(), ROOT / "docs" / "methods.md": method_page()}
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if "--check" not in sys.argv[1:]:
        for path in stale:
            path.write_text(pages[path])
        return 0
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not current; run `make docs`")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
