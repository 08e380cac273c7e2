"""Ranks: no bit of a result depends on how many there are, and what happens to one happens to all."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import fedflat as ff
from fedflat.engine import ranks as ranks_module
from fedflat.engine.choice import agreed, stands_alone
from fedflat.engine.ranks import ALONE, Ranks
from fedflat.engine.stacked import Stacked
from fedflat.methods import find
from fedflat.rounds.executor import Sequential
from support.as_rank import (
    digest,
    every_method,
    every_setting,
    labels_of_positions,
    mean_of_cancelling_messages,
    private_rounds,
    rounds,
)
from support.effort import chosen
from support.federation import simulation
from support.processes import PATIENCE

pytestmark = pytest.mark.usefixtures("forked_processes")  # torchrun and the ranks
SOURCE = inspect.getsource(ranks_module)
TESTS = Path(__file__).parent.parent


# What is tried with so many ranks, in one start of them. `make test` starts three; two are in `experiments`.
TASKS = {
    1: ("every_method", "unreadable"),
    2: ("every_method", "unreadable"),
    3: ("every_method", "every_setting", "labels_of_positions", "idle", "checkpoints", "refused", "shares",
        "cancelling", "unreadable", "diverging", "private"),
    4: ("every_method",),
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What all ranks found, and the folder that they found it in, by task."""

    of: dict[str, dict[str, str]]
    folders: dict[str, Path]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Found]:
    """Start so many ranks, once; see `support.as_rank` for their tasks."""

    @cache
    def start(number: int) -> Found:
        folder = tmp_path_factory.mktemp("ranks")
        folders = {task: folder / task for task in TASKS[number]}
        for path in folders.values():
            path.mkdir()
        if "checkpoints" in folders:
            begin(folders["checkpoints"])
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}",
                   "-m", "support.as_rank", str(folder), *folders]  # fmt: skip
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"}
        limit = 3 * PATIENCE
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
        assert done.returncode == 0, done.stderr
        return Found({task: json.loads((path / "found.json").read_text()) for task, path in folders.items()}, folders)

    return start


def begin(folder: Path) -> None:
    """Two rounds of one process whose records are in a file, for the ranks to go on from."""
    alone = folder / "alone"
    alone.mkdir()
    (folder / "together").mkdir()
    with rounds(find("FedSMOO")(), "stacked", store_budget=0, store_folder=alone) as sim:
        sim.round()
        sim.round()
        sim.save(alone / "round.safetensors")


@cache
def alone() -> dict[str, str]:
    """What one process without ranks finds."""
    return every_method(Path(), ALONE)


@pytest.mark.slow
@pytest.mark.parametrize("number", chosen([3], [1, 2, 3, 4]))
def test_every_method_ends_with_the_same_bits(number: int, started: Callable[[int], Found]) -> None:
    """Four rounds of three in six uneven clients in float32: of some rounds a rank has no client."""
    found = started(number).of["every_method"]
    assert {name for name in found if found[name] != alone()[name]} == set()
    assert found.keys() == alone().keys()


@pytest.mark.slow
def test_methods_and_settings_that_go_together_end_with_the_same_bits(started: Callable[[int], Found]) -> None:
    assert started(3).of["every_setting"] == every_setting(Path(), ALONE)


@pytest.mark.slow
def test_texts_and_pictures_with_labels_at_each_position_end_with_the_same_bits(
    started: Callable[[int], Found],
) -> None:
    assert started(3).of["labels_of_positions"] == labels_of_positions(Path(), ALONE)


@pytest.mark.slow
def test_one_client_a_round_leaves_the_others_idle(started: Callable[[int], Found]) -> None:
    sim = rounds(find("Scaffold")(), "sequential", participation=1)
    list(sim)
    assert started(3).of["idle"] == {"end": digest(sim)}


@pytest.mark.slow
def test_private_rounds_have_the_same_cohorts_and_noise_on_all_ranks(started: Callable[[int], Found]) -> None:
    sim = private_rounds(ALONE)
    list(sim)
    assert started(3).of["private"] == {"end": digest(sim)}


@pytest.mark.slow
def test_checkpoints_fit_any_number_of_ranks(started: Callable[[int], Found]) -> None:
    """One process with records in a file, then three ranks, then one process again."""
    whole = rounds(find("FedSMOO")(), "stacked")
    list(whole)
    found = started(3)
    assert found.of["checkpoints"] == {"end": digest(whole)}
    with rounds(find("FedSMOO")(), "stacked") as sim:
        sim.load(found.folders["checkpoints"] / "together" / "round.safetensors")
        assert sim.t == 3
        list(sim)
    assert digest(sim) == digest(whole)


