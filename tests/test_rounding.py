"""Every share that becomes a whole number does so by the rule that is documented, not by a neighbour of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

import fedflat as ff
from fedflat.core.objective import Objective
from fedflat.core.records import Record, Vector
from fedflat.data.partition.scheme import Samples
from fedflat.data.selection import Holdings, hold_out
from fedflat.data.sources import source
from fedflat.engine.shared_memory import TensorAllocator
from fedflat.engine.stacked import Stacked
from fedflat.experiments import budget, parallel, runner, studies
from fedflat.experiments import spec as specs
from fedflat.experiments.budget import run_budget
from fedflat.experiments.jobs import Jobs
from fedflat.experiments.recipe import find_recipe
from fedflat.experiments.run_directory import RunDirectory
from fedflat.federation.membership import Membership
from fedflat.federation.server import FederatedServer, RoundFailedError, RoundTerms
from fedflat.methods import find
from fedflat.metrics.flatness import all_measures
from fedflat.metrics.flatness.subject import Subject
from fedflat.rounds.checkpoint import AT_ONCE, rows_at_once
from fedflat.rounds.device import ALIGNED
from fedflat.rounds.guard import GuardState
from fedflat.rounds.participation import Number, Share
from fedflat.rounds.run_plan import RunPlan
from support.federation import federation, simulation
from support.flower_fixtures import GridFederation, study_of
from support.studies import run_spec, study_spec

FedAvg = find("FedAvg")
HALF = 0.5 + 1e-9  # a share of a number is a float, and may be above or below a half by its last bit


def percent() -> st.SearchStrategy[float]:
    """Shares as people write them."""
    return st.integers(1, 100).map(lambda hundredths: hundredths / 100)


def is_nearest(number: int, exact: float, least: int = 1) -> bool:
    """Whether `number` is a whole number nearest to `exact`, or `least` where that is less."""
    return abs(number - exact) <= HALF or (number == least and exact < least)


# --- clients of a round -----------------------------------------------------------------------------------------------


@given(share=percent() | st.floats(0.0001, 1), clients=st.integers(1, 300))
def test_a_share_of_the_clients_is_the_nearest_number_and_somebody(share: float, clients: int) -> None:
    cohort = Share(share).cohort(0, clients, np.random.default_rng(0))
    assert is_nearest(len(cohort), share * clients)
    assert 1 <= len(cohort) <= clients


@pytest.mark.parametrize(("clients", "number"), [(1, 1), (3, 2), (5, 2), (7, 4), (9, 4)])
def test_half_of_an_odd_number_of_clients_is_the_even_neighbour(clients: int, number: int) -> None:
    """Cohorts, and so results, depend on it."""
    assert len(Share(0.5).cohort(0, clients, np.random.default_rng(0))) == number


class Silent:
    """Nobody answers."""

    def exchange(self, orders: Mapping[str, Any], deadline: float) -> Iterator[Any]:
        return iter(())


@example(quorum=0.55, asked=20)
@example(quorum=0.28, asked=25)
@given(quorum=percent(), asked=st.integers(1, 60))
def test_a_quorum_is_the_least_number_whose_share_is_reached(quorum: float, asked: int) -> None:
    """In decimal numbers: 0.55 of 20 is 11, although the product of the floats is a little more."""
    members, terms = Membership({f"{i:03d}": 1 for i in range(asked)}, "here"), RoundTerms(quorum=quorum)
    everybody = Number(asked)
    server = FederatedServer(
        FedAvg(), Objective(nn.Linear(1, 1)), RunPlan(ff.Client(), everybody), members, "uniform", "study", (1,), terms
    )  # fmt: skip
    with pytest.raises(RoundFailedError) as told:
        server.round(Silent())
    needed = int(re.search(r"0 of \d+ clients replied, (\d+) must", str(told.value))[1])
    share = Fraction(str(quorum))
    assert Fraction(needed, asked) >= share
    assert Fraction(needed - 1, asked) < share


class Message(Record):
    w: Vector


@given(norms=st.lists(st.integers(1, 1000), min_size=1, max_size=15, unique=True))
def test_a_rounds_norm_is_the_largest_that_more_than_half_of_its_clients_have_reached(norms: list[int]) -> None:
    seen = (
        GuardState(None, 1e-9, field_multiple=2.0).updated([], [{"w": float(norm)} for norm in norms]).field_norms["w"]
    )
    assert 2 * sum(norm >= seen for norm in norms) > len(norms)
    assert 2 * sum(norm > seen for norm in norms) <= len(norms)


# --- samples ----------------------------------------------------------------------------------------------------------


@given(share=percent().filter(lambda share: share <= 0.9), sizes=st.lists(st.integers(2, 60), min_size=1, max_size=6))
def test_validation_samples_are_the_nearest_number_and_some_on_both_sides(share: float, sizes: list[int]) -> None:
    held = Holdings.of(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))
    validation = hold_out(held, share, np.random.default_rng(0))[1].sizes
    for size, number in zip(sizes, validation.tolist(), strict=True):
        assert is_nearest(number, share * size) or (number == size - 1 and share * size > number)
        assert 1 <= number <= size - 1


@given(n=st.integers(1, 300), clients=st.integers(1, 60), scheme=st.sampled_from([ff.data.partition.IID()]))
def test_equal_sizes_differ_by_one_and_the_first_clients_have_more(n: int, clients: int, scheme: Any) -> None:
    assume(clients <= n)
    parts = scheme.split(Samples(np.zeros(n, np.int64), 1), clients, np.random.default_rng(0))
    sizes = [len(part) for part in parts]
    assert sum(sizes) == n
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@given(sizes=st.lists(st.integers(40, 200), min_size=1, max_size=5), clients=st.integers(1, 4), seed=st.integers(0, 50))
def test_shares_of_a_class_end_at_the_sample_below(sizes: list[int], clients: int, seed: int) -> None:
    """Client k of a class of n samples ends at the floor of n times the sum of the first k shares, as in NIID-Bench."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    parts = ff.data.partition.LabelDirichlet(alpha=5.0).split(
        Samples(labels, len(sizes)), clients, np.random.default_rng(seed)
    )
    shares = np.random.default_rng(seed).dirichlet(np.full(clients, 5.0), len(sizes))
    for label, (size, row) in enumerate(zip(sizes, shares, strict=True)):
        ends = [0, *(int(size * sum(row[: k + 1])) for k in range(clients - 1)), size]
        assert [int((labels[part] == label).sum()) for part in parts] == np.diff(ends).tolist()


