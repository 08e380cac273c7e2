"""Text for rich that shows as it is."""

from __future__ import annotations

from rich.text import Text

from ..core.errors import printable


def literal(text: str, style: str = "") -> Text:
    """`text` on one line: nothing in it is markup, and control characters are spelled out.

    Labels, paths and settings come from users, files and networks: `[/x]` in one of them is shown as four characters.
    """
    return Text(printable(text), style=style)
