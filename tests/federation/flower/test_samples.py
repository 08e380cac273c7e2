"""Files of samples that are not plain arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedflat.federation.flower.transport import GatheringError
from support.flower_fixtures import OWN_SAMPLES, GridFederation, own_study


def test_own_samples_that_are_not_plain_arrays(tmp_path: Path) -> None:
    """Archives, objects and files of other kinds are refused, and nothing in them is run."""
    folder = tmp_path / "a"
    folder.mkdir()
    np.save(folder / "y.npy", np.zeros(3, int))
    federation = GridFederation(own_study(), tmp_path / "federation", wait=0.2, **OWN_SAMPLES)
    nodes = {4: federation.own_node("a", data=str(folder))}
    np.save(folder / "x.npy", np.array([{"a": 1}] * 3, dtype=object), allow_pickle=True)
    with pytest.raises(GatheringError, match=r"x\.npy cannot be read as an array"):
        federation.serve(nodes)
    with (folder / "x.npy").open("wb") as file:
        np.savez(file, np.zeros((3, 6)))
    with pytest.raises(GatheringError, match="is an archive of arrays, expected one array"):
        federation.serve(nodes)
