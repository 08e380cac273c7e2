"""TOML texts in bounded time: keys with very many dots, for which the parser would take minutes, are refused."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

DOTS = 40  # most dots that a key may have, more than any table is deep; parsing takes time quadratic in them
TOKEN = re.compile(r"""\"""|'''|"[^"\\\n]*"|"|'[^'\n]*'?|\#[^\n]*""")  # a comment, a string, or its opening
# What comes next in a string that was only opened: its end, or an escape. The parser refuses a string without an end.
END = {
    '"""': re.compile(r'\\[\s\S]?|"{3,5}'), "'''": re.compile("'{3,5}"), '"': re.compile(r'\\.?|"|(?=\n)'),
}  # fmt: skip
NO_PART_OF_A_KEY = re.compile(r"[^\w\-\"'. \t]+")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text in bounded time. Raises ValueError, or RecursionError if it is nested too deep."""
    parts = NO_PART_OF_A_KEY.split('"'.join(_outside_strings(text)))  # keys, numbers, words
    if any(part.count(".") > DOTS for part in parts):
        raise RecursionError(f"a key has more than {DOTS} dots")
    return tomllib.loads(text)


def _outside_strings(text: str) -> Iterator[str]:
    """Yield what is outside strings and comments, in which dots separate no parts of a key.

    No expression repeats a group: Python before 3.11.5 matches possessive repetitions of groups wrongly, and other
    repetitions take 100 bytes of memory for each time.
    """
    position = 0
    while token := TOKEN.search(text, position):
        yield text[position : token.start()]
        position = token.end()
        if end := END.get(token[0]):
            ends = end.finditer(text, position)
            position = next((found.end() for found in ends if not found[0].startswith("\\")), len(text))
    yield text[position:]
