"""The second study: its plan, its data, its analysis on made-up results whose truth is known, and small real runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from itertools import product
from math import log, sqrt
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import spearmanr
from scipy.stats import t as student

from docs import generate
from fedflat.core.errors import InputError
from fedflat.experiments.jobs import Jobs
from fedflat.methods import find
from fedflat.reports.catalogue import costs

analysis, collect, page, plan = (
    import_module(f"studies.gap-and-flatness.{name}") for name in ("analysis", "collect", "page", "plan")
)
inference = import_module("studies.inference")
FOLDER = Path(__file__).parents[2] / "studies" / "gap-and-flatness"
PROGRAMS = ("collect", "plan", "run", "sets")
PLAN = plan.PLAN
ERRORS = {"few": 0.18, "many": 0.12}  # of the bases, in what is made up
Shift = Callable[[str, str, float], float]  # of accuracy, by gap and method, given the base's error


@pytest.fixture(scope="module")
def run() -> Iterator[ModuleType]:
    """Import the study's programs as they import each other, and forget them afterwards."""
    sys.path.insert(0, str(FOLDER))
    before = {name: sys.modules.pop(name) for name in PROGRAMS if name in sys.modules}
    yield import_module("run")
    sys.path.remove(str(FOLDER))
    for name in PROGRAMS:
        sys.modules.pop(name, None)
    sys.modules.update(before)


# The plan


def test_the_numbers_are_those_of_the_text() -> None:
    text = (FOLDER / "README.md").read_text()
    rows = [line.split(" | ")[1:3] for line in text.splitlines() if line.startswith(("| 1", "| 2", "| 3", "| 4"))]
    assert dict(rows) == PLAN.base_of
    for numbers in (PLAN.step_sizes, PLAN.radii):
        assert ", ".join(f"{x:g}" for x in numbers) in text
    assert f"Seeds 0 to {PLAN.seeds[-1]}, fixed; {PLAN.rounds} rounds" in text
    assert PLAN.seeds == tuple(range(28))
    assert {costs(find(flat))[-1] for flat in PLAN.base_of if flat not in analysis.ONE_GRADIENT} == {2}
    assert {costs(find(flat))[-1] for flat in analysis.ONE_GRADIENT} == {1}


def test_the_pilot_of_the_text_is_the_file() -> None:
    rows, text = json.loads((FOLDER / "pilot.json").read_text()), (FOLDER / "README.md").read_text()
    cells = {(row["gap"], row["method"], row["rho"], row["lr"]): row for row in rows}
    for (gap, method, rho, lr), few in cells.items():
        if gap == "few":
            shown = [f"{100 * one['accuracy']:.1f} ({100 * one['train_accuracy']:.1f})"
                     for one in (few, cells["many", method, rho, lr])]  # fmt: skip
            radius = f", rho {rho:g}" if rho else ""
            assert f"| {method}, lr {lr:g}{radius} | {shown[0]} | {shown[1]} |" in text
    assert {(one.method, one.rho) for one in PLAN.grid} >= {key[1:3] for key in cells}


def test_every_study_of_the_plan_can_be_built(run: ModuleType, tmp_path: Path) -> None:
    for lr in PLAN.step_sizes:
        some = [one for one in PLAN.grid if one.lr == lr]
        spec = run.settings(tmp_path, 1000, some)
        assert len(spec.runs()) == len(some) == 3 + 4 * 4
        twice = run.settings(tmp_path, 0, some[:3], rounds=300)
        assert twice.client.lr_decay**300 == pytest.approx(spec.client.lr_decay**150), "the same last step size"
        collected = [collect.identity("choose", "few", one) for one in spec.runs()]
        assert [plan.configuration_of(row) for row in collected] == some
    assert len(PLAN.grid) == len(set(PLAN.grid))


