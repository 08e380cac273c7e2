"""The audit: what canaries prove stays below the epsilon that is stated, and would not if the noise were less."""

from __future__ import annotations

import numpy as np
import pytest

import fedflat as ff
from benchmarks.privacy_audit import CANARIES, Scores, lower_bound, scores, told
from fedflat.methods import find
from fedflat.rounds.accountant import epsilon
from fedflat.rounds.private_rounds import PrivateRounds
from support.effort import chosen

DELTA = 1e-3
# rate, noise multiplier, rounds, runs of 500 canaries
SETTINGS = [(1.0, 1.0, 1, 200), (0.2, 0.7, 4, 200)]


def privacy(rate: float, noise: float) -> ff.Privacy:
    return ff.Privacy(epsilon=1e3, delta=DELTA, clip=0.5, rate=rate, noise_multiplier=noise, noise="seeded-not-private")


@pytest.mark.slow
@pytest.mark.parametrize("setting", chosen(SETTINGS[1:], SETTINGS), ids=str)
def test_what_a_hundred_thousand_canaries_prove_is_below_the_stated_epsilon(setting) -> None:
    rate, noise, rounds, runs = setting
    stated = epsilon(rate, noise, rounds, DELTA)
    proved = lower_bound(scores(privacy(rate, noise), rounds, runs), DELTA)
    print(f"stated {stated:.3f}, proved {proved:.3f}")
    assert 0.5 * stated < proved <= stated  # below half of it, the audit would find little
    assert proved > epsilon(rate, 2 * noise, rounds, DELTA)  # so it tells half of the noise from all of it


def test_the_bound_is_right_where_the_mechanism_is_known() -> None:
    """Randomised response with ln 3: the truth with chance 3/4. And nothing is proved where nothing is told."""
    rng = np.random.default_rng(0)
    inside, outside = (rng.random((2, 50_000)) < np.array([[0.75], [0.25]])).astype(float)
    assert 0.95 * np.log(3) < lower_bound(Scores(inside, outside), 0.0) <= np.log(3)
    assert lower_bound(Scores(*rng.normal(size=(2, 50_000))), 0.0) < 0.3


def test_a_canary_is_seen_only_where_it_takes_part_and_only_as_long_as_the_clip() -> None:
    private = PrivateRounds(privacy(0.2, 0.7), find("FedAvg")(), ff.Client(steps=1), CANARIES, 4, 7)
    everybody, nobody = (told(private, 0, np.full(CANARIES, there)) for there in (True, False))
    takes_part = np.isin(np.arange(CANARIES), private.cohort(0))
    np.testing.assert_allclose(everybody - nobody, takes_part, atol=1e-5)  # the noise is the same
