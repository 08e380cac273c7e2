"""A federation with all its programs on this machine, set up like one over several machines."""

from __future__ import annotations

import json
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self

import httpx
import tomli_w

from ...experiments.spec import RunSpec
from ...files import locked, system_errors, write_text
from ..flower.approved_apps import app_digest
from ..flower.client_reports import STATES
from ..flower.directory import FederationDirectory
from ..flower.event_log import read_events
from ..flower.export import export, exported_study
from ..flower.settings import NodeSettings, RunSettings
from ..flower.study import Study
from ..flower.superlink import log_in
from ..membership import FederationError
from .certificates import Certificates
from .processes import Processes

HOST = "127.0.0.1"
START_SECONDS = 120.0  # for the SuperLink to be ready; the machine may be busy
POLL_SECONDS = 0.2  # between two reads of the events
STATUS_SECONDS = 15.0  # between two queries of the run's status; each query takes about a second
DATABASE = ("superlink.db", "superlink.db-wal", "superlink.db-shm", "superlink.db-journal")  # SQLite's files
FEDFLAT = ("fedflat", "flower")  # starts Flower's programs with additional checks
CONNECTION = "federation"  # name of the connection in the configuration of Flower's command


@dataclass(frozen=True)
class SubmittedRun:
    """A run that the SuperLink has accepted."""

    run_id: str
    out: Path  # the folder to which the server of the run writes
    events_before: int  # number of events in this folder before the run


