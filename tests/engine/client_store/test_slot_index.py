"""Copy on write: a slot is given to nobody while a client, a staged record or one of the last checkpoints needs it."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from fedflat.engine.client_rows import SlotIndex
from fedflat.rounds.checkpoint import KEPT
from support.files import refused

CLIENTS = 7
cohorts = st.sets(st.integers(0, CLIENTS - 1), min_size=1).map(sorted)
steps = st.one_of(cohorts, st.sampled_from(["commit", "discard", "hold"]))


@given(st.lists(steps, max_size=40))
def test_no_slot_is_written_that_is_still_needed(script) -> None:
    """Against a plain model: what each slot contains, and who may still want it."""
    index, content = SlotIndex(CLIENTS), {}
    current, staged, held = {}, {}, []  # held: slots and what they held, of the last checkpoints
    for number, step in enumerate(script):
        if step == "commit":
            index.commit()
            current |= staged
            staged = {}
        elif step == "discard":
            index.discard()
            staged = {}
        elif step == "hold":
            if staged:
                continue  # checkpoints are written between rounds
            index.hold()
            slots = {client: index.of(np.array([client]))[0] for client in current}
            held = [*held, {slots[client]: value for client, value in current.items()}][-KEPT:]
        else:
            some = np.array([client for client in step if client not in staged], dtype=int)  # once a round
            slots = index.stage(some)
            assert not {*slots} & {slot for one in held for slot in one}
            for client, slot in zip(some.tolist(), slots.tolist(), strict=True):
                content[slot] = staged[client] = (client, number)
        for client, value in current.items():
            assert content[index.of(np.array([client]))[0]] == value
        for one in held:
            assert {slot: content[slot] for slot in one} == one
    assert index.used <= (KEPT + 2) * CLIENTS


def test_space_is_the_clients_seen_and_those_of_the_last_intervals() -> None:
    """A thousand rounds, a checkpoint every ten: no slot leaks, whatever fails in between."""
    index, rng = SlotIndex(100), np.random.default_rng(0)
    for t in range(1000):
        index.stage(rng.choice(100, 5, replace=False))
        index.discard() if t % 3 == 1 else index.commit()
        if t % 10 == 9:
            index.hold()
    assert 100 <= index.used <= 100 + KEPT * 10 * 5 + 5


def test_without_checkpoints_only_one_cohort_is_extra() -> None:
    index = SlotIndex(100)
    for _ in range(50):
        index.stage(np.arange(100))
        index.commit()
    assert index.used == 200


def test_new_records_lie_side_by_side() -> None:
    index = SlotIndex(10)
    assert index.stage(np.array([7, 2])).tolist() == [0, 1]
    assert index.stage(np.array([3])).tolist() == [2]
    index.discard()
    assert index.stage(np.array([1, 8, 9, 0])).tolist() == [0, 1, 2, 3]


def test_restored_slots_are_held_and_the_others_free() -> None:
    index = SlotIndex.restored(np.array([4, -1, 0, 2], dtype=np.int32))
    assert index.seen().tolist() == [2, 3, 0]
    assert index.stage(np.array([0, 1, 2])).tolist() == [1, 3, 5]
    index.commit()
    assert index.stage(np.array([3])).tolist() == [6], "what the checkpoint refers to is not free"


def test_restored_slots_of_earlier_checkpoints_are_held_too() -> None:
    """Until as many checkpoints have come after them as after any."""
    earlier = [np.array([0, 1, 0], dtype=bool), np.array([0, 0, 1], dtype=bool)]
    index = SlotIndex.restored(np.array([0], dtype=np.int32), earlier)
    seen = []
    for _ in range(KEPT + 1):
        seen += index.stage(np.array([0])).tolist()
        index.commit()
        index.hold()
    assert seen == [3, 1, 2, 0], "the first of them goes first"


@pytest.mark.parametrize(
    ("slots", "message"), [([0, 1, 0], "share a slot"), ([0, -2, 1], "cannot be"), ([0, 2**31 - 1, 1], "cannot be")]
)
def test_a_damaged_index_is_refused(slots: list[int], message: str) -> None:
    with refused(message):
        SlotIndex.restored(np.array(slots, dtype=np.int32))
