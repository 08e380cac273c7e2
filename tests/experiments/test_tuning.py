"""A search for hyper-parameters: what goes on, what is chosen, and that stopping changes nothing."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
from collections import Counter
from functools import partial
from math import inf
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest

from fedflat.core.errors import InputError
from fedflat.experiments import runner, tuning
from fedflat.experiments.interrupt import Interrupted
from fedflat.experiments.jobs import Jobs
from fedflat.experiments.run_directory import StoredRun
from fedflat.experiments.runner import RunObserver
from fedflat.experiments.spec import RunSpec, StudySpec
from fedflat.experiments.studies import carry_out_study, stored_study
from fedflat.experiments.tuning import Tried
from fedflat.experiments.tuning_spec import TuningSpec
from fedflat.experiments.verification import verify_search
from fedflat.files import locked
from fedflat.rounds.checksums import Checksums
from support.effort import chosen
from support.studies import SMALL

BOX = {"client.lr": {"low": 0.01, "high": 1.0, "log": True}, "FedSAM.rho": [0.01, 0.1, 0.5]}


def search(**changes: Any) -> TuningSpec:
    tune = {"configurations": 10, "rounds": [2, 4, 6], "one_in": 2, "seeds": [5, 6], "box": BOX}
    data = {"name": "digits", "clients": 10, "validation": 0.2}
    client = {"lr": 0.1, "epochs": 1, "batch_size": 60}  # two steps, or three, of each client
    methods = ["fedavg", "fedsam"]
    table = SMALL | {"data": data, "client": client, "methods": methods, "seeds": [0, 1], "rounds": 9, "tune": tune}
    return TuningSpec(**(table | changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuning.Tuned]]:
    """A search that was carried out, and its result."""
    folder = tmp_path_factory.mktemp("search")
    return folder, tuning.tune(search(), folder)


class NeverStarted(RunObserver):
    """Fails if a round is computed."""

    def run_started(self, spec: RunSpec, t: int) -> None:
        assert t == spec.rounds


def ledger(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "ledger.json").read_text())


def entry(curve: list[tuple[int, float]], rounds: int, diverged: tuple[int, ...] = ()) -> Tried:
    return Tried(0, 0, {}, rounds, {0: curve, 1: [(t, x + 0.1) for t, x in curve]}, 0.0, list(diverged))


def test_a_trial_in_the_folder_of_another_one_is_refused(finished: tuple[Path, list], tmp_path: Path) -> None:
    """Trials that have more rounds than a step asks for were believed whatever their settings were."""
    copytree(finished[0], tmp_path / "copy")
    (tmp_path / "copy" / "ledger.json").unlink()
    one, other, *_ = sorted((tmp_path / "copy" / "trials").glob("FedAvg-seed5-*"))
    rmtree(one)
    copytree(other, one)
    with pytest.raises(InputError, match=r" holds another run: client\.lr is \S+ there and \S+ here"):
        tuning.tune(search(), tmp_path / "copy")


def test_two_trials_with_one_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunSpec, "digest", lambda _: "0" * 16)
    with pytest.raises(InputError, match=r"^two runs of FedAvg-seed5 have one folder, .*: client\.lr is"):
        tuning.tune(search(), tmp_path)


def test_a_configuration_is_judged_by_the_last_fifth_of_its_rounds() -> None:
    curve = [(t, t / 100) for t in range(1, 11)]
    assert entry(curve, 10).score == pytest.approx((0.09 + 0.10) / 2 + 0.05), "rounds 9 and 10, the mean over seeds"
    assert entry([(5, 0.3)], 10).score == pytest.approx(0.35), "the last evaluation there is"
    assert entry(curve, 10, diverged=(1,)).score == -inf


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([[0.4, 0.3, 0.2, 0.1], [0.4, 0.3]], []),
        ([[0.4, 0.3, 0.3, 0.1], [0.4, 0.3]], [2]),  # one of the two with 0.3 goes on
        ([[0.4, 0.3, 0.1, 0.1], [0.4, 0.3]], []),  # both with 0.1 are cut
        ([[0.4, 0.4, 0.1, 0.1], [0.4, 0.4]], [4]),  # both with 0.4 go on, one of them wins
        ([[0.3, 0.3, 0.3, 0.3], [0.3, 0.3]], [2, 4]),
        ([[0.3, -inf, -inf, -inf], [0.3]], []),  # the others diverged
    ],
)
def test_ties_are_where_numbers_decided(steps: list[list[float]], expected: list[int]) -> None:
    def tried(number: int, score: float, rounds: int) -> Tried:
        diverged = [0] if score == -inf else []
        return Tried(0, number, {}, rounds, {} if diverged else {0: [(rounds, score)]}, 0.0, diverged)

    ranked = [
        tuple(tried(number, score, 2 * place) for number, score in enumerate(scores))
        for place, scores in enumerate(steps, start=1)
    ]
    assert tuning.Tuned("FedAvg", tuple(ranked)).ties == expected


@pytest.mark.slow
def test_the_best_half_of_each_method_goes_on(finished) -> None:
    folder, found = finished
    counts = Counter((one["method"], one["rounds"]) for one in ledger(folder))
    assert counts == {(method, rounds): number for method in (0, 1) for rounds, number in ((2, 5), (4, 3), (6, 2))}
    for tuned in found:
        for before, after in zip(tuned.steps, tuned.steps[1:], strict=False):
            assert [one.score for one in before] == sorted((one.score for one in before), reverse=True)
            assert {one.number for one in after} == {one.number for one in before[: len(after)]}
        assert tuned.winner == max(tuned.steps[-1], key=lambda one: one.score)
        given, winner = tuned.given
        assert given.number == 0
        assert winner.number == tuned.winner.number
        assert winner.score >= given.score, "where the file's settings ended, the winner was not behind them"


@pytest.mark.slow
def test_a_trial_that_went_on_is_the_run_of_its_settings(finished, tmp_path: Path) -> None:
    """Two extensions change no bit of the curve, and every step's curve begins with that of the step before."""
    _, found = finished
    spec = search()
    [one] = [one for one in spec.configurations_of(spec.methods[1]) if one.number == found[1].winner.number]
    alone = runner.run(spec.trial(one, 6, 6), tmp_path)
    curve = [(t, x) for t, x in enumerate(alone.metrics["validation_accuracy"].to_pylist(), start=1)]
    assert found[1].winner.curves[6] == curve
    for step, rounds in zip(found[1].steps, (2, 4, 6), strict=True):
        [mine] = [tried for tried in step if tried.number == one.number]
        assert mine.curves[6] == curve[:rounds]
    assert found[1].winner.gradients == 2 * alone.summary["gradients"], "of two seeds"


