"""Metrics and health of a federation over HTTP, read from the server's folder at each request.

A process of its own serves them, so they outlive the run, and whoever reads them reaches nothing else. The metrics are
in Prometheus' text format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...core.errors import InputError
from ...metrics.protocols import SCORES
from ..terms import SETTINGS as TERMS
from .directory import JOINED, ROUND, SETTINGS, STUDY, FederationDirectory
from .ejections import Ejections
from .event_log import read_events

PREFIX = "fedflat_"
SECURE_STEPS = 4  # messages of a round with secure-sum, each with the deadline
GRACE_SECONDS = 120.0  # beyond a deadline before a federation counts as stalled: evaluation, checkpoint, a busy machine
IDLE_SECONDS = 10.0  # after which a connection without a request is closed
GAUGES = {  # of the last round's event
    "epsilon": "privacy spent so far", "test_loss": "loss of the model on the test samples",
    "drift": "mean distance of the clients' models from the server's",
    **{name: f"{score.title} of the model on the test samples{', as a share' if score.is_share else ''}"
       for name, score in SCORES.items()},
}  # fmt: skip
MEMBERS = ("begun", JOINED, "left")  # events that state the number of clients
Answer = Callable[[str, list[tuple[str, str]]], Any]


@dataclass(frozen=True)
class FederationState:
    """What the log of a federation says about it now."""

    planned: int  # rounds
    events: Sequence[Mapping[str, Any]]
    ejected: int
    is_private: bool = False  # then nothing is served that depends on who took part

    @classmethod
    def read(cls, path: Path) -> FederationState:
        """Read the server's folder. Raises InputError if it holds no federation, or if a file is damaged."""
        directory = FederationDirectory(path)
        if not (path / STUDY).exists():
            raise InputError(f"{path} holds no federation")
        absent = Ejections(path).read() if directory.has_begun else {}
        ejected = sum(not absence.left for absence in absent.values())
        spec = directory.spec()
        return cls(spec.rounds, list(read_events(path)), ejected, spec.privacy is not None)

    @property
    def rounds(self) -> list[Mapping[str, Any]]:
        """The events of the rounds, without those that a rollback or a restart has undone."""
        found: dict[int, Mapping[str, Any]] = {}
        for event in self.events:
            if event["event"] == ROUND:
                found[event["t"]] = event
            elif "done" in event:
                found = {t: one for t, one in found.items() if t < event["done"]}
        return [found[t] for t in sorted(found)]

    @property
    def last(self) -> Mapping[str, Any] | None:
        """The last event; None before the first one."""
        return self.events[-1] if self.events else None

    @property
    def patience(self) -> float:
        """Seconds without an event after which a running federation counts as stalled."""
        stated: Mapping[str, Any] = next((e for e in reversed(self.events) if e["event"] == SETTINGS), {})
        wait, deadline = (float(stated.get(name, TERMS[name].default)) for name in ("wait", "deadline"))
        steps = 1 if stated.get("secure-sum") is None else SECURE_STEPS
        begins = self.last is not None and self.last["event"] == "waiting"
        return GRACE_SECONDS + (wait if begins else steps * deadline)

    def health(self, now: float) -> tuple[bool, str]:
        """Return whether the federation goes on or is finished, and a line that says so. now: seconds since 1970."""
        if self.last is None:
            return True, "not begun"
        if self.last["event"] == "finished":
            return True, f"finished after {len(self.rounds)} rounds"
        if self.last["event"] == "failed":
            return False, "failed" if self.is_private else f"failed: {self.last.get('reason', '')}"
        silent = now - _seconds(self.last)
        done = f"{len(self.rounds)} of {self.planned} rounds are done, the last event is {silent:.0f} seconds old"
        return silent <= self.patience, done if silent <= self.patience else f"stalled: {done}"


class FederationCollector(Collector):
    """The metrics of a federation, for Prometheus' registry."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. Raises InputError if the folder cannot be read."""
        state = FederationState.read(self._path)
        kinds = Counter(event["event"] for event in state.events)
        rounds, clients = state.rounds, [event["clients"] for event in state.events if event["event"] in MEMBERS]
        yield _gauge("rounds_done", "rounds in the model's history", len(rounds))
        yield _gauge("rounds_planned", "rounds of the study", state.planned)
        yield _gauge("members", "clients that have not left", clients[-1] if clients else 0)
        yield _gauge("members_ejected", "clients that are not asked at present", state.ejected)
        yield _gauge("healthy", "1 if the federation goes on or is finished", float(state.health(_now())[0]))
        if state.last is not None:
            yield _gauge("last_event_timestamp_seconds", "time of the last event", _seconds(state.last))
        if rounds:
            yield _gauge("last_round_timestamp_seconds", "time of the last round's end", _seconds(rounds[-1]))
            yield from (
                _gauge(name, meaning, rounds[-1][name]) for name, meaning in GAUGES.items() if name in rounds[-1]
            )
        yield _counter("round_failures", "attempts at a round that failed", kinds["round failed"])
        yield _counter("nodes_refused", "refusals of nodes that wanted to register", kinds["node refused"])
        if not state.is_private:
            yield from _participation(rounds)


def _participation(rounds: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield what depends on who took part in the rounds with these events."""
    if rounds:
        yield _gauge("last_round_clients", "clients in the mean of the last round", len(rounds[-1]["counted"]))
    for name in ("bytes_sent", "bytes_received"):
        total = sum(event.get(name, 0) for event in rounds)
        yield _counter(name, "vectors in messages of completed rounds", total)
    for name, key in (("replies_counted", "counted"), ("replies_missing", "missing")):
        yield _by_client(name, Counter(client for event in rounds for client in event[key]))


def serve(path: Path, host: str, port: int) -> WSGIServer:
    """Return a server of /metrics and /health for the federation in `path`, which `serve_forever` runs.

    Raises InputError if the folder holds no federation, or if nothing can listen on this address.
    """
    FederationState.read(path)
    registry = CollectorRegistry()
    registry.register(_Unchecked(path))
    metrics = make_wsgi_app(registry)

    def application(environ: dict[str, Any], answer: Answer) -> Iterable[bytes]:
        place = environ.get("PATH_INFO", "")
        try:
            if place == "/metrics":
                found: Iterable[bytes] = metrics(environ, answer)
                return found
            if place == "/health":
                fine, line = FederationState.read(path).health(_now())
                return _line(answer, "200 OK" if fine else "503 Service Unavailable", line)
        except InputError as error:
            return _line(answer, "500 Internal Server Error", str(error))
        except (KeyError, TypeError, ValueError):
            return _line(answer, "500 Internal Server Error", f"the log is damaged: `fedflat verify {path}` says where")
        return _line(answer, "404 Not Found", "there are /metrics and /health")

    try:
        return make_server(host, port, application, server_class=_Server, handler_class=_Handler)
    except OSError as error:
        raise InputError(f"--port {port} of {host}: {error.strerror or error}") from error


class _Unchecked(FederationCollector):
    """The collector without a description, for which a registry would read the folder when it is registered."""

    def describe(self) -> list[Metric]:
        return []


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = IDLE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line for each request."""


def _line(answer: Answer, status: str, text: str) -> list[bytes]:
    answer(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, meaning, value=value)


def _counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, meaning, value=value)


def _by_client(name: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, "replies of a client in completed rounds", labels=["client"])
    for client, count in sorted(counts.items()):
        family.add_metric([client], count)
    return family


def _seconds(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def _now() -> float:
    return datetime.now(UTC).timestamp()
