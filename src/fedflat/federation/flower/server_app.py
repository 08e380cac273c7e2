"""The server's side: a Flower `ServerApp` that registers clients, carries out the rounds and saves each of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...core.errors import ChangedWarning, InputError
from ...core.object_references import allow_code
from ...core.wrapper import serves_another
from ...data import FederatedData
from ...experiments.run_directory import difference
from ...metrics.accuracy import score
from ..membership import ClientRegistry, Membership
from ..server import FederatedServer, RoundFailedError, RoundReport
from .directory import JOINED, ROUND, SETTINGS, FederationDirectory, log_problem
from .ejections import Ejections
from .event_log import EventLog
from .internals import array_limit
from .settings import OperatorRegistry, RunSettings
from .study import Study, evaluation_data, version
from .transport import FlowerTransport

ATTEMPTS = 3  # attempts at a round to which too few clients reply
ARRAY_FACTOR = 2  # a received array may have this many times the bytes of the model
SUM_FACTOR = 5  # the same with secure-sum, which sends at least 16 bytes for each number of the model


def server_app(folder: Path) -> ServerApp:
    """Return the `ServerApp` of the study in `folder`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with allow_code():  # that of the app
            serve(Study.load(folder, RunSettings.parse("run-config", context.run_config)), grid)

    return app


def serve(study: Study, grid: Grid) -> None:
    """Carry out the federation of `study`, or its remaining rounds.

    Raises InputError for settings or files that cannot be used, GatheringError if too few clients register, and
    RoundFailedError if `ATTEMPTS` attempts at a round have failed.
    """
    directory = FederationDirectory(Path(study.settings.out).expanduser())
    with directory.writing(study):
        Ejections(directory.path).begin()
        changed = log_problem(directory.path, study.digest)
        events = EventLog(directory.path, study.digest)
        if changed:
            events.append("damaged log", reason=changed)
        try:
            FederationRun(study, grid, directory, events).run()
        except Exception as error:
            events.append("failed", reason=f"{error}" or type(error).__name__)
            raise


