"""The page of columns has each number that runs write, and no other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import fedflat as ff
from fedflat.data.selection import Holdings
from fedflat.methods import all_methods

PAGE = (Path(__file__).parents[2] / "docs" / "columns.md").read_text()


def rows(table: str) -> dict[str, str]:
    """What the page says of each name of a table, unit and meaning."""
    text = PAGE.split(f"<!-- {table}:")[1].split(f"<!-- end of {table} -->")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+ \| .+) \|$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ff.Run:
    """A run with everything that a run can have: held-out clients, a second model, parts that stay, own test sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFLAT_CACHE", str(tmp_path_factory.mktemp("cache")))
        data = ff.data.load("digits", clients=5, validation=0.2)
    own = Holdings.in_order([90] * 5)  # each client has a fifth of the test samples
    data = replace(data, own_test=own)
    rule = ff.HeldOut(1.0, 0.2)
    return ff.Simulation(
        "mlp", data, ff.methods.SWA(begin=0, cycle=1), ff.Client(), rounds=2, participation=rule,
        keep=["*.bias"], guard=ff.Guard(multiple=3.0), attack=ff.Attack(kind="scaling", share=0.2, scale=1.0),
    ).run()  # fmt: skip


def numbers_beside_the_model() -> set[str]:
    """The single numbers that methods send with their models, which the metrics have."""
    sent = {name for cls in all_methods().values() for name, width in cls.down.widths(7, cls()).items() if width == 1}
    assert sent, "or this test is of no use"
    return sent


@pytest.fixture(scope="module")
def private_run(tmp_path_factory: pytest.TempPathFactory) -> ff.Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFLAT_CACHE", str(tmp_path_factory.mktemp("cache")))
        data = ff.data.load("digits", clients=5)
    privacy = ff.Privacy(epsilon=100, delta=0.01, clip=1, rate=1, noise_multiplier=2)
    return ff.Simulation("mlp", data, ff.methods.FedAvg(), ff.Client(steps=1), rounds=2, privacy=privacy).run()


@pytest.mark.slow
def test_every_metric_has_its_row(run: ff.Run, private_run: ff.Run) -> None:
    written = {*run.metrics.column_names, *private_run.metrics.column_names}
    assert set(rows("metrics")) == written | numbers_beside_the_model()


@pytest.mark.slow
def test_every_number_of_the_summary_has_its_row(run: ff.Run, private_run: ff.Run) -> None:
    assert set(rows("summary")) == set(run.summary) | set(private_run.summary)
