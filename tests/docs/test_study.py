"""The study of flat and plain methods: statistics, the page from made-up results, and numbers from real runs."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import combinations, product
from math import ceil, sqrt
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import bootstrap, spearmanr
from scipy.stats import t as student

import fedflat as ff
from docs import generate
from fedflat.core.errors import InputError
from fedflat.core.progress import no_progress
from fedflat.experiments import tuning
from fedflat.experiments.measuring import build_measures, measure_run
from fedflat.experiments.run_directory import RunDirectory
from fedflat.experiments.runner import RunObserver
from fedflat.experiments.spec import RunSpec, StudySpec
from fedflat.experiments.statistics import Difference
from fedflat.experiments.studies import carry_out_study as carry_out
from fedflat.experiments.studies import run_directory
from fedflat.experiments.tuning_spec import TuningSpec
from fedflat.methods import find
from support.studies import SMALL, study_spec

analysis, collect, guidance, joined, kept, power, script, study = (
    import_module(f"studies.flat-or-tuned.{name}")
    for name in ("analysis", "collect", "guidance", "joined", "kept", "power", "run", "page")
)
inference = import_module("studies.inference")
FOLDER = Path(__file__).parents[2] / "studies" / "flat-or-tuned"
PLAN = (FOLDER / "README.md").read_text()
PLAIN = ("FedAvg", "FedCM", "FedDyn")
MARKS = re.findall(r"<!-- (.+): written by", (FOLDER.parents[1] / "docs" / "study.md").read_text())
QUOTED = "second study"  # what is not of this study's results
AGAIN = ["FedGF", "FedDyn"]  # searched a second time; in the results that are made up only FedGF's second one is better
PERTURBED = [method for method in analysis.BASES if method not in analysis.MORE_THAN_A_RADIUS]


MACHINE = "/a/folder/of/this/machine"


class Named(RunObserver):
    """Notes the titles of runs that compute rounds."""

    def __init__(self, begun: list[str]) -> None:
        self.begun = begun

    def run_started(self, spec: RunSpec, t: int) -> None:
        if t < spec.rounds:
            self.begun.append(spec.title)


# Statistics


def closed_testing(p: list[float]) -> list[float]:
    """Holm's correction by its definition: the largest Bonferroni p-value of all intersections with a hypothesis."""
    places = range(len(p))
    every = [some for size in range(1, len(p) + 1) for some in combinations(places, size)]
    return [max(min(1.0, len(some) * min(p[i] for i in some)) for some in every if place in some) for place in places]


def test_holm_is_the_closed_test_of_bonferroni() -> None:
    rng = np.random.default_rng(0)
    for size in range(1, 7):
        for _ in range(20):
            p = (rng.random(size) ** 3).round(2).tolist()  # with ties, and some of 0
            assert analysis.holm(p) == pytest.approx(closed_testing(p), abs=1e-12)


def test_holm_of_a_worked_example() -> None:
    """That of four hypotheses in encyclopedias: at 0.05 the fourth and the first are rejected."""
    corrected = analysis.holm([0.01, 0.04, 0.03, 0.005])
    assert corrected == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_missing_p_value_corrects_as_a_test_that_rejects_nothing() -> None:
    assert analysis.holm([0.01, None, 0.02]) == pytest.approx([0.03, None, 0.04])
    assert analysis.holm([None]) == [None]


def runs_of(values: dict[str, dict[int, float]]) -> list[dict[str, Any]]:
    return [
        {"method": method, "seed": seed, "accuracy": x} for method, own in values.items() for seed, x in own.items()
    ]


def test_interval_and_p_value_are_students() -> None:
    rng = np.random.default_rng(1)
    flat, plain = (dict(enumerate(rng.normal(0.6, 0.01, 5).tolist())) for _ in range(2))
    one = analysis.contrasts(runs_of({"FedSAM": flat}), runs_of({"FedAvg": plain}), ["FedSAM"])[0]
    d = np.array([flat[seed] - plain[seed] for seed in range(5)])
    error = d.std(ddof=1) / sqrt(5)
    half = student.ppf(0.975, 4) * error
    assert one.difference is not None
    assert (one.difference.low, one.difference.high) == pytest.approx((d.mean() - half, d.mean() + half))
    assert one.p == pytest.approx(2 * student.sf(abs(d.mean()) / error, 4))
    assert one.corrected == one.p, "alone, it is its own family"


@pytest.mark.parametrize(("more", "is_below"), [(0, False), (1, False), (5, False), (6, True)])
def test_two_equal_differences_are_no_proof_below_what_the_test_set_allows(more: int, is_below: bool) -> None:
    """In samples of 10,000: Student's 12.7 times the deviation of two roundings, 0.408, is 5.2 samples."""
    plain = {0: 0.4, 1: 0.45}
    flat = {seed: x + more / 10_000 for seed, x in plain.items()}
    one = analysis.contrasts(runs_of({"FedSAM": flat}), runs_of({"FedAvg": plain}), ["FedSAM"])[0]
    assert one.difference is not None
    assert (one.p < 0.05) == (one.difference.low > 0) == is_below
    assert one.p > 0.01


def test_a_contrast_has_the_pairs_that_exist() -> None:
    flat = {"FedSAM": {0: 0.5, 2: 0.6, 3: 0.9}, "FedGF": {4: 0.5}}
    plain = {"FedAvg": {0: 0.4, 1: 0.1, 2: 0.55}}
    sam, gf = analysis.contrasts(runs_of(flat), runs_of(plain), ["FedSAM", "FedGF"])
    assert sam.difference is not None
    assert (sam.difference.n, sam.difference.mean) == (2, pytest.approx(0.075))
    assert (gf.difference, gf.p, gf.corrected, gf.verdict) == (None, None, None, analysis.UNDECIDED)
    assert sam.p is not None
    assert sam.corrected == pytest.approx(min(1, 2 * sam.p)), "over both"


@pytest.mark.parametrize(
    ("mean", "high", "corrected", "expected"),
    [
        (0.02, 0.03, 0.0499, analysis.HELD),
        (0.02, 0.03, 0.05, analysis.UNDECIDED),
        (0.02, analysis.MARGIN, 0.0499, analysis.HELD),
        (0.005, 0.0099, 0.0499, analysis.BARELY),
        (0.005, 0.0099, 0.05, analysis.NOT_HELD),
        (0.005, analysis.MARGIN, 0.05, analysis.UNDECIDED),
        (-0.02, 0.0101, 0.0499, analysis.NOT_HELD),
        (-0.02, 0.0101, 0.05, analysis.UNDECIDED),
        (-0.02, -0.01, 0.5, analysis.NOT_HELD),
        (0.0, 0.02, 0.001, analysis.UNDECIDED),
        (0.02, None, None, analysis.UNDECIDED),
    ],
)
def test_verdicts_at_their_borders(mean: float, high: float | None, corrected: float | None, expected: str) -> None:
    assert analysis.verdict(Difference(mean, None if high is None else 2 * mean - high, high, 5), corrected) == expected


