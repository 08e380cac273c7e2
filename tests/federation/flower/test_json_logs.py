"""Logs of programs as JSON lines: whatever is logged, a line is one object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from fedflat.core.errors import InputError
from fedflat.federation.flower.json_logs import VARIABLE, launcher, set_up_logs
from support.flower_fixtures import failing

HOSTILE = 'one\n{"level": "INFO"}\r\x1b[2J\x00\u2028"\\'
PROGRAM = f"""
import logging, sys, threading, warnings
from flwr.supercore.logger import update_console_handler, console_handler
import sys
update_console_handler(timestamps=True, colored=True)
console_handler.stream = sys.stdout
log = logging.getLogger("flwr")
log.info("text %s", {HOSTILE!r})
log.debug("not shown")
try:
    raise ValueError({HOSTILE!r})
except ValueError:
    log.exception("it failed")
warnings.warn({HOSTILE!r})
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise RuntimeError({HOSTILE!r})
"""


def logged(tmp_path: Path, form: str) -> list[str]:
    """All lines that a program prints that Flower would start, by our launcher."""
    script = tmp_path / "program"
    script.write_text(PROGRAM)
    environment = {**os.environ, VARIABLE: form}
    words = [sys.executable, "-m", "fedflat.federation.flower.json_logs", str(script), "--further", "word"]
    done = subprocess.run(words, capture_output=True, env=environment, check=False)
    assert done.returncode == 1
    return (done.stdout + done.stderr).decode().splitlines()


@pytest.mark.slow
def test_every_line_is_an_object_with_the_same_keys(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    lines = [json.loads(line) for line in logged(tmp_path, "json")]
    said = [(line["level"], line["logger"]) for line in lines]
    assert said == [("INFO", "flwr"), ("ERROR", "flwr"), ("WARNING", "py.warnings"), ("CRITICAL", "fedflat"),
                    ("CRITICAL", "fedflat")]  # fmt: skip
    assert lines[0]["message"] == f"text {HOSTILE}"
    assert [line.keys() - {"exception"} for line in lines] == [{"time", "level", "logger", "message"}] * 5
    assert lines[1]["exception"].endswith(f"ValueError: {HOSTILE}")
    assert "ZeroDivisionError" in lines[3]["exception"]
    assert lines[4]["exception"].endswith(f"RuntimeError: {HOSTILE}")
    assert all(datetime.fromisoformat(line["time"]).utcoffset().total_seconds() == 0 for line in lines)


@pytest.mark.slow
def test_without_the_variable_logs_are_flowers_own(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    lines = logged(tmp_path, "text")
    assert any("INFO" in line and "text one" in line for line in lines)
    assert [line for line in lines if line.startswith('{"time"')] == []


def test_another_value_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "xml")
    with failing(InputError, "FEDFLAT_LOG_FORMAT is 'xml', expected text or json"):
        set_up_logs()
    monkeypatch.setenv(VARIABLE, "")
    assert launcher(__file__) == []
    monkeypatch.setenv(VARIABLE, "json")
    assert launcher("no such program") == []
    assert launcher(__file__) == [sys.executable, "-m", "fedflat.federation.flower.json_logs"]
