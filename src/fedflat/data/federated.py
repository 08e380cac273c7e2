"""Federated data: samples as tensors and clients as index arrays, without one object per client."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.hyper import takes_numbers
from ..core.object_references import portable
from ..core.task import FORMS, IGNORED, Kind, LabelForm
from .dataset import LoadedDataset
from .labels import Labelling, checked_task
from .numbers import check_kind
from .own_data import own_clients, own_samples
from .partition import IID, Partition
from .preparation import Augmentation, Preparation, augmentation_of, to_device
from .schema import Schema
from .selection import (
    DataOptions,
    Holdings,
    check_split,
    hold_out,
    own_test_sets,
    split_generator,
    split_samples,
)
from .types import Index, Members

Augment = Literal["none", "crop-flip", "fl-simulator"]
SHARE_FOR_SAMPLES = 0.5  # of the free memory of a GPU
AT_ONCE = 2**20  # members that are converted to int64 at once


@dataclass(frozen=True, repr=False)
class FederatedData:
    """Training samples, the index of the samples that each client holds, and a test set.

    Client i holds the samples `members[offsets[i] : offsets[i + 1]]`; a sample may belong to several
    clients or to none. `members` is int32 where that is enough, because with a million clients it takes most of the
    memory. Samples are in the form in which they are stored (pictures as uint8, texts as token numbers);
    `preparation` turns them into the input of a model, `augmentation` changes them in training only.
    """

    x: Tensor  # (n, *shape)
    y: Tensor  # (n,) or (n, *positions) class indices, int64; for other tasks (n, k) floats
    members: Members  # (sum of sizes,) sample indices, client after client
    offsets: Index  # (clients + 1,) where the samples of each client begin and end in `members`
    classes: int  # number of classes; for other tasks k, the number of model outputs per sample or position
    test: tuple[Tensor, Tensor] | None = None  # x (m, *shape), y (m,)
    name: str = "data"
    partition: str | Partition = "given"  # the scheme that split the data, or a description of the split
    preparation: Preparation = Preparation()
    augmentation: Augmentation | None = None
    validation: Holdings | None = None  # samples that each client holds but does not train on
    own_test: Holdings | None = None  # indices into `test` of the test samples of each client
    client_names: tuple[str, ...] = ()  # empty if clients have no names
    vocabulary: tuple[str, ...] = ()  # of texts: the word of each token number
    schema: Schema = Schema()  # of a user's own files: how their rows became samples
    contents: str | None = None  # a digest of the samples, if it is known without reading them
    class_names: tuple[str, ...] = ()  # of the class indices; empty if labels came as class indices
    task: Kind = "classification"
    first: int = 0  # number of the first client; not 0 for the data of one client alone

    def __post_init__(self) -> None:
        """Raise ValueError for an empty client, a label out of range, NaN, or tensors that do not fit together."""
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or self.classes < 1:
            raise InputError(f"data: classes must be a whole number of at least 1, got {self.classes!r}")
        _check_index(self.members, self.offsets, len(self.y))
        # No smaller type: torch would read uint8 as a mask and refuses others as an index.
        kind = np.int32 if len(self.y) <= np.iinfo(np.int32).max else np.int64
        object.__setattr__(self, "members", self.members.astype(kind, copy=False))  # set only here: the class is frozen
        _check_samples("training", self.x, self.y, self.classes, self.task)
        if self.test is not None:
            _check_samples("test", *self.test, self.classes, self.task)
            check_kind("test", self.test[0], "training", self.x)
            if self.test[0].shape[1:] != self.x.shape[1:]:
                raise InputError(
                    f"data: test samples have shape {tuple(self.test[0].shape[1:])}, training {self.shape}"
                )
        if self.augmentation is not None and self.form.has_positions:
            raise InputError(f"data: augment moves pictures and not the labels of {self.task}; set augment = 'none'")
        if self.clients < 1:
            raise InputError("data: there is no client")
        if self.class_names and len(self.class_names) != self.classes:
            raise InputError(f"data: classes = {self.classes}, and class_names has {len(self.class_names)} names")
        _check_own_test(self.own_test, self.test, self.clients)
        empty = np.flatnonzero(self.sizes == 0)
        if len(empty):
            raise InputError(
                f"data: client {empty[0]} has no sample ({len(empty)} of {self.clients} clients are empty)"
            )

    @classmethod
    @takes_numbers
    def from_clients(
        cls,
        clients: Iterable[Any],
        test: Any = None,
        classes: int | None = None,
        name: str = "data",
        own_tests: Iterable[Any] | None = None,
        validation: float = 0.0,
        augment: Augment = "none",
        seed: int = 0,
        task: Kind = "classification",
        labels: Literal["numbers", "names"] = "numbers",
        class_names: tuple[str, ...] | list[str] = (),
        columns: tuple[str, str] | None = None,
    ) -> FederatedData:
        """Make data from one `(x, y)` per client: arrays or tensors x (n_i, *shape), y (n_i,) class indices or names.

        Instead of a pair, a client's data or `test` may be a dataset in a form that `split` accepts. All parts have the
        same kind of numbers: uint8, integers or floats.

        own_tests: in place of `test`, the test samples of each client; together they are the test set.
        task: as in `split`.
        classes, labels, class_names, columns: as in `split`. validation: share of each client's samples that it does
        not train on, drawn by `seed`. augment: augmentation in training, for pictures: uint8 (n, channels, height,
        width) or floats.

        Raises ValueError for an empty client, unequal lengths, shapes or kinds of numbers, labels that are missing or
        out of range, a class that only test samples have, and NaN.
        """
        options, how = _own_options(
            classes, validation=validation, augment=augment, labels=labels, class_names=class_names
        )
        loaded, sizes, tests = own_clients(clients, test, own_tests, columns, checked_task(task), how)
        data = _federated(loaded, Holdings.in_order(sizes), name, "given", options, seed)
        return replace(data, own_test=Holdings.in_order(tests)) if tests else data

    @classmethod
    @takes_numbers
    def split(
        cls,
        x: Any,
        y: Any = None,
        *,
        clients: int,
        partition: Partition | None = None,
        test: Any = None,
        validation: float = 0.0,
        augment: Augment = "none",
        seed: int = 0,
        columns: tuple[str, str] | None = None,
        domain: Any = None,
        user: Any = None,
        classes: int | None = None,
        name: str = "data",
        task: Kind = "classification",
        labels: Literal["numbers", "names"] = "numbers",
        class_names: tuple[str, ...] | list[str] = (),
    ) -> FederatedData:
        """Split your own data over `clients` clients by `partition` (default: IID).

        x, y: arrays, tensors or DataFrames, x (n, *shape), y (n,) class indices, or names of classes. Or x alone: a
            map-style dataset of torch with items (x, y), or a dataset of Hugging Face, whose `columns` then name x and
            y. Pictures of Pillow become uint8 (channels, height, width), which models see scaled to [0, 1].
        task: "multi-label", for y (n, labels) of 0 and 1; "regression", for y (n,) or (n, k) of numbers; "next-token",
            for x (n, tokens) and y (n, tokens), the token that follows each; or "segmentation", for pictures
            x (n, channels, height, width) and the class of each pixel, y (n, height, width), or masks of Pillow.
            In the last two, -100 marks what does not count. Partitions by class are for classification only.
        test: a share of the samples in (0, 0.9], with the classes in proportion and the same samples for every seed; or
            a pair (x, y); or another dataset of the same kind.
        validation: share of each client's samples that it does not train on.
        augment: augmentation of pictures in training.
        seed: seed of the split and of the choice of validation samples.
        domain, user: domain and user of each sample (n,), as names or numbers, or the name of a column; for the
            partitions `Domain` and `Natural`.
        labels: "numbers": class indices from 0 without gaps; "names": each different label of the training samples is
            a class, in the order of numbers or texts. Texts are always names.
        class_names: all classes in their order, if some of them may have no sample.
        classes: number of classes.

        Raises ValueError, naming the argument, for samples that do not fit together and a split that cannot be made.
        """
        options, how = _own_options(
            classes, validation=validation, augment=augment, labels=labels, class_names=class_names
        )
        check_split(clients, partition, seed)
        loaded = own_samples(x if y is None else (x, y), test, {"domain": domain, "user": user}, columns,
                             checked_task(task), how)  # fmt: skip
        return divide(loaded, name, clients, partition or IID(stratified=False), seed, options)

    def __repr__(self) -> str:
        """Return name, sizes and partition, without the samples."""
        size = " x ".join(map(str, self.shape))
        how = "in" if self.task == "classification" else "with"
        return (
            f"FederatedData({self.name}: {len(self.y):,} samples of {size} {how} {self.classes} {self.form.outputs}, "
            f"{self.clients} clients, {self.partition})"
        )

    @property
    def form(self) -> LabelForm:
        """The form of labels and scores."""
        return FORMS[self.task]

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def sizes(self) -> Index:
        """Number of samples of each client, (clients,)."""
        return np.diff(self.offsets)

    @cached_property
    def largest(self) -> int:
        """Number of samples of the largest client."""
        return int(self.sizes.max())

    def sizes_of(self, clients: Index) -> Index:
        """Return the number of samples, (c,), of each of the `clients` (c,)."""
        sizes: Index = self.offsets[clients - self.first + 1] - self.starts_of(clients)
        return sizes

    def starts_of(self, clients: Index) -> Index:
        """Return the positions in `members`, (c,), where the samples of each of the `clients` (c,) begin."""
        starts: Index = self.offsets[clients - self.first]
        return starts

    def held(self, places: Index | slice) -> Index:
        """Return the sample indices at these positions of `members`, in the shape of `places`."""
        return self.members[places].astype(np.int64)

    def client(self, i: int) -> tuple[Tensor, Tensor]:
        """Return the samples of client `i`: x (n_i, *shape), y (n_i,)."""
        start, end = self.offsets[i - self.first :][:2]
        own = torch.from_numpy(self.held(slice(start, end)))
        return self.x[own], self.y[own]

    def alone(self, i: int) -> FederatedData:
        """Return the data that client `i` has on its own device: its training samples. The client keeps its number."""
        x, y = self.client(i)
        members, offsets = np.arange(len(y)), np.array([0, len(y)])
        return replace(
            self, x=x, y=y, members=members, offsets=offsets, first=i, test=None, validation=None, own_test=None,
            client_names=(), contents=None,
        )  # fmt: skip

    def inputs(self, samples: Tensor) -> Tensor:
        """Return the model's input, (*batch, *shape), for the training samples with these indices (*batch,)."""
        return self.preparation(self.stored(samples))

    def stored(self, samples: Tensor) -> Tensor:
        """Return the training samples with these indices (*batch,) in their stored form, (*batch, *shape).

        They are on the device of `samples`, also if the samples stay on the host (see `to`).
        """
        found = self.x.index_select(0, samples.flatten().to(self.x.device))  # 20 times as fast as [...]
        return to_device(found, samples.device).view(*samples.shape, *self.shape)

    @property
    def is_on_host(self) -> bool:
        """Whether samples stay on the host, and labels are on a device."""
        return self.x.device != self.y.device

    def counts(self) -> Index:
        """Count samples by client and class or label, (clients, classes).

        If samples have neither a class nor several labels, they are counted by client only, (clients, 1).
        """
        if not self.form.has_counts:
            return self.sizes[:, None]
        if self.task == "multi-label":
            of_clients = (self.y[torch.from_numpy(self.held(slice(*ends)))] for ends in pairwise(self.offsets))
            return np.stack([some.sum(0).cpu().numpy() for some in of_clients]).round().astype(np.int64)
        labels, client = self.y.cpu().numpy()[self.members], np.repeat(np.arange(self.clients), self.sizes)
        flat = np.bincount(client * self.classes + labels, minlength=self.clients * self.classes)
        return flat.reshape(self.clients, self.classes).astype(np.int64)

    def partition_hash(self) -> str:
        """Return eight hexadecimal digits that differ between splits."""
        held_out = () if self.validation is None else (self.validation.offsets, self.validation.members)
        pieces = (self.held(slice(i, i + AT_ONCE)) for i in range(0, len(self.members), AT_ONCE))
        return digest(map(torch.from_numpy, chain((self.offsets,), pieces, held_out)))

    def contents_hash(self) -> str:
        """Return eight hexadecimal digits that differ between sets of samples."""
        return self.contents or digest((self.x, self.y))

    def to(self, device: torch.device | str, dtype: torch.dtype) -> FederatedData:
        """Copy the data to `device`, with samples prepared as `dtype`; `members` and `offsets` stay on the host.

        If the samples need more than half of the free memory of a GPU, they stay on the host, and each batch is copied
        when it is used; only the labels are on the device.
        """
        parts = [self.x] if self.test is None else [self.x, self.test[0]]
        device = torch.device(device)
        place = torch.device("cpu") if are_too_large(parts, device) else device
        test = None if self.test is None else (_cast(self.test[0], place, dtype), _cast(self.test[1], device, dtype))
        preparation = replace(self.preparation, dtype=dtype)
        return replace(
            self, x=_cast(self.x, place, dtype), y=_cast(self.y, device, dtype), test=test, preparation=preparation
        )