def test_the_best_configuration_and_what_lies_beyond_an_end() -> None:
    one, other = plan.Configuration("FedSAM", 0.1, 0.12), plan.Configuration("FedSAM", 0.03, 0.24)
    assert plan.best({one: 0.8, other: 0.8}, "FedSAM") == other, "on a tie the smaller radius"
    assert plan.best({one: 0.8, other: 0.9}, "FedSAM", lr=0.12) == one
    assert PLAN.beyond(one) == []
    assert PLAN.beyond(plan.Configuration("FedAvg", 0.0, 0.48)) == [plan.Configuration("FedAvg", 0.0, 0.96)]
    low, high = PLAN.beyond(plan.Configuration("FedSAM", 0.3, 0.06))
    assert (low.lr, low.rho) == (pytest.approx(0.03), 0.3)
    assert (high.lr, high.rho) == (0.06, pytest.approx(0.9))


def test_an_end_that_is_the_best_is_passed_at_both_gaps_before_anything_is_compared() -> None:
    """FedSAM with few images is best with the largest radius; what lies beyond is better with many alone."""
    small = plan.Plan(base_of={"FedSAM": "FedAvg"}, choosing_seeds=(7,), seeds=(0,))
    wider = plan.Configuration("FedSAM", 0.3 * 0.3 / 0.1, 0.12)

    def score(gap: str, one: Any) -> float:
        best = {"few": 0.3, "many": 0.03}[gap] if one.method == "FedSAM" else 0.0
        return 0.8 + 0.01 * (one.lr == 0.12) + 0.01 * (one.rho == best) + 0.05 * (one == wider and gap == "many")

    rows: list[dict[str, Any]] = []
    carried_out = []
    while part := next((one for one in small.parts(rows) if not one.has_ended(rows)), None):
        carried_out.append((part.name, part.gap))
        rows += [{"part": part.name, "gap": part.gap, **one._asdict(), "seed": seed, "diverged": False,
                  "accuracy": score(part.gap, one)} for one in part.configurations for seed in part.seeds]  # fmt: skip
        if part.name == "choose-further":
            assert part.configurations == (wider,)
    assert carried_out == [
        ("choose", "few"), ("choose", "many"), ("choose-further", "few"), ("choose-further", "many"),
        ("choose-twice", "few"), ("compare", "few"), ("compare", "many"), ("twice", "few"),
    ]  # fmt: skip
    compared = {part.gap: part.configurations for part in small.parts(rows) if part.name == "compare"}
    base = plan.Configuration("FedAvg", 0.0, 0.12)
    assert compared == {"few": (base, plan.Configuration("FedSAM", 0.3, 0.12)), "many": (base, wider)}
    tried = [plan.configuration_of(row) for row in rows if row["part"].startswith("choose")]
    assert [page.is_at_an_end(one, tried) for one in (wider, compared["few"][1], base)] == [True, False, False]


def test_few_are_a_tenth_of_each_client_with_its_shares_of_the_classes(run: ModuleType) -> None:
    sets, rng = import_module("sets"), np.random.default_rng(0)
    y = rng.integers(10, size=25_000)
    for part in sets.clients_of(y, rng):
        tenth = sets.tenth_of(part, y, rng)
        assert (len(part), len(tenth), len(set(tenth.tolist()))) == (400, 40, 40)
        assert set(tenth.tolist()) <= set(part.tolist())
        counts = [np.bincount(y[samples], minlength=10) for samples in (part, tenth)]
        assert np.abs(counts[0] / 10 - counts[1]).max() < 1


# Made-up results


def no_shift(gap: str, method: str, error: float) -> float:
    return 0.0


