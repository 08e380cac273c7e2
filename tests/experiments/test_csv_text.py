"""Cells of tables: no text is computed by a spreadsheet, numbers are numbers, and what is written is read."""

from __future__ import annotations

import csv
import io
import math

import pytest

from fedflat.experiments.csv_text import csv_line

HARMFUL = ["=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("http://x","y")', "=a,b"]


def read(line: str) -> list[str]:
    [row] = csv.reader(io.StringIO(line, newline=""))
    return row


@pytest.mark.parametrize("text", HARMFUL)
def test_a_text_that_begins_like_a_formula_is_shown_as_text(text: str) -> None:
    assert read(csv_line([text, "rho=0.1", 3])) == [f"'{text}", "rho=0.1", "3"]


@pytest.mark.parametrize("number", [-0.5, 1e-300, 0.1 + 0.2, -7, math.inf, -math.inf])
def test_a_number_keeps_its_sign_and_all_its_digits(number: float) -> None:
    [cell] = read(csv_line([number]))
    assert float(cell) == number


def test_an_empty_cell_is_no_text() -> None:
    assert csv_line(["t", None, 0.25]) == "t,,0.25\n"
