"""A whole federation on this machine, laid out as one over many machines should be."""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self

import tomli_w

from ...files import locked, said_of, write_atomically
from ..flower import event_log
from ..membership import FederationError
from .certificates import Certificates
from .processes import Processes

HOST = "127.0.0.1"
START = 120.0  # seconds for a program to be ready; machines are busy
LOOK = 0.2  # seconds between looks at the events
ASK = 15.0  # seconds between questions to the SuperLink, whose client takes a second
DATABASE = ("superlink.db", "superlink.db-wal", "superlink.db-shm", "superlink.db-journal")  # SQLite's files
LINK = "federation"  # the name of the connection in Flower's configuration


@dataclass(frozen=True)
class Submitted:
    """A run that the SuperLink has taken."""

    number: str
    out: Path  # where its server writes
    before: int  # events that were there


class LocalFederation:
    """SuperLink, SuperExec and a SuperNode for each client, on the loopback, with TLS and keys if `secure`.

    To be used in a `with` block, after which none of them is left.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Mapping[str, Mapping[str, Any]],
        secure: bool = True,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """nodes: the configuration of each node, by the name of its client. Logs, keys and state are in `folder`, which
        is not touched before the `with` block. first: what is to be done once the folder is ours."""
        self._first = first
        self._folder, self._nodes, self._secure = folder, nodes, secure
        self._processes = Processes(folder)
        self.port, *self._node_ports = _free_ports(1 + len(nodes))
        self._certificates = Certificates(folder / "certificates")
        self._secret = folder / "superexec.secret"

    @property
    def processes(self) -> Processes:
        """Flower's programs: superlink, superexec, and each client's node by its name."""
        return self._processes

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            with said_of(self._folder, "written"):
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            stack.enter_context(
                locked(self._folder / ".lock", f"{self._folder.parent} is being run by another process")
            )
            stack.callback(self._processes.stop)
            self._processes.prepare()
            self._first()
            self._prepare()
            self.start_link()
            self._processes.start("superexec", "flower-superexec", "--runtime-api-address", self._address,
                                  "--superexec-auth-secret-file", str(self._secret), *self._trust)  # fmt: skip
            for name in self._nodes:
                self._register(name)
                self.start_node(name)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_link(self) -> None:
        """Start the SuperLink, and wait until it answers. Raises FederationError if it does not."""
        security: tuple[str, ...] = ("--insecure",)
        if self._secure:
            certificates = self._certificates
            security = (
                "--ssl-certfile", str(certificates.server), "--ssl-keyfile", str(certificates.server_key),
                "--ssl-ca-certfile", str(certificates.authority), "--enable-supernode-auth",
            )  # fmt: skip
        self._processes.start(
            "superlink", "flower-superlink", "--host", HOST, "--port", str(self.port), "--isolation", "process",
            "--database", str(self._folder / DATABASE[0]), "--superexec-auth-secret-file", str(self._secret),
            "--disable-runtime-dependency-installation", *security,
        )  # fmt: skip
        self._until_healthy()

    def start_node(self, name: str) -> None:
        """Start a client's SuperNode."""
        place = list(self._nodes).index(name)
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in self._nodes[name].items())
        key = ("--auth-supernode-private-key", str(self._certificates.node_key(name))) if self._secure else ()
        self._processes.start(
            name, "flower-supernode", "--superlink", self._address, "--host", HOST, "--port",
            str(self._node_ports[place]), "--node-config", config, *key, *self._trust,
        )  # fmt: skip

    def submit(self, app: Path, out: Path) -> Submitted:
        """Start a run of the app in the folder `app`, which writes to the folder `out`. Raises FederationError if the
        SuperLink does not take it."""
        before = len(list(event_log.read(out)))
        said = self._processes.call("flwr", "run", str(app), LINK, "--format", "json")
        answer = _json(said)
        if not answer.get("success", False):
            raise FederationError(f"the run was not taken: {answer.get('error-message', said.strip())}")
        return Submitted(str(answer["run-id"]), out, before)

    def events(self, run: Submitted, seconds: float = float("inf")) -> Iterator[dict[str, Any]]:
        """What happens in a run, from its beginning until it is finished.

        Raises FederationError if it fails, if a program of the federation ends, or after so many seconds.
        """
        seen, end, asked = run.before, monotonic() + seconds, monotonic()
        while monotonic() < end:
            self._processes.check()
            for event in list(event_log.read(run.out))[seen:]:
                seen += 1
                yield event
                if event["event"] == "finished":
                    return
                if event["event"] == "failed":
                    raise FederationError(event["reason"])
            if monotonic() - asked > ASK:
                self._check_run(run, seen)
                asked = monotonic()
            sleep(LOOK)
        raise FederationError(f"the run was not over after {seconds:g} seconds")

    def _check_run(self, run: Submitted, seen: int) -> None:
        """Raise FederationError if a run has ended without a word."""
        said = self._processes.call("flwr", "list", LINK, "--run-id", run.number, "--format", "json")
        status = next(iter(_json(said).get("runs", [])), {"status": "unknown"})
        if status["status"].startswith("finished") and len(list(event_log.read(run.out))) == seen:
            raise FederationError(f"the run has ended: {status.get('status-details') or status['status']}")

    @property
    def _address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def _trust(self) -> tuple[str, ...]:
        """How a program knows that it speaks to the SuperLink."""
        return ("--root-certificates", str(self._certificates.authority)) if self._secure else ("--insecure",)

    def _prepare(self) -> None:
        """Keys, the secret between SuperLink and SuperExec, and the configuration of Flower's command; no old runs."""
        for old in DATABASE:
            (self._folder / old).unlink(missing_ok=True)
        link: dict[str, Any] = {"address": self._address}
        if self._secure:
            self._certificates.make([HOST, "localhost"], list(self._nodes))
            link["root-certificates"] = str(self._certificates.authority.absolute())
        else:
            link["insecure"] = True
        if not self._secret.exists():
            secret = secrets.token_hex(32)
            write_atomically(self._secret, lambda path: path.write_text(secret), private=True)
        config = {"superlink": {"default": LINK, LINK: link}}
        place = self._processes.home / "config.toml"
        write_atomically(place, lambda path: path.write_text(tomli_w.dumps(config)), private=True)

    def _register(self, name: str) -> None:
        """Tell the SuperLink a node's key, and the client's name that it proves."""
        key = self._certificates.node_key(name).with_name(f"{name}.pub")
        if self._secure:
            self._processes.call("flwr", "supernode", "register", str(key), LINK, "--name", name, "--format", "json")

    def _until_healthy(self) -> None:
        context = ssl.create_default_context(cafile=self._certificates.authority) if self._secure else None
        url, end = f"{'https' if self._secure else 'http'}://{self._address}/health", monotonic() + START
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=context)] if context else [])
        )
        while monotonic() < end:
            self._processes.check()
            try:
                with opener.open(url, timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                sleep(LOOK)
        raise FederationError(f"the SuperLink did not answer within {START:g} seconds")


def _free_ports(number: int) -> list[int]:
    """Ports of the loopback that nobody uses now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(number)]
        return [one.getsockname()[1] for one in sockets]


def _json(said: str) -> dict[str, Any]:
    """The JSON that Flower's command prints, after whatever else it prints."""
    start = said.find("{")
    try:
        content: dict[str, Any] = json.loads(said[start:])
    except ValueError as error:
        raise FederationError(f"flwr said {said.strip()[:200]!r}") from error
    return content
