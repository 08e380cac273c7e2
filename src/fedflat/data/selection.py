"""Selection of samples (a part of a set, a domain held out, a test set), and their assignment to clients."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError, shortened
from ..core.hyper import hyper
from .conversion import SampleFormat, tokenizer_of
from .dataset import LoadedDataset, SampleArrays
from .labels import INDICES, Labelling
from .partition import Natural, Partition
from .partition.scheme import Samples, parts_of
from .schema import Schema
from .types import Index, Members

TEST_SHARE = 10  # if the files have no test part, one in TEST_SHARE samples of each user is a test sample


@dataclass(frozen=True, kw_only=True)
class DataOptions(Schema):
    """Options for the samples of a data set: which ones are used, and how they are prepared."""

    augment: Literal["none", "crop-flip", "fl-simulator"] = hyper(
        "none", "in training: none, crop-flip (FedGF), fl-simulator (FL-Simulator's order and chances)"
    )
    partial: bool = hyper(False, "accept files that hold only a part of the set")
    train_samples: int | None = hyper(
        None, "number of training samples to use, classes in proportion, always the same", low=1
    )
    test_samples: int | None = hyper(
        None, "number of test samples to use, classes in proportion, always the same", low=1
    )
    test_domain: str | None = hyper(None, "the domain held out as test set; clients share the others")
    image_size: int | None = hyper(
        None, "pixels that photographs are resized to; default the set's own", low=8, high=2048
    )
    text_length: int | None = hyper(
        None, "tokens of a text: longer ones are cut, shorter ones padded; default 128", low=1, high=4096
    )
    without_test: bool = hyper(False, "use no test samples: nothing is evaluated on them")
    tokenizer: str | None = hyper(
        None, "folder whose tokenizer.json makes token numbers of texts; default the words of the set"
    )
    labels: Literal["numbers", "names"] = hyper(
        "numbers", "labels are class numbers from 0, or each different one names a class; texts are names"
    )
    class_names: tuple[str, ...] = hyper((), "all classes in their order; default those that occur")
    validation: float = hyper(0.0, "share of each client's samples that it does not train on", low=0, high=0.9)

    def __post_init__(self) -> None:
        """Raise InputError, naming the field, for a value out of range."""
        if isinstance(self.class_names, list):
            object.__setattr__(self, "class_names", tuple(self.class_names))
        super().__post_init__()

    @property
    def labelling(self) -> Labelling:
        """Meaning of the labels."""
        return Labelling(self.labels, self.class_names)

    @property
    def form(self) -> SampleFormat:
        """Form in which samples are stored. Raises InputError if the named folder has no tokenizer."""
        return SampleFormat(self.image_size, self.text_length, tokenizer_of(self.tokenizer), Schema.of(self))


def select_samples(data: LoadedDataset, options: DataOptions) -> LoadedDataset:
    """Return the samples that `options` select. Raises InputError, naming the field, if the data set lacks them."""
    if options.test_domain is not None:
        data = _hold_out_domain(data, options.test_domain)
    elif data.test is None:
        data = _hold_out_tenth(data)
    train = _subset(data.train, options.train_samples, "train_samples")
    test = data.test and _subset(data.test, options.test_samples, "test_samples")
    test = None if options.without_test else test
    choice: tuple[object, ...] = (options.test_domain, options.train_samples, options.test_samples)
    choice += (options.labels, options.class_names) if options.labelling != INDICES else ()
    contents = data.contents
    if contents is not None and any(choice):  # a digest of the chosen samples, without reading them
        contents = hashlib.sha256(f"{contents}{choice}".encode()).hexdigest()[:8]
    return replace(data, train=train, test=test, contents=contents)


def _hold_out_domain(data: LoadedDataset, name: str) -> LoadedDataset:
    """Use all samples of the domain `name` for test and all others for training, whichever parts the files have."""
    if name not in data.domains:
        known = f"its domains are {', '.join(data.domains)}" if data.domains else "the set has no domains"
        raise InputError(f"data.test_domain = {name!r} is unknown; {known}")
    pooled, test = data.train, data.test
    if test is not None:
        pairs = (pooled.domain, test.domain), (pooled.user, test.user)
        groups = (None if ours is None or theirs is None else np.concatenate([ours, theirs]) for ours, theirs in pairs)
        pooled = SampleArrays(torch.cat([pooled.x, test.x]), torch.cat([pooled.y, test.y]), *groups)
    if pooled.domain is None:
        raise InputError(f"data.test_domain = {name!r}: the test samples have no domain; leave them out or add one")
    outside = np.asarray(pooled.domain) != data.domains.index(name)
    if not outside.any():
        raise InputError(f"data.test_domain = {name!r} leaves nothing to train on: it is the only domain")
    return replace(data, train=rows_of(pooled, np.flatnonzero(outside)), test=rows_of(pooled, np.flatnonzero(~outside)))


def _hold_out_tenth(data: LoadedDataset) -> LoadedDataset:
    """Move a fixed tenth of every user's samples to the test set."""
    if data.train.user is None:
        if not data.domains:
            raise InputError(
                "data: the files have no test part, and no domain or user to take one from; add a test file"
            )
        needed = f"its domains are {', '.join(data.domains)}"
        raise InputError(f"data.test_domain is needed: the files have no test part; {needed}")
    order = np.random.default_rng(0).permutation(len(data.train.y))
    order = order[np.argsort(data.train.user[order], kind="stable")]
    user = data.train.user[order]
    place = np.arange(len(order)) - np.searchsorted(user, user)  # of each sample among those of its user
    is_test = np.zeros(len(order), dtype=bool)
    is_test[order] = place % TEST_SHARE == TEST_SHARE - 1
    if not is_test.any():
        raise InputError(f"data: no user has {TEST_SHARE} samples, so that none is left for the test set")
    return replace(
        data, train=rows_of(data.train, np.flatnonzero(~is_test)), test=rows_of(data.train, np.flatnonzero(is_test))
    )


