"""The samples of a client, and those on which the server tests the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import InputError
from ...data import FederatedData
from ...data.numbers import kind_of
from ...data.preparation import AUGMENTATIONS
from ...experiments.spec import federated_data
from .settings import NodeSettings
from .study import Study

SampleLoader = Callable[[Mapping[str, Any]], tuple[Any, Any]]  # the node's configuration -> x (n, *shape), y (n,)


def stored(node: Mapping[str, Any]) -> tuple[Any, Any]:
    """The samples in the folder that the node's configuration calls `data`. Raises InputError, naming the file."""
    folder = node.get("data")
    if folder is None:
        raise InputError("node-config: data is missing: the folder with this client's x.npy and y.npy")
    return _read(Path(str(folder)).expanduser())


def own_samples(study: Study, samples: tuple[Any, Any], number: int) -> FederatedData:
    """A client's own samples, with its number in the federation. Raises InputError if they do not fit the study."""
    how = study.spec.data
    data = FederatedData.from_clients([samples], classes=study.classes, labels=how.labels, class_names=how.class_names)
    if data.class_names and not how.class_names:
        raise InputError("y names classes: set data.class_names in the study, so that all clients number them alike")
    if kind_of(data.x) != study.settings.numbers:
        raise InputError(f"samples are {kind_of(data.x)} ({str(data.x.dtype).removeprefix('torch.')}), and the study's "
                         f"{study.settings.numbers}, so that all clients' reach the model alike: convert x, or set "
                         "numbers (--numbers)")  # fmt: skip
    if data.shape != study.shape:
        raise InputError(f"samples have shape {data.shape}, the study's {study.shape}")
    return replace(data, first=number, augmentation=AUGMENTATIONS[study.spec.data.augment])


def partition_samples(study: Study, node: NodeSettings) -> FederatedData:
    """A client's part of the study's data set, with its number. Raises InputError, naming the field."""
    spec = study.spec.model_copy(update={"data_dir": node.data_dir or study.spec.data_dir})
    assert node.partition_id is not None  # noqa: S101 (`client_name` has checked it)
    return federated_data(spec).alone(node.partition_id)


def evaluation_data(study: Study) -> FederatedData | None:
    """The data whose test samples the server uses, or None. Raises InputError if they do not fit the study."""
    if not study.own_samples:
        return federated_data(study.spec)
    if not study.settings.test:
        return None
    data = own_samples(study, _read(Path(study.settings.test).expanduser()), 0)
    return replace(data, test=data.client(0))


def _read(folder: Path) -> tuple[Any, Any]:
    """Map `x.npy`, samples (n, *shape), and `y.npy`, class indices or names of classes (n,), into memory.

    Raises InputError, naming the file.
    """
    arrays: list[Any] = []
    for path in (folder / "x.npy", folder / "y.npy"):
        try:
            arrays.append(np.load(path, mmap_mode="c", allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{path} cannot be read as an array: {error}") from error
        if not isinstance(arrays[-1], np.ndarray):
            raise InputError(f"{path} is an archive of arrays, expected one array")
    return arrays[0], arrays[1]