@pytest.mark.slow
def test_what_one_rank_raises_all_raise(started: Callable[[int], Found]) -> None:
    said = started(3).of["diverging"]
    assert set(said) == {"rank 0", "rank 1", "rank 2"}
    assert set(said.values()) == {
        "training diverged: client 4 sent NaN or infinity in round 0; lower client.lr or set client.max_norm"
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", chosen([3], [1, 2, 3]))
def test_records_in_files_are_saved_and_what_one_rank_cannot_read_all_raise(
    number: int, started: Callable[[int], Found]
) -> None:
    """Of ranks whose records pass the budget, from the first checkpoint on."""
    alone = rounds(find("Scaffold")(), "sequential", participation=6)
    list(alone)
    found = started(number)
    said = dict(found.of["unreadable"])
    assert said.pop("end") == digest(alone)
    assert said.pop("files") == "[]"
    assert said == {f"rank {rank}": "client records: the disk is gone" for rank in range(number)}
    with rounds(find("Scaffold")(), "sequential", participation=6) as sim:
        sim.load(found.folders["unreadable"] / "round-000004.safetensors")
        assert digest(sim) == digest(alone)


@pytest.mark.slow
def test_what_ranks_cannot_do_is_refused_by_all(started: Callable[[int], Found]) -> None:
    said = started(3).of["refused"]
    for rank in (0, 1, 2):
        assert said[f"workers {rank}"].startswith("workers = 2: each of 3 ranks trains in one process")
        assert said[f"probes {rank}"].startswith("probes are taken in one process, and there are 3 ranks")
        assert said[f"dry round {rank}"].startswith("clients' records are with several ranks")


@pytest.mark.slow
def test_without_records_clients_go_where_there_is_least_work(started: Callable[[int], Found]) -> None:
    assert started(3).of["shares"] == {"rank 0": "[0]", "rank 1": "[3]", "rank 2": "[1, 2, 4]"}


@pytest.mark.slow
def test_sums_of_ranks_begin_at_the_same_place(started: Callable[[int], Found]) -> None:
    assert started(3).of["cancelling"] == {"mean": mean_of_cancelling_messages(Ranks())}


@given(work=st.lists(st.integers(1, 30), min_size=1, max_size=7), number=st.integers(1, 3))
@example(work=[1, 1, 2], number=2)
@settings(max_examples=60, deadline=None)
def test_no_rank_has_more_than_four_thirds_of_what_the_best_split_gives(work: list[int], number: int) -> None:
    """Graham's bound (1969) for giving out the longest work first: 4/3 - 1/(3 ranks) of the best of all splits."""
    shares = [Ranks(number=number, index=i).share(np.array(work), None) for i in range(number)]
    assert sorted(np.concatenate(shares)) == list(range(len(work)))
    best = min(
        max(sum(w for w, owner in zip(work, owners, strict=True) if owner == i) for i in range(number))
        for owners in product(range(number), repeat=len(work))
    )
    assert max(sum(work[place] for place in share) for share in shares) <= (4 / 3 - 1 / (3 * number)) * best + 1e-9


def test_with_records_clients_go_to_those_who_keep_them() -> None:
    ranks = Ranks(number=3, index=1)
    clients = np.array([9, 4, 7, 3, 1])
    assert ranks.share(np.ones(5), ranks.owners(clients)).tolist() == [1, 2, 4]
    assert ranks.owned(clients).tolist() == [False, True, True, False, True]


@pytest.mark.parametrize(("function", "alike"), [(nn.ReLU(), True), (nn.GELU(), False)])
def test_whether_a_stack_disturbs_is_tried_out(function: nn.Module, alike: bool) -> None:
    """Seven features: a batch of four does not fill the processor's vectors, and the rest is worked out otherwise.

    So it is for GELU at every width, with vectors of 256 and of 512 bits; for sigmoid it depends on the processor.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 7), function, nn.Linear(7, 3))
    sim = simulation(find("FedAvg")(), model=model, dtype=torch.float32, executor="stacked", participation=6)
    assert stands_alone(sim.executor, sim.cohort(0)) == alike


@pytest.mark.parametrize(
    ("asked", "function", "kind", "reason"),
    [
        ("auto", nn.ReLU(), Stacked, "by model, and not slower"),
        ("auto", nn.GELU(), Sequential, "in stacks, the last bits would depend on the number of ranks"),
        ("stacked", nn.GELU(), Stacked, "asked for; the last bits depend on the number of ranks"),
        ("stacked", nn.ReLU(), Stacked, "asked for"),
    ],
)
def test_ranks_take_a_stack_only_if_it_disturbs_nobody(
    asked: str, function: nn.Module, kind: type, reason: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 7), function, nn.Linear(7, 3))
    sim = simulation(find("FedAvg")(), model=model, dtype=torch.float32, executor=asked, ranks=Ranks(alone=False))
    assert type(sim.executor) is kind
    assert sim.choice.reason == reason


def test_alone_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = object()
    assert agreed(Ranks(), None, None, lambda: choice) is choice


def test_nothing_that_came_over_a_network_is_unpickled() -> None:
    """torch's ways to send objects pickle them."""
    assert not [name for name in vars(ranks_module.dist) if "object" in name and f"dist.{name}" in SOURCE]
    assert "dist.all_reduce" in SOURCE


def test_a_process_that_nobody_started_is_alone() -> None:
    with ff.joined() as ranks:
        assert (ranks.number, ranks.index, ranks.alone) == (1, 0, True)