def _subset(samples: SampleArrays, number: int | None, field: str) -> SampleArrays:
    """Return `number` samples with the classes in proportion: the same samples for every seed."""
    if number is None or number == len(samples.y):
        return samples
    if number > len(samples.y):
        raise InputError(f"data.{field} = {number} is more than the {len(samples.y)} there are")
    return rows_of(samples, in_proportion(samples.y, number))


def in_proportion(labels: Tensor, number: int) -> Index:
    """Return ascending indices of `number` samples with the classes in proportion: the same for equal `labels`."""
    classes = labels.numpy() if labels.ndim == 1 else np.zeros(len(labels))  # without classes: any samples
    order = np.random.default_rng(0).permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    # In the order of classes, evenly spaced positions take the rounded share of each class.
    places = (np.arange(number) * len(order) + len(order) // 2) // number
    chosen: Index = np.sort(order[places])
    return chosen


def rows_of(samples: SampleArrays, rows: Index) -> SampleArrays:
    """Return the samples with these indices (m,)."""
    where = torch.from_numpy(rows)
    domain, user = (None if ids is None else ids[rows] for ids in (samples.domain, samples.user))
    return SampleArrays(samples.x[where], samples.y[where], domain, user)


@dataclass(frozen=True)
class Holdings:
    """The samples of every client: client i holds `members[offsets[i] : offsets[i + 1]]`."""

    members: Members  # (sum of sizes,) sample indices, client after client
    offsets: Index  # (clients + 1,)

    @classmethod
    def of(cls, parts: Sequence[Members]) -> Holdings:
        """Return the holdings of clients whose sample indices are `parts`."""
        return cls(np.concatenate(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64))

    @classmethod
    def in_order(cls, sizes: Sequence[int]) -> Holdings:
        """Return the holdings of clients that have one after another the next `sizes` samples."""
        return cls(np.arange(sum(sizes), dtype=np.int64), np.cumsum([0, *sizes], dtype=np.int64))

    @property
    def sizes(self) -> Index:
        """Number of samples of each client, (clients,)."""
        return np.diff(self.offsets)

    def without_empty(self) -> Holdings:
        """Return the holdings of those clients that hold samples."""
        return Holdings(self.members, np.unique(self.offsets))

    def parts(self) -> list[Members]:
        """Return the sample indices of every client."""
        return np.split(self.members, self.offsets[1:-1])


def check_split(clients: Any, partition: Any, seed: Any) -> None:
    """Raise InputError, naming the field, for arguments that do not describe a split."""
    for what, value, least in (("clients", clients, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"data.{what} must be a whole number of at least {least}, got {value!r}")
    if not isinstance(partition, Partition | None):
        raise InputError(f"partition must be a scheme such as Dirichlet(alpha=0.1), got {shortened(repr(partition))}")


def split_samples(loaded: LoadedDataset, clients: int, scheme: Partition, seed: int) -> Holdings:
    """Split the training samples over clients by `scheme`. Raises InputError, naming the field, if that fails."""
    train = loaded.train
    if loaded.task != "classification" and scheme.needs_classes:
        raise InputError(f"partition = {scheme} splits by class, and the labels are those of {loaded.task}; use iid, "
                         "domain or natural")  # fmt: skip
    labels = train.y.numpy() if loaded.task == "classification" else np.zeros(len(train.y), dtype=np.int64)
    samples = Samples(labels, loaded.classes, train.domain, loaded.domains, train.user)
    return Holdings.of(parts_of(scheme, samples, clients, split_generator(seed)))


def own_test_sets(
    loaded: LoadedDataset, held: Holdings, partition: str | Partition
) -> tuple[Holdings | None, tuple[str, ...]]:
    """Return the test samples of each client, and the names of clients, if each client is a user of the data.

    None: clients have no test samples of their own. A client without test samples has an empty part.
    """
    if not isinstance(partition, Natural) or loaded.train.user is None:
        return None, ()
    users = loaded.train.user[held.members[held.offsets[:-1]]]  # of each client
    names = tuple(loaded.users[user] for user in users) if loaded.users else ()
    if loaded.test is None or loaded.test.user is None:
        return None, names
    order = np.argsort(loaded.test.user, kind="stable")
    ends = [np.searchsorted(loaded.test.user[order], users, side=side) for side in ("left", "right")]
    parts = [order[begin:end] for begin, end in zip(*ends, strict=True)]
    return (Holdings.of(parts) if any(map(len, parts)) else None), names


def hold_out(held: Holdings, share: float, rng: np.random.Generator) -> tuple[Holdings, Holdings]:
    """Move a random `share` of each client's samples to validation; return the holdings for training and validation.

    The validation samples are drawn from the client's own samples, so they have its label distribution. All copies of
    a sample that a client holds twice are in the same set. Every client keeps samples to train on: a client with
    fewer than two different samples has none for validation. Raises InputError if no client has two
    different samples.
    """
    train, held_out = [], []
    for own in held.parts():
        different = np.unique(own)
        number = min(max(1, round(share * len(different))), len(different) - 1)
        chosen = rng.choice(different, number, replace=False)
        train.append(own[~np.isin(own, chosen)])
        held_out.append(np.sort(chosen))
    if not any(map(len, held_out)):
        raise InputError(f"data.validation = {share} needs a client with two different samples; "
                         "use fewer clients, or train without validation")  # fmt: skip
    return Holdings.of(train), Holdings.of(held_out)


def split_generator(seed: int, *counters: int) -> np.random.Generator:
    """Return the random generator of a split (purpose 0 of `rounds.randomness`); with the counter 1, of validation."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, *counters)))
