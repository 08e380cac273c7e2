from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedflat.data.dataset import LoadedDataset, SampleArrays
from fedflat.data.selection import DataOptions, select_samples
from support.files import refused


def arrays(n: int, classes: int = 3, seed: int = 0, **groups: np.ndarray) -> SampleArrays:
    """Every sample is its own number, so that it can be told where it has gone."""
    rng = np.random.default_rng(seed)
    return SampleArrays(torch.arange(n)[:, None] + 1000 * seed, torch.from_numpy(rng.integers(0, classes, n)), **groups)


def loaded(n: int = 100, classes: int = 3) -> LoadedDataset:
    return LoadedDataset(arrays(n, classes), arrays(40, classes, seed=1), classes, contents="0123abcd")


def numbers(part: SampleArrays) -> list[int]:
    return part.x[:, 0].tolist()


@given(n=st.integers(1, 200), classes=st.integers(1, 12), share=st.floats(0, 1), seed=st.integers(0, 100))
def test_a_subset_has_the_number_and_the_shares_of_the_classes(n: int, classes: int, share: float, seed: int) -> None:
    whole = arrays(n, classes, seed)
    number = max(1, round(share * n))
    part = select_samples(replace(loaded(), train=whole, classes=classes), DataOptions(train_samples=number)).train
    assert len(part.y) == len(set(numbers(part))) == number
    before, after = (torch.bincount(y, minlength=classes).double() for y in (whole.y, part.y))
    assert (after - before * number / n).abs().max() < 1 + 1e-9
    places = torch.tensor(numbers(part)) - 1000 * seed
    assert (places.diff() > 0).all()
    assert torch.equal(whole.y[places], part.y)


def test_a_subset_is_not_the_beginning() -> None:
    part = select_samples(loaded(), DataOptions(train_samples=10)).train
    assert max(numbers(part)) > 50


def test_train_and_test_are_cut_apart() -> None:
    some = select_samples(loaded(), DataOptions(train_samples=30, test_samples=7))
    assert (len(some.train.y), len(some.test.y)) == (30, 7)
    assert set(numbers(some.test)) < set(numbers(loaded().test))
    assert numbers(select_samples(loaded(), DataOptions(test_samples=7)).train) == numbers(loaded().train)


def test_a_subset_is_always_the_same_and_marked() -> None:
    options = [
        DataOptions(),
        DataOptions(train_samples=30),
        DataOptions(train_samples=31),
        DataOptions(test_samples=30),
    ]
    once, again = ([select_samples(loaded(), one) for one in options] for _ in "ab")
    assert [numbers(one.train) for one in once] == [numbers(one.train) for one in again]
    assert [one.contents for one in once] == [one.contents for one in again]
    assert once[0].contents == loaded().contents
    assert len({one.contents for one in once}) == 4


def test_groups_go_with_their_samples() -> None:
    user, domain = np.arange(100) % 7, np.arange(100) % 2
    data = replace(loaded(), train=arrays(100, user=user, domain=domain), domains=("a", "b"))
    part = select_samples(data, DataOptions(train_samples=20)).train
    assert part.user.tolist() == [number % 7 for number in numbers(part)]
    assert part.domain.tolist() == [number % 2 for number in numbers(part)]


@pytest.mark.parametrize(("field", "there"), [("train_samples", 100), ("test_samples", 40)])
def test_more_than_there_are(field: str, there: int) -> None:
    assert len(numbers(select_samples(loaded(), DataOptions(**{field: there})).train)) == 100
    with refused(f"data.{field} = {there + 1} is more than the {there} there are"):
        select_samples(loaded(), DataOptions(**{field: there + 1}))


