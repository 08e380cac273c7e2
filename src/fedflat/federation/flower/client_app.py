"""The client's side: a `ClientApp` that says who it is, and trains when it is asked to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ...core.errors import InputError, NonFiniteError, printable
from ...data import FederatedData
from ..client import FederatedClient
from ..codec import RefusedError
from ..membership import checked_federation
from ..messages import ClientInfo, Failure, TrainReply
from .records import Said, read_train_request, to_records
from .samples import Samples, own, part, stored
from .settings import NodeSettings, RunSettings
from .study import Study, version

log = logging.getLogger("flwr")


def client_app(folder: Path, samples: Samples = stored) -> ClientApp:
    """The client's app of the study in `folder`.

    samples: where clients have their own samples, gives them, x (n, *shape) and y (n,), from the configuration of the
    node; by default those in its folder `data`. Flower starts a process for every message, so it is called each time.
    """
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return _replied(message, lambda: ClientSession(folder, context, samples).introduction())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _replied(message, lambda: ClientSession(folder, context, samples).train(message))

    return app


class ClientSession:
    """A client for the time of one message."""

    def __init__(self, folder: Path, context: Context, samples: Samples) -> None:
        """Raises InputError, naming the key, for a configuration that cannot work."""
        self._node = NodeSettings.of("node-config", context.node_config)
        self._study = Study.load(folder, RunSettings.of("run-config", context.run_config))
        self._name = self._node.client_name(self._study.settings.clients, self._study.own)
        self._samples: Callable[[], tuple[Any, Any]] = lambda: samples(context.node_config)

    def introduction(self) -> ClientInfo:
        """Who this is."""
        data = self._data(0)
        return ClientInfo(self._name, len(data.y), data.shape, self._study.digest, version())

    def train(self, message: Message) -> TrainReply:
        """Carry out the order in `message`. Raises what `FederatedClient.train` does."""
        order, study = read_train_request(message.content), self._study
        folder = self._node.kept / checked_federation(order.federation) / self._name
        participant = FederatedClient(
            method=study.method,
            module=study.module(),
            data=self._data(order.number),
            client=study.client,
            seed=study.spec.seed,
            folder=folder,
            digest=study.digest,
            bf16=study.spec.precision == "bf16",
        )
        return participant.train(order)

    def _data(self, number: int) -> FederatedData:
        """This client's samples; `number` is its own where the server gives numbers out."""
        return own(self._study, self._samples(), number) if self._study.own else part(self._study, self._node)


def _replied(message: Message, work: Callable[[], Said]) -> Message:
    """The reply to `message`: what `work` gives, or why it has failed, in words that tell nothing of samples."""
    try:
        said = work()
    except (InputError, RefusedError, NonFiniteError) as error:
        log.error("%s", printable(str(error)))
        said = Failure(str(error))
    except Exception as error:
        log.exception("a message could not be answered")
        said = Failure(f"{type(error).__name__}, of which the client's log has more")
    return Message(to_records(said), reply_to=message)
