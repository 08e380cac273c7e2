from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedflat.core.errors import InputError
from fedflat.data.partition import Domain, Natural, Samples

NAMES = ("art", "cartoon", "photo", "sketch")
DOMAIN = np.random.default_rng(0).permutation(np.repeat([0, 1, 3], [30, 70, 50]))  # cartoon is held out
USER = np.random.default_rng(1).permutation(np.repeat([4, 9, 2, 30], [60, 50, 1, 39]))
SAMPLES = Samples(np.zeros(150, int), 1, domain=DOMAIN, domains=NAMES, user=USER)
PLAIN = Samples(np.zeros(150, int), 1)


@given(each=st.integers(1, 30), seed=st.integers(0, 1000))
def test_clients_come_domain_by_domain_and_are_equal_in_it(each: int, seed: int) -> None:
    parts = Domain().split(SAMPLES, 3 * each, np.random.default_rng(seed))
    assert sorted(np.concatenate(parts)) == list(range(150))
    for place, domain in enumerate([0, 1, 3]):
        own = parts[place * each : (place + 1) * each]
        assert all((DOMAIN[part] == domain).all() for part in own)
        assert np.ptp([len(part) for part in own]) <= 1


def test_domain_mistakes() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(
        InputError,
        match=r"^partition\.name = 'domain' needs data with domains, such as pacs, or domain= with samples of your own",
    ):
        Domain().split(PLAIN, 3, rng)
    with pytest.raises(
        InputError, match=r"^data\.clients = 10 is not a multiple of the 3 domains \(art, cartoon, sketch\)$"
    ):
        Domain().split(SAMPLES, 10, rng)
    with pytest.raises(InputError, match=r"^data\.clients = 93 puts 31 clients into domain art, which has 30 samples$"):
        Domain().split(SAMPLES, 93, rng)


def test_every_user_is_a_client_with_all_of_its_samples() -> None:
    parts = Natural().split(SAMPLES, 4, np.random.default_rng(0))
    for part, user in zip(parts, [2, 4, 9, 30], strict=True):
        assert part.tolist() == np.flatnonzero(np.equal(USER, user)).tolist()


def test_fewer_clients_are_users_chosen_at_random() -> None:
    """Each of four users is chosen with probability 1 / 2 for two clients, in ascending order."""
    chosen = []
    for seed in range(400):
        parts = Natural().split(SAMPLES, 2, np.random.default_rng(seed))
        users = [int(USER[part[0]]) for part in parts]
        assert users == sorted(set(users))
        assert [len(part) for part in parts] == [int(np.equal(USER, user).sum()) for user in users]
        chosen += users
    counts = np.unique(chosen, return_counts=True)[1]
    assert len(counts) == 4
    assert np.abs(counts - 200).max() < 50  # five standard deviations


def test_natural_mistakes() -> None:
    with pytest.raises(
        InputError,
        match=r"partition\.name = 'natural' needs data with users, such as femnist, or user= with samples of your own",
    ):
        Natural().split(PLAIN, 3, np.random.default_rng(0))
    with pytest.raises(InputError, match=r"^data\.clients = 5 is more than the 4 users of the data$"):
        Natural().split(SAMPLES, 5, np.random.default_rng(0))
