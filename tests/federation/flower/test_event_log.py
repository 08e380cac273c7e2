"""Events: complete ones are read, and the log has one line for each."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from flwr.app import Message
from safetensors.torch import load_file

from fedflat.cli.console import Console
from fedflat.cli.flower import event_lines
from fedflat.federation.flower import event_log
from fedflat.federation.flower.records import to_records
from fedflat.federation.messages import Failure
from support.flower_fixtures import GridFederation, study_of


def test_incomplete_events_are_skipped(tmp_path: Path) -> None:
    event_log.EventLog(tmp_path).append("one")
    with (tmp_path / event_log.EVENTS).open("a") as file:
        file.write('{"event": "tw')
    assert [event["event"] for event in event_log.read_events(tmp_path)] == ["one"]
    event_log.EventLog(tmp_path).append("three")
    assert [event["event"] for event in event_log.read_events(tmp_path)] == ["one", "three"]


def test_the_log_has_a_line_for_an_event_whatever_is_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        event_log.EventLog(tmp_path).append("failed", reason="one\ntwo\x1b[2J")
    assert caplog.messages == ["fedflat: failed reason=one\\x0atwo\\x1b[2J"]
    assert [event["reason"] for event in event_log.read_events(tmp_path)] == ["one\ntwo\x1b[2J"]


def test_a_clients_reason_stays_on_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the events, in Flower's log, and on the terminal, whatever characters it has."""
    hostile = "no\x1b[2J\nfinished  model_sha256 0\u2028\u202e"
    federation = GridFederation(study_of(participation=1.0, rounds=1), tmp_path, quorum=0.5)
    honest = federation.nodes[100].app

    def failing(message, context):
        reply = honest(message, context)
        if message.metadata.message_type == "train":
            return Message(to_records(Failure(hostile)), reply_to=message)
        return reply

    federation.nodes[100].app = failing
    with caplog.at_level("INFO", logger="flwr"):
        federation.serve()
    [event] = federation.events("round")
    assert event["missing"]["client-0"] == "no\\x1b[2J\\x0afinished  model_sha256 0\\x2028\\x202e"
    assert all(record.getMessage().isprintable() for record in caplog.records if "fedflat" in record.getMessage())
    with io.StringIO() as screen:
        Console(file=screen, width=500).say(*event_lines({**event, "missing": {"client-0": hostile}}))
        shown = screen.getvalue().splitlines()
    assert [line.isprintable() for line in shown] == [True, True]
    assert json.loads((federation.out / "result.json").read_text())["rounds"] == 1
    assert load_file(federation.out / "model.safetensors")
