"""Private runs in trouble: a round that is computed again after a kill releases the same bits as before.

With another noise for the same sum, the mean over some continuations would have less noise than is accounted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from torch import Tensor

import fedflat as ff
from fedflat.methods import find
from support.crashes import Crash
from support.effort import effort
from support.federation import simulation
from support.planting import plant

ROUNDS = 4
PRIVACY = ff.Privacy(epsilon=1000.0, delta=1e-3, clip=0.3, rate=0.7, noise_multiplier=6.0)


def private(method: str) -> ff.Simulation:
    return simulation(
        find(method)(), privacy=PRIVACY, rounds=ROUNDS, participation=1.0, executor="sequential",
        client={"epochs": None, "steps": 2},
    )  # fmt: skip


def released(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> dict[int, list[Tensor]]:
    """The model after each round, in all continuations of one run that is killed again and again.

    A state is saved before the first round and after some others; a kill comes before a round, after it, or while its
    state is being written, and the next process goes on from the newest state, or from an older one that was kept.
    """
    rng, found, states = random.Random(seed), dict[int, list[Tensor]](), list[Path]()
    method = rng.choice(("FedAvg", "Scaffold"))
    for start in range(5):
        sim = private(method)
        if states:
            sim.load(rng.choice(states[-2:]))
        elif start == 0:
            states.append(saved(sim, folder / "state-0.safetensors"))
        while sim.t < ROUNDS and rng.random() < 0.8:
            sim.round()
            found.setdefault(sim.t, []).append(sim.w.clone())
            if rng.random() < 0.3 and start < 4:
                with patch.context() as inner:
                    inner.setattr("os.replace", crash)
                    with pytest.raises(Crash):
                        saved(sim, folder / "torn.safetensors")
                break
            if rng.random() < 0.6:
                states.append(saved(sim, folder / f"state-{start}-{sim.t}.safetensors"))
    return found


def saved(sim: ff.Simulation, path: Path) -> Path:
    sim.save(path)
    return path


def crash(*_: object, **__: object) -> None:
    raise Crash


def different(seeds: int, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The seeds and rounds of which two continuations have released different numbers."""
    for seed in range(seeds):
        with TemporaryDirectory(dir=folder) as own:
            for t, models in released(seed, Path(own), patch).items():
                if not all(models[0].equal(other) for other in models):
                    yield seed, t


@pytest.mark.slow
def test_every_continuation_releases_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(different(effort(3, 200), tmp_path, monkeypatch)) == []


@pytest.mark.slow
def test_a_noise_that_is_drawn_twice_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant("privacy-noise-anew", monkeypatch)
    assert next(different(10, tmp_path, monkeypatch), None)
