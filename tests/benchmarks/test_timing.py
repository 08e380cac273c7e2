from __future__ import annotations

import pytest

from benchmarks import timing
from benchmarks.timing import Prepared, in_turns


def test_everybody_has_a_turn_before_anybody_has_the_next() -> None:
    order: list[str] = []

    def timer(name: str):
        return lambda: (order.append(name), (len(order), 0.0))[1]

    times = in_turns({name: timer(name) for name in "ABC"}, repeats=2, warm_ups=1)
    assert "".join(order) == "ABCABCABC"
    assert times == {"A": [(4, 0.0), (7, 0.0)], "B": [(5, 0.0), (8, 0.0)], "C": [(6, 0.0), (9, 0.0)]}


def test_who_watches_is_told_of_every_turn() -> None:
    told: list[tuple[str, int, int]] = []
    in_turns({"A": lambda: (0.0, 0.0)}, repeats=2, warm_ups=1, told=lambda *words: told.append(words))
    assert told == [("A", 0, 3), ("A", 1, 3), ("A", 2, 3)]


@pytest.mark.parametrize("share", [1.0, 5.0, 0.2])
def test_seconds_are_those_of_one_of_what_is_reported(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """The run takes 3 seconds of the processor and 7 by the clock, and is `share` rounds."""
    now = {"processor": 10.0, "clock": 20.0}
    monkeypatch.setattr(timing, "process_time", lambda: now["processor"])
    monkeypatch.setattr(timing, "perf_counter", lambda: now["clock"])

    def run() -> None:
        now["processor"] += 3
        now["clock"] += 7

    assert Prepared(run, share).time() == pytest.approx((3 / share, 7 / share))