class FederationRun:
    """The work of one process on a federation: it begins the federation, or resumes it from the newest checkpoint."""

    def __init__(self, study: Study, grid: Grid, directory: FederationDirectory, events: EventLog) -> None:
        """Raise InputError for a checkpoint or test samples that cannot be used."""
        self._study, self._directory, self._events = study, directory, events
        self._state = directory.newest()
        for reason in self._state.damaged if self._state else ():
            events.append("damaged state", reason=reason, instead=self._state.path.name if self._state else "")
        self._membership = Membership.load(self._state.path) if self._state else None
        # An earlier process may have ended in the round before which these clients joined.
        self._joined = directory.joined_since(self._state) if self._state else {}
        self._registry = self._client_registry()
        self._transport = FlowerTransport(grid, self._registry, events.append)
        self._evaluation_data = self._load_evaluation_data()

    def run(self) -> None:
        """Carry out all remaining rounds, and write the model."""
        rounds = self._study.spec.rounds
        server = self._server(self._membership or self._gather_clients())
        if self._state:
            with warnings.catch_warnings(record=True) as caught:  # warnings of changed versions
                warnings.simplefilter("always", ChangedWarning)
                server.load(self._state.path)
            for warning in caught:
                self._events.append("other versions", reason=str(warning.message))
            # The previous process may have written the checkpoint, but not the metrics or the event of the round.
            self._directory.write_metrics(server.history)
            if lost := self._directory.unlogged_event(self._state):
                self._events.append(ROUND, **lost)
        self._events.append(SETTINGS, **self._study.settings.stated)
        self._events.append("begun", rounds=rounds, done=server.t, clients=server.clients)
        factor = ARRAY_FACTOR if self._study.settings.secure_sum is None else SUM_FACTOR
        with array_limit(factor * server.w.nbytes):
            while server.t < rounds:
                report = self._round(server)
                scores = self._evaluate(server)
                server.history[-1] |= scores
                replies = {"counted": list(report.accepted), "missing": dict(report.missing)}
                event = {"t": report.t, **report.metrics, **scores, **self._transport.traffic(), **replies}
                self._directory.save(server, self._events.head, event)
                self._events.append(ROUND, **event)
        digest = self._directory.finish(server, self._events.head)
        self._events.append("finished", rounds=rounds, model_sha256=digest, **server.spent)

    def _client_registry(self) -> ClientRegistry:
        """Return the registry of clients. Raises InputError if the federation has begun with other members."""
        study, settings, begun = self._study, self._study.settings, self._membership
        registry = OperatorRegistry(Path(settings.registry).expanduser()) if settings.registry else None
        named = registry.samples() if registry else settings.named_members
        if begun and named is not None:
            found = difference(begun.present, {name: named[name] for name in named if name in begun.present})
            if found:
                raise InputError(f"out {self._directory.path} has begun with other run-config members: {found}; "
                                 "`fedflat flower remove` lets a member leave")  # fmt: skip
        if named and len(named) < settings.clients:
            raise InputError(f"clients is {settings.clients}, and {len(named)} are named as members: too few")
        return ClientRegistry(
            study.shape, study.digest, version(), members=begun, first=settings.clients,
            listed=(registry.samples if registry else lambda: named) if named is not None else None,
            closed=study.closed, max_samples=settings.max_samples, keys_of=registry.keys_of if registry else None,
        )  # fmt: skip

    def _load_evaluation_data(self) -> FederatedData | None:
        """Return the data with test samples, or None; log an event if a named set is not on this machine."""
        try:
            return evaluation_data(self._study)
        except InputError as error:
            if self._study.own_samples:
                raise
            self._events.append("no test set", reason=str(error))
            return None

    def _gather_clients(self) -> Membership:
        """Wait for clients to register, and begin a federation with them."""
        number, seconds = self._study.settings.clients, self._study.settings.wait
        self._events.append("waiting", clients=number, seconds=seconds)
        with array_limit(0):  # a ClientInfo has no array
            self._transport.gather(number, seconds)
        return Membership.new(self._registry.members)

    def _server(self, membership: Membership) -> FederatedServer:
        study = self._study
        objective = study.objective()
        method = study.method(objective)
        return FederatedServer(
            method=method,
            objective=objective,
            plan=study.plan,
            federation=membership,
            weights=study.spec.weights,
            digest=study.digest,
            shape=study.shape,
            terms=study.terms,
            private=study.private_rounds(method),
        )

    def _round(self, server: FederatedServer) -> RoundReport:
        """Carry out a round, with up to `ATTEMPTS` attempts if it fails."""
        for attempt in range(1, ATTEMPTS + 1):
            self._change_members(server)
            try:
                return server.round(self._transport)
            except RoundFailedError as error:
                self._events.append("round failed", t=server.t, attempt=attempt, reason=str(error))
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _change_members(self, server: FederatedServer) -> None:
        """Eject, admit and remove members as the operator's list requires, and let clients join that may.

        Raises InputError if the list is damaged, or requires what the study does not allow.
        """
        members = server.federation
        absent = {name: why for name, why in Ejections(self._directory.path).read().items() if name in members.present}
        ejected = {name: why.reason for name, why in absent.items() if not why.left}
        for name in sorted(ejected.keys() - server.ejected):
            self._events.append("ejected", client=name, t=server.t, reason=ejected[name])
        left = {name: why.reason for name, why in sorted(absent.items()) if why.left}
        for name in sorted(server.ejected - ejected.keys() - left.keys()):
            self._events.append("admitted", client=name, t=server.t)
        server.ejected = frozenset(ejected)
        joining, self._joined = self._registry.joining | self._joined, {}
        if not left and not joining:
            return
        changed = members.without(left).joined_by(joining)
        server.change_members(changed)
        self._registry.admit(changed)
        clients = len(changed.present)
        for name, reason in left.items():
            self._events.append("left", client=name, t=server.t, reason=reason, clients=clients)
        for name, samples in sorted(joining.items()):
            self._events.append(JOINED, client=name, t=server.t, samples=samples, clients=clients)

    def _evaluate(self, server: FederatedServer) -> Mapping[str, float]:
        """Return the scores of the test samples; empty in rounds without evaluation."""
        due = server.t % self._study.spec.eval_every == 0 or server.t == self._study.spec.rounds
        if self._evaluation_data is None or self._evaluation_data.test is None or not due:
            return {}
        w = server.show()
        data = self._evaluation_data.to(server.objective.device, w.dtype)
        assert data.test is not None  # noqa: S101 (it was not None before it was copied to the device)
        models = {"": w} | ({"_iterate": server.iterate} if serves_another(server.method) else {})
        scores = {name: score(server.objective, x, *data.test, data.preparation) for name, x in models.items()}
        return {
            f"test_{quantity}{name}": value
            for name, found in scores.items()
            for quantity, value in found.numbers.items()
        }