def made_up(shift: Shift = no_shift, noise: float = 0.001, seed: int = 0) -> list[dict[str, Any]]:
    """Every run of the plan: flat methods are `shift` ahead of their bases, with independent noise.

    Inside the grid a step size of 0.12, and a radius of 0.03, are best everywhere, by far.
    """
    rng, rows = np.random.default_rng(seed), []
    while part := next((one for one in PLAN.parts(rows) if not one.has_ended(rows)), None):
        for one, number in product(part.configurations, part.seeds):
            error, training = ERRORS[part.gap], ERRORS[part.gap] * {"few": 0.6, "many": 0.9}[part.gap]
            ahead = shift(part.gap, one.method, error) if one.method in PLAN.base_of else 0.0
            lost = 0.01 * (one.lr != 0.12) + 0.01 * (one.rho not in (0.0, 0.03))
            accuracy = 1 - error + ahead - lost + (0 if part.name.startswith("choose") else rng.normal(0, noise))
            measures = {name: rng.random() for name in collect.MEASURES}
            rows.append({
                "part": part.name, "gap": part.gap, **one._asdict(), "rounds": part.rounds, "seed": number,
                "diverged": False, "accuracy": accuracy, "accuracy_of_final_model": accuracy,
                "train_accuracy": 1 - training, "train_loss": 0.3, "drift": 0.5, "local_steps": 15_000,
                "gradients": 15_000.0, "seconds": 60.0, "segments": 1, "commit": "abc",
                "versions": '{"fedflat": "1", "torch": "2", "numpy": "3", "python": "4"}',
                **(measures if part.is_measured else {}),
            })  # fmt: skip
    return rows


def loaded(rows: list[dict[str, Any]], folder: Path) -> Any:
    """The results of rows that went through the file."""
    table = pa.Table.from_pylist(rows, schema=collect.SCHEMAS["runs"])
    pq.write_table(table, folder / "runs.parquet")
    return analysis.Results.load(folder)


