"""Federations in trouble: what is promised holds in every schedule of mishaps, and planted defects are found.

`FEDFLAT_TROUBLE_SEED=SEED pytest -s tests/federation/test_trouble.py` carries out one schedule again and prints all
that happens in it; docs/tests.md says more.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.effort import chosen, effort
from support.planting import plant
from support.trouble import TROUBLES, VARIABLE, World, run
from support.virtual_time import BrokenPromise

SEED = os.environ.get(VARIABLE)
SEEDS = effort(15, 3000)
WITHIN = 60  # seeds
# Defects of benchmarks/planted_defects.toml, each with the trouble that brings it out soonest.
PLANTED = {
    "reply-counted-twice": ("leaving", "cuts"),
    "deadline-by-the-time-of-day": ("clocks", "lost"),
    "ejections-read-once": ("ejections", "slow"),
    "refusals-lost": ("wrong",),
}
FOUND_BEFORE = {  # by this simulator; other tests of the same are fast
    "event-of-a-killed-round-lost": ("kills",),
    "late-request-removes-records": ("doubled", "late", "lost", "slow", "disorder"),
}
pytestmark = pytest.mark.slow
not_for_one_seed = pytest.mark.skipif(SEED is not None, reason=f"{VARIABLE} asks for one schedule")


@not_for_one_seed
def test_promises_hold_in_every_schedule(tmp_path: Path) -> None:
    seconds, starts = 0.0, 0
    for seed in range(SEEDS):
        world = carried_out(seed, tmp_path)
        seconds, starts = seconds + world.time.now, starts + len(world.ends)
    print(f"{SEEDS} schedules, {seconds / 3600:.0f} hours of virtual time, {starts} starts of a server")


@pytest.mark.skipif(SEED is None, reason=f"{VARIABLE} says which")
def test_one_schedule_again(tmp_path: Path) -> None:
    print("\n".join(carried_out(int(SEED or 0), tmp_path).time.trace))


@not_for_one_seed
@pytest.mark.parametrize("name", chosen(list(PLANTED), [*PLANTED, *FOUND_BEFORE]))
def test_a_planted_defect_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(name, monkeypatch)
    with pytest.raises(BrokenPromise, match=r"^seed \d+: "):
        try_seeds(tmp_path, (PLANTED | FOUND_BEFORE)[name])


def try_seeds(folder: Path, troubles: tuple[str, ...]) -> None:
    for seed in range(WITHIN):
        run(seed, folder, troubles)


@not_for_one_seed
def test_a_schedule_depends_on_its_seed_alone(tmp_path: Path) -> None:
    """Nothing that happens depends on clocks, threads or the system's randomness."""
    kinds = {"late", "lost", "doubled", "killed", "kills", "cuts", "clocks", "leaving", "wrong", "rollback"}
    assert kinds <= TROUBLES.keys()
    one, other, third = (run(seed, tmp_path, kinds).time.trace for seed in (5, 5, 6))
    assert one == other != third


def carried_out(seed: int, folder: Path) -> World:
    """One schedule; what is broken in it fails the test with no more than the schedule's own message."""
    try:
        return run(seed, folder)
    except BrokenPromise as broken:
        pytest.fail(str(broken), pytrace=False)