@pytest.mark.parametrize(("effect", "deviation", "n", "level"), [(1, 0.44, 5, 0.05 / 9), (0.55, 1, 28, 0.05)])
def test_power_is_the_share_of_drawn_samples_that_the_t_test_finds(
    effect: float, deviation: float, n: int, level: float
) -> None:
    drawn = np.random.default_rng(4).normal(effect, deviation, (40_000, n))
    t = drawn.mean(axis=1) / drawn.std(axis=1, ddof=1) * sqrt(n)
    found = float(np.mean(2 * student.sf(np.abs(t), n - 1) < level))
    assert inference.power(effect, deviation, n, level) == pytest.approx(found, abs=4 * sqrt(0.25 / 40_000))


def test_with_hardly_an_effect_the_power_is_the_level() -> None:
    assert inference.power(1e-4, 1.0, 5, 0.01) == pytest.approx(0.01, rel=1e-3)


def test_a_deviation_is_that_of_the_differences() -> None:
    own, base = {0: 0.5, 1: 0.52, 2: 0.47}, dict.fromkeys(range(3), 0.45)
    [one] = analysis.contrasts(runs_of({"FedSAM": own}), runs_of({"FedAvg": base}), ["FedSAM"])
    assert power.deviation(one.difference) == pytest.approx(np.std(list(own.values()), ddof=1))


def test_power_is_what_a_reader_of_the_kept_runs_has_computed() -> None:
    """By another program, from the same runs: 0.5, 0.06 and 0.03 at alpha = 0.1, and 0.01 at alpha = 0."""
    results = analysis.Results.load(FOLDER / "results")
    found = {split: {one.method: p for one, _, p in power.powers(results, split)} for split in collect.SPLITS}
    for method, digits, stated in (("FedSMOO", 1, 0.5), ("FedGMT", 2, 0.06), ("MoFedSAM", 2, 0.03)):
        assert round(found["alpha-0.1"][method], digits) == stated
    assert round(float(np.median(list(found["alpha-0"].values()))), 2) == 0.01


def test_what_changed_has_the_numbers_of_the_results(made_up: Path) -> None:
    """All test accuracies of final models are 50 %, training accuracies 51 %; LPF and trace are drawn."""
    results = analysis.Results.load(made_up)
    assert "differ by at most 1.00 points in each of the 24 means over seeds" in joined.changed(results)
    shares = {}
    for row in results.runs:
        if row["part"] == "tuned":
            shares.setdefault((row["split"], row["method"]), []).append((row["trace"], row["lpf"]))
    means = [np.mean(values, axis=0) for values in shares.values()]
    least, most = (pick(1e-4 / 2 * trace / lpf for trace, lpf in means) for pick in (min, max))
    assert joined.widest_rise(results)[1:] == pytest.approx((least, most))
    assert "a lead over their plain bases was held by" in joined.outcome(results)


def test_the_scale_is_that_of_the_plan() -> None:
    said = joined.scale_of(analysis.Results.load(FOLDER / "results"))
    for stated in ("62,006 parameters", "5 of 100 clients a round"):
        assert stated in PLAN
        assert stated in said
    assert said.endswith("1,000 rounds at alpha = 0 and 300 rounds at alpha = 0.1, 9 flat methods, 5 seeds.")


def test_spearman_is_scipys_with_ties() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.integers(5, size=(2, 20, 9)).astype(float)
    assert analysis.spearman(x, y) == pytest.approx([spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)])
    assert np.isnan(analysis.spearman(np.ones((1, 4)), np.arange(4.0)[None])).all()


def measured(points: dict[str, list[tuple[float, float]]]) -> list[dict[str, Any]]:
    return [
        {"method": method, "seed": seed, "trace": x, "accuracy": y}
        for method, own in points.items()
        for seed, (x, y) in enumerate(own)
    ]


def test_correlations_that_are_known() -> None:
    """Within, one method rises and one falls, whatever seeds are drawn: draws of methods are -1, 0 or 1."""
    rows = measured({"A": [(1, 0.1), (2, 0.2), (3, 0.3)], "B": [(4, 0.9), (5, 0.8), (6, 0.7)],
                     "C": [(9, 0.9), (8, 0.95)]})  # fmt: skip
    inside, across = analysis.within(rows, "trace"), analysis.between(rows, "trace")
    assert inside is not None
    assert across is not None
    assert (inside.value, inside.low, inside.high, inside.methods) == (0, -1, 1, 2), "one method lacks a seed"
    assert (across.value, across.low, across.high, across.methods) == pytest.approx((1, 1, 1, 3))


def test_a_correlation_is_with_the_accuracy_that_is_asked_for() -> None:
    points = {
        "A": [(1, 0.1), (2, 0.2), (3, 0.3)],
        "B": [(4, 0.4), (5, 0.5), (6, 0.6)],
        "C": [(7, 0.7), (8, 0.8), (9, 0.9)],
    }
    rows = [row | {"accuracy_of_final_model": -row["accuracy"]} for row in measured(points)]
    for correlation in (analysis.within, analysis.between):
        mean, final = (correlation(rows, "trace", name) for name in ("accuracy", "accuracy_of_final_model"))
        assert mean is not None
        assert final is not None
        assert (mean.value, final.value) == pytest.approx((1, -1))


def test_too_little_has_no_correlation() -> None:
    rows = measured({"A": [(1, 0.1), (2, 0.2), (3, 0.3)], "B": [(4, 0.5), (5, 0.5), (6, 0.5)]})
    assert analysis.within(rows, "trace") is None, "an accuracy without spread has no ranks, and one method no interval"
    assert analysis.between(rows, "trace") is None


def test_the_interval_within_is_that_of_all_draws_of_seeds_and_methods() -> None:
    """With three methods and three seeds, every one of the 27 x 27 draws is equally likely."""
    points = {
        "A": [(1, 0.1), (2, 0.2), (3, 0.3)],
        "B": [(4, 0.9), (5, 0.7), (6, 0.8)],
        "C": [(7, 0.5), (8, 0.6), (9, 0.4)],
    }
    every = []
    for seeds in product(range(3), repeat=3):
        if len(set(seeds)) == 1:
            continue  # without spread
        of = {
            name: spearmanr(*zip(*(own[seed] for seed in seeds), strict=True)).statistic for name, own in points.items()
        }
        every += [np.mean([of[name] for name in names]) for names in product(points, repeat=3)]
    ours = analysis.within(measured(points), "trace")
    assert ours is not None
    assert ours.value == pytest.approx((1 - 0.5 - 0.5) / 3)
    for limit, share in ((ours.low, 0.025), (ours.high, 0.975)):
        assert np.mean(np.array(every) < limit - 1e-9) <= share + 0.005, "10,000 draws know a share to 0.0016"
        assert np.mean(np.array(every) <= limit + 1e-9) >= share - 0.005