def two_points(gap: str, method: str, error: float) -> float:
    return 0.02 if gap == "few" else 0.0


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Results with an interaction of two points of every contrast."""
    return loaded(made_up(two_points, noise=0.007), tmp_path_factory.mktemp("planted"))


def test_a_planted_interaction_is_found(planted: Any) -> None:
    found = analysis.primary(analysis.contrasts(planted.compared))
    assert found.verdict == analysis.MORE
    assert (found.interaction.n, found.interaction.mean) == (28, pytest.approx(2, abs=0.5))
    assert [one.verdict for one in analysis.judged(planted)] == [f"{analysis.MORE}, {analysis.NARROWS}"] * 4


@pytest.mark.slow
def test_the_page_of_a_planted_interaction_says_it(planted: Any) -> None:
    found, chapters = analysis.primary(analysis.contrasts(planted.compared)), page.chapters(planted)
    few, many, interaction = found.lead["few"], found.lead["many"], found.interaction
    written = [f"{one.mean:+.2f} ({one.low:+.2f} to {one.high:+.2f})" for one in (few, many, interaction)]
    assert (
        f"On Fashion-MNIST with one small network, a perturbation radius gained {written[0]} points with 2,000 images "
        f"and {written[1]} with 20,000; the difference {written[2]} is beyond chance."
    ) in chapters["lead"]
    assert all(chapters.values())
    assert page.figures(planted)["lead.svg"].count("<svg") == 1
    assert "| FedLESAM" not in chapters["controls"].split("**Equal gradients**")[1].split("**Runs")[0]


def test_the_primary_test_is_students_of_a_number_for_each_seed(planted: Any) -> None:
    """Transcribed from the plan, from the rows."""
    at = {(row["gap"], row["method"], row["seed"]): row["accuracy"] for row in planted.runs if row["part"] == "compare"}
    numbers = {
        kind: np.array([
            fmean(change(at["few", f, s], at["few", b, s]) - change(at["many", f, s], at["many", b, s])
                  for f, b in PLAN.base_of.items())
            for s in PLAN.seeds
        ])
        for kind, change in {
            "interaction": lambda flat, base: 100 * (flat - base),
            "logarithm": lambda flat, base: log((1 - base) / (1 - flat)),
        }.items()
    }  # fmt: skip
    found = analysis.primary(analysis.contrasts(planted.compared))
    for kind, values in numbers.items():
        one, error = getattr(found, kind), values.std(ddof=1) / sqrt(28)
        assert one.mean == pytest.approx(values.mean())
        assert one.p == pytest.approx(2 * student.sf(abs(values.mean()) / error, 27), rel=1e-6)
        for ends, level in (((one.low, one.high), 0.975), (one.inner, 0.95)):
            assert ends == pytest.approx((values.mean() - student.ppf(level, 27) * error,
                                          values.mean() + student.ppf(level, 27) * error))  # fmt: skip


def test_errors_that_shrink_in_proportion_depend_on_the_scale(tmp_path: Path) -> None:
    """A tenth of the errors less is 1.8 points with few images and 1.2 with many."""
    results = loaded(made_up(lambda gap, method, error: 0.1 * error), tmp_path)
    found = analysis.primary(analysis.contrasts(results.compared))
    assert found.interaction.p < 1e-6
    assert found.interaction.mean == pytest.approx(0.6, abs=0.1)
    assert found.logarithm.low < 0 < found.logarithm.high
    assert found.verdict == analysis.SCALE
    assert {one.verdict for one in analysis.judged(results)} == {analysis.SCALE}
    assert page.primary_sentence(found).endswith(f" {analysis.SCALE}.")


def arm(accuracy: np.ndarray, lost: list[int] | None = None) -> Any:
    return analysis.Arm(accuracy, accuracy, accuracy + 0.05, np.isin(np.arange(len(accuracy)), lost or []))


def drawn_contrasts(rng: np.random.Generator, interaction: float, deviation: float) -> list[Any]:
    """Contrasts whose mean interaction over a seed has this mean and deviation in points, at equal errors."""
    of_seed = rng.normal(interaction, deviation, 28) / 100
    arms = {(gap, base): arm(np.full(28, 0.8)) for gap in plan.GAPS for base in PLAN.bases}
    for flat in PLAN.base_of:
        arms["few", flat], arms["many", flat] = arm(0.8 + of_seed), arm(np.full(28, 0.8))
    return analysis.contrasts(arms)


@pytest.mark.parametrize(
    ("interaction", "deviation", "wanted", "share"),
    [
        (0.0, 1.0, {analysis.NO_DIFFERENCE}, 0.95),
        (0.0, 4.0, {analysis.UNDECIDED}, 0.95),
        (0.55, 1.0, {analysis.MORE}, 0.8),
    ],
)
@pytest.mark.slow
def test_words_come_at_the_stated_rates(interaction: float, deviation: float, wanted: set[str], share: float) -> None:
    """Errors are equal at both gaps. An interval of four points' deviation is always wider than the margins."""
    rng, number = np.random.default_rng(1), 300
    words = [analysis.primary(drawn_contrasts(rng, interaction, deviation)).verdict for _ in range(number)]
    assert sum(one in wanted for one in words) / number == pytest.approx(share, abs=3 * sqrt(0.16 / number) + 0.02)
    if not interaction:
        assert words.count(analysis.MORE) + words.count(analysis.LESS) <= 0.09 * number


def test_the_plans_power_is_that_of_the_text() -> None:
    text = (FOLDER / "README.md").read_text()
    found = [inference.detectable(1.0, 28, level) for level in (0.05, 0.0125)]
    assert (
        "interaction of {:.2f} points is found with probability 0.8 at 0.05, and one of {:.2f}".format(*found) in text
    )


