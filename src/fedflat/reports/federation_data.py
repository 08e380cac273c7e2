"""What a report tells of a federation: its rounds, its clients and what else happened, from the server's folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import InputError, printable
from ..federation.flower.directory import MODEL, RESULT, STUDY, FederationDirectory, check
from ..federation.flower.ejections import Ejections
from ..federation.flower.event_log import read_events
from ..federation.membership import Membership

PLAIN = ("time", "event")  # what every event has
OTHERS = ("round", "client")  # events that tables and figures show


@dataclass(frozen=True)
class RoundFacts:
    """Who took part in a round."""

    counted: Sequence[str] | None  # clients whose answers counted; None if an earlier version wrote the log
    missing: Mapping[str, str]  # clients that were asked and did not count, with the reason


@dataclass
class ClientFacts:
    """One client over all rounds that count."""

    name: str
    samples: int | None  # None if the log does not say it
    ejected: bool = False  # at present
    counted: int | None = None
    missing: int = 0
    last: int | None = None  # the last round in which it counted, from 1
    reasons: Counter[str] = field(default_factory=Counter)  # for which it was missing

    @property
    def title(self) -> str:
        """The name, and whether the client is ejected."""
        return f"{self.name} (ejected)" if self.ejected else self.name

    @property
    def reason(self) -> str:
        """The most frequent reason for which it was missing, and how often; empty if it never was."""
        return "; ".join(f"{reason} ({times} x)" for reason, times in self.reasons.most_common(1))


@dataclass(frozen=True)
class FederationData:
    """All that the report shows."""

    path: Path
    label: str
    planned: int  # rounds
    finished: bool
    history: Sequence[Mapping[str, float]]  # metrics of each round, of the newest whole checkpoint
    rounds: Mapping[int, RoundFacts]  # those of them that the log knows
    clients: Sequence[ClientFacts]
    refused: Sequence[tuple[str, str, int]]  # node, reason, how often
    happened: Sequence[tuple[str, str]]  # time and what, in the order of the log
    damaged: Sequence[str]  # files that are not as they were written, with the problem
    settings: Mapping[str, str]  # of the study that decide about its result, by name

    @classmethod
    def read(cls, path: Path) -> FederationData:
        """What the server's folder tells. Raises InputError if it holds no federation, or its study is damaged."""
        if not (path / STUDY).exists():
            raise InputError(f"{path} holds no federation")
        spec, events = FederationDirectory(path).spec(), list(read_events(path))
        damaged = [f"{name}: {problem}" for name, problem in check(path) if problem]
        try:
            state = FederationDirectory(path).newest()
        except InputError:  # all are damaged, which `damaged` says
            state = None
        history = state.history if state else ()
        known = dict(Membership.load(state.path).members) if state else {}
        rounds = {t: facts for t, facts in _rounds(events).items() if t < len(history)}
        finished = (path / RESULT).exists() and (path / MODEL).exists()
        clients, ejected = _clients(events, known, rounds), Ejections(path).read()
        for client in clients:
            client.ejected = client.name in ejected
        return cls(path, spec.label, spec.rounds, finished, history, rounds, clients,
                   _refused(events), _happened(events), damaged, dict(_flat(spec.decisive())))  # fmt: skip

    @property
    def headline(self) -> str:
        """The most important in a sentence or two."""
        done = f"{len(self.history)} of {self.planned} rounds are done"
        scores = [row["test_accuracy"] for row in self.history if row.get("test_accuracy") is not None]
        accuracy = f", and the model has a test accuracy of {100 * scores[-1]:.1f} %" if scores else ""
        missing = sum(len(facts.missing) for facts in self.rounds.values())
        asked = missing + sum(len(facts.counted or ()) for facts in self.rounds.values())
        if any(facts.counted is None for facts in self.rounds.values()):
            return f"{done}{accuracy}. {missing} answers did not come or did not count."
        return f"{done}{accuracy}. Of {asked} answers that were asked for, {asked - missing} counted."


def _rounds(events: Iterable[Mapping[str, Any]]) -> dict[int, RoundFacts]:
    """The rounds that count: those after which the server went back, or began again from an earlier one, do not."""
    found: dict[int, RoundFacts] = {}
    for event in events:
        t, done, counted, missing = (event.get(name) for name in ("t", "done", "counted", "missing"))
        if event["event"] == "round" and type(t) is int:
            reasons = missing if isinstance(missing, dict) else {}
            names = [str(name) for name in counted] if isinstance(counted, list) else None
            found[t] = RoundFacts(names, {str(name): _text(reason) for name, reason in reasons.items()})
        if event["event"] in ("begun", "rolled back") and type(done) is int:
            found = {t: facts for t, facts in found.items() if t < done}
    return dict(sorted(found.items()))


def _clients(
    events: Iterable[Mapping[str, Any]], members: Mapping[str, int], rounds: Mapping[int, RoundFacts]
) -> list[ClientFacts]:
    """The clients, sorted by name: members, and who the log says has registered."""
    came = {str(event.get("client")): event.get("samples") for event in events if event["event"] == "client"}
    samples = {name: value if type(value) is int else None for name, value in came.items()} | dict(members)
    found = {name: ClientFacts(name, value) for name, value in sorted(samples.items())}
    for t, facts in rounds.items():
        for name in facts.counted or ():
            if name in found:
                found[name].counted, found[name].last = (found[name].counted or 0) + 1, t + 1
        for name, reason in facts.missing.items():
            if name in found:
                found[name].missing += 1
                found[name].reasons[reason] += 1
    if all(facts.counted is not None for facts in rounds.values()):
        for client in found.values():
            client.counted = client.counted or 0
    return list(found.values())


def _refused(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """Nodes that were refused, each with the reason and how often."""
    found = Counter(
        (_text(event.get("node", "")), _text(event.get("reason", "")))
        for event in events
        if event["event"] == "node refused"
    )
    return [(node, reason, times) for (node, reason), times in found.items()]


def _happened(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """All events but those that the tables show, each in words."""
    lines = []
    for event in events:
        if event["event"] not in (*OTHERS, "node refused"):
            words = [f"{key} {_text(value)}" for key, value in event.items() if key not in PLAIN]
            lines.append((_text(event["time"])[:19].replace("T", " "), f"{_text(event['event'])}: {', '.join(words)}"))
    return lines


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return the settings with dots in their names, each as text; what is not set is left out."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", _text(value)


def _text(value: object) -> str:
    return printable(str(value))[:400]
