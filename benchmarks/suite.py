"""Measuring part after part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .host import Elsewhere, Here, in_a_process_of_its_own
from .implementations import Implementation
from .measurement import Measurement
from .parts import BenchmarkPart, parts
from .record_store import PART as STORE
from .record_store import measure_store
from .results import Results, Settings, now
from .timing import Progress, Seconds, in_turns, no_progress


def measure(
    names: Sequence[str], settings: Settings, before: Results, out: Path | None, told: Progress = no_progress
) -> Results:
    """Return `before` with the parts `names` measured anew; written to `out` after every part."""
    results = before
    for name in names:
        begin = now()
        found, facts = measure_part(name, settings, told)
        results = results.with_part(name, facts | {"begin": begin, "end": now()}, found)
        if out is not None:
            results.save(out)
    return results


def measure_part(
    name: str, settings: Settings, told: Progress = no_progress
) -> tuple[list[Measurement], dict[str, Any]]:
    """Return the measurements of one part, and what is done in it."""
    if name == STORE:
        told(f"{STORE}: a million clients", 0, 1)
        return in_a_process_of_its_own(measure_store, settings.repeats, threads=settings.threads), {}
    part = parts(settings.quick)[name]
    return race(part, settings, lambda who, done, total: told(f"{name}: {who}", done, total)), part.settings


def race(part: BenchmarkPart, settings: Settings, told: Progress = no_progress) -> list[Measurement]:
    """Time all implementations of a part in turns."""
    with _threads(settings.threads), _hosts(part, settings) as hosts:
        facts = {one.name: hosts[one.tuned].facts(part.name, one.name) for one in part.implementations}
        timers = {one.name: partial(hosts[one.tuned].time, part.name, one.name) for one in part.implementations}
        times = in_turns(timers, settings.repeats, settings.warm_ups, told)
    return [_measurement(part.name, one, times[one.name], facts[one.name]) for one in part.implementations]


def _measurement(part: str, one: Implementation, times: list[Seconds], facts: dict[str, Any]) -> Measurement:
    cpu, wall = map(list, zip(*times, strict=True))
    facts = facts | {"allocator": "tuned" if one.tuned else "default"}
    return Measurement(part, one.name, cpu if one.processor else [], wall, per=one.per, facts=facts)


@contextmanager
def _hosts(part: BenchmarkPart, settings: Settings) -> Iterator[dict[bool, Here | Elsewhere]]:
    """Give the hosts of implementations, by whether the allocator is tuned; start the other process only if needed."""
    hosts: dict[bool, Here | Elsewhere] = {True: Here({part.name: part})}
    if not all(one.tuned for one in part.implementations):
        hosts[False] = Elsewhere(settings.quick, settings.threads)
    try:
        yield hosts
    finally:
        for host in hosts.values():
            host.close()


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