def domains(with_test: bool) -> LoadedDataset:
    names = ("art", "photo", "sketch")
    test = arrays(40, seed=1, domain=np.arange(40) % 3) if with_test else None
    return LoadedDataset(arrays(100, domain=np.arange(100) // 40), test, 3, domains=names, contents="0123abcd")


@pytest.mark.parametrize("name", ["art", "photo", "sketch"])
def test_a_domain_is_held_out(name: str) -> None:
    data = domains(with_test=False)
    number = data.domains.index(name)
    some = select_samples(data, DataOptions(test_domain=name))
    assert set(some.test.domain) == {number}
    assert set(some.train.domain) == {0, 1, 2} - {number}
    assert numbers(some.test) == [i for i in range(100) if i // 40 == number]
    assert sorted(numbers(some.train) + numbers(some.test)) == list(range(100))
    assert torch.equal(some.train.y, data.train.y[some.train.x[:, 0]])
    assert torch.equal(some.test.y, data.train.y[some.test.x[:, 0]])


def test_a_domain_is_held_out_of_both_parts_of_the_files() -> None:
    data = domains(with_test=True)
    some = select_samples(data, DataOptions(test_domain="photo", test_samples=5))
    assert set(some.train.domain) == {0, 2}
    assert set(some.test.domain) == {1}
    assert (len(some.train.y), len(some.test.y)) == (100 - 40 + 40 - 13, 5)
    labels = dict(zip(numbers(data.train) + numbers(data.test), [*data.train.y.tolist(), *data.test.y], strict=True))
    for part in (some.train, some.test):
        assert part.y.tolist() == [labels[number] for number in numbers(part)]


def test_every_domain_held_out_is_another_set() -> None:
    marks = {select_samples(domains(True), DataOptions(test_domain=name)).contents for name in domains(True).domains}
    assert len(marks) == 3


def test_domains_that_do_not_work() -> None:
    with refused("data.test_domain = 'real' is unknown; its domains are art, photo, sketch"):
        select_samples(domains(with_test=False), DataOptions(test_domain="real"))
    with refused("data.test_domain = 'photo' is unknown; the set has no domains"):
        select_samples(loaded(), DataOptions(test_domain="photo"))
    with refused("data.test_domain is needed", "no test part; its domains are art, photo, sketch"):
        select_samples(domains(with_test=False), DataOptions())
    with refused("the files have no test part, and no domain or user to take one from"):
        select_samples(replace(loaded(), test=None), DataOptions())
    alone = LoadedDataset(arrays(5, domain=np.zeros(5, int)), None, 3, domains=("art",))
    with refused("data.test_domain = 'art' leaves nothing to train on"):
        select_samples(alone, DataOptions(test_domain="art"))


def written(sizes: list[int]) -> LoadedDataset:
    """Samples by writers with so many each, in no order."""
    user = np.random.default_rng(3).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return LoadedDataset(arrays(len(user), user=user), None, 3, contents="0123abcd")


def test_a_tenth_of_every_writer_is_the_test_set() -> None:
    sizes = [1, 9, 10, 11, 19, 20, 105]
    data = written(sizes)
    some, again = (select_samples(data, DataOptions()) for _ in "ab")
    assert np.bincount(some.test.user, minlength=7).tolist() == [size // 10 for size in sizes]
    assert np.bincount(some.train.user, minlength=7).tolist() == [size - size // 10 for size in sizes]
    assert sorted(numbers(some.train) + numbers(some.test)) == list(range(sum(sizes)))
    assert numbers(some.test) == numbers(again.test)
    for part in (some.train, some.test):
        assert part.user.tolist() == data.train.user[numbers(part)].tolist()
        assert torch.equal(part.y, data.train.y[part.x[:, 0]])


def test_the_tenth_is_spread_over_a_writers_samples() -> None:
    place = np.array(numbers(select_samples(written([1000]), DataOptions()).test))
    assert np.histogram(place, 4, (0, 1000))[0].min() > 10


def test_writers_of_too_little() -> None:
    with refused("no user has 10 samples"):
        select_samples(written([9, 3]), DataOptions())