class LocalFederation:
    """SuperLink, SuperExec and a SuperNode for each client on the loopback interface, with TLS and keys if `secure`.

    A context manager: the programs run inside the `with` block, and have ended after it.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Mapping[str, Mapping[str, Any]],
        secure: bool = True,
        *,
        approved: Callable[[], Sequence[str]],
        at_nodes: Sequence[str] = (),
    ) -> None:
        """Prepare a federation whose logs, keys and state are written to `folder`, but only inside the `with` block.

        nodes: the configuration of each node, by the name of its client. approved: is called once the folder is locked,
        and returns the digests of the apps that may run, at least one. at_nodes: digests of the apps that nodes may
        run, by default all approved apps.
        """
        self._approved, self._at_nodes = approved, at_nodes
        self.folder, self._nodes, self._secure = folder, nodes, secure
        self.processes = Processes(folder)  # superlink, superexec, and the SuperNodes by their clients' names
        with ExitStack() as stack:  # all sockets are open at the same time, so that their ports differ
            sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(1 + len(nodes))]
            self.port, *self._node_ports = [one.getsockname()[1] for one in sockets]
        self._address = f"{HOST}:{self.port}"
        self.certificates = Certificates(folder / "certificates")
        self._secret, self._control_secret = folder / "superexec.secret", folder / "control.secret"
        # How a program authenticates the SuperLink.
        self._tls = ("--root-certificates", str(self.certificates.authority)) if secure else ("--insecure",)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            with system_errors(self.folder, "written"):
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            busy = f"{self.folder.parent} is being run by another process"
            stack.enter_context(locked(self.folder / ".lock", busy))
            stack.callback(self.processes.stop)
            self.processes.prepare()
            approved = self._approved()
            self._at_nodes = self._at_nodes or approved
            self.configure()
            self.start_superlink()
            self.start_superexec(approved)
            for name in self._nodes:
                if self._secure:  # only nodes whose keys the SuperLink knows can connect
                    public_key = f"{self.certificates.node_key(name)}.pub"
                    self.processes.run("flwr", "supernode", "register", public_key, CONNECTION, "--name", name,
                                       "--format", "json")  # fmt: skip
                self.start_node(name)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def configure(self) -> None:
        """Remove the database of earlier runs; write keys, secrets and the configuration of Flower's command.

        The secrets protect the SuperLink's APIs.
        """
        for old in DATABASE:
            (self.folder / old).unlink(missing_ok=True)
        connection: dict[str, Any] = {"address": self._address}
        if self._secure:
            self.certificates.make([HOST, "localhost"], list(self._nodes))
            connection["root-certificates"] = str(self.certificates.authority.absolute())
        else:
            connection["insecure"] = True
        for path in (self._secret, self._control_secret):
            secret = secrets.token_hex(32)
            write_text(path, secret, private=True)
        log_in(self._address, secret, self.processes.home)
        config = tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: connection}})
        write_text(self.processes.home / "config.toml", config, private=True)

    def start_superlink(self) -> None:
        """Start the SuperLink, and wait until it is ready. Raises FederationError if it does not become ready."""
        tls: tuple[str, ...] = ("--insecure",)
        if self._secure:
            keys = self.certificates
            tls = ("--ssl-certfile", str(keys.server), "--ssl-keyfile", str(keys.server_key), "--ssl-ca-certfile",
                   str(keys.authority), "--enable-supernode-auth")  # fmt: skip
        self.processes.start(
            "superlink", *FEDFLAT, "superlink", "--control-secret-file", str(self._control_secret),
            "--host", HOST, "--port", str(self.port), "--isolation", "process",
            "--database", str(self.folder / DATABASE[0]), "--superexec-auth-secret-file", str(self._secret),
            "--disable-runtime-dependency-installation", *tls,
        )  # fmt: skip
        self.wait_for_superlink()

    def start_superexec(self, approved: Sequence[str]) -> None:
        """Start the SuperExec, which runs servers of the approved apps."""
        self.processes.start(
            "superexec", *FEDFLAT, "superexec", *_flags(approved), "--runtime-api-address", self._address,
            "--superexec-auth-secret-file", str(self._secret), *self._tls,
        )  # fmt: skip

    def wait_for_superlink(self) -> None:
        """Wait until the SuperLink is ready. Raises FederationError if it does not become ready."""
        url = f"{'https' if self._secure else 'http'}://{self._address}/health"
        tls = ssl.create_default_context(cafile=self.certificates.authority) if self._secure else False
        end = monotonic() + START_SECONDS
        while monotonic() < end:
            self.processes.check()
            with suppress(httpx.TransportError):
                if httpx.get(url, verify=tls, timeout=5, trust_env=False).status_code == 200:  # without a proxy
                    return
            sleep(POLL_SECONDS)
        raise FederationError(f"the SuperLink did not answer within {START_SECONDS:g} seconds")

    def start_node(self, name: str) -> None:
        """Start a client's SuperNode."""
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in self._nodes[name].items())
        key = ("--auth-supernode-private-key", str(self.certificates.node_key(name))) if self._secure else ()
        self.processes.start(
            name, *FEDFLAT, "node", *_flags(self._at_nodes), "--superlink", self._address, "--host", HOST,
            "--port", str(self.port_of(name)), "--node-config", config, *key, *self._tls,
        )  # fmt: skip

    def port_of(self, name: str) -> int:
        """Return the port on which a client's SuperNode listens."""
        port: int = self._node_ports[list(self._nodes).index(name)]
        return port

    def submit(self, app: Path, out: Path) -> SubmittedRun:
        """Start a run of the app in the folder `app`. The run's server writes to the folder `out`.

        Raises FederationError if the SuperLink does not accept the run.
        """
        before = len(list(read_events(out)))
        output = self.processes.run("flwr", "run", str(app), CONNECTION, "--format", "json")
        answer = _json(output)
        if not answer.get("success", False):
            raise FederationError(f"the run was not taken: {answer.get('error-message', output.strip())}")
        return SubmittedRun(str(answer["run-id"]), out, before)

    def events(self, run: SubmittedRun, seconds: float = float("inf")) -> Iterator[dict[str, Any]]:
        """Yield the events of a run as they happen, from its beginning until it is finished.

        Raises FederationError if the run fails, a program of the federation ends, or `seconds` have passed.
        """
        seen, end, asked = run.events_before, monotonic() + seconds, monotonic()
        while monotonic() < end:
            self.processes.check()
            for event in list(read_events(run.out))[seen:]:
                seen += 1
                yield event
                if event["event"] == "finished":
                    return
                if event["event"] == "failed":
                    raise FederationError(event["reason"])
            if monotonic() - asked > STATUS_SECONDS:
                self._check_status(run, seen)
                asked = monotonic()
            sleep(POLL_SECONDS)
        raise FederationError(f"the run was not over after {seconds:g} seconds")

    def _check_status(self, run: SubmittedRun, seen: int) -> None:
        """Raise FederationError if a run has ended without logging its end."""
        output = self.processes.run("flwr", "list", CONNECTION, "--run-id", run.run_id, "--format", "json")
        status = next(iter(_json(output).get("runs", [])), {"status": "unknown"})
        if status["status"].startswith("finished") and len(list(read_events(run.out))) == seen:
            raise FederationError(f"the run has ended: {status.get('status-details') or status['status']}")