@pytest.mark.slow
def test_no_trial_saw_the_test_set(finished) -> None:
    folder, _ = finished
    paths = sorted((folder / "trials").iterdir())
    assert len(paths) == 2 * 5 * 2
    for path in paths:
        run = StoredRun.open(path)
        assert not [name for name in (*run.metrics.column_names, *run.summary) if name.startswith("test_")]
        assert "validation_accuracy" in run.metrics.column_names


@pytest.mark.slow
def test_the_winners_are_a_study_with_other_seeds(finished) -> None:
    folder, found = finished
    study = StudySpec.load(folder / "winners.toml")
    assert (study.seeds, study.rounds, study.data.without_test) == ([0, 1], 9, False)
    assert study.flatness == search().flatness
    for run, tuned in zip(study.runs(), found, strict=False):
        values = tuned.winner.values
        assert run.client.lr == values.get("client.lr", 0.1)
        assert getattr(run.method, "rho", None) == values.get("method.rho", 0.1 if "SAM" in tuned.label else None)


@pytest.mark.slow
def test_the_table_of_curves_has_every_evaluation(finished) -> None:
    folder, _ = finished
    with (folder / "curves.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(curve) for one in ledger(folder) for curve in one["curves"].values())
    assert {row["method"] for row in rows} == {"FedAvg", "FedSAM"}


class Stopping(RunObserver):
    """Sends this process Ctrl-C in some round, counted over all runs."""

    def __init__(self, after: int) -> None:
        self.left = after

    def round_ended(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_stopped_at_any_step_it_goes_on_to_the_same_ledger(finished, tmp_path: Path) -> None:
    folder, _ = finished
    for after in chosen(
        (19, 9, 3), (1, 19, 9, 7, 3)
    ):  # rounds until the next Ctrl-C: in each of the steps, and between them
        with pytest.raises(Interrupted):
            tuning.tune(search(), tmp_path, Stopping(after))
    tuning.tune(search(), tmp_path)
    for name in ("ledger.json", "curves.csv", "winners.toml"):
        assert (tmp_path / name).read_text() == (folder / name).read_text()


@pytest.mark.slow
def test_trials_without_checkpoints_begin_anew_and_the_ledger_is_the_same(tmp_path: Path) -> None:
    tune = {"configurations": 2, "rounds": [1, 3], "one_in": 2, "seeds": [5], "box": {"client.lr": [0.3]}}
    small = search(methods=["fedavg"], tune=tune)
    tuning.tune(small, tmp_path / "whole")
    with pytest.raises(Interrupted):
        tuning.tune(small, tmp_path / "moved", Stopping(3))  # in the second step: both have their first round
    for state in (tmp_path / "moved").glob("trials/*/checkpoint"):
        rmtree(state)
    tuning.tune(small, tmp_path / "moved")
    for name in ("ledger.json", "curves.csv", "winners.toml"):
        assert (tmp_path / "moved" / name).read_text() == (tmp_path / "whole" / name).read_text()


@pytest.mark.slow
def test_a_finished_search_is_not_computed_again_nor_mixed_with_another(finished) -> None:
    folder, found = finished
    assert tuning.tune(search(), folder, NeverStarted()) == found
    with pytest.raises(InputError, match=r"holds another search: client.lr"):
        tuning.tune(search(client={"lr": 0.2, "epochs": 1, "batch_size": 60}), folder)
    [run, *_] = (folder / "trials").iterdir()
    with pytest.raises(InputError, match="holds a run or a study"):
        tuning.tune(search(), run)
    with pytest.raises(InputError, match=r"holds a search; choose another folder for a study"):
        carry_out_study(StudySpec.load(folder / "winners.toml"), folder)
    with pytest.raises(InputError, match=r"holds a search; the settings that it chose are in winners.toml"):
        stored_study(folder)


@pytest.mark.slow
def test_the_comparison_may_change_after_the_search(finished, tmp_path: Path) -> None:
    folder = copytree(finished[0], tmp_path / "search")
    assert tuning.tune(search(seeds=[2, 3, 4], rounds=7), folder, NeverStarted()) == finished[1]
    winners = StudySpec.load(folder / "winners.toml")
    assert (winners.seeds, winners.rounds) == ([2, 3, 4], 7)


@pytest.mark.slow
def test_a_lost_ledger_is_made_again_from_the_trials(finished, tmp_path: Path) -> None:
    """Trials that have more rounds than a step are as they are; of them the step's rounds count."""
    folder = copytree(finished[0], tmp_path / "search")
    (folder / "ledger.json").unlink()
    assert tuning.tune(search(), folder, NeverStarted()) == finished[1]
    assert ledger(folder) == ledger(finished[0])


def test_what_cannot_be_carried_out_leaves_no_folder(tmp_path: Path) -> None:
    for jobs in (0, "many"):
        with pytest.raises(InputError, match="jobs must be 'auto' or an integer"):
            tuning.tune(search(), tmp_path / "search", jobs=Jobs(jobs))
    assert not (tmp_path / "search").exists()


def test_all_that_went_on_having_diverged_is_said_so() -> None:
    spec = search()
    lost = [entry([(2, 0.5)], 4, diverged=(1,))]
    with pytest.raises(InputError, match="every remaining configuration of FedAvg has diverged within 4 rounds"):
        tuning._best(spec, 0, spec.configurations_of(spec.methods[0]), lost)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
def test_side_by_side_is_one_after_another(tmp_path: Path) -> None:
    """Three configurations in two steps; processes are started anew for each."""
    steps = [1, 2]
    tune = {"configurations": 3, "rounds": steps, "one_in": 2, "seeds": [5], "box": {"client.lr": [0.01, 0.1, 1.0]}}
    small = search(methods=["fedavg"], tune=tune)
    for name, jobs in (("alone", 1), ("together", 2)):
        tuning.tune(small, tmp_path / name, jobs=Jobs(jobs))
    ledgers = [ledger(tmp_path / name) for name in ("alone", "together")]
    assert ledgers[0] == ledgers[1]
    assert Counter(one["rounds"] for one in ledgers[0]) == dict(zip(steps, (3, 2), strict=True))


@pytest.mark.slow
def test_what_diverges_is_the_worst_and_if_all_do_it_is_said(tmp_path: Path) -> None:
    tune = {"configurations": 2, "rounds": [2, 3], "seeds": [5], "box": {"client.lr": [1e30, 0.2]}}
    [found] = tuning.tune(search(methods=["fedavg"], tune=tune), tmp_path / "one")
    assert found.winner.values in ({}, {"client.lr": 0.2})
    tune["box"] = {"client.lr": [1e30, 1e31]}
    wild = {"lr": 1e30, "epochs": 1, "batch_size": 20}
    with pytest.raises(InputError, match="methods: every configuration of FedAvg has diverged within 2 rounds"):
        tuning.tune(search(methods=["fedavg"], client=wild, tune=tune), tmp_path / "all")
    assert {tuple(one["diverged"]) for one in ledger(tmp_path / "all")} == {(5,)}


def rewritten(folder: Path, name: str, text: str) -> None:
    """A file of a search with its right digest: whoever can write one can write the other."""
    Checksums(folder, required=True).write(name, lambda path: path.write_text(text))


def test_what_is_no_ledger_is_named(tmp_path: Path) -> None:
    rewritten(tmp_path, "ledger.json", '[{"method": "zero"}]')
    with pytest.raises(InputError, match=r"ledger.json is no ledger of a search"):
        tuning.tune(search(), tmp_path)


def refusals(folder: Path) -> list[str]:
    """What going on with the search says, and what `verify` does, of its own files."""
    with pytest.raises(InputError) as error:
        tuning.tune(search(), folder, NeverStarted())
    return [str(error.value), *(str(one.problem) for one in verify_search(folder) if one.problem)]


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, -1])
def test_a_ledger_that_says_more_than_its_trials_is_refused(finished, tmp_path: Path, step: int) -> None:
    """An accuracy of 0.99 would have won; the trial's own metrics say otherwise."""
    folder = copytree(finished[0], tmp_path / "search")
    edited = ledger(folder)
    edited[step]["curves"]["5"][-1][1] = 0.99
    rewritten(folder, "ledger.json", json.dumps(edited))
    rounds = (2, 6)[step]
    for line in refusals(folder):
        assert re.search(rf"ledger.json is damaged: for Fed.*, {rounds} rounds it does not agree with the trials", line)