def test_shared_seeds_make_the_interval_wider_than_draws_of_methods() -> None:
    """Methods that all follow the same seeds are one observation, however many they are."""
    shared = [(3, 0.1), (1, 0.2), (5, 0.3), (2, 0.4), (4, 0.5)]
    ours = analysis.within(measured({f"M{i}": shared for i in range(12)}), "trace")
    assert ours is not None
    assert ours.high - ours.low > 1, "draws of methods alone would say that it is certain"


def test_the_interval_between_is_that_of_scipys_bootstrap() -> None:
    rng = np.random.default_rng(3)
    x = rng.random(12)
    y = x + rng.normal(0, 0.3, 12)
    ours = analysis.between(measured({f"M{i}": [point] for i, point in enumerate(zip(x, y, strict=True))}), "trace")
    spearman = analysis.spearman
    theirs = bootstrap((x, y), lambda a, b, axis: spearman(a, b) if a.ndim > 1 else spearman(a[None], b[None])[0],
                       paired=True, n_resamples=10_000, method="percentile", rng=4).confidence_interval  # fmt: skip
    assert ours is not None
    assert ours.value == pytest.approx(spearmanr(x, y).statistic)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.03)


# The plan


def test_pairs_are_those_of_the_plan() -> None:
    assert dict(re.findall(r"^\| \d \| (\w+) \| (\w+) \|$", PLAN, re.MULTILINE)) == analysis.BASES


def test_methods_are_those_of_the_searches_in_their_order() -> None:
    for split in collect.SPLITS:
        assert [method.label for method in TuningSpec.load(FOLDER / f"tune-{split}.toml").methods] == analysis.METHODS


def test_methods_with_two_gradients_are_sams() -> None:
    """FedLESAM's perturbation is no gradient, and FedGMT has none."""
    assert analysis.twice_the_gradients() == [
        one for one in analysis.BASES if one not in ("FedLESAM", "FedLESAM_D", "FedGMT")
    ]


def test_folders_are_those_that_the_study_writes() -> None:
    text, run = (FOLDER / "run.py").read_text(), script
    assert (run.SPLITS, run.CONTROLS) == (collect.SPLITS, collect.CONTROLS)
    for part in ("tune", "tuned"):
        assert f'out / f"{part}{{which}}-{{split}}"' in text
        assert f"{part}{run.AGAIN}" in (*collect.SEARCHES, *collect.PARTS)
    for part in ("twice", "published"):
        assert f'out / f"{part}-{{split}}"' in text
    assert 'out / f"same-{split}-{method}"' in text
    assert f'out / "{collect.DRIFT}"' in text


@pytest.mark.parametrize("name", script.WITHOUT_RHO)
def test_without_its_radius_a_method_is_the_base_of_control_3(name: str) -> None:
    """With the settings that the control gives the base; the same weights, bit by bit, after some rounds."""
    own = {"MoFedSAM": {"beta": 0.2}, "FedSMOO": {"beta": 20.0}, "FedLESAM_D": {"beta": 20.0}}.get(name, {})
    base = script.WITHOUT_RHO[name](own)
    assert base["name"] == analysis.BASES[name]
    data = ff.data.load("digits", clients=10, partition=ff.Dirichlet(alpha=0.3), seed=0)
    client = ff.Client(lr=0.1, epochs=1, batch_size=10)
    ends = []
    for settings in ({"name": name, "rho": 0.0} | own, base):
        method = find(settings.pop("name"))(**settings)
        simulation = ff.Simulation(
            model="mlp", data=data, method=method, client=client, rounds=4, participation=0.5, seed=0
        )
        simulation.run()
        ends.append(simulation.w)
    assert torch.equal(*ends)


def test_control_3_gives_the_base_what_the_search_chose_for_the_flat_method() -> None:
    """FedSAM and FedLESAM were given the same step size, and so share a base; FedAvg's own step size is in none."""
    winners = StudySpec(
        methods=["FedAvg", {"name": "FedSAM", "rho": 0.05}, "FedLESAM", {"name": "FedSMOO", "beta": 20.0}],
        client_of={"FedAvg": {"lr": 0.3}, "FedSAM": {"lr": 0.1}, "FedLESAM": {"lr": 0.1}, "FedSMOO": {"lr": 0.2}},
    )
    found = script.same_settings(winners)
    settings = {name: [(run.method.name, run.client.lr) for run in spec.runs()] for name, spec in found.items()}
    assert settings == {"FedSAM": [("FedAvg", 0.1)] * 3, "FedSMOO": [("FedDyn", 0.2)] * 3}
    assert found["FedSMOO"].methods[0].alpha == 1 / 20


@pytest.mark.parametrize(("name", "changed"), [("FedGF", "method.threshold"), ("FedDyn", "method.alpha")])
def test_a_second_search_differs_by_one_setting_alone(name: str, changed: str) -> None:
    """Same step sizes and radii, one by one."""
    both = [TuningSpec.load(FOLDER / f"{part}-alpha-0.1.toml") for part in collect.SEARCHES]
    configurations = [spec.configurations_of(method) for spec in both for method in spec.methods if method.name == name]
    different = set()
    for planned, second in zip(*configurations, strict=True):
        assert planned.values.keys() == second.values.keys()
        different |= {key for key, x in planned.values.items() if second.values[key] != x}
    assert different == {changed}


def test_second_searches_are_of_the_same_experiment() -> None:
    first, again = (TuningSpec.load(FOLDER / f"{part}-alpha-0.1.toml") for part in collect.SEARCHES)
    shared = {"methods", "tune", "client_of"}
    assert {k: x for k, x in first.table().items() if k not in shared} == {
        k: x for k, x in again.table().items() if k not in shared
    }


# The page, from made-up results


