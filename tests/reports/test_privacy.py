"""What tables and pages say of private runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedflat as ff
from support.blank_figures import blank_figures  # noqa: F401 (used by every test)
from support.federation import simulation

pytestmark = pytest.mark.slow


def private(method: ff.Method, seed: int, **changes) -> ff.Run:
    settings = {"epsilon": 1000.0, "delta": 0.01, "clip": 0.3, "rate": 0.4, "noise_multiplier": 1.0, **changes}
    return simulation(method, participation=1.0, client={"epochs": None, "steps": 4}, eval_every=7, seed=seed,
                      privacy=ff.Privacy(**settings)).run()  # fmt: skip


def test_a_table_has_what_was_spent_and_a_page_to_whom_it_is_promised(tmp_path: Path) -> None:
    runs = [private(method, seed) for method in (ff.methods.FedAvg(), ff.methods.FedSAM()) for seed in (0, 1)]
    table, spent = str(ff.compare(runs)), runs[0].summary
    assert "ε" in table
    assert f"{spent['epsilon']:.3g}" in table
    page = ff.compare(runs).to_html(tmp_path / "report.html").read_text()
    assert f"{spent['epsilon_replace_one']:.3g} for one replaced, δ = 0.01; noise 1 clips" in page
    assert "each client with probability 40 % in each round" in page
    assert "NOT PRIVATE" not in page


def test_a_page_says_that_seeded_noise_is_not_private(tmp_path: Path) -> None:
    runs = [private(ff.methods.FedAvg(), seed, noise="seeded-not-private") for seed in (0, 1)]
    assert "NOT PRIVATE" in ff.compare(runs).to_html(tmp_path / "report.html").read_text()


def test_runs_that_differ_in_their_clip_have_names_of_their_own() -> None:
    runs = [private(ff.methods.FedAvg(), seed, clip=clip) for clip in (0.3, 0.6) for seed in (0, 1)]
    assert {row.label for row in ff.compare(runs).rows} == {"FedAvg(clip=0.3)", "FedAvg(clip=0.6)"}
