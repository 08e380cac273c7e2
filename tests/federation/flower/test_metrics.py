"""Metrics and health of a federation over HTTP, by Prometheus' own parser."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedflat.core.errors import InputError
from fedflat.federation.flower.directory import FederationDirectory
from fedflat.federation.flower.ejections import Ejections
from fedflat.federation.flower.event_log import EVENTS, EventLog, read_events
from fedflat.federation.flower.metrics import GRACE_SECONDS, FederationState, serve
from support.flower_fixtures import GridFederation, failing, study_of
from support.local_user import documented_listeners, listening_sockets
from support.virtual_time import passing_at_once

PARAMETERS = 64 * 16 + 16 + 16 * 10 + 10


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> GridFederation:
    """Three rounds of all five clients, of which client 4 is missing in the second and is then ejected."""
    spec = study_of(model={"name": "mlp", "options": {"hidden": [16]}}, method="scaffold", participation=1.0, rounds=3)
    federation = GridFederation(spec, tmp_path_factory.mktemp("federation"), deadline=3.0)

    def tamper(number: str, contents: Any) -> Any:
        done = len(federation.events("round"))
        if done == 1:
            Ejections(federation.out).eject("client-4")
        return None if done == 1 else contents

    federation.nodes[104].tamper = tamper
    with passing_at_once():
        federation.serve()
    return federation


@contextmanager
def served(path: Path) -> Iterator[str]:
    """Serve the metrics of a folder; give the address."""
    with serve(path, "127.0.0.1", 0) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def got(address: str) -> httpx.Response:
    return httpx.get(address, timeout=30, trust_env=False)


def samples(text: str) -> dict[str, float]:
    """Return the value of each sample by name, with the client in brackets."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            client = sample.labels.get("client")
            found[sample.name + (f"[{client}]" if client else "")] = sample.value
    return found


def test_the_numbers_are_those_of_the_log(federation: GridFederation) -> None:
    with served(federation.out) as address:
        found = samples(got(f"{address}/metrics").text)
    rounds = federation.events("round")
    expected = {
        "rounds_done": 3, "rounds_planned": 3, "members": 5, "members_ejected": 1, "healthy": 1,
        "last_round_clients": 4, "nodes_refused_total": 0, "round_failures_total": 0,
        "test_accuracy": rounds[-1]["test_accuracy"], "drift": rounds[-1]["drift"],
        "replies_missing_total[client-4]": 1, "replies_counted_total[client-4]": 1,
        "replies_counted_total[client-0]": 3,
        "last_round_timestamp_seconds": datetime.fromisoformat(rounds[-1]["time"]).timestamp(),
    }  # fmt: skip
    assert {name: found[f"fedflat_{name}"] for name in expected} == pytest.approx(expected)


