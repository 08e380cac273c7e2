"""What a client, or a server that tests, has of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import InputError
from ...data import FederatedData
from ...data.preparation import AUGMENTATIONS
from ...experiments.spec import federated_data
from .settings import NodeSettings
from .study import Study

Samples = Callable[[Mapping[str, Any]], tuple[Any, Any]]  # the node's configuration -> x (n, *shape), y (n,)


def stored(node: Mapping[str, Any]) -> tuple[Any, Any]:
    """The samples in the node's folder `data`. Raises InputError, naming the file."""
    folder = node.get("data")
    if folder is None:
        raise InputError("node-config: data is missing: the folder with this client's x.npy and y.npy")
    return read(Path(str(folder)).expanduser())


def read(folder: Path) -> tuple[Any, Any]:
    """`x.npy`, numbers (n, *shape) or pixels in uint8, and `y.npy`, class indices (n,), mapped into memory.

    Raises InputError, naming the file.
    """
    return _array(folder / "x.npy"), _array(folder / "y.npy")


def own(study: Study, pair: tuple[Any, Any], number: int) -> FederatedData:
    """A client's own samples, with its number in the federation. Raises InputError if they do not fit the study."""
    data = FederatedData.from_clients([pair], classes=study.classes)
    if data.shape != study.shape:
        raise InputError(f"samples have shape {data.shape}, the study's {study.shape}")
    return replace(data, first=number, augmentation=AUGMENTATIONS[study.spec.data.augment])


def part(study: Study, node: NodeSettings) -> FederatedData:
    """A client's part of the study's set, with its number. Raises InputError, naming the field."""
    whole = federated_data(_here(study, node.data_dir))
    assert node.partition_id is not None  # noqa: S101 (its name was made of it)
    return whole.alone(node.partition_id)


def for_testing(study: Study) -> FederatedData | None:
    """What the server tests the model on, if it has something. Raises InputError if it is not what it should be."""
    if study.own:
        if not study.settings.test:
            return None
        data = own(study, read(Path(study.settings.test).expanduser()), 0)
        return replace(data, test=data.client(0))
    return federated_data(study.spec)


def _here(study: Study, data_dir: str | None) -> Any:
    """The study's settings with the folder of the sets on this machine."""
    return study.spec.model_copy(update={"data_dir": data_dir or study.spec.data_dir})


def _array(path: Path) -> Any:
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read as an array: {error}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} is an archive of arrays, expected one array")
    return array
