from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from fedflat.rounds.participation import Bernoulli, Explicit, Number, Share, participation


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