@given(holders=st.integers(1, 12), size=st.integers(12, 80))
def test_a_class_is_cut_into_pieces_that_differ_by_one_between_its_holders(holders: int, size: int) -> None:
    one_class = Samples(np.zeros(size, np.int64), 1)
    for scheme in (
        ff.data.partition.Pathological(classes_per_client=1),
        ff.data.partition.Shards(shards_per_client=1),
        ff.data.partition.BalancedDirichlet(alpha=1.0),
    ):
        pieces = [len(part) for part in scheme.split(one_class, holders, np.random.default_rng(0))]
        assert sum(pieces) == size
        assert max(pieces) - min(pieces) <= 1


# --- steps ------------------------------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=10),
    batch=st.integers(1, 70),
    epochs=st.integers(1, 20),
)
def test_an_epoch_has_as_few_batches_as_hold_all_samples(sizes: list[int], batch: int, epochs: int) -> None:
    client = ff.Client(batch_size=batch, epochs=epochs)
    batches = client.batches_per_epoch(np.array(sizes)).tolist()
    assert all((m - 1) * batch < n <= m * batch for m, n in zip(batches, sizes, strict=True))
    assert client.local_steps(np.array(sizes)).tolist() == [epochs * m for m in batches]
    assert ff.Client(batch_size=batch, steps=epochs).local_steps(np.array(sizes)).tolist() == [epochs] * len(sizes)


@given(lr=st.floats(1e-4, 1), decay=st.floats(0.9, 1), t=st.integers(0, 200))
def test_the_step_size_falls_by_its_factor_from_the_second_round_on(lr: float, decay: float, t: int) -> None:
    client = ff.Client(lr=lr, lr_decay=decay)
    assert client.lr_at(0, 1) == lr
    assert client.lr_at(t + 1, 1) == pytest.approx(client.lr_at(t, 1) * decay, rel=1e-12)


