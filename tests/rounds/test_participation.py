from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, chisquare, kstest

from fedflat.rounds.participation import Bernoulli, Explicit, HeldOut, Number, Share, Unreliable, participation


def cohorts(rule, clients: int, n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rule.cohort(t, clients, rng) for t in range(n)]


@pytest.mark.parametrize(("rule", "size"), [(Number(3), 3), (Share(0.25), 5), (Share(0.001), 1), (Share(1.0), 20)])
def test_fixed_sizes_without_replacement(rule, size: int) -> None:
    for cohort in cohorts(rule, 20, 50):
        assert len(set(cohort)) == len(cohort) == size
        assert list(cohort) == sorted(cohort)


def test_every_client_is_as_likely() -> None:
    drawn = np.bincount(np.concatenate(cohorts(Number(3), 10, 3000)), minlength=10)
    assert chisquare(drawn).pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.02, 0.3])
def test_bernoulli_sizes_are_binomial_given_that_somebody_is_there(p: float) -> None:
    sizes = [len(cohort) for cohort in cohorts(Bernoulli(p), 12, 4000)]
    assert min(sizes) >= 1
    expected = binom.pmf(np.arange(1, 13), 12, p)
    expected = 4000 * expected / expected.sum()
    seen = np.bincount(sizes, minlength=13)[1:]
    often = expected > 5
    table = [np.append(x[often], x[~often].sum()) for x in (seen, expected)]
    assert chisquare(table[0], table[1] * table[0].sum() / table[1].sum()).pvalue > 1e-4


def test_a_bernoulli_size_is_the_quantile_of_one_random_number() -> None:
    """By `scipy.stats`: the quantile, given that somebody is there, of what the generator draws first."""
    random = np.random.default_rng(1)
    for seed in range(300):
        clients, p = int(10 ** random.uniform(0, 4)), float(10 ** random.uniform(-5, 0))
        nobody = binom.pmf(0, clients, p)
        drawn = nobody + (1 - nobody) * (1 - np.random.default_rng(seed).random())
        size = len(Bernoulli(p).cohort(0, clients, np.random.default_rng(seed)))
        assert size == min(max(int(binom.ppf(drawn, clients, p)), 1), clients), (clients, p)


def test_tiny_and_full_bernoulli_end() -> None:
    assert all(len(cohort) == 1 for cohort in cohorts(Bernoulli(1e-12), 5, 20))
    assert all(len(cohort) == 5 for cohort in cohorts(Bernoulli(1.0), 5, 20))


def test_a_million_clients_cost_nothing() -> None:
    assert len(Number(10).cohort(0, 10**6, np.random.default_rng(0))) == 10


def test_what_users_write() -> None:
    assert participation(0.1) == Share(0.1)
    assert participation(1) == Number(1)
    assert participation(1.0) == Share(1.0)
    assert participation([[1, 0]]) == Explicit([[1, 0]])
    assert participation(Bernoulli(0.5)) == Bernoulli(0.5)
    assert participation(np.array([[0, 1], [1, 2]])) == Explicit([[0, 1], [1, 2]])
    for wrong in ("0.1", True, None, {"p": 1}, [], [0, 1], [[0.5, 1]], ["ab"]):
        with pytest.raises(ValueError, match="participation must be"):
            participation(wrong)
    for wrong in (0, "a", 1.5):
        with pytest.raises(ValueError, match=rf"Bernoulli p = {wrong!r} is not in \(0, 1\]"):
            Bernoulli(wrong)


def test_drop_outs_are_taken_from_the_cohorts_that_would_have_been() -> None:
    """Each client answers with the same chance, whatever the others do; somebody always does."""
    whole = [Number(5).cohort(t, 20, np.random.default_rng(t)) for t in range(4000)]
    left = [Unreliable(Number(5), dropouts=0.3).cohort(t, 20, np.random.default_rng(t)) for t in range(4000)]
    assert all(set(some) <= set(all_) and len(some) for some, all_ in zip(left, whole, strict=True))
    sizes = np.bincount([len(cohort) for cohort in left], minlength=6)
    chance = binom.pmf(np.arange(6), 5, 0.7)
    expected = 4000 * np.append(chance[0] + chance[1], chance[2:])  # nobody becomes one
    assert chisquare(np.append(sizes[0] + sizes[1], sizes[2:]), expected).pvalue > 1e-4
    assert min(map(len, left)) == 1