def test_a_diverged_run_counts_as_a_guess(planted: Any, tmp_path: Path) -> None:
    rows = [dict(row) for row in planted.runs]
    lost = next(
        row for row in rows if (row["part"], row["gap"], row["method"], row["seed"]) == ("compare", "few", "FedSAM", 5)
    )
    lost |= {"diverged": True, "seconds": None, **dict.fromkeys((*analysis.FILLED, *collect.MEASURES))}
    results = loaded(rows, tmp_path)
    whole, before = (analysis.contrasts(one.compared)[0] for one in (results, planted))
    base = planted.compared["few", "FedAvg"].accuracy[5]
    assert whole.lead["few"][5] == pytest.approx(100 * (0.1 - base))
    assert np.delete(whole.lead["few"], 5) == pytest.approx(np.delete(before.lead["few"], 5))
    without = analysis.primary(analysis.contrasts(results.compared), whole=False)
    numbers = np.mean([one.interaction for one in analysis.contrasts(planted.compared)], axis=0)
    assert (without.interaction.n, without.interaction.mean) == (27, pytest.approx(np.delete(numbers, 5).mean()))
    assert [one.points.n for one in analysis.judged(results, whole=False)] == [27, 28, 28, 28]
    assert "diverged: 1 of compare" in page.state(results)
    assert page.without_diverged(results).startswith(
        f"**Without the seeds of runs that diverged**: mean of the interactions {without.interaction.mean:+.2f} ("
    )
    chosen = [row | {"diverged": row["diverged"] or row["seed"] == 1000} for row in made_up()[:456]]
    assert PLAN.choice(chosen)[2].configurations == (), "all lost the same seed, so the same are the best"
    [score] = {round(x, 6) for one, x in plan.scores_of(chosen, PLAN.choice(chosen)[:1]).items() if one.lr == 0.12
               and one.rho in (0, 0.03)}  # fmt: skip
    assert score == pytest.approx((0.1 + 2 * 0.82) / 3)


def test_holm_is_over_the_four_contrasts(tmp_path: Path) -> None:
    """By hand: the smallest p times four, the next times three, and so on, none smaller than the one before."""
    leads = {"FedSAM": 0.0005, "FedLESAM": 0.001, "MoFedSAM": 0.0, "FedSMOO": 0.002}
    results = loaded(made_up(lambda gap, method, error: leads[method] * (gap == "few"), noise=0.002), tmp_path)
    every = sorted(analysis.judged(results), key=lambda one: one.points.p)
    expected, highest = [], 0.0
    for i, one in enumerate(every):
        highest = max(highest, min(1.0, (4 - i) * one.points.p))
        expected.append(highest)
    assert [one.corrected for one in every] == pytest.approx(expected)
    assert every[0].contrast.flat == "FedSMOO"
    assert 0.001 < every[1].points.p < every[1].corrected


def test_without_all_runs_there_is_no_result(planted: Any, tmp_path: Path) -> None:
    nothing = page.chapters(analysis.Results.load(tmp_path))
    assert {name for name, content in nothing.items() if content} == {"state"}
    assert "choose 0 of 456" in nothing["state"]
    assert "compare 0 of 392" in nothing["state"]
    assert "twice 0 of 84" in nothing["state"]
    assert "\n" not in nothing["state"]
    last = [row for row in planted.runs if (row["part"], row["seed"], row["method"]) != ("twice", 27, "FedDyn")]
    partial = loaded(last, tmp_path)
    chapters = page.chapters(partial)
    assert {name for name, content in chapters.items() if content} == {"state", "chosen"}
    assert "twice 83 of 84" in chapters["state"]
    assert page.figures(partial) == {}
    early = loaded([row for row in planted.runs if row["part"] != "choose" or row["seed"] != 1002], tmp_path)
    assert {name for name, content in page.chapters(early).items() if content} == {"state"}


