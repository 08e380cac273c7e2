from __future__ import annotations

import sys
from math import exp, expm1, log, sqrt

import pytest
from scipy.stats import norm

from fedflat.core.errors import InputError
from fedflat.rounds import accountant
from fedflat.rounds.accountant import epsilon, noise_for
from support.effort import effort, in_test_all
from support.files import refused

# rate, noise multiplier, rounds, delta
SETTINGS = [  # the first ones in `make test`, all in `make test-all`
    (0.2, 3.0, 200, 1e-5), (0.5, 5.0, 20, 1e-3), (1.0, 20.0, 64, 1e-5), (0.02, 2.0, 1000, 2e-3),
    (0.9, 10.0, 10, 1e-6), (1.0, 4.0, 1, 1e-5), (0.1, 1.0, 1, 1e-3), (0.1, 1.0, 50, 1e-3), (0.05, 0.8, 300, 1e-4),
    (0.01, 0.7, 100, 1e-5),
]  # fmt: skip


def directly(rate: float, noise: float, rounds: int, delta: float, neighbours: str) -> float:
    """The same by Google's accountant, which is given events and not distributions."""
    import dp_accounting as dp

    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)) if rate < 1 else dp.GaussianDpEvent(noise)
    found = dp.pld.PLDAccountant(getattr(dp.NeighboringRelation, neighbours)).compose(event, rounds)
    return found.get_epsilon(delta)


def delta_of_gaussian(mu: float, eps: float) -> float:
    """The exact delta of a Gaussian mechanism whose means are mu deviations apart (Balle and Wang, 2018)."""
    return norm.cdf(mu / 2 - eps / mu) - exp(eps) * norm.cdf(-mu / 2 - eps / mu)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS[: effort(4, len(SETTINGS))], ids=str)
def test_epsilon_is_that_of_dp_accounting_called_directly(setting: tuple[float, float, int, float]) -> None:
    for neighbours in ("ADD_OR_REMOVE_ONE", "REPLACE_ONE"):
        assert epsilon(*setting, neighbours) == pytest.approx(directly(*setting, neighbours), rel=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("neighbours", "distance"), [("ADD_OR_REMOVE_ONE", 1), ("REPLACE_ONE", 2)])
def test_without_sampling_epsilon_is_the_exact_one_from_above(neighbours: str, distance: int) -> None:
    """One client more moves the sum by a clip, another client in its place by two."""
    noise, rounds, delta = 8.0, 16, 1e-5
    mu = distance * sqrt(rounds) / noise
    found = epsilon(1.0, noise, rounds, delta, neighbours)
    assert delta_of_gaussian(mu, found) <= delta <= delta_of_gaussian(mu, found - 2e-3)


def test_one_distribution_of_losses_serves_many_numbers_of_rounds() -> None:
    accountant._losses.cache_clear()
    spent = [epsilon(0.17, 1.03, rounds, 1e-4) for rounds in range(1, 9)]
    assert spent == sorted(spent)
    assert accountant._losses.cache_info().misses <= 3


def test_no_round_spends_nothing() -> None:
    assert epsilon(0.1, 1.0, 0, 1e-5) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [(1.0, 1e-5, 1.0, 10), pytest.param((4.0, 1e-3, 0.1, 30), marks=in_test_all)], ids=str
)
def test_the_noise_is_the_least_that_keeps_to_epsilon(setting: tuple[float, float, float, int]) -> None:
    wanted, delta, rate, rounds = setting
    noise = noise_for(*setting)
    assert directly(rate, noise, rounds, delta, "ADD_OR_REMOVE_ONE") <= wanted * (1 + 1e-9)
    assert directly(rate, noise * 0.998, rounds, delta, "ADD_OR_REMOVE_ONE") > wanted


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    accountant._losses.cache_clear()
    with pytest.raises(InputError, match=r"pip install 'fedflat\[dp\]'"):
        epsilon(0.123, 1.0, 3, 1e-5)


CLOSED = [(0.01, 1e-6), (2.0, 0.4), (1.0, 1e-300), (1.0, 0.5), (1e4, 1e-5), (800.0, 1e-3)]


@pytest.mark.parametrize(("eps", "delta"), CLOSED, ids=str)
def test_the_closed_form_is_exact_where_its_terms_are_huge_or_tiny(eps: float, delta: float) -> None:
    """In logarithms, where nothing overflows; epsilon is from above, and the noise keeps to it."""
    noise = noise_for(eps, delta, 1.0, 10)
    found = epsilon(1.0, noise, 10, delta)
    assert 0.99 * eps < found <= eps
    assert log_delta(sqrt(10) / noise, found) <= log(delta)
    assert log_delta(sqrt(10) / noise, found * (1 - 1e-6)) > log(delta)


def log_delta(mu: float, eps: float) -> float:
    """The logarithm of the delta of Balle and Wang."""
    upper, lower = norm.logcdf(mu / 2 - eps / mu), norm.logcdf(-mu / 2 - eps / mu)
    return float(upper + log(-expm1(eps + lower - upper)))


def test_sampling_at_a_rate_of_nearly_one_costs_what_rate_one_does() -> None:
    assert epsilon(1 - 1e-16, 0.05, 8, 1e-5) == epsilon(1.0, 0.05, 8, 1e-5)


EXTREMES = [(1e6, 1e-5, 0.5, 1), (2.0, 0.4, 0.1, 10), (1e-300, 1e-5, 0.5, 10), (1.0, 1e-5, 1 - 1e-8, 10),
            (1e4, 1e-5, 0.9, 1000), (1.0, 1e-5, 0.01, 100_000)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("eps", "delta", "rate", "rounds"), EXTREMES[: effort(1, len(EXTREMES))], ids=str)
def test_extremes_never_spend_more_than_asked(eps: float, delta: float, rate: float, rounds: int) -> None:
    noise = noise_for(eps, delta, rate, rounds)
    assert 0.01 <= noise <= 1e9
    assert epsilon(rate, noise, rounds, delta) <= eps


@in_test_all
def test_a_client_that_is_hardly_ever_drawn_spends_nothing() -> None:
    """The chance to be drawn at all, 1e-8, is below delta."""
    assert epsilon(1e-9, 0.01, 10, 1e-5) == 0


def test_what_the_accountant_does_not_resolve_is_refused() -> None:
    with refused("privacy.delta = 1e-300", "floating point", "at least 1e-12"):
        noise_for(1.0, 1e-300, 0.5, 10)
    with refused("10000000 rounds", "at most 100000"):
        noise_for(1.0, 1e-5, 0.5, 10**7)
    with refused("privacy.epsilon = 1e-12", "noise_multiplier above 1e+09"):
        noise_for(1e-12, 1e-300, 1.0, 10)
