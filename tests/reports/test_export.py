"""A comparison for other programs."""

from __future__ import annotations

import csv
import io
import re
import sys

import pytest

import fedflat as ff
from fedflat.core.errors import InputError
from support.finished_runs import Fake

RUNS = [Fake("FedAvg", 0, [0.2, 0.7]), Fake("FedSAM", 0, [0.3, 0.9])]
HOSTILE = [Fake("FedAvg", 0, [0.5], {"x": "a"}), Fake("FedAvg", 0, [0.6], {"x": "<script>&_%$#{}~^\\"})]


def test_csv_has_every_number_of_the_table() -> None:
    comparison = ff.compare(RUNS)
    found = list(csv.DictReader(io.StringIO(comparison.to_csv())))
    expected = comparison.table().to_pylist()
    assert [row["method"] for row in found] == ["FedAvg", "FedSAM"]
    for row, numbers in zip(found, expected, strict=True):
        assert row.keys() == numbers.keys()
        for name, value in numbers.items():
            assert row[name] == ("" if value is None else value) or float(row[name]) == value, name


def test_no_cell_of_the_csv_is_a_formula() -> None:
    comparison = ff.compare([Fake("FedAvg", 0, [0.2, 0.7]), Fake('=HYPERLINK("http://x")', 0, [0.3, 0.9])])
    found = list(csv.DictReader(io.StringIO(comparison.to_csv())))
    assert {row["method"] for row in found} == {"FedAvg", '\'=HYPERLINK("http://x")'}
    assert not [cell for row in found for cell in (*row, *row.values()) if cell.startswith(("=", "+", "@"))]


def test_csv_goes_to_a_file(tmp_path) -> None:
    path = ff.compare(RUNS).to_csv(tmp_path / "table.csv")
    assert path.read_text() == ff.compare(RUNS).to_csv()
    with pytest.raises(InputError, match=r"missing/table\.csv"):
        ff.compare(RUNS).to_csv(tmp_path / "missing" / "table.csv")


SEEDS = [run for seed in range(3) for run in (Fake("FedAvg", seed, [0.2, 0.7]),
                                              Fake("FedSAM", seed, [0.3, 0.9 + 0.001 * seed]))]  # fmt: skip


def test_latex_is_a_tabular_with_the_best_in_bold() -> None:
    lines = ff.compare(SEEDS).to_latex().splitlines()
    [head] = [line for line in lines if line.startswith("method")]
    [first] = [line for line in lines if line.startswith("FedAvg")]
    [second] = [line for line in lines if line.startswith("FedSAM")]
    columns = len(re.findall(r"(?<!\\)&", head))
    assert f"\\begin{{tabular}}{{l{'r' * columns}}}" in lines
    assert all(len(re.findall(r"(?<!\\)&", line)) == columns for line in (first, second))
    assert r"\textbf{90.10 $\pm$ 0.10}" in second
    assert r"\textbf{+20.10" in second
    assert r"\textbf" not in first
    assert r"$\Delta$ to FedAvg" in head


@pytest.mark.parametrize("ahead", [0.0, 0.02, -0.2], ids=["noise", "one seed is equal", "behind"])
def test_nothing_is_bold_whose_interval_has_zero_in_it(ahead: float) -> None:
    """Where the baseline is ahead of all others, its accuracy is bold, and no difference."""
    runs = [run for seed in range(3) for run in (Fake("FedAvg", seed, [0.2, 0.7]),
                                                 Fake("FedSAM", seed, [0.3, 0.7 + ahead * seed + 0.001]))]  # fmt: skip
    runs = runs if ahead >= 0 else [*runs[:2], Fake("FedAvg", 1, [0.1, 0.7]), Fake("FedSAM", 1, [0.1, 0.49])]
    comparison = ff.compare(runs)
    low, high = comparison.rows[1].difference.low, comparison.rows[1].difference.high
    bold = (comparison.to_latex().count("textbf"), comparison._repr_html_().count("<strong>"))
    assert bold == ((0, 0) if low <= 0 <= high else (2, 2) if low > 0 else (1, 1))


def test_single_seeds_have_no_interval_and_nothing_bold() -> None:
    assert "textbf" not in ff.compare(RUNS).to_latex()
    assert "<strong>" not in ff.compare(RUNS)._repr_html_()


def test_latex_has_the_columns_that_were_asked_for() -> None:
    assert "rounds to" not in ff.compare(RUNS).to_latex()
    assert "rounds to 60.0" in ff.compare(RUNS, targets=[0.6]).to_latex().replace("~", " ")
    chosen = ff.compare(RUNS).to_latex(columns=["Δ to FedAvg", "test accuracy %"])
    assert r"method & $\Delta$ to FedAvg & test accuracy~\% \\" in chosen
    with pytest.raises(InputError, match="columns: 'loss' is not in the table; it has 'test accuracy %'"):
        ff.compare(RUNS).to_latex(columns=["loss"])


def test_latex_has_minus_signs_and_says_what_its_marks_are() -> None:
    lines = ff.compare(SEEDS, baseline="FedSAM").to_latex().splitlines()
    [row] = [line for line in lines if line.startswith("FedAvg")]
    assert "$-$20.10 [$-$20.35, $-$19.85]" in row
    comments = [line for line in lines if line.startswith("%")]
    for title, mark in (
        ("test accuracy", "± sample standard deviation over seeds"),
        ("Δ to FedSAM", "95 % confidence"),
    ):
        assert any(line.startswith(f"% {title}") and mark in line for line in comments)


def test_latex_is_escaped_and_ascii() -> None:
    text = ff.compare(HOSTILE).to_latex()
    assert r"$<$script$>$\&\_\%\$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert body.isascii()


def test_a_notebook_gets_the_table_alone_and_escaped() -> None:
    html = ff.compare(HOSTILE)._repr_html_()
    assert html.startswith("<table")
    assert html.endswith("</table>")
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_the_representation_is_short() -> None:
    assert repr(ff.compare(RUNS)) == "<Comparison of 2 rows with FedAvg, seeds 0>"


def test_without_pandas_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"`pip install pandas`, or use `\.table\(\)` \(pyarrow\)$"):
        ff.compare(RUNS).to_pandas()


def test_with_pandas_it_is_the_table() -> None:
    pytest.importorskip("pandas", reason="pandas is not one of our dependencies")
    frame = ff.compare(RUNS).to_pandas()
    assert frame["method"].tolist() == ["FedAvg", "FedSAM"]
    assert frame["shown_accuracy"].tolist() == [0.7, 0.9]