@pytest.mark.parametrize("clients", [1, 5, 6])
@pytest.mark.parametrize("together", [1, 2, 4, 5, 6, 7])
def test_a_cohort_is_cut_into_as_few_even_stacks_as_fit(
    clients: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks: list[int] = []
    run = Stacked.run

    def noted(self: Stacked, work: Any, *arguments: Any) -> Any:
        stacks.append(len(work.clients))
        return run(self, work, *arguments)

    monkeypatch.setattr(Stacked, "chunk", together)
    monkeypatch.setattr(Stacked, "run", noted)
    simulation(FedAvg(), participation=clients, executor="stacked", workers=1).round()
    assert sum(stacks) == clients
    assert max(stacks) - min(stacks) <= 1
    assert max(stacks) <= together
    assert (len(stacks) - 1) * together < clients, "one stack less would not hold them"


def test_stacks_hold_as_many_clients_as_numbers_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    d = simulation(FedAvg()).objective.space.d
    for numbers, fit in ((1, 1), (d - 1, 1), (2 * d - 1, 1), (2 * d, 2), (5 * d + 1, 5)):
        monkeypatch.setattr(Stacked, "numbers_at_once", numbers)
        assert simulation(FedAvg(), executor="stacked").executor.chunk == fit


# --- rounds -----------------------------------------------------------------------------------------------------------


def due(rounds: int, every: int) -> list[int]:
    """The rounds, counted from 1, that are a multiple of `every`, and the last one."""
    return [t for t in range(1, rounds + 1) if t / every in range(1, rounds + 1) or t == rounds]


@pytest.mark.parametrize("every", [1, 2, 3, 5, 6, 7])
def test_models_are_tested_and_probed_in_every_so_many_rounds_and_the_last(every: int) -> None:
    for eval_every, probe_every in ((every, 2), (2, every)):
        sim = simulation(
            FedAvg(), rounds=5, eval_every=eval_every, probes=[all_measures()["sharpness"]()], probe_every=probe_every
        )
        list(sim)
        assert [row["t"] + 1 for row in sim.history if "test_accuracy" in row] == due(5, eval_every)
        assert [row["t"] + 1 for row in sim.history if "sharpness" in row] == due(5, probe_every)


@pytest.mark.slow
def test_a_federation_tests_its_model_in_the_same_rounds(tmp_path: Path) -> None:
    federation = GridFederation(study_of(rounds=4, eval_every=3), tmp_path)
    federation.serve()
    assert [event["t"] + 1 for event in federation.events("round") if "test_accuracy" in event] == due(4, 3)


@given(rounds=st.integers(1, 400), every=st.integers(1, 120))
def test_a_budget_counts_the_evaluations_that_there_are(rounds: int, every: int) -> None:
    """Each of the 450 test digits, and once, for the measures of the final model, the 1,347 for training."""
    assert (
        run_budget(run_spec(rounds=rounds, eval_every=every)).evaluated_samples == len(due(rounds, every)) * 450 + 1347
    )


@settings(max_examples=50)
@given(clients=st.integers(1, 1347), validation=st.integers(0, 90))
def test_a_budget_takes_the_size_nearest_to_the_mean(clients: int, validation: int) -> None:
    """With one sample in a batch, FedAvg asks for a gradient for each sample."""
    spec = run_spec(
        data={"name": "digits", "clients": clients, "validation": validation / 100}, participation=1.0, rounds=2,
        client={"epochs": 1, "batch_size": 1},
    )  # fmt: skip
    size = run_budget(spec).gradients / (2 * clients)
    assert size == int(size)
    assert is_nearest(int(size), (1 - validation / 100) * 1347 / clients)


@pytest.mark.parametrize(("rounds", "every"), [(5, 1), (5, 2), (5, 3), (4, 2), (3, 7)])
def test_states_are_saved_every_so_many_rounds_and_after_the_last(
    rounds: int, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, save = [], RunDirectory.save
    monkeypatch.setattr(RunDirectory, "save", lambda self, sim: saved.append(sim.t) or save(self, sim))
    runner.run(run_spec(rounds=rounds, checkpoint_every=every, flatness=[]), tmp_path)
    assert saved == due(rounds, every)


@given(scale=percent() | st.floats(0.0001, 1))
def test_a_part_of_a_recipe_has_the_nearest_numbers_of_rounds_and_at_least_one(scale: float) -> None:
    """FedGF's CIFAR-10: 10,000 rounds, and the mean of the last 100; FedVSSAM's Figure 7: 800, probed every 80."""
    study = find_recipe("fedgf/table1").cells("cifar10,alpha-0,5-of-100")[0].study(scale)
    assert is_nearest(study.rounds, scale * 10_000)
    assert is_nearest(study.last, scale * 100)
    study = find_recipe("fedvssam/figure7").cells()[0].study(scale)
    assert is_nearest(study.rounds, scale * 800)
    assert is_nearest(study.probe_every, scale * 80)


# --- machines ---------------------------------------------------------------------------------------------------------


class Stop(Exception):
    """No process is started."""


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 8, 16])
@pytest.mark.parametrize("jobs", [2, 3, 4])
def test_jobs_share_the_threads_and_leave_none_over(
    jobs: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they take no more threads than there are, unless each has one only."""
    given_to_each: list[int] = []

    def process(setup: object, threads: int) -> None:
        given_to_each.append(threads)
        raise Stop

    monkeypatch.setattr(parallel, "WorkerProcess", process)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    with pytest.raises(Stop):
        studies.carry_out_study(study_spec(seeds=[0, 1]), tmp_path, jobs=Jobs(jobs))
    [share] = given_to_each
    assert share * jobs <= threads or share == 1
    assert (share + 1) * jobs > threads


@given(sizes=st.lists(st.integers(0, 200), min_size=1, max_size=10))
def test_tensors_in_shared_memory_begin_at_the_next_aligned_byte(sizes: list[int]) -> None:
    allocate = TensorAllocator()
    for size in sizes:
        before = allocate.size
        allocate((size,), torch.float32)
        assert allocate.size % ALIGNED == 0
        assert before + 4 * size <= allocate.size < before + 4 * size + ALIGNED


@given(row_bytes=st.integers(1, 2 * AT_ONCE))
def test_as_many_rows_are_held_at_once_as_fit_and_at_least_one(row_bytes: int) -> None:
    rows = rows_at_once(row_bytes)
    assert rows == 1 or rows * row_bytes <= AT_ONCE
    assert (rows + 1) * row_bytes > AT_ONCE


# --- measures ---------------------------------------------------------------------------------------------------------


SIM = simulation(FedAvg())
LANDSCAPE = Subject(SIM.objective, SIM.w, SIM.data).pooled


@pytest.mark.parametrize("most", [1, 2, 5, 12, 13, 19, 37, 38, 39, 1000])
def test_measures_take_every_so_manieth_sample_so_that_just_no_more_than_asked_for_are_used(most: int) -> None:
    """The smallest stride whose samples are not too many; the federation has 38."""
    used = len(Subject(SIM.objective, SIM.w, SIM.data, most).pooled)
    stride = next(s for s in range(1, 39) if len(range(0, 38, s)) <= most)
    assert used == len(range(0, 38, stride))


def test_the_federation_has_so_many_samples() -> None:
    assert len(federation().members) == 38


@given(memory=st.integers(1, 5000), each=st.floats(0.5, 2000))
@example(memory=33, each=1.1)
def test_as_many_samples_are_taken_at_once_as_fit_into_memory(memory: int, each: float) -> None:
    """At least one, and no more than the landscape has; what takes less than a byte counts as one."""
    landscape = copy(LANDSCAPE)
    landscape.memory = memory
    number, each = landscape.at_once(each), Fraction(max(each, 1.0))  # thirty times 1.1 is 33 in floating point alone
    assert 1 <= number <= 38
    assert number == 1 or number * each <= memory
    assert number == 38 or (number + 1) * each > memory


@pytest.mark.parametrize(
    ("number", "chosen"), [(1, [0]), (2, [0, 3]), (4, [0, 1, 3, 4]), (6, [*range(6)]), (9, [*range(6)])]
)
def test_some_of_six_clients_are_evenly_spaced_from_the_first_on(number: int, chosen: list[int]) -> None:
    """The k-th of n is at k times 6 / n, without its fraction."""
    assert Subject(SIM.objective, SIM.w, SIM.data).some_clients(number).tolist() == chosen


@given(train=st.integers(4, 10**6), test=st.integers(0, 10**6))
def test_a_budget_of_a_held_out_domain_takes_equal_domains(train: int, test: int) -> None:
    """PACS has four: one is for the test, three are for training, and what is over is nobody's."""
    known = replace(source("pacs"), sizes={"train": train, "test": test})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(specs, "described", lambda *_: known)
        spec = run_spec(data={"name": "pacs", "clients": 3, "test_domain": "photo"})
        ours, apart = budget._sample_counts(spec)
    assert 0 <= train + test - 4 * apart < 4
    assert ours == 3 * apart
