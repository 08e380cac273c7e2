"""The server's side: a `ServerApp` that gathers clients and goes from round to round, each of them saved."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...core.errors import ChangedWarning, InputError
from ...data import FederatedData
from ...experiments.run_directory import difference
from ...experiments.spec import participation_of
from ...metrics.accuracy import score
from ..client_registry import ClientRegistry
from ..membership import Membership
from ..server import FederatedServer, RoundFailedError, RoundReport
from .bounds import arrays_up_to
from .directory import FederationDirectory, State
from .event_log import EventLog
from .samples import for_testing
from .settings import RunSettings
from .study import Study, version
from .transport import FlowerTransport

ATTEMPTS = 3  # at a round that too few clients answer
ROOM = 2  # times the bytes of the model that one received array may have


def server_app(folder: Path) -> ServerApp:
    """The server's app of the study in `folder`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(Study.load(folder, RunSettings.of("run-config", context.run_config)), grid)

    return app


def serve(study: Study, grid: Grid) -> None:
    """Carry out the federation of `study`, or what is left of it.

    Raises InputError for what cannot work, GatheringError if too few clients come, and RoundFailedError if too few
    answer a round, three times.
    """
    folder = FederationDirectory(Path(study.settings.out).expanduser())
    with folder.writing(study):
        journal = EventLog(folder.path)
        try:
            Server(study, grid, folder, journal).run()
        except Exception as error:
            journal.tell("failed", reason=f"{error}" or type(error).__name__)
            raise


class Server:
    """A federation that is being carried out."""

    def __init__(self, study: Study, grid: Grid, folder: FederationDirectory, journal: EventLog) -> None:
        self._study, self._folder, self._journal = study, folder, journal
        self._state = self._last_state()
        self._begun = Membership.stored(self._state.path) if self._state else None
        self._census = self._taking()
        self._carrier = FlowerTransport(grid, self._census, journal.tell)
        self._test = self._tests()

    def run(self) -> None:
        """All rounds that are left, and the model."""
        rounds = self._study.spec.rounds
        coordinator = self._coordinator(self._begun or self._gathered())
        if self._state:
            self._load(coordinator, self._state.path)
            # The state is written first: if the last process ended right after it, metrics lack a round.
            self._folder.write_metrics(coordinator.history)
        self._journal.tell("begun", rounds=rounds, done=coordinator.t, clients=len(coordinator.names))
        with arrays_up_to(ROOM * coordinator.w.nbytes):
            while coordinator.t < rounds:
                self._round(coordinator)
        digest = self._folder.finish(coordinator)
        self._journal.tell("finished", rounds=rounds, model_sha256=digest)

    def _last_state(self) -> State | None:
        """The newest state that is whole; what is wrong with newer ones is told."""
        state = self._folder.newest()
        for reason in state.damaged if state else ():
            self._journal.tell("damaged state", reason=reason, instead=state.path.name if state else "")
        return state

    def _taking(self) -> ClientRegistry:
        """Who is taken. Raises InputError if a federation has begun with other members than it is to have."""
        study, settings = self._study, self._study.settings
        named, begun = settings.named_members, self._begun.members if self._begun else None
        found = difference(dict(begun), named) if begun and named else None
        if found:
            raise InputError(f"out {self._folder.path} has begun with other run-config members: {found}")
        return ClientRegistry(
            study.shape, study.digest, version(), members=begun or named, most=settings.clients,
            begun=begun is not None, most_samples=settings.max_samples,
        )  # fmt: skip

    def _load(self, coordinator: FederatedServer, path: Path) -> None:
        """Go on from a state; if it was made with other versions, events and log say so."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ChangedWarning)
            coordinator.load(path)
        for one in told:
            self._journal.tell("other versions", reason=str(one.message))

    def _gathered(self) -> Membership:
        """A new federation, of the clients that come first."""
        number, seconds = self._study.settings.clients, self._study.settings.wait
        self._journal.tell("waiting", clients=number, seconds=seconds)
        with arrays_up_to(0):  # who says who it is sends none
            self._carrier.gather(number, seconds)
        return Membership.founded(self._census.members)

    def _coordinator(self, federation: Membership) -> FederatedServer:
        study, spec = self._study, self._study.spec
        return FederatedServer(
            method=study.method,
            module=study.module(),
            client=study.client,
            federation=federation,
            participation=participation_of(spec.participation),
            weights=spec.weights,
            seed=spec.seed,
            digest=study.digest,
            shape=study.shape,
            terms=study.settings.terms,
        )

    def _round(self, coordinator: FederatedServer) -> None:
        """A round, saved."""
        report = self._reported(coordinator)
        tested = self._tested(coordinator)
        coordinator.history[-1] |= tested
        self._folder.save(coordinator)
        self._journal.tell("round", t=report.t, **report.metrics, **tested, missing=dict(report.missing))

    def _reported(self, coordinator: FederatedServer) -> RoundReport:
        """A round; tried again if too few clients answer it."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return coordinator.round(self._carrier)
            except RoundFailedError as error:
                self._journal.tell("round failed", t=coordinator.t, attempt=attempt, reason=str(error))
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _tests(self) -> FederatedData | None:
        """What the model is tested on; a named set that is not on this machine is no reason to stop."""
        try:
            return for_testing(self._study)
        except InputError as error:
            if self._study.own:
                raise
            self._journal.tell("no test set", reason=str(error))
            return None

    def _tested(self, coordinator: FederatedServer) -> Mapping[str, float]:
        """Accuracy and loss on the test set, in the rounds that have them."""
        due = coordinator.t % self._study.spec.eval_every == 0 or coordinator.t == self._study.spec.rounds
        if self._test is None or self._test.test is None or not due:
            return {}
        server = coordinator.server.w
        data = self._test.to(server.device, server.dtype)
        assert data.test is not None  # noqa: S101 (as before it was moved)
        scores = score(coordinator.objective, server, *data.test, data.preparation)
        return {"test_accuracy": scores.accuracy, "test_loss": scores.mean_loss}
