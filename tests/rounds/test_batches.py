from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

import fedflat as ff
from fedflat.rounds.batches import Batches
from support.federation import federation

SIZES = (5, 12, 3, 8, 1, 9)


def batches(seed: int = 0, **client) -> Batches:
    return Batches(federation(SIZES), ff.Client(**client), seed, torch.float64)


def rows(work) -> dict[int, np.ndarray]:
    return {int(client): work.samples[row].numpy() for row, client in enumerate(work.clients)}


@given(size=st.integers(1, 14), epochs=st.integers(1, 4), seed=st.integers(0, 2**40), t=st.integers(0, 10**6))
def test_every_epoch_takes_every_sample_once(size: int, epochs: int, seed: int, t: int) -> None:
    made = batches(seed, epochs=epochs, batch_size=size)
    work = made.plan(t, made.longest_first(t, np.arange(6)))
    for client, samples in rows(work).items():
        per_epoch = -(-SIZES[client] // size)
        mine = range(made.data.offsets[client], made.data.offsets[client + 1])
        for epoch in range(epochs):
            taken = samples[epoch * per_epoch : (epoch + 1) * per_epoch]
            assert sorted(taken[taken >= 0]) == list(mine)
            assert all((batch >= 0).sum() == min(size, SIZES[client]) for batch in taken[:-1])
        assert (samples[epochs * per_epoch :] == -1).all()


@given(steps=st.integers(1, 9), size=st.integers(1, 14))
def test_a_number_of_steps_goes_on_through_the_epochs(steps: int, size: int) -> None:
    made = batches(steps=steps, batch_size=size)
    work = made.plan(0, made.longest_first(0, np.arange(6)))
    assert (work.steps == steps).all()
    longer = batches(epochs=9, batch_size=size)
    longer = rows(longer.plan(0, longer.longest_first(0, np.arange(6))))
    for client, samples in rows(work).items():
        whole = longer[client][: min(steps, len(longer[client])), : samples.shape[1]]
        assert np.array_equal(samples[: len(whole)], whole)


def test_a_clients_batches_do_not_depend_on_who_else_takes_part() -> None:
    made = batches(epochs=2, batch_size=4)
    alone, together = rows(made.plan(3, np.array([1])))[1], rows(made.plan(3, made.longest_first(3, np.arange(6))))[1]
    assert np.array_equal(alone, together)
    assert not np.array_equal(alone, rows(made.plan(4, np.array([1])))[1]), "another round, another order"
    assert not np.array_equal(alone, rows(batches(1, epochs=2, batch_size=4).plan(3, np.array([1])))[1])


def test_longest_work_comes_first_and_active_counts_the_rest() -> None:
    made = batches(epochs=1, batch_size=4)
    work = made.plan(0, made.longest_first(0, np.arange(6)))
    assert list(work.clients) == [1, 5, 0, 3, 2, 4]
    assert list(work.steps) == [3, 3, 2, 2, 1, 1]
    assert work.active() == [6, 4, 2]


@pytest.mark.slow
def test_orders_are_uniform() -> None:
    """Which of three samples comes first, over many rounds and clients."""
    made = batches(epochs=1, batch_size=1)
    first = [int(made.plan(t, np.array([2])).samples[0, 0, 0]) - 17 for t in range(3000)]
    assert chisquare(np.bincount(first, minlength=3)).pvalue > 1e-4


def test_full_batch_is_everything_in_order() -> None:
    work = batches(epochs=2).plan(0, np.array([0, 2]))
    assert rows(work)[2].tolist() == [[17, 18, 19, -1, -1]] * 2
    assert batches().client.local_steps(np.array([5, 9])).tolist() == [1, 1]


def test_missing_samples_have_no_weight() -> None:
    made = batches(epochs=1, batch_size=4)
    batch = made.batch(torch.tensor([[0, 1, 2, 3], [4, -1, -1, -1]]), 0, np.array([0, 1]), 0, full=False)
    assert batch.weight.tolist() == [[0.25] * 4, [1, 0, 0, 0]]
    assert made.batch(torch.tensor([0, 1]), 0, np.array([0]), 0).weight is None


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"epochs": 2, "steps": 3}, r"client\.epochs and client\.steps exclude each other"),
        ({"lr": 0}, r"Client\.lr must be a number in \(0, inf\), got 0"),
        ({"batch_size": 0}, r"Client\.batch_size must be a whole number in \[1, 1e\+09\] or none, got 0"),
        ({"weight_decay": -1}, r"Client\.weight_decay must be .*, got -1"),
    ],
)
def test_mistakes(client: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ff.Client(**client)