def test_a_base_without_a_gap_of_its_own_has_no_verdict(planted: Any, tmp_path: Path) -> None:
    """FedAvg's gap with few images is made that with many and 1.9 points."""

    def narrowed(row: dict[str, Any]) -> dict[str, Any]:
        wanted = (row["part"], row["gap"], row["method"]) == ("choose", "few", "FedAvg")
        return row | {"train_accuracy": row["accuracy_of_final_model"] + 0.012 + 0.019} if wanted else row

    results = loaded([narrowed(row) for row in planted.runs], tmp_path)
    assert [(one.base, one.passes) for one in analysis.manipulation(results)] == [
        ("FedAvg", False), ("FedCM", True), ("FedDyn", True),
    ]  # fmt: skip
    verdicts = {one.contrast.flat: one.verdict for one in analysis.judged(results)}
    assert [flat for flat, said in verdicts.items() if said == analysis.NO_VERDICT] == ["FedSAM", "FedLESAM"]
    assert "Bases that failed the manipulation check: FedAvg." in page.lead(results)


def test_controls_change_the_words(tmp_path: Path) -> None:
    """FedSAM's step size is not its base's, with which it does the opposite; the base catches up in time."""

    def of_two_step_sizes(row: dict[str, Any]) -> dict[str, Any]:
        if row["part"] == "choose" and row["method"] == "FedSAM" and (row["lr"], row["rho"]) == (0.24, 0.03):
            return row | dict.fromkeys(("accuracy", "accuracy_of_final_model"), 0.99)
        return row

    rows: list[dict[str, Any]] = []
    by_key = {}
    for row in made_up(two_points):
        by_key[row["part"], row["gap"], row["method"], row["seed"]] = row
        rows += [of_two_step_sizes(row)] if row["part"].startswith("choose") else []
    for gap, seed in product(plan.GAPS, PLAN.seeds):
        for method in PLAN.methods:
            row = by_key["compare", gap, method, seed]
            rows.append(row | {"lr": 0.24} if method == "FedSAM" else row)
        ahead = {"few": 0.01, "many": 0.04}[gap] + 0.0001 * (seed % 3)
        same = by_key["compare", gap, "FedSAM", seed]
        rows.append(same | {"part": "same-step-size", "lr": 0.12, "accuracy": 1 - ERRORS[gap] + ahead})
    for base, seed in product(PLAN.bases, PLAN.seeds):
        better = 0.03 if base == "FedAvg" else 0.0
        rows.append(by_key["twice", "few", base, seed] | {"accuracy": 1 - ERRORS["few"] + better})
    results = loaded(rows, tmp_path)
    assert results.has_ended
    verdicts = {one.contrast.flat: one.verdict for one in analysis.judged(results)}
    assert verdicts["FedSAM"].endswith(analysis.OTHER_SIGN)
    assert not any(said.endswith(analysis.OTHER_SIGN) for flat, said in verdicts.items() if flat != "FedSAM")
    gradients = {one.flat: one.vanishes for one in analysis.equal_gradients(results)}
    assert gradients == {"FedSAM": True, "MoFedSAM": False, "FedSMOO": False}
    said = {line.split()[0]: line for line in page.sentences(results)}
    assert said["FedSAM"].endswith("at twice the gradients for the base.")
    assert "twice" not in said["FedLESAM"] + said["MoFedSAM"]


@pytest.mark.parametrize(("mean", "verdict"), [(0.3, "more with few"), (-0.3, "less with few")])
def test_a_certain_interaction_has_its_sign_as_a_word_however_small(mean: float, verdict: str) -> None:
    rng = np.random.default_rng(2)
    found = analysis.primary(drawn_contrasts(rng, mean, 0.2))
    assert found.interaction.is_small
    assert found.verdict == verdict


def test_scales_disagree_in_significance_or_in_the_sign_of_what_is_significant() -> None:
    one = analysis.estimate(np.array([1.0, -3.0, 4.0]))
    other = replace(one, mean=-one.mean)
    assert analysis.word(one, 0.9, one, 0.9) == analysis.word(one, 0.9, other, 0.9) == analysis.UNDECIDED
    assert analysis.word(one, 0.01, one, 0.01) == analysis.MORE
    assert analysis.word(one, 0.01, other, 0.01) == analysis.SCALE
    assert analysis.word(one, 0.01, one, 0.06) == analysis.word(one, 0.06, one, 0.01) == analysis.SCALE