def test_bytes_are_those_of_the_vectors(federation: GridFederation) -> None:
    """Scaffold sends a model and a variate both ways, in single precision: to 5, 5 and 4 clients, from 5, 4 and 4."""
    vectors = 2 * 4 * PARAMETERS
    sent = [event["bytes_sent"] for event in federation.events("round")]
    assert sent == [5 * vectors, 5 * vectors, 4 * vectors]
    with served(federation.out) as address:
        found = samples(got(f"{address}/metrics").text)
    assert found["fedflat_bytes_sent_total"] == sum(sent)
    received = [event["bytes_received"] for event in federation.events("round")]
    assert [n // vectors for n in received] == [len(event["counted"]) for event in federation.events("round")]
    assert found["fedflat_bytes_received_total"] == sum(received)


def test_health_follows_the_last_event(federation: GridFederation, tmp_path: Path) -> None:
    with served(federation.out) as address:
        answer = got(f"{address}/health")
        assert (answer.status_code, answer.text) == (200, "finished after 3 rounds\n")
        assert got(f"{address}/").status_code == 404
    other = GridFederation(study_of(rounds=2), tmp_path, wait=0.2, deadline=7.0)
    with pytest.raises(Exception, match="0 of 5 clients came"):
        other.serve({})
    with served(other.out) as address:
        answer = got(f"{address}/health")
        assert answer.status_code == 503
        assert answer.text.startswith("failed: 0 of 5 clients came")
        assert samples(got(f"{address}/metrics").text)["fedflat_healthy"] == 0


@pytest.mark.parametrize(("settings", "seconds"), [({}, 600.0), ({"deadline": 50.0}, 50.0),
                                                   ({"deadline": 50.0, "secure-sum": 0.7}, 200.0)])  # fmt: skip
def test_a_run_that_says_nothing_for_longer_than_a_round_may_last_is_stalled(
    settings: dict[str, Any], seconds: float
) -> None:
    begin = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    events = [{"event": "settings", "time": begin.isoformat(), **settings},
              {"event": "begun", "time": begin.isoformat(), "done": 0, "clients": 3}]  # fmt: skip
    state = FederationState(5, events, 0)
    for silent, fine in ((seconds + GRACE_SECONDS - 1, True), (seconds + GRACE_SECONDS + 1, False)):
        assert state.health((begin + timedelta(seconds=silent)).timestamp())[0] is fine


def test_rounds_that_were_undone_are_not_counted(federation: GridFederation, tmp_path: Path) -> None:
    again = GridFederation(federation.spec, tmp_path)
    for path in federation.out.rglob("*"):
        target = again.out / path.relative_to(federation.out)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            target.write_bytes(path.read_bytes())
    FederationDirectory(again.out).roll_back(1)
    with served(again.out) as address:
        assert samples(got(f"{address}/metrics").text)["fedflat_rounds_done"] == 1


def test_names_of_clients_are_escaped(tmp_path: Path, federation: GridFederation) -> None:
    """The names in a log that somebody has changed may be anything."""
    out = tmp_path / "out"
    out.mkdir()
    for name in ("federated-study.toml", "SHA256SUMS", "ejected.json"):
        (out / name).write_bytes((federation.out / name).read_bytes())
    EventLog(out, "study").append("round", t=0, counted=['a"b\nc\\'], missing={"x{y}": "gone"})
    with served(out) as address:
        found = samples(got(f"{address}/metrics").text)
    assert found['fedflat_replies_counted_total[a"b\nc\\]'] == 1
    assert found["fedflat_replies_missing_total[x{y}]"] == 1


def test_what_cannot_be_served_is_one_line(federation: GridFederation, tmp_path: Path, fedflat: Any) -> None:
    assert fedflat("flower metrics nothing")[2] == "fedflat: nothing holds no federation\n"
    with socket.create_server(("127.0.0.1", 0)) as taken, failing(InputError, "Address already in use"):
        serve(federation.out, "127.0.0.1", taken.getsockname()[1])
    with failing(InputError, "--port 0 of no.such.host.invalid"):
        serve(federation.out, "no.such.host.invalid", 0)


def test_a_damaged_log_is_named(federation: GridFederation, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("federated-study.toml", "SHA256SUMS", "ejected.json"):
        (out / name).write_bytes((federation.out / name).read_bytes())
    with served(out) as address:
        (out / EVENTS).write_text('{"event": "round", "time": "2026-01-01T00:00:00+00:00"}\n')
        assert list(read_events(out))
        answer = got(f"{address}/metrics")
        assert (answer.status_code, answer.text) == (
            500, f"the log is damaged: `fedflat verify {out}` says where\n"
        )  # fmt: skip
        (out / "ejected.json").write_text("[]")
        assert "ejected.json is damaged" in got(f"{address}/health").text


@contextmanager
def command(out: Path, *flags: str) -> Iterator[tuple[int, int]]:
    """Run `fedflat flower metrics` on a free port; give its process and port."""
    words = [sys.executable, "-m", "fedflat", "flower", "metrics", str(out), "--port", "0", *flags]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline().split("/metrics")[0].rpartition(":")[2])
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="sockets are read from /proc, and all of 127.0.0.0/8 is loopback")
@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize(("flags", "address"), [((), "127.0.0.1"), (("--host", "127.0.0.2"), "127.0.0.2")])
def test_it_listens_on_the_loopback_alone_unless_another_address_is_stated(
    federation: GridFederation, flags: tuple[str, ...], address: str
) -> None:
    """A listener on all interfaces would answer at both addresses."""
    with command(federation.out, *flags) as (process, port):
        assert listening_sockets([process]) == {(process, address, port)}
        other = {"127.0.0.1": "127.0.0.2", "127.0.0.2": "127.0.0.1"}[address]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port), timeout=30)
        assert got(f"http://{address}:{port}/health").status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="sockets are read from /proc")
@pytest.mark.usefixtures("forked_processes")
def test_what_listens_is_what_the_page_of_threats_says(federation: GridFederation) -> None:
    with command(federation.out) as (process, _):
        found = {address for _, address, _ in listening_sockets([process])}
    assert found == {place.partition(":")[0] for _, place in documented_listeners("fedflat flower metrics")}


def test_whoever_reads_it_gets_numbers_and_names_of_clients_and_no_file(federation: GridFederation) -> None:
    """Metrics have no other label, and no other path is served."""
    with served(federation.out) as address:
        families = list(text_string_to_metric_families(got(f"{address}/metrics").text))
        assert {label for family in families for one in family.samples for label in one.labels} == {"client"}
        for place in ("/events.jsonl", "/model.safetensors", "/../out/events.jsonl", "//etc/passwd", "/metrics/.."):
            assert got(f"{address}{place}").status_code == 404