def are_too_large(parts: Sequence[Tensor], device: torch.device) -> bool:
    """Return whether samples need more than half of the free memory of a GPU; the rest is for training."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return sum(x.nbytes for x in parts) > free * SHARE_FOR_SAMPLES


def divide(
    loaded: LoadedDataset, name: str, clients: int, scheme: Partition, seed: int, options: DataOptions
) -> FederatedData:
    """Split a data set over clients by `scheme`, with validation sets if `options` ask for them."""
    held = split_samples(loaded, clients, scheme, seed)
    return _federated(loaded, held, portable(name), scheme, options, seed)


def _own_options(classes: int | None, **options: Any) -> tuple[DataOptions, Labelling]:
    """Return the options of a user's own samples, and the meaning of their labels."""
    chosen = DataOptions(**options)
    return chosen, replace(chosen.labelling, classes=classes)


def _federated(
    loaded: LoadedDataset, held: Holdings, name: str, partition: str | Partition, options: DataOptions, seed: int
) -> FederatedData:
    """Return a data set with its split over clients, and with validation samples if `options` ask for a share."""
    own_test, names = own_test_sets(loaded, held, partition)
    data = FederatedData(
        x=loaded.train.x,
        y=loaded.train.y,
        members=held.members,
        offsets=held.offsets,
        classes=loaded.classes,
        test=None if loaded.test is None else (loaded.test.x, loaded.test.y),
        name=name,
        partition=partition,
        preparation=loaded.preparation,
        augmentation=augmentation_of(options.augment, loaded.train.x, name),
        vocabulary=loaded.vocabulary,
        schema=loaded.schema,
        contents=loaded.contents,
        task=loaded.task,
        class_names=loaded.class_names,
        own_test=own_test,
        client_names=names,
    )
    if not options.validation:
        return data
    train, validation = hold_out(Holdings(data.members, data.offsets), options.validation, split_generator(seed, 1))
    return replace(data, members=train.members, offsets=train.offsets, validation=validation)