def made_up_runs(part: str, methods: list[str], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Five seeds of each method on both splits; FedASAM lacks two."""
    return [
        {
            "part": part, "split": split, "method": method, "seed": seed, "rounds": 300,
            "accuracy": 0.5 + rng.normal(0, 0.01), "accuracy_of_final_model": 0.5, "train_accuracy": 0.51,
            "train_loss": 2.5 if (split, method) == ("alpha-0", "FedSAM") else 1.5, "gradients": 1e6, "seconds": 360.0,
            "client.lr": 0.1, "hyper_parameters": "{}", "segments": 1 + (seed == 0),
            "mean_c": seed / 8 if method == "FedGF" else None,
            **({} if part not in collect.MEASURED else {
                name: value for measure in collect.MEASURES
                for name, value in ((measure, 10 ** rng.uniform(0, 2)), (f"{measure}_error", 0.125))
            }),
        }
        for split in collect.SPLITS for method in methods for seed in range(5)
        if (method, seed) not in (("FedASAM", 1), ("FedASAM", 4))
    ]  # fmt: skip


def made_up_search(methods: list[str], part: str = "tune") -> list[dict[str, Any]]:
    """Configuration i has step size 0.1 (i + 1), and 1 is the best; 2 diverged, 0 has the paper's settings."""
    return [
        {"part": part,
         "split": split, "method": method, "configuration": i, "settings": json.dumps({"client.lr": (i + 1) / 10}),
         "rounds": rounds, "seed": 1000, "round": None if i == 2 else t,
         "validation_accuracy": None if i == 2 else 0.4 + (i == 1) / 100}
        for split in collect.SPLITS for method in methods for rounds in (30, 100)
        for i in range(4) if rounds == 30 or i == 1
        for t in ([None] if i == 2 else range(10, rounds + 1, 10))
    ]  # fmt: skip


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results with all tables, which tests read."""
    folder = tmp_path_factory.mktemp("made_up") / "results"
    rng = np.random.default_rng(7)
    methods = [*PLAIN, *analysis.BASES]
    runs = [row for part in ("tuned", "published") for row in made_up_runs(part, methods, rng)]
    runs += made_up_runs("twice", list(PLAIN), rng)
    again = [row for row in made_up_runs("tuned-again", AGAIN, rng) if row["split"] == "alpha-0.1"]
    same = [row for row in made_up_runs("same", list(PLAIN), rng) if row["split"] == "alpha-0"]
    same += [row | {"client.lr": 0.2, "accuracy": 0.0} for row in same]  # of no flat method
    curves = [
        {name: row[name] for name in ("part", "split", "method", "seed")} | {"round": t, "test_accuracy": t / 600}
        for row in runs for t in (100, 200, 300)
    ]  # fmt: skip
    drift = [
        {"rho": rho, "threshold": 0.2, "round": t, "drift": rho * t, "c": float(t > 2)}
        for rho in (0.02, 0.1)
        for t in range(1, 5)
    ]
    searches = made_up_search(methods) + [
        row | {"validation_accuracy": 0.5 if row["method"] == "FedGF" else row["validation_accuracy"]}
        for row in made_up_search(AGAIN, "tune-again") if row["split"] == "alpha-0.1"
    ]  # fmt: skip
    collect.Collected(runs + again + same, curves, searches, drift).write(folder)
    return folder


@pytest.fixture(scope="module")
def pages(made_up: Path) -> dict[Path, str]:
    """The page of these results and its figures."""
    return generate.study_page(made_up)


def tables(text: str) -> list[list[dict[str, str]]]:
    """The rows of every Markdown table, by title."""
    found = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        titles, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()]
        found.append([dict(zip(titles, row, strict=True)) for row in rows])
    return found


def test_without_results_every_mark_says_so() -> None:
    nothing = analysis.Results.load(Path("nowhere"))
    others = [mark for mark in MARKS if mark != QUOTED]
    assert study.chapters(nothing) | guidance.chapters(nothing) | joined.chapters(nothing) == dict.fromkeys(
        others, "Not measured yet."
    )
    assert joined.outcome(nothing) == "Not measured yet."
    assert study.figures(nothing) == {}


@pytest.mark.slow
def test_every_mark_is_filled_and_every_figure_is_shown(made_up: Path, pages: dict[Path, str]) -> None:
    text = next(content for path, content in pages.items() if path.suffix == ".md")
    chapters = study.chapters(analysis.Results.load(made_up))
    assert sorted([*chapters, "guidance", "reach", "changed", "power", "scale", QUOTED]) == sorted(MARKS)
    assert "Not measured yet." not in text
    drawn = {path.name for path in pages if path.suffix == ".svg"}
    assert drawn == {"contrasts.svg", "curves-alpha-0.svg", "curves-alpha-0.1.svg", "flatness.svg", "drift.svg"}
    assert {Path(link).name for link in re.findall(r"!\[.+\]\((.+)\)", text)} == drawn
    counts = {what: [len(table) for table in tables(content)] for what, content in chapters.items()}
    assert counts == {
        "missing": [], "answer": [8], "chosen again": [2], "again contrasts": [1], "other contrasts": [3],
        "switch": [3],
        "chosen": [12, 12], "accuracies": [12, 12], "contrasts": [9, 9], "published contrasts": [9, 9],
        "gradient contrasts": [6, 6], "same contrasts": [6, 6], "contrast figure": [], "curves": [],
        "flatness": [12, 12], "correlations": [12],
        "flatness figure": [], "drift": [2], "cost": [9],
    }  # fmt: skip


@pytest.mark.slow
def test_figures_show_numbers_and_no_formulas(pages: dict[Path, str]) -> None:
    figures = {path: figure for path, figure in pages.items() if path.suffix == ".svg"}
    assert len(figures) == 5
    for path, figure in figures.items():
        texts = re.findall(r"<text[^>]*>([^<]*)", figure)
        assert len(texts) > 10, path
        assert [text for text in texts if "$" in text] == []


@pytest.mark.slow
def test_the_page_and_its_figures_are_the_same_twice(made_up: Path, pages: dict[Path, str]) -> None:
    assert generate.study_page(made_up) == pages


def test_the_page_has_the_numbers_of_the_results(made_up: Path) -> None:
    results = analysis.Results.load(made_up)
    asam = next(row for row in tables(study.tuned_contrasts(results))[0] if row["flat method"] == "FedASAM")
    assert asam["pairs"] == "3", "two seeds are missing"
    own, base = ({row["seed"]: row["accuracy"] for row in results.of("tuned", "alpha-0") if row["method"] == name}
                 for name in ("FedASAM", "FedAvg"))  # fmt: skip
    assert asam["difference"] == f"{100 * np.mean([own[seed] - base[seed] for seed in (0, 2, 3)]):+.2f}"
    plain = next(row for row in tables(study.accuracy_tables(results))[1] if row["method"] == "FedCM")
    twice = [row["accuracy"] for row in results.of("twice", "alpha-0.1") if row["method"] == "FedCM"]
    assert plain["plain, twice the rounds"] == f"{100 * np.mean(twice):.2f} ± {100 * np.std(twice, ddof=1):.2f} (5)"
    total = tables(study.cost_table(results))[0][-1]
    runs = 2 * (58 + 58 + 15) + len(AGAIN) * 5 + 2 * 15
    assert (total["runs"], total["hours"]) == (f"{runs}", f"{runs / 10:.2f}")
    assert total["gone on from"] == f"{2 * (12 + 12 + 3) + len(AGAIN) + 2 * 3}", "one seed of each method"
    flat = tables(study.flatness_tables(results))[0][0]
    assert flat["trace"].endswith("(error 0.12)")
    sample = tables(study.drift(results))[0][1]
    assert (sample["rounds above"], sample["last c"]) == ("2", "1.00"), "0.1 t is above 0.2 in rounds 3 and 4"


def test_gradient_contrasts_are_with_twice_the_rounds(made_up: Path) -> None:
    results = analysis.Results.load(made_up)
    row = next(one for one in tables(study.gradient_contrasts(results))[0] if one["flat method"] == "FedSAM")
    flat, plain = ({one["seed"]: one["accuracy"] for one in results.of(part, "alpha-0") if one["method"] == method}
                   for part, method in (("tuned", "FedSAM"), ("twice", "FedAvg")))  # fmt: skip
    assert row["difference"] == f"{100 * np.mean([flat[seed] - plain[seed] for seed in range(5)]):+.2f}"


def test_what_was_chosen_is_told_with_its_gain(made_up: Path) -> None:
    row = tables(study.chosen(analysis.Results.load(made_up)))[0][0]
    assert row == {
        "method": "FedAvg", "chosen": "lr=0.2", "validation": "41.00", "over the first": "+1.00 after 30",
        "at an end": "–", "near chance": "0 of 4", "tie after": "–", "diverged": "1 of 4",
    }  # fmt: skip


def test_runs_near_chance_are_counted_beside_their_mean() -> None:
    rows = [{"method": "MoFedSAM", "accuracy": accuracy} for accuracy in (0.1, 0.12, 0.2)]
    assert study.accuracy_cells(rows) == {"MoFedSAM": "14.00 ± 5.29 (3, 2 near chance)"}


def test_a_configuration_that_diverges_in_a_later_step_counts(made_up: Path) -> None:
    rows = [
        row for row in analysis.Results.load(made_up).tuning if (row["split"], row["method"]) == ("alpha-0", "FedAvg")
    ]
    later = {**rows[-1], "configuration": 3, "rounds": 100, "round": None, "validation_accuracy": None}
    assert analysis.diverged(analysis.searched([*rows, later])[0]) == 2


def test_near_chance_is_at_most_two_points_above_a_guess() -> None:
    scores = [0.1, 0.12, 0.1201, 0.4]
    rows = [
        {"method": "FedAvg", "configuration": i, "settings": json.dumps({"client.lr": i}), "rounds": 10, "seed": 1000,
         "round": 10, "validation_accuracy": score} for i, score in enumerate(scores)
    ]  # fmt: skip
    assert analysis.near_chance(analysis.searched(rows)[0]) == 2


@pytest.mark.parametrize(
    ("again", "make", "methods"),
    [("FedGF", study.again_contrasts, ["FedGF"]),
     ("FedDyn", study.other_contrasts, ["FedSMOO", "FedLESAM_D", "FedGMT"])],
)  # fmt: skip
def test_a_second_search_takes_the_place_of_the_first_in_its_family(
    made_up: Path, again: str, make: Callable[[analysis.Results], str], methods: list[str]
) -> None:
    """FedGF's own contrast is another one, and so are those of the methods that extend FedDyn."""
    results = analysis.Results.load(made_up)
    of = {part: results.of(part, "alpha-0.1") for part in ("tuned", "tuned-again")}
    family = [one for one in of["tuned"] if one["method"] != again]
    family += [one for one in of["tuned-again"] if one["method"] == again]
    expected = {one.method: one for one in analysis.contrasts(family, family)}
    rows = tables(make(results))[0]
    assert [row["flat method"] for row in rows] == methods
    for row in rows:
        one = expected[row["flat method"]]
        assert one.difference is not None
        assert (row["difference"], row["p, corrected"]) == (
            f"{100 * one.difference.mean:+.2f}", f"{one.corrected:.4f}",
        )  # fmt: skip
    assert tables(study.switch(results))[0][0]["mean c [least, most]"] == "0.250 [0.000, 0.500]"


def test_control_3_takes_the_runs_of_the_base_that_have_the_methods_step_size(made_up: Path) -> None:
    """The runs with another step size have an accuracy of 0."""
    results = analysis.Results.load(made_up)
    rows = tables(study.same_contrasts(results))[0]
    assert [row["flat method"] for row in rows] == PERTURBED == list(script.WITHOUT_RHO)
    for row in rows:
        flat, plain = (
            {one["seed"]: one["accuracy"] for one in results.of(part, "alpha-0")
             if one["method"] == method and one["client.lr"] == 0.1}
            for part, method in (("tuned", row["flat method"]), ("same", row["plain base"]))
        )  # fmt: skip
        assert row["difference"] == f"{100 * np.mean([flat[seed] - plain[seed] for seed in flat]):+.2f}"
    bases = tables(study.same_contrasts(results))[1]
    assert [(row["plain base"], row["step size"]) for row in bases] == [
        (one, x) for one in PLAIN for x in ("0.1", "0.2")
    ]
    assert bases[1]["test accuracy"] == "0.00 ± 0.00 (5, 5 near chance)"


def test_control_3_mixes_no_coefficients(made_up: Path) -> None:
    results = analysis.Results.load(made_up)
    flat, plain = (results.of(part, "alpha-0") for part in ("tuned", "same"))
    assert len(analysis.contrasts_at_same_settings(flat, plain)) == len(PERTURBED)
    plain[-1] |= {"client.lr": 0.1, "hyper_parameters": '{"alpha": 0.3}'}
    with pytest.raises(ValueError, match="FedDyn has several coefficients with the step size of FedSMOO"):
        analysis.contrasts_at_same_settings(flat, plain)


def test_methods_with_one_gradient_stand_below_the_control_of_equal_gradients(made_up: Path) -> None:
    results = analysis.Results.load(made_up)
    lines = study.gradient_contrasts(results).splitlines()
    [line] = [line for line in lines if "one gradient a step, alpha = 0," in line]
    flat, plain = (
        np.mean([one["accuracy"] for one in results.of(part, "alpha-0") if one["method"] == method])
        for part, method in (("tuned", "FedGMT"), ("twice", "FedDyn"))
    )
    assert line.endswith(f", FedGMT {100 * (flat - plain):+.2f} points.")
    assert re.findall(r"(Fed\w+) [+-]", line) == [
        one for one in analysis.BASES if one not in analysis.twice_the_gradients()
    ]


def test_the_answer_has_every_method_once_in_each_comparison(made_up: Path) -> None:
    results = analysis.Results.load(made_up)
    for row in tables(study.answer(results))[0]:
        named = [
            name
            for cell in (analysis.HELD, analysis.NOT_HELD, analysis.UNDECIDED)
            for name in row[cell].split(", ")
            if name != "–"
        ]
        expected = {
            "tuned, equal gradients": analysis.twice_the_gradients(), "tuned, same settings": PERTURBED,
            "searched again": ["FedGF"],
        }  # fmt: skip
        assert sorted(name.split(" ")[0] for name in named) == sorted(
            expected.get(row["comparison"], list(analysis.BASES))
        )
        verdicts = {
            one.method: one.verdict for one in study.kinds(results, row["split"].replace(" = ", "-"))[row["comparison"]]
        }
        assert all(
            verdicts[name] == cell
            for cell in (analysis.NOT_HELD, analysis.UNDECIDED)
            for name in row[cell].split(", ")
            if name != "–"
        )


def test_guidance_is_of_what_has_ended_alone(made_up: Path) -> None:
    whole = analysis.Results.load(made_up)
    lines = guidance.guidance(whole).splitlines()
    assert [line.split(" and ")[0].split(" tuning")[0] for line in lines] == ["* At alpha = 0"] * 4 + [
        "* At alpha = 0.1"
    ] * 4
    lost = {"part": "tuned", "split": "alpha-0", "what": "1 of 60 runs have not finished, or diverged: FedCM-seed4"}
    assert guidance.guidance(replace(whole, missing=[lost])).splitlines() == lines[4:]
    assert guidance.guidance(analysis.Results([], [], [], [])) == "Not measured yet."


def test_guidance_has_the_numbers_of_the_results(made_up: Path) -> None:
    results = analysis.Results.load(made_up)
    tuned, published = (
        {name: np.mean([row["accuracy"] for row in results.of(part, "alpha-0.1") if row["method"] == name])
         for name in analysis.METHODS} for part in ("tuned", "published")
    )  # fmt: skip
    gains = {name: 100 * (tuned[name] - published[name]) for name in analysis.METHODS}
    most = max(gains, key=gains.__getitem__)
    lines = guidance.guidance(results).splitlines()[4:]
    assert f"by {np.median(np.abs(list(gains.values()))):.1f} points in the median" in lines[1]
    assert f"and {most} by {gains[most]:+.1f};" in lines[1]
    rows = tables(study.gradient_contrasts(results))[1]
    assert f"of {len(rows)} flat methods" in lines[2]
    low, high = (pick(float(row["difference"]) for row in rows) for pick in (min, max))
    told = [float(x) for x in re.findall(r"[+-]\d+\.\d", lines[2])]
    assert told == pytest.approx([low, high], abs=0.06)
    for line, contrasted in ((lines[0], study.tuned_contrasts), (lines[2], study.gradient_contrasts),
                             (lines[3], study.again_contrasts)):  # fmt: skip
        for verdict_, row in ((one["verdict"], one["flat method"]) for one in tables(contrasted(results))[-1]):
            place = {"held": "plain base (", analysis.NOT_HELD: "did not (", analysis.UNDECIDED: "undecided ("}[
                verdict_.split(",")[0]
            ]
            assert row in line.split(place)[1].split(")")[0]


def test_the_first_sentence_says_what_there_is_to_generalise(made_up: Path) -> None:
    """All test accuracies of final models are 50 %, training accuracies 51 %, and one training loss is above ln 10."""
    results = analysis.Results.load(made_up)
    said = guidance.reach(results)
    assert said.count(f"-1.0 to -1.0 points from training accuracy over the {len(analysis.METHODS)} tuned methods") == 2
    assert said.count("the training loss of 1 is above ln 10 = 2.30") == 1
    assert said.count("after 30 rounds, where a method's best configuration led the second by 1.0 to 1.0 points") == 2
    assert said.count("a winner's accuracy moves by 0.0 points") == 2
    (row, *_) = [row for row in tables(study.accuracy_tables(results))[1] if row["method"] == "FedSAM"]
    assert list(row.values())[-3:] == ["51.00", "-1.00", "1.50"]


def test_lpf_is_shown_as_a_rise_over_the_training_loss(made_up: Path) -> None:
    results = analysis.Results.load(made_up)
    own = [row for row in results.of("tuned", "alpha-0") if row["method"] == "FedSAM"]
    shown = next(row for row in tables(study.flatness_tables(results))[0] if row["method"] == "FedSAM")
    expected = np.mean([row["lpf"] for row in own]) - 2.5
    assert float(shown["LPF - F"].split(" ")[0]) == pytest.approx(expected, rel=0.1)
    half = 1e-4 / 2 * np.mean([row["trace"] for row in own])
    assert float(shown["sigma^2 trace / 2"]) == pytest.approx(half, abs=5.1e-5)


def test_an_unfinished_comparison_says_so_and_has_no_verdict(made_up: Path) -> None:
    whole = analysis.Results.load(made_up)
    assert study.missing(whole) == "All runs have ended; those that the plan's departures leave out were not made."
    lost = {"part": "twice", "split": "alpha-0.1", "what": "1 of 15 runs have not finished, or diverged: FedCM-seed4"}
    half = replace(whole, missing=[lost])
    assert "FedCM-seed4" in study.missing(half)
    said = {(row["split"], row["comparison"]): row[analysis.HELD] for row in tables(study.answer(half))[0]}
    assert [key for key, text in said.items() if text == "not finished"] == [("alpha = 0.1", "tuned, equal gradients")]
    for text, finished in ((study.gradient_contrasts(half), False), (study.tuned_contrasts(half), True)):
        assert [row["verdict"] != "–" for row in tables(text)[-1]] == [finished] * len(tables(text)[-1])
    assert [row["verdict"] for row in tables(study.gradient_contrasts(half))[0]].count("–") == 0, (
        "that of the other split"
    )


@pytest.mark.parametrize(("best", "expected"), [(0, {"client.lr": "least"}), (1, {}), (3, {"client.lr": "most"})])
def test_a_winner_at_an_end_of_all_that_was_tried_is_told(best: int, expected: dict[str, str]) -> None:
    first = [row | {"validation_accuracy": float(row["configuration"] == best)} for row in made_up_search(["FedAvg"])
             if row["split"] == "alpha-0" and row["rounds"] == 30 and row["configuration"] != 2]  # fmt: skip
    found = analysis.searched([*first, *(row | {"rounds": 31} for row in first if row["configuration"] == best)])[0]
    assert (found.winner.number, found.winner.rounds, analysis.ends(found)) == (best, 31, expected)


def test_a_part_alone_fills_what_is_its(made_up: Path) -> None:
    results = analysis.Results.load(made_up)
    half = analysis.Results([row for row in results.runs if row["part"] == "published"], [], [], [])
    filled = {what for what, content in study.chapters(half).items() if content != "Not measured yet."}
    assert filled == {"missing", "accuracies", "published contrasts", "contrast figure", "cost"}
    assert list(study.figures(half)) == ["contrasts.svg"]


@pytest.mark.slow
def test_check_names_a_stale_page_and_stale_figures(
    made_up: Path, pages: dict[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "STUDY", made_up)
    monkeypatch.setattr(generate, "study_page", {made_up: pages}.__getitem__)
    for others in ("parts", "method_pages"):  # `make docs-check` has them
        monkeypatch.setattr(generate, others, dict)
    monkeypatch.setattr(generate, "package_listing", generate.FILE.read_text)
    monkeypatch.setattr(sys, "argv", ["generate", "--check"])
    assert generate.main() == 1
    said = capsys.readouterr().out
    for name in ("study.md", "_static/study/contrasts.svg", "_static/study/curves-alpha-0.1.svg"):
        assert f"docs/{name} is not current" in said


# Real runs


def search() -> TuningSpec:
    """Two methods, of each the settings of the file and a step size with which it diverges."""
    tune = {
        "configurations": 4,
        "rounds": [2, 4],
        "one_in": 2,
        "seeds": [5],
        "box": {"client.lr": [1e30], "FedSAM.rho": [0.1]},
    }
    data = {"name": "digits", "clients": 10, "validation": 0.2}
    return TuningSpec(**(SMALL | {"data": data, "methods": ["fedavg", "fedsam"], "seeds": [0, 1], "tune": tune}))


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One split of the study, small and on the digits; one run of the comparison is not finished."""
    folder = tmp_path_factory.mktemp("study")
    tuning.tune(search(), folder / "tune-alpha-0")
    spec = study_spec(rounds=2, flatness=[], data_dir=MACHINE)
    carry_out(spec, folder / "tuned-alpha-0")
    directories = [run_directory(run, folder / "tuned-alpha-0") for run in spec.runs()]
    measure_run(
        directories[0], build_measures([{"name": "eigenvalues", "k": 1}, "trace", "lpf"]), 50, None, no_progress
    )
    (directories[-1].path / "summary.json").unlink()
    radii = [{"name": "FedGF", "rho": rho} for rho in (0.02, 0.1)]
    carry_out(study_spec(rounds=2, flatness=[], methods=radii, seeds=[0]), folder / "fedgf-drift")
    return folder


@pytest.mark.slow
def test_collected_runs_are_those_of_the_folders(carried_out: Path) -> None:
    rows = collect.collected(carried_out).runs
    tuned = [row for row in rows if row["part"] == "tuned"]
    assert [(row["method"], row["seed"]) for row in tuned] == [("FedAvg", 0), ("FedSAM", 0), ("FedAvg", 1)]
    spec = study_spec(rounds=2, flatness=[])
    for row, run in zip(tuned, spec.runs(), strict=False):
        folder = run_directory(run, carried_out / "tuned-alpha-0").path
        summary = json.loads((folder / "summary.json").read_text())["summary"]
        tested = pq.read_table(folder / "metrics.parquet")["test_accuracy"].to_pylist()
        assert row["accuracy"] == pytest.approx(np.mean(tested)), "of the last evaluations: both"
        assert row["accuracy_of_final_model"] == tested[-1]
        assert (row["train_accuracy"], row["train_loss"]) == (summary["client_accuracy_mean"], summary["train_loss"])
        assert (row["rounds"], row["seconds"], row["segments"]) == (2, summary["seconds"], 1)
        assert row["client.lr"] == 0.1
    assert json.loads(tuned[1]["hyper_parameters"])["rho"] == 0.1
    assert tuned[1]["gradients"] == 2 * tuned[0]["gradients"], "the same cohorts, two gradients a step"
    findings = RunDirectory(run_directory(spec.runs()[0], carried_out / "tuned-alpha-0").path).findings()
    expected = {name: (one.value, one.error) for finding in findings for name, one in finding.values.items()}
    assert expected.keys() == {*collect.MEASURES, "lpf_rise"}
    assert {name: (tuned[0][name], tuned[0][f"{name}_error"]) for name in collect.MEASURES} == {
        name: expected[name] for name in collect.MEASURES
    }
    assert "trace" not in tuned[1]


@pytest.mark.slow
def test_every_study_of_control_3_is_collected(tmp_path: Path) -> None:
    """Two of them, FedAvg with two step sizes, of which the second has not finished."""
    for name, rate in (("FedSAM", 0.1), ("FedSMOO", 0.2)):
        spec = study_spec(rounds=2, flatness=[], methods=["FedAvg"], seeds=[0], client={"lr": rate})
        carry_out(spec, tmp_path / f"same-alpha-0-{name}")
    (run_directory(spec.runs()[0], tmp_path / "same-alpha-0-FedSMOO").path / "summary.json").unlink()
    found = collect.collected(tmp_path)
    assert [(row["part"], row["method"], row["client.lr"]) for row in found.runs] == [("same", "FedAvg", 0.1)]
    assert [row["what"] for row in found.missing if row["part"] == "same"] == [
        "1 of 1 runs have not finished, or diverged: FedAvg-seed0"
    ]


@pytest.mark.slow
def test_collected_searches_are_their_ledgers(carried_out: Path) -> None:
    found = collect.collected(carried_out)
    with (carried_out / "tune-alpha-0" / "curves.csv").open() as file:
        curves = list(csv.DictReader(file))
    names = ("method", "configuration", "rounds", "seed", "round", "validation_accuracy")
    ours = [tuple(str(row[name]) for name in names) for row in found.tuning if row["round"] is not None]
    assert ours == [tuple(row[name] for name in names) for row in curves]
    lost = [(row["method"], json.loads(row["settings"])) for row in found.tuning if row["round"] is None]
    assert lost == [("FedAvg", {"client.lr": 1e30}), ("FedSAM", {"client.lr": 1e30, "method.rho": 0.1})]
    tuned = analysis.searched(found.tuning)
    assert [(one.label, one.winner.number, one.winner.rounds) for one in tuned] == [("FedAvg", 0, 4), ("FedSAM", 0, 4)]
    scores = [one.winner.score for one in tuning.tune(search(), carried_out / "tune-alpha-0")]
    assert [one.winner.score for one in tuned] == scores
    trials = [row for row in found.runs if row["part"] == "tune"]
    assert [(row["rounds"], row["segments"], row["accuracy"]) for row in trials] == [(4, 2, None)] * ceil(4 / 2)


@pytest.mark.slow
def test_collected_drift_is_that_of_every_round(carried_out: Path) -> None:
    drift = collect.collected(carried_out).drift
    assert [(row["rho"], row["threshold"], row["round"]) for row in drift] == [
        (rho, 0.2, t) for rho in (0.02, 0.1) for t in (1, 2)
    ]
    assert [row["c"] for row in drift] == [0, 1, 0, 1], "with these steps the first drift is above the threshold"
    assert all(row["drift"] > 0.2 for row in drift)
    assert [row["mean_c"] for row in collect.collected(carried_out).runs if row["part"] == "drift"] == [0.5, 0.5]


@pytest.mark.slow
def test_what_is_missing_is_said_in_a_line_each(carried_out: Path) -> None:
    found = [tuple(row.values()) for row in collect.collected(carried_out).missing]
    assert found == [
        ("tune", "alpha-0.1", "not begun"),
        ("tune-again", "alpha-0.1", "not begun"),
        ("tuned", "alpha-0.1", "not begun"),
        ("tuned", "alpha-0", "1 of 4 runs have not finished, or diverged: FedSAM-seed1"),
        ("tuned", "alpha-0", "2 of 3 finished runs lack measures of flatness"),
        ("twice", "alpha-0.1", "not begun"),
        ("published", "alpha-0.1", "not begun"),
        ("tuned-again", "alpha-0.1", "not begun"),
        ("same", "alpha-0", "not begun"),
    ]


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes_and_a_page(carried_out: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        collect.collect(carried_out, tmp_path / name)
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "other").iterdir()}
    assert files.keys() == {f"{name}.parquet" for name in collect.SCHEMAS}
    chapters = study.chapters(analysis.Results.load(tmp_path / "one"))
    sam = tables(chapters["contrasts"])[0][0]
    assert (sam["flat method"], sam["pairs"], sam["verdict"]) == ("FedSAM", "1", "–"), "a run has not finished"
    assert chapters["missing"].count("\n* ") == 9
    assert len(tables(chapters["chosen"])[0]) == 2
    assert study.figures(analysis.Results.load(tmp_path / "one")).keys() >= {
        "contrasts.svg",
        "curves-alpha-0.svg",
        "drift.svg",
    }


def with_short_names(file: Path) -> int:
    """Name the folders of runs in an archive with six digits, as the kept ones once were; how many files are in one."""
    with tarfile.open(file) as archive:
        entries = [(entry, archive.extractfile(entry).read()) for entry in archive]
    changed = 0
    with tarfile.open(file, "w:xz") as archive:
        for entry, content in entries:
            entry.name, number = re.subn(r"(-seed\d+-[0-9a-f]{6})[0-9a-f]{10}/", r"\1/", entry.name)
            changed += number
            archive.addfile(entry, io.BytesIO(content))
    return changed


@pytest.mark.slow
def test_kept_runs_are_finished_ones_elsewhere(carried_out: Path, tmp_path: Path) -> None:
    """Their rows are the same, and to go on computes only what was not finished."""
    file, elsewhere = tmp_path / "kept.tar.xz", tmp_path / "elsewhere"
    number = kept.write(carried_out, file)
    assert number == len(collect.collected(carried_out).runs)
    content = file.read_bytes()
    assert (kept.write(carried_out, file), file.read_bytes()) == (number, content)
    assert with_short_names(file) > 0
    assert (kept.write(carried_out, file), file.read_bytes()) == (number, content), "folders are named anew"
    assert with_short_names(file) > 0
    assert kept.restore(elsewhere, file) == number
    assert kept.restore(elsewhere, file) == 0, "what is there stays"
    ours, theirs = collect.collected(elsewhere), collect.collected(carried_out)
    assert (ours.runs, ours.tuning, ours.missing) == (theirs.runs, theirs.tuning, theirs.missing)
    assert not [*elsewhere.rglob("*.safetensors")]
    assert not any(run.damaged_files() for run in map(RunDirectory, elsewhere.glob("*/runs/*")))
    toml = [path.read_text() for path in elsewhere.rglob("*.toml")]
    assert toml
    assert not any(MACHINE in text for text in toml), "where the data were is not told"
    begun: list[str] = []
    found = tuning.tune(search(), elsewhere / "tune-alpha-0", Named(begun))
    assert found == tuning.tune(search(), carried_out / "tune-alpha-0")
    carry_out(study_spec(rounds=2, flatness=[]), elsewhere / "tuned-alpha-0", Named(begun))
    assert begun == ["FedSAM-seed1"]


def test_nothing_is_kept_of_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds nothing of the study"):
        kept.write(tmp_path, tmp_path / "kept.tar.xz")
    with pytest.raises(InputError, match=r"kept\.tar\.xz cannot be read: No such file"):
        kept.restore(tmp_path / "runs", tmp_path / "kept.tar.xz")
    (tmp_path / "kept.tar.xz").write_bytes(kept.FILE.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"kept\.tar\.xz is damaged"):
        kept.restore(tmp_path / "runs", tmp_path / "kept.tar.xz")


@pytest.mark.parametrize("name", ["../elsewhere", "/elsewhere", "runs/../../elsewhere", "C:elsewhere"])
def test_nothing_is_restored_outside_the_folder(name: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "kept.tar.xz", "w:xz") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(InputError, match=r"kept\.tar\.xz is damaged: '.*elsewhere' is no file in it"):
        kept.restore(tmp_path / "runs", tmp_path / "kept.tar.xz")


@pytest.mark.slow
def test_half_a_restored_run_is_restored_and_what_is_not_here_stays_kept(carried_out: Path, tmp_path: Path) -> None:
    file, elsewhere = tmp_path / "kept.tar.xz", tmp_path / "elsewhere"
    number = kept.write(carried_out, file)
    kept.restore(elsewhere, file)
    half, gone = sorted((elsewhere / "tuned-alpha-0" / "runs").iterdir())[:2]
    (half / "summary.json").unlink()
    assert kept.restore(elsewhere, file) == 1
    rmtree(gone)
    content = file.read_bytes()
    assert (kept.write(elsewhere, file), file.read_bytes()) == (number, content)


@pytest.mark.slow
def test_what_has_come_further_is_kept(carried_out: Path, tmp_path: Path) -> None:
    """A trial of the first step, and a ledger without the second, replace nothing."""
    file, earlier = tmp_path / "kept.tar.xz", tmp_path / "earlier"
    kept.write(carried_out, file)
    kept.restore(earlier, file)
    content = file.read_bytes()
    search_folder = earlier / "tune-alpha-0"
    entries = json.loads((search_folder / "ledger.json").read_text())
    (search_folder / "ledger.json").write_text(json.dumps([one for one in entries if one["rounds"] == 2]))
    (search_folder / "winners.toml").unlink()
    for summary in search_folder.glob("trials/*/summary.json"):
        summary.write_text(summary.read_text().replace('"rounds": 4', '"rounds": 2'))
    kept.write(earlier, file)
    assert file.read_bytes() == content
    kept.write(earlier, tmp_path / "other.tar.xz")
    kept.write(carried_out, tmp_path / "other.tar.xz")
    kept.restore(tmp_path / "again", tmp_path / "other.tar.xz")
    assert (tmp_path / "again" / "tune-alpha-0" / "winners.toml").exists()
    assert collect.collected(tmp_path / "again").tuning == collect.collected(carried_out).tuning


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no finished run of the study"):
        collect.collect(tmp_path / "nothing", tmp_path / "results")
    assert not (tmp_path / "results").exists()