def _flags(digests: Sequence[str]) -> list[str]:
    return [word for digest in digests for word in ("--app-digest", digest)]


def _json(output: str) -> dict[str, Any]:
    """Parse the JSON object in the output of Flower's command, which may print other lines before it."""
    try:
        content: dict[str, Any] = json.loads(output[output.find("{") :])
    except ValueError as error:
        raise FederationError(f"flwr said {output.strip()[:200]!r}") from error
    return content


def local_study(
    spec: RunSpec, path: Path, settings: Mapping[str, Any], folders: Mapping[str, Path] | None = None
) -> Study:
    """Return the study of a federation on this machine, with the arguments of `local_deployment`."""
    number = len(folders or ()) or spec.data.clients
    return Study(spec, RunSettings.parse("flower run", {**settings, "clients": number, "out": str(path.absolute())}))


@contextmanager
def local_deployment(
    spec: RunSpec, path: Path, settings: Mapping[str, Any], secure: bool, folders: Mapping[str, Path] | None = None
) -> Iterator[Iterator[dict[str, Any]]]:
    """Export a study, start a `LocalFederation`, and run the study on it; yield the events as they happen.

    path: the folder of the federation; Flower's files are in its folder `flower`. settings: values of `RunSettings`, by
    field name. secure: whether connections use TLS and nodes have keys. folders: the folder of each client's own
    samples, by client name; by default, clients have parts of the study's data set.

    After the last event `client_reports` can be called with the same study, path and folders.

    Raises InputError for a study that no federation can carry out, and if `path` holds anything but a federation of
    this study in which these clients can take part; the iterator of events raises FederationError if the federation
    fails.
    """
    path, number = path.absolute(), len(folders or ()) or spec.data.clients
    study = local_study(spec, path, settings, folders)
    directory = FederationDirectory(path)
    exported_study(spec, study.settings)  # a study that is refused must not have the folder
    directory.refuse_other(study)  # before anything is written to it
    nodes = {}
    for config in _node_configs(spec, number, folders):
        config["state"] = str(path / STATES)
        nodes[NodeSettings.parse("node-config", config).client_name(number, study.own_samples)] = config
    directory.refuse_strangers(study, nodes)

    def exported_app() -> list[str]:  # always anew, because another version may have written an older app
        with directory.writing(study):
            export(spec, study.settings, path / "app", replace=True)
        return [app_digest(path / "app")]

    with LocalFederation(path / "flower", nodes, secure, approved=exported_app) as federation:
        yield federation.events(federation.submit(path / "app", path))


def _node_configs(spec: RunSpec, number: int, folders: Mapping[str, Path] | None) -> Iterator[dict[str, Any]]:
    if folders:
        yield from ({"name": name, "data": str(folder.absolute())} for name, folder in folders.items())
        return
    data = {"data-dir": str(Path(spec.data_dir).absolute())} if spec.data_dir else {}
    yield from ({"partition-id": i, "num-partitions": number, **data} for i in range(number))
