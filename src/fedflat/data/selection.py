"""Which samples of a set are used: a part of it, a domain held out, a test set where the set has none."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import torch

from ..core.errors import InputError
from .federated import Index
from .options import DataOptions
from .source import Arrays, Loaded

TEST_SHARE = 10  # one in so many samples of each user becomes test where a set has no test part


def selected(data: Loaded, options: DataOptions) -> Loaded:
    """The samples that `options` ask for. Raises InputError, naming the field, for what the set cannot give."""
    if options.test_domain is not None:
        data = _domain_held_out(data, options.test_domain)
    elif data.test is None:
        data = _tenth_held_out(data)
    train = _subset(data.train, options.train_samples, "train_samples")
    test = data.test and _subset(data.test, options.test_samples, "test_samples")
    chosen = (options.test_domain, options.train_samples, options.test_samples)
    return replace(data, train=train, test=test, contents=_marked(data.contents, chosen))


def _domain_held_out(data: Loaded, name: str) -> Loaded:
    """The whole domain `name` as test set, the others for training, whatever part the files put them in."""
    if name not in data.domains:
        known = f"its domains are {', '.join(data.domains)}" if data.domains else "the set has no domains"
        raise InputError(f"data.test_domain = {name!r} is unknown; {known}")
    pooled = data.train if data.test is None else _joined(data.train, data.test)
    outside = pooled.domain != data.domains.index(name)
    if not outside.any():
        raise InputError(f"data.test_domain = {name!r} leaves nothing to train on: it is the only domain")
    return replace(data, train=_rows(pooled, np.flatnonzero(outside)), test=_rows(pooled, np.flatnonzero(~outside)))


def _tenth_held_out(data: Loaded) -> Loaded:
    """A fixed tenth of every user's samples as test set."""
    if data.train.user is None:
        needed = f"its domains are {', '.join(data.domains)}" if data.domains else "and it has no domains"
        raise InputError(f"data.test_domain is needed: the files have no test part; {needed}")
    order = np.random.default_rng(0).permutation(len(data.train.y))
    order = order[np.argsort(data.train.user[order], kind="stable")]
    user = data.train.user[order]
    place = np.arange(len(order)) - np.searchsorted(user, user)  # of each sample among its user's
    is_test = np.zeros(len(order), dtype=bool)
    is_test[order] = place % TEST_SHARE == TEST_SHARE - 1
    if not is_test.any():
        raise InputError(f"data: no user has {TEST_SHARE} samples, so that none is left for the test set")
    return replace(
        data, train=_rows(data.train, np.flatnonzero(~is_test)), test=_rows(data.train, np.flatnonzero(is_test))
    )


def _subset(samples: Arrays, number: int | None, field: str) -> Arrays:
    """`number` samples with the classes in proportion, the same ones for every seed."""
    if number is None or number == len(samples.y):
        return samples
    if number > len(samples.y):
        raise InputError(f"data.{field} = {number} is more than the {len(samples.y)} there are")
    labels = samples.y.numpy()
    order = np.random.default_rng(0).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    # Evenly spaced places of the samples in order of class take from each class its share, rounded.
    taken = order[(np.arange(number) * len(order) + len(order) // 2) // number]
    return _rows(samples, np.sort(taken))


def _rows(samples: Arrays, rows: Index) -> Arrays:
    where = torch.from_numpy(rows)
    groups = {
        name: None if ids is None else ids[rows] for name, ids in (("domain", samples.domain), ("user", samples.user))
    }
    return Arrays(samples.x[where], samples.y[where], **groups)


def _joined(one: Arrays, other: Arrays) -> Arrays:
    domain = None if one.domain is None or other.domain is None else np.concatenate([one.domain, other.domain])
    return Arrays(torch.cat([one.x, other.x]), torch.cat([one.y, other.y]), domain)


def _marked(contents: str | None, chosen: tuple[object, ...]) -> str | None:
    """A digest of the samples before the choice, changed by the choice."""
    if contents is None or not any(chosen):
        return contents
    return hashlib.sha256(f"{contents}{chosen}".encode()).hexdigest()[:8]
