"""What other pages say of the studies is computed from the kept runs, and nothing is quoted without its scale."""

from __future__ import annotations

import re
import subprocess
from importlib import import_module
from itertools import pairwise
from math import sqrt
from pathlib import Path
from shutil import which

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import t as student

from docs import generate, study_quotes
from docs.links import absolute

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "studies" / "gap-and-flatness" / "results"
PAIRS = {"FedSAM": "FedAvg", "FedLESAM": "FedAvg", "MoFedSAM": "FedCM", "FedSMOO": "FedDyn"}
PAGES = ("README.md", "docs/study.md", "docs/which_method.md")
COMMITS = ("97c3314f", "7194ace8", "5f6ca9db")  # plan, review and answers, first results
analysis, quotes = (import_module(f"studies.gap-and-flatness.{name}") for name in ("analysis", "quotes"))


@pytest.fixture(scope="module")
def leads() -> dict[tuple[str, str], np.ndarray]:
    """Lead in points by gap and flat method, of each seed, straight from the table."""
    rows = [row for row in pq.read_table(RESULTS / "runs.parquet").to_pylist() if row["part"] == "compare"]
    at = {(row["gap"], row["method"], row["seed"]): 100 * row["accuracy"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    return {(gap, flat): np.array([at[gap, flat, seed] - at[gap, base, seed] for seed in seeds])
            for gap in ("few", "many") for flat, base in PAIRS.items()}  # fmt: skip


def told(values: np.ndarray) -> str:
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / sqrt(len(values))
    return f"{values.mean():+.2f} ({values.mean() - half:+.2f} to {values.mean() + half:+.2f})"


@pytest.mark.parametrize("page", PAGES)
def test_the_primary_sentence_is_that_of_the_kept_runs_and_its_scale_follows(
    page: str, leads: dict[tuple[str, str], np.ndarray]
) -> None:
    few, many = (np.mean([leads[gap, flat] for flat in PAIRS], axis=0) for gap in ("few", "many"))
    assert student.sf(abs((few - many).mean()) / (few - many).std(ddof=1) * sqrt(28), 27) < 0.025, "beyond chance"
    sentence = (
        f"a perturbation radius gained {told(few)} points with 2,000 images and {told(many)} with 20,000; the "
        f"difference {told(few - many)} is beyond chance.** Scale: Fashion-MNIST, "
    )
    assert sentence in (ROOT / page).read_text()


def test_the_methods_that_are_quoted_have_the_numbers_of_the_kept_runs(
    leads: dict[tuple[str, str], np.ndarray],
) -> None:
    page = (ROOT / "docs" / "which_method.md").read_text()
    for flat, base in PAIRS.items():
        assert (
            f"{flat} gained {told(leads['few', flat])} points over {base} with 2,000 images and "
            f"{told(leads['many', flat])} with 20,000."
        ) in page


def test_leads_over_bases_with_as_many_gradients_are_those_of_the_kept_runs() -> None:
    rows = [row for row in pq.read_table(RESULTS / "runs.parquet").to_pylist() if row["gap"] == "few"]
    at = {(row["part"], row["method"], row["seed"]): 100 * row["accuracy"] for row in rows if row["part"] in
          ("compare", "twice")}  # fmt: skip
    page = (ROOT / "docs" / "which_method.md").read_text()
    for flat in ("FedSAM", "MoFedSAM", "FedSMOO"):
        left = np.array([at["compare", flat, seed] - at["twice", PAIRS[flat], seed] for seed in range(28)])
        assert f"{flat} {told(left)} over {PAIRS[flat]}" in page.split("at twice the gradients for the base, ")[1]


def test_the_scale_has_the_networks_parameters() -> None:
    """784 pixels, two hidden layers of 200, ten classes, each with a bias."""
    number = 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10
    assert f"({number:,} parameters)" in quotes.scale_of(analysis.PLAN)
    assert f"{number:,} parameters" in (ROOT / "studies" / "gap-and-flatness" / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES)
def test_a_quoted_number_that_is_stale_is_found(page: str) -> None:
    text, contents = (ROOT / page).read_text(), contents_of(page)
    assert generate.renewed(text, contents) == text
    for mark in contents:
        part = between(text, mark)
        for number in re.findall(r"\d+\.\d+|\d{2,}", part):
            stale = text.replace(part, part.replace(number, "7.77", 1))
            assert generate.renewed(stale, contents) == text


def contents_of(page: str) -> dict[str, str]:
    both = generate.both_studies()
    if page == "README.md":
        return {"studies": absolute(study_quotes.readme(*both))}
    return (study_quotes.first_study if page == "docs/study.md" else study_quotes.which_method)(*both)


def between(text: str, mark: str) -> str:
    return text.split(f"<!-- {mark}: written by docs/generate.py -->\n")[1].split(f"\n<!-- end of {mark} -->")[0]


def test_without_results_nothing_is_quoted(tmp_path: Path) -> None:
    nothing = generate.study_results(tmp_path), analysis.Results.load(tmp_path)
    texts = [study_quotes.readme(*nothing), *study_quotes.which_method(*nothing).values()]
    assert [one for text in texts for one in re.findall(r"[+-]\d\.\d\d", text)] == []
    assert quotes.quote(nothing[1]) == quotes.methods(nothing[1]) == quotes.UNFINISHED


def test_plan_review_and_first_result_are_commits_in_this_order() -> None:
    text, git = (ROOT / "docs" / "gap_study.md").read_text(), which("git")
    places = [text.index(one) for one in COMMITS]
    assert places == sorted(places)
    if git is None or any(not ends(git, "cat-file", "-e", one) for one in COMMITS):
        pytest.skip("the history is not here")
    for first, second in pairwise(COMMITS):
        assert ends(git, "merge-base", "--is-ancestor", first, second)
    [commit] = {row["commit"] for row in pq.read_table(RESULTS / "runs.parquet").to_pylist()}
    assert f"All runs are of one commit, `{commit}`." in (RESULTS.parent / "README.md").read_text()
    assert ends(git, "merge-base", "--is-ancestor", COMMITS[1], commit)
    assert ends(git, "merge-base", "--is-ancestor", commit, COMMITS[2])


def ends(git: str, *words: str) -> bool:
    """Tell whether git ends without an error."""
    return subprocess.run([git, "-C", str(ROOT), *words], capture_output=True, check=False).returncode == 0
