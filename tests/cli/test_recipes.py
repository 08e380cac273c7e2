"""`fedflat recipes` from the list to the report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.test_data import small_cifar10
from fedflat.experiments import budget
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