@pytest.mark.slow
def test_a_correlation_is_spearmans_with_all_draws_of_seeds_and_methods() -> None:
    """With three methods and three seeds, every one of the 27 x 27 draws is equally likely."""
    rng = np.random.default_rng(3)
    x = {(method, seed): rng.random() for method, seed in product("ABC", range(3))}
    y = {key: value + rng.normal(0, 0.3) for key, value in x.items()}
    rows = [{"method": m, "seed": s, "trace": x[m, s], "measured_gap": y[m, s]} for m, s in x]
    every = []
    for methods, seeds in product(product("ABC", repeat=3), product(range(3), repeat=3)):
        keys = list(product(methods, seeds))
        if len(set(keys)) > 1:
            every.append(spearmanr([x[key] for key in keys], [y[key] for key in keys]).statistic)
    found = analysis.correlation(rows, "trace")
    assert found.value == pytest.approx(spearmanr(list(x.values()), list(y.values())).statistic)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(every, (0.025, 0.975))), abs=0.1)
    assert analysis.correlation(rows[:-1], "trace").methods == 2, "a method lacks a seed"


# Real runs


# The study's executor is "compiled", whose steps take most of a second to trace: longer than these runs.
CHANGES = {"model": {"name": "cnn", "options": {"width": 2}}, "executor": "stacked"}
# As in the study, with few draws: the trace of a model that is hardly trained is near 0, so that its error stays large.
MEASURES = (
    "gradient-norm", "sharpness", {"name": "eigenvalues", "k": 1, "most": 5},
    {"name": "trace", "most": 2, "least": 2, "groups": 1, "sketch": 1},
    {"name": "lpf", "draws": 2},
)  # fmt: skip
SMALL = {"base_of": {"FedSAM": "FedAvg"}, "step_sizes": (0.1, 1e30), "radii": (0.5, 1.0), "choosing_seeds": (1000,),
         "seeds": (0, 1), "rounds": 2}  # fmt: skip


