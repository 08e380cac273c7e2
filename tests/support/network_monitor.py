"""Records which hosts Python processes contact: a start-up file that logs every connection and every name lookup."""

from __future__ import annotations

from pathlib import Path

START_UP_FILE = """
import sys

def _log_contact(event, arguments):
    if event == "socket.connect":
        where = arguments[1]
        host = where[0] if isinstance(where, tuple) else "local"
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    with open({path!r}, "a") as file:
        print(event, host, " ".join(sys.argv)[:200], sep="\\t", file=file)

sys.addaudithook(_log_contact)
"""
LOOPBACK = {"127.0.0.1", "localhost", "::1", "local", "None", ""}


def monitor_network(folder: Path) -> tuple[str, Path]:
    """A folder for PYTHONPATH, and the file to which processes with this PYTHONPATH log their contacts."""
    log, site = folder / "contacts.tsv", folder / "site"
    site.mkdir(parents=True)
    log.touch()
    (site / "sitecustomize.py").write_text(START_UP_FILE.format(path=str(log)))
    return str(site), log


def external_contacts(log: Path) -> list[str]:
    """The contacts other than the loopback."""
    return [line for line in log.read_text().splitlines() if line.split("\t")[1] not in LOOPBACK]
