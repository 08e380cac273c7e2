"""What the grid says is carried out trains, and to one result; what it says is refused is what must be."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from docs.generate import DOCS
from docs.method_grid import refusals, run_of, without_names
from fedflat.core.errors import InputError
from fedflat.methods import all_methods
from support.effort import COVERING, chosen
from support.flower_fixtures import GridFederation, simulated
from support.method_grid import CELLS, FEW, NAMED, REFUSED

pytestmark = pytest.mark.slow


@cache
def model(name: str, title: str, executor: str = "sequential", rounds: int = 3) -> Tensor:
    """The model after some rounds, (d,); of a method whose clients train alone, all of theirs."""
    sim = run_of(name, NAMED[title], executor=executor).build()
    for _ in range(rounds):
        sim.round()
    if sim.method.training == "local":
        return torch.cat([sim.own_model(client) for client in range(sim.data.clients)])
    return sim.w


def test_refused_are_the_combinations_that_specifications_exclude() -> None:
    """The page has those of every method: `docs.generate --check` holds that it is current."""
    elsewhere = {"federated": set(), "centralised": {"in a federation"}, "local": {"by ranks", "in a federation"}}
    some = {*COVERING.values(), *(name for name, _ in REFUSED)}
    for name, cls in all_methods().items():
        if name not in chosen(some, all_methods()):
            continue
        for title, setting in NAMED.items():
            found = refusals(name, setting)
            assert ("in one process" in found) == ((name, title) in REFUSED), (name, title)
            if "in one process" not in found:
                assert set(found) == elsewhere[cls.training], (name, title)
            assert not [reason for reason in found.values() if name in without_names(reason, name)]


def test_the_page_has_a_row_for_every_method_and_a_number_for_every_reason() -> None:
    [text] = re.findall(r"<!-- grid: .*?<!-- end of grid -->", (DOCS / "methods.md").read_text(), re.DOTALL)
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert len(rows) == len(all_methods())
    numbers = {
        int(number)
        for row in rows
        for cell in re.findall(r"(?:no|partly|experiment) \((.*?)\)", row)
        for number in cell.split(", ")
    }
    assert [f"{number}. " in text for number in sorted(numbers)] == [True] * max(numbers)


@pytest.mark.parametrize(("name", "title"), CELLS)
def test_clients_in_a_stack_train_as_one_after_another(name: str, title: str) -> None:
    """In double precision to 1e-12; in bfloat16, whose sums round by their order, as far as its eight bits go."""
    if title in ("averaged", "local"):
        with pytest.raises(InputError, match="fills up short batches"):
            model(name, title, "stacked")
        return
    one, many = (model(name, title, executor) for executor in ("sequential", "stacked"))
    assert bool(torch.isfinite(one).all())
    if title == "bf16":
        assert (one - many).norm() <= 2**-4 * (one - model(name, title, rounds=0)).norm()
    else:
        assert (one - many).norm() <= 1e-12 * one.norm()


@pytest.mark.parametrize(("name", "title"), [cell for cell in CELLS if cell[1] != "plain"])
def test_a_setting_changes_the_model(name: str, title: str) -> None:
    """A setting that a method ignored would agree everywhere."""
    if all_methods()[name].training != "federated" and title == "weights":
        torch.testing.assert_close(model(name, title), model(name, "plain"), rtol=1e-12, atol=0)  # of one client
    elif all_methods()[name].keeps_head and title == "keep":
        assert torch.equal(model(name, title), model(name, "plain"))  # what stays is the last layer in both
    else:
        assert not torch.equal(model(name, title), model(name, "plain"))


@pytest.mark.parametrize(("name", "title"), [cell for cell in FEW if all_methods()[cell[0]].training == "federated"])
def test_a_federation_leaves_the_file_of_the_simulator(name: str, title: str, tmp_path: Path) -> None:
    run = run_of(name, NAMED[title], dtype="float32")
    assert GridFederation(run, tmp_path / "federation").serve() == simulated(run, tmp_path / "simulation")
