"""`fedflat recipes` from the list to the report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean, stdev

import pytest

from cli.test_data import small_cifar10
from fedflat.experiments import budget, reproductions, run_directory
from fedflat.experiments.recipe import all_recipes

SMALLER = (
    "--data.partial true --data.augment none --model mlp --client.epochs 1 --client.lr_decay 1 --seeds 0 --eval_every 1"
)
RUN = f"recipes run fedsmoo/table8 --data-dir data --scale 0.0025 --only fedavg,fed-smoo {SMALLER}"


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "TIMED_STEPS", 2)


@pytest.mark.slow
def test_the_list_names_every_recipe_and_its_cost(fedflat) -> None:
    code, out, err = fedflat("recipes list")
    assert (code, err) == (0, "")
    for name, recipe in all_recipes().items():
        assert name in out
        assert ", ".join(recipe.item.items[:2]) in out
    assert re.search(r"fedsmoo/table8 +Table 8 +1 +8 +4\.85 M +7,235\.0 +–", out)


@pytest.mark.slow
def test_the_list_of_one_paper(fedflat) -> None:
    out = fedflat("recipes list fedgf")[1]
    assert "fedgf/table1" in out
    assert "fedsam/table1" not in out


def test_show_has_notes_the_papers_numbers_and_cells(fedflat) -> None:
    code, out, err = fedflat("recipes show fedsmoo/table8")
    assert (code, err) == (0, "")
    assert (
        "paper, Table 8, cifar10,pathological-3,10-of-100, test accuracy %: FedAvg 74.08 ± 0.22, FedDyn 77.63 " in out
    )
    assert "note: Values are the paper's" in out
    assert re.search(r"cifar10,pathological-3,10-of-100 +800 ", out)


def test_a_dry_run_shows_the_cost_of_what_would_run(fedflat, tmp_path: Path) -> None:
    small_cifar10(Path("data/cifar10"))
    code, out, _ = fedflat(f"{RUN} --dry-run")
    assert code == 0
    assert re.search(r"cifar10,pathological-3,10-of-100 +2 +2 +\d+ +\d", out), "two rounds, two runs"
    assert not Path("runs").exists()


@pytest.mark.slow
def test_ours_stands_beside_the_papers(fedflat) -> None:
    small_cifar10(Path("data/cifar10"))
    code, out, err = fedflat(RUN)
    assert (code, err) == (0, "")
    assert re.search(r"FedSMOO .* 81\.58 ", out)
    assert re.search(r"FedAvg .* 74\.08 ", out)
    assert "Ran 0.0025 of the paper's rounds: its numbers cannot be compared with these." in out
    assert "Settings of the recipe changed by flags: --data.partial true" in out
    folder = Path("runs/recipes/fedsmoo/table8-scale-0.0025")
    page = (folder / "report.html").read_text()
    assert all(
        words in page for words in ("81.58", "cannot be compared with these", "Who holds what", "samples per client")
    )
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")}
    assert len(before) == 2
    fedflat(RUN)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")} == before, "nothing runs twice"


@pytest.mark.slow
def test_what_contradicts_a_number_and_what_was_not_reached_is_told(fedflat) -> None:
    small_cifar10(Path("data/cifar10"))
    code, out, err = fedflat(RUN.replace("table8", "table3").replace("fed-smoo", "fedadam"))
    assert (code, err) == (0, "")
    warning = "Table 3, communication to 74 %, relative to FedAvg: FedCM and MoFedSAM are charged 2 times"
    assert warning in out
    assert re.search(r"rounds to 74 %: paper, Table 3 +723 +not reached", out)
    page = Path("runs/recipes/fedsmoo/table3-scale-0.0025/report.html").read_text()
    assert warning in page
    assert "<td>9637.59</td><td>not reached</td>" in page


@pytest.fixture
def commit(monkeypatch: pytest.MonkeyPatch):
    """Set the commit that the code has, as runs and the ledger see it."""

    def set_to(name: str | None) -> None:
        for module in (run_directory, reproductions):
            monkeypatch.setattr(module, "commit_of_code", lambda: name)

    return set_to


@pytest.mark.slow
def test_a_recorded_result_has_what_it_was_computed_by(fedflat, commit) -> None:
    small_cifar10(Path("data/cifar10"))
    commit("0123456789ab")
    run = RUN.replace("fedavg,fed-smoo", "fedavg").replace("--seeds 0", "--seeds [0,3]")
    line = f"{run} --record kept/ledger.json"
    code, out, err = fedflat(line)
    assert (code, err) == (0, "")
    assert (
        "recorded in kept/ledger.json: cifar10,pathological-3,10-of-100, FedAvg: not a reproduction: 0.0025 of " in out
    )
    [one] = json.loads(Path("kept/ledger.json").read_text())
    summaries = Path("runs").rglob("summary.json")
    accuracies = [100 * json.loads(path.read_text())["summary"]["test_accuracy"] for path in summaries]
    assert (one.pop("ours"), one.pop("spread")) == pytest.approx((mean(accuracies), stdev(accuracies)), abs=1e-4)
    assert one == {
        "recipe": "fedsmoo/table8", "cell": "cifar10,pathological-3,10-of-100", "method": "FedAvg",
        "paper": "74.08 ± 0.22", "seeds": [0, 3], "missing": [], "rounds": 2, "rounds_of_paper": 800,
        "changed": ["client.epochs", "client.lr_decay", "data.augment", "data.partial", "model.name"],
        "commits": ["0123456789ab"],
    }  # fmt: skip
    before = Path("kept/ledger.json").read_bytes()
    assert fedflat(line)[0] == 0
    assert Path("kept/ledger.json").read_bytes() == before, "the same runs are one entry"


@pytest.mark.slow
def test_runs_of_changed_files_are_not_recorded(fedflat, commit) -> None:
    """Also if the files are as committed when the ledger is written."""
    small_cifar10(Path("data/cifar10"))
    commit("0123456789ab-dirty")
    assert fedflat(RUN)[0] == 0
    commit("0123456789ab")
    code, _, err = fedflat(f"{RUN} --record ledger.json")
    assert code == 2
    assert "cifar10,pathological-3,10-of-100, FedAvg: files differ from the commit, 0123456789ab-dirty" in err
    assert err.count("\n") == 1
    assert not Path("ledger.json").exists()


@pytest.mark.parametrize(
    ("name", "ledger", "message"),
    [
        (None, "[]", "--record ledger.json: the commit of the code is unknown"),
        ("0123456789ab-dirty", "[]", "--record ledger.json: files differ from the commit"),
        ("0123456789ab", "[", "ledger.json cannot be read"),
        ("0123456789ab", "{}", "ledger.json is no ledger of reproductions"),
    ],
)
def test_what_cannot_be_recorded_is_not_trained(fedflat, commit, name: str | None, ledger: str, message: str) -> None:
    small_cifar10(Path("data/cifar10"))
    commit(name)
    Path("ledger.json").write_text(ledger)
    code, _, err = fedflat(f"{RUN} --record ledger.json")
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert not Path("runs").exists()
    assert Path("ledger.json").read_text() == ledger


def test_a_split_has_no_result_to_record(fedflat, commit) -> None:
    commit("0123456789ab")
    code, _, err = fedflat("recipes run fedsmoo/figure2 --record ledger.json")
    assert code == 2
    assert "--record ledger.json: fedsmoo/figure2 trains nothing" in err


def test_a_recipe_of_partitions_draws_them(fedflat) -> None:
    small_cifar10(Path("data/cifar10"))
    code, _, _ = fedflat("recipes run fedsmoo/figure2 --cell cifar10,dirichlet-0.1 --data-dir data --data.partial true")
    assert code == 0
    folder = Path("runs/recipes/fedsmoo/figure2/cifar10,dirichlet-0.1,10-of-100")
    assert (folder / "partition.svg").exists()
    assert "classes per client" in (folder / "facts.txt").read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("recipes list fedfoo", "there is no paper 'fedfoo'; known are fedgf,"),
        ("recipes show fedgf/table99", "recipe 'fedgf/table99' is unknown; known are fedgf/figure1,"),
        ("recipes run fedgf/table1 --cell mnist", "--cell mnist: fedgf/table1 has no option 'mnist'"),
        ("recipes run fedgf/table1 --scale 2", "--scale 2.0 is not in (0, 1]"),
        (
            "recipes run fedsmoo/table8 --only FedFoo",
            "--only FedFoo: fedsmoo/table8 has no such method; it has",
        ),
        ("recipes run fedsmoo/table8 --only fedavg --methods fedsam", "--only takes some of the recipe's methods and"),
        ("recipes run fedsmoo/figure2 --only fedavg", "--only fedavg: fedsmoo/figure2 has no such method; it has none"),
        ("recipes run fedsmoo/table8 --data-dir data --rounds x", "rounds: "),
        ("recipes run fedsmoo/table8", "data.name = 'cifar10' needs files: give their folder as data_dir (--data-dir)"),
        ("recipes run fedsmoo/table8 --data-dir data", "train has 200 samples, the set has 50,000"),
    ],
)
def test_a_mistake_is_one_line(fedflat, line: str, message: str) -> None:
    small_cifar10(Path("data/cifar10"))
    code, _, err = fedflat(line)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
