from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.workloads import WORKLOADS, shared, workloads


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("W1", 797_962), ("W2", 784 * 200 + 200 + 200 * 10 + 10), ("W3", 650), ("W3-mlp", 4_810), ("W4", 11_173_962),
     ("W4p", 11_181_642), ("W5", 650)],
)  # fmt: skip
def test_models_have_the_sizes_that_the_works_are_known_by(name: str, parameters: int) -> None:
    assert WORKLOADS[name].settings()["parameters"] == parameters


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_client_has_what_its_steps_and_its_round_need(name: str) -> None:
    for work in (WORKLOADS[name], workloads(quick=True)[name]):
        assert 1 <= work.timed <= work.cohort <= work.clients
        assert work.samples <= work.pool
        assert work.batch <= work.samples


def test_clients_go_around_the_pool() -> None:
    members, offsets = shared(clients=4, samples=3, pool=5)
    assert members.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert offsets.tolist() == [0, 3, 6, 9, 12]


def test_nobody_holds_a_sample_twice() -> None:
    members, _ = shared(clients=50, samples=16, pool=100)
    assert all(len(set(mine)) == 16 for mine in members.reshape(50, 16).tolist())


def test_the_same_noise_for_everybody() -> None:
    first, second = WORKLOADS["W3"].data(), WORKLOADS["W3"].data()
    assert first.x.data_ptr() == second.x.data_ptr()
    assert first.test is None


def test_pictures_are_bytes_that_are_augmented_and_may_be_tested() -> None:
    data = replace(WORKLOADS["W1a"], pool=500).data(tested=True)
    assert data.x.dtype == torch.uint8
    assert data.augmentation is not None
    assert data.test is not None
    assert data.test[0].shape == (10_000, 3, 32, 32)


def test_quick_changes_nothing_but_how_much_is_timed() -> None:
    for name, work in workloads(quick=True).items():
        assert replace(work, timed=0, steps=0, rounds=0) == replace(WORKLOADS[name], timed=0, steps=0, rounds=0)


def test_labels_are_of_all_classes() -> None:
    assert np.unique(WORKLOADS["W3"].data().y).tolist() == list(range(10))