def test_without_drop_outs_and_stragglers_nothing_changes() -> None:
    rule, steps = Unreliable(Number(5)), np.array([3, 7, 1])
    assert [list(c) for c in cohorts(rule, 20, 20)] == [list(c) for c in cohorts(Number(5), 20, 20)]
    assert rule.steps_taken(0, 3, np.array([4, 5, 6]), steps) is steps


def test_stragglers_take_a_uniform_part_of_their_steps() -> None:
    rule, clients = Unreliable(Number(5), stragglers=0.4), np.arange(20_000)
    taken = rule.steps_taken(1, 3, clients, np.full(20_000, 10))
    slow = taken[taken < 10]
    # One in ten of the stragglers takes all ten steps.
    assert chisquare([len(slow), 20_000 - len(slow)], [20_000 * 0.36, 20_000 * 0.64]).pvalue > 1e-4
    assert chisquare(np.bincount(slow, minlength=10)[1:]).pvalue > 1e-4
    share = rule.steps_taken(1, 3, clients, np.full(20_000, 10**9)) / 10**9
    assert kstest(share[share < 1], "uniform").pvalue > 1e-4


def test_who_is_slow_depends_on_seed_round_and_client_alone() -> None:
    rule, steps = Unreliable(Number(5), stragglers=0.5), np.full(200, 50)
    taken = rule.steps_taken(1, 3, np.arange(200), steps)
    some = np.array([7, 3, 150])
    assert list(rule.steps_taken(1, 3, some, steps[:3])) == list(taken[some])
    for other in (rule.steps_taken(2, 3, np.arange(200), steps), rule.steps_taken(1, 4, np.arange(200), steps)):
        assert (other != taken).mean() > 0.3
    assert min(rule.steps_taken(1, 3, np.arange(200), np.ones(200, dtype=np.int64))) == 1


def test_held_out_clients_never_take_part_and_the_others_are_as_likely() -> None:
    rule = HeldOut(Number(3), 0.25)
    held_out = rule.held_out(12)
    assert len(held_out) == 3
    drawn = np.bincount(np.concatenate(cohorts(rule, 12, 3000)), minlength=12)
    assert not drawn[held_out].any()
    assert chisquare(np.delete(drawn, held_out)).pvalue > 1e-4
    rule.check(12, 5)
    with pytest.raises(ValueError, match=r"10 clients per round is not in 1\.\.9"):
        HeldOut(Number(10), 0.25).check(12, 5)


def test_both_may_be_had_in_either_order() -> None:
    for rule in (Unreliable(HeldOut(Number(3), 0.25), 0.2, 0.5), HeldOut(Unreliable(Number(3), 0.2, 0.5), 0.25)):
        assert len(rule.held_out(12)) == 3
        assert not set(np.concatenate(cohorts(rule, 12, 50))) & set(rule.held_out(12))
        assert (rule.steps_taken(0, 0, np.arange(12), np.full(12, 100)) < 100).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Unreliable(Number(3), dropouts=1.0), r"dropouts = 1.0 is not in \[0, 1\)"),
        (lambda: Unreliable(Number(3), stragglers=-0.1), "stragglers = -0.1 is not in"),
        (lambda: HeldOut(Number(3), "a half"), "held_out = 'a half' is not in"),
        (lambda: HeldOut(Explicit([[0]]), 0.5), "held_out does not go with listed cohorts"),
        (lambda: HeldOut(Number(3), 0.01).check(12, 5), "held_out = 0.01 is 0 of 12 clients"),
    ],
)
def test_what_cannot_be_is_named(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