@pytest.fixture(scope="module")
def carried_out(run: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every part of a small plan: two seeds, two rounds, pictures of 4x4; the larger step size diverges."""
    folder, rng = tmp_path_factory.mktemp("gap"), np.random.default_rng(0)
    for gap, seed in product(plan.GAPS, (1000, 0, 1)):
        place = folder / "sets" / f"{gap}-{seed}"
        place.mkdir(parents=True)
        x, y = rng.random((100, 1, 4, 4), dtype=np.float32), rng.integers(10, size=100)
        np.savez(place / "train.npz", x=x, y=y, user=np.repeat(np.arange(50), 2))
        np.savez(place / "test.npz", x=rng.random((500, 1, 4, 4), dtype=np.float32), y=np.arange(500) % 10)
    assert [one if isinstance(one, str) else one["name"] for one in MEASURES] == [
        one if isinstance(one, str) else one["name"] for one in run.MEASURES
    ]
    run.MEASURES = MEASURES
    torch.set_num_threads(1)  # as in tests: the last bits of a measure depend on it
    run.carry_out(folder / "sets", folder / "runs", Jobs(1), import_module("plan").Plan(**SMALL), **CHANGES)
    return folder / "runs"


@pytest.mark.slow
def test_real_runs_are_collected_and_analysed(carried_out: Path, run: ModuleType, tmp_path: Path) -> None:
    for name in ("one", "other"):
        collect.collect(carried_out, tmp_path / name)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "other")]
    assert files[0] == files[1]
    results = analysis.Results.load(tmp_path / "one", plan.Plan(**SMALL))
    assert results.has_ended
    assert {row["part"] for row in results.runs} >= {"choose", "choose-further", "choose-twice", "compare", "twice"}
    finished = [row for row in results.runs if not row["diverged"]]
    assert {row["lr"] for row in results.runs if row["diverged"]} == {1e30}
    assert {row["rounds"] for row in finished} == {2, 4}
    for row in finished:
        measured = row["part"] == "compare"
        missing = {name for name, value in row.items() if value is None}
        assert missing == (set() if measured else {*collect.MEASURES, *(f"{one}_error" for one in collect.ERRORS)})
        assert row["local_steps"] == 10 * 10 * row["rounds"]
        assert row["gradients"] == row["local_steps"] * (2 if row["method"] == "FedSAM" else 1)
        assert row["commit"]
    curves = pq.read_table(tmp_path / "one" / "curves.parquet").to_pylist()
    assert {(row["part"], row["round"]) for row in curves} >= {("compare", 2), ("twice", 4)}
    assert all(page.chapters(results).values())
    assert all(line.split(": ")[1].split()[0] == line.split(" of ")[1].split()[0]
               for line in run.counts(run.rows_of(carried_out), import_module("plan").Plan(**SMALL)))  # fmt: skip


@pytest.mark.slow
def test_a_killed_study_goes_on_and_says_no_accuracy(
    carried_out: Path, run: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary, written last, of one run of a comparison is lost."""
    small = import_module("plan").Plan(**SMALL)
    lost = sorted(carried_out.glob("compare/*/runs/*/summary.json"))[0]
    before = run.rows_of(carried_out)
    lost.unlink()
    assert len(run.rows_of(carried_out)) == len(before) - 1
    with pytest.raises(InputError, match="another study"):
        run.carry_out(carried_out, carried_out, Jobs(1), small)
    run.carry_out(carried_out.parent / "sets", carried_out, Jobs(1), small, **CHANGES)
    after = run.rows_of(carried_out)
    changed = {key for old, new in zip(before, after, strict=True) for key in old if old[key] != new[key]}
    assert changed <= {"seconds", "segments"}
    assert "accuracy" not in capsys.readouterr().out


@pytest.mark.slow
def test_runs_of_another_machine_are_not_trained_again(carried_out: Path, run: ModuleType, tmp_path: Path) -> None:
    """Their folders are gone and their rows are in the tables, to which the missing runs are added."""
    small = import_module("plan").Plan(**SMALL)
    collect.collect(carried_out, tmp_path / "results")
    whole = {file.name: pq.read_table(file) for file in (tmp_path / "results").iterdir()}
    lost = whole["runs.parquet"].filter(pc.field("part") == "twice").slice(0, 1).to_pylist()[0]
    for name, table in whole.items():
        keys = [collect.key_of(row) == collect.key_of(lost) for row in table.to_pylist()]
        pq.write_table(table.filter(pa.array([not one for one in keys])), tmp_path / "results" / name)
    run.carry_out(carried_out.parent / "sets", tmp_path / "runs", Jobs(1), small, tmp_path / "results", **CHANGES)
    assert [collect.key_of(row) for row in run.rows_of(tmp_path / "runs")] == [collect.key_of(lost)]
    collect.collect(tmp_path / "runs", tmp_path / "results")
    for name, table in whole.items():
        again = pq.read_table(tmp_path / "results" / name)
        assert again.drop(["seconds", "segments"] if name == "runs.parquet" else []) == table.drop(
            ["seconds", "segments"] if name == "runs.parquet" else []
        )


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no finished run of the study"):
        collect.collect(tmp_path / "nothing", tmp_path / "results")
    assert not (tmp_path / "results").exists()


# The page


def test_the_page_is_current_and_has_a_mark_for_every_chapter() -> None:
    pages = generate.gap_study_page(generate.GAP_STUDY)
    assert all(path.read_text() == text for path, text in pages.items())
    text = (generate.DOCS / "gap_study.md").read_text()
    assert all(f"<!-- {name}: written by" in text for name in page.chapters(analysis.Results([])))