def digest(tensors: Iterable[Tensor]) -> str:
    """Return eight hexadecimal digits of the bytes of all tensors in sequence; one tensor is in memory at a time."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()[:8]


def _cast(x: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).to(device) if x.is_floating_point() else x.to(device)  # not every device has float64


def _check_index(members: Members, offsets: Index, samples: int) -> None:
    if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(members) or (np.diff(offsets) < 0).any():
        raise InputError(f"data: offsets must rise from 0 to the {len(members)} members")
    if len(members) and (members.min() < 0 or members.max() >= samples):
        raise InputError(f"data: members name samples outside 0..{samples - 1}")


def _check_own_test(own: Holdings | None, test: tuple[Tensor, Tensor] | None, clients: int) -> None:
    if own is None:
        return
    if test is None:
        raise InputError("data: own_test names test samples, and there is no test set")
    _check_index(own.members, own.offsets, len(test[1]))
    if len(own.sizes) != clients or not len(own.members):
        raise InputError(f"data: own_test is of {len(own.sizes)} clients with {len(own.members)} samples; there are "
                         f"{clients} clients")  # fmt: skip


def _check_samples(which: str, x: Tensor, y: Tensor, classes: int, task: Kind) -> None:
    if len(x) != len(y) or x.ndim < 2 or x.is_complex():
        raise InputError(
            f"data: {which} x must be real, of shape (n, ...) with n = {len(y)}, got {tuple(x.shape)} {x.dtype}"
        )
    if FORMS[task].has_positions:
        _check_positions(which, x, y, classes, FORMS[task])
    elif not FORMS[task].are_classes:
        _check_numbers(which, y, classes, task)
    elif len(wrong := torch.nonzero((y < 0) | (y >= classes)).flatten()):
        label = int(y[wrong[0]])
        problem = "negative; classes are numbered from 0" if label < 0 else f"outside 0..{classes - 1}"
        raise InputError(f"data: {which} label {label} of sample {int(wrong[0])} is {problem}")
    if x.is_floating_point():
        _check_finite(which, x)


def _check_finite(which: str, x: Tensor) -> None:
    """Raise InputError for floats that are NaN, infinite, or of 8 bits, which torch cannot add up."""
    if x.dtype.itemsize < 2:
        raise InputError(f"data: {which} x must have at least 16 bits a number, got {x.dtype}")
    if x.sum().isfinite():  # much faster than to look at every value, of which one alone would make the sum NaN or inf
        return
    broken = torch.nonzero(~torch.isfinite(x.flatten(1)).all(1)).flatten()
    if len(broken):  # none if finite values have an infinite sum
        raise InputError(f"data: {which} sample {int(broken[0])} has a value that is NaN or infinite "
                         f"({len(broken)} of {len(x)} samples)")  # fmt: skip


def _check_positions(which: str, x: Tensor, y: Tensor, classes: int, form: LabelForm) -> None:
    """Raise InputError unless each position of every sample has a class index or is ignored, and not all are."""
    positions = form.positions(tuple(x.shape[1:]))
    if tuple(y.shape[1:]) != positions or y.dtype != torch.int64:
        raise InputError(f"data: {which} y must be int64 of shape {(len(x), *positions)}, {form.shape}, "
                         f"got {tuple(y.shape)} {y.dtype}")  # fmt: skip
    if len(wrong := torch.nonzero((y != IGNORED) & ((y < 0) | (y >= classes)))):
        place = wrong[0].tolist()
        raise InputError(f"data: {which} label {int(y[tuple(place)])} of sample {place[0]} at {place[1:]} is outside "
                         f"0..{classes - 1}; {IGNORED} marks what does not count")  # fmt: skip
    if len(empty := torch.nonzero((y == IGNORED).flatten(1).all(1)).flatten()):
        raise InputError(f"data: {which} sample {int(empty[0])} has no label that counts: all are {IGNORED}")


def _check_numbers(which: str, y: Tensor, numbers: int, task: Kind) -> None:
    """Raise InputError unless `y` has `numbers` finite floats for each sample, in the multi-label task only 0 and 1."""
    if y.ndim != 2 or y.shape[1] != numbers or not y.is_floating_point():
        raise InputError(f"data: {which} y must be floats of shape (n, {numbers}), got {tuple(y.shape)} {y.dtype}")
    fits = torch.isfinite(y) if task == "regression" else (y == 0) | (y == 1)
    broken = torch.nonzero(~fits.all(1)).flatten()
    if len(broken):
        allowed = "finite" if task == "regression" else "0 or 1"
        raise InputError(f"data: {which} sample {int(broken[0])} has a label that is not {allowed} "
                         f"({len(broken)} of {len(y)} samples)")  # fmt: skip
