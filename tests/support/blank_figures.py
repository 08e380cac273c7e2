"""Figures that are not drawn, which is most of a report's time. `tests/reports` and `make test-all` draw them."""

from __future__ import annotations

import io
from typing import IO, Any

import pytest
from matplotlib.figure import Figure

from support.effort import chosen

BLANK = {"svg": '<svg xmlns="http://www.w3.org/2000/svg"></svg>', "pdf": "%PDF-1.4\n%%EOF\n"}


@pytest.fixture(autouse=True)
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all tests of a file or folder that imports this name."""
    leave_blank(monkeypatch)


def leave_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no figures for the rest of a test."""

    def blank(_: Figure, buffer: IO[Any], format: str, **__: object) -> None:
        text = BLANK[format]
        buffer.write(text if isinstance(buffer, io.TextIOBase) else text.encode())

    monkeypatch.setattr(Figure, "savefig", chosen(blank, Figure.savefig))