@pytest.mark.slow
def test_a_ledger_with_other_entries_is_refused(finished, tmp_path: Path) -> None:
    whole = ledger(finished[0])
    for name, edited in {"swapped": [whole[1], whole[0], *whole[2:]], "lost": whole[1:], "twice": [*whole, whole[-1]],
                         "diverged": [{**whole[0], "diverged": [5]}, *whole[1:]]}.items():  # fmt: skip
        folder = copytree(finished[0], tmp_path / name)
        rewritten(folder, "ledger.json", json.dumps(edited))
        assert all("ledger.json is damaged" in line for line in refusals(folder)), name


@pytest.mark.slow
def test_what_follows_from_the_ledger_is_made_again_and_verify_names_it(finished, tmp_path: Path) -> None:
    folder = copytree(finished[0], tmp_path / "search")
    for name, old, new in (("curves.csv", "FedSAM", "FedSMA"), ("winners.toml", "rho = ", "rho = 1")):
        whole = (folder / name).read_text()
        for write in (lambda text, name=name: (folder / name).write_text(text), partial(rewritten, folder, name)):
            write(whole.replace(old, new))
            assert [one.path.name for one in verify_search(folder) if one.problem] == [name]
            assert tuning.tune(search(), folder, NeverStarted()) == finished[1]
            assert (folder / name).read_text() == whole
            assert not [one for one in verify_search(folder) if one.problem]


@pytest.mark.slow
def test_a_second_search_in_the_folder_is_refused_at_once(finished, tmp_path: Path) -> None:
    folder = copytree(finished[0], tmp_path / "search")
    before = (folder / "tune.toml").read_text()
    with locked(folder / ".lock", ""), pytest.raises(InputError, match="is being written by another search"):
        tuning.tune(search(seeds=[3]), folder)
    assert (folder / "tune.toml").read_text() == before


@pytest.mark.slow
def test_a_lost_ledger_is_not_made_of_trials_that_have_forgotten(tmp_path: Path) -> None:
    """Rounds 1 was evaluated as the last one of its step only, and trials that went on do not have it any more."""
    tune = {"configurations": 2, "rounds": [1, 4], "one_in": 2, "seeds": [5], "box": {"client.lr": [0.3]}}
    small = search(methods=["fedavg"], tune=tune, eval_every=2)
    found = tuning.tune(small, tmp_path)
    assert tuning.tune(small, tmp_path, NeverStarted()) == found
    (tmp_path / "ledger.json").unlink()
    with pytest.raises(InputError, match=r"ledger.json is missing and cannot be made again: .* beyond 1 rounds"):
        tuning.tune(small, tmp_path)
