"""The client's side: a Flower `ClientApp` that replies to the server's messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ...core.errors import InputError, NonFiniteError, printable
from ...core.object_references import allow_code
from ...data import FederatedData
from ...data.dataset import LoadedDataset
from ...experiments.spec import federated_data
from ..client import FederatedClient
from ..membership import checked_federation
from ..messages import ClientInfo, Failure, RefusedError, TrainReply, TrainRequest
from ..secure_sum.client import SumClient
from ..secure_sum.messages import KeysReply, KeysRequest, LaterReply, threshold
from .records import read_message, read_sum_request, to_records
from .settings import NodeSettings, RunSettings, app_settings
from .site_policy import SitePolicy
from .study import SampleLoader, SamplesError, Study, files_of, own_samples, stored, version

UNMASKED = "unmasked"  # the folder with records of unmasked rounds, next to the folders of federations
log = logging.getLogger("flwr")
ClientMessage = ClientInfo | TrainReply | KeysReply | LaterReply


def client_app(folder: Path, samples: SampleLoader | None = None) -> ClientApp:
    """Return the `ClientApp` of the study in `folder`.

    samples: returns a client's own samples, x (n, *shape) and y (n,), from the configuration of its node. By default
    they are read from the folder or file that `data` in this configuration names: in the format of the study's
    `data.name`, or else from x.npy and y.npy. Flower starts a process for every message, and each process
    calls `samples`.
    """
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return _reply(message, lambda: ClientSession(folder, context, samples).info())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _reply(message, lambda: ClientSession(folder, context, samples).train(message))

    return app


class ClientSession:
    """A client while it processes one message."""

    def __init__(self, folder: Path, context: Context, samples: SampleLoader | None) -> None:
        """Raise InputError, naming the key, for a configuration that is invalid or does not fit the study."""
        self._node = NodeSettings.parse("node-config", context.node_config)
        settings = RunSettings.parse("run-config", context.run_config)
        self._policy = SitePolicy.load(None if self._node.policy is None else Path(self._node.policy))
        self._policy.check_settings(settings, app_settings(folder))
        self._study = replace(Study.load(folder, settings), device=self._node.device)
        self._policy.check_study(self._study)
        self._name = self._node.client_name(self._study.settings.clients, self._study.own_samples)
        self._samples, self._node_config = samples, context.node_config

    def info(self) -> ClientInfo:
        """Return the client's name, and what the server compares before it registers the client.

        Raises InputError, naming the setting, if the client could not train.
        """
        self._study.usable_device()
        data = self._data(0)
        return ClientInfo(self._name, len(data.y), data.shape, self._study.digest, version())

    def train(self, message: Message) -> ClientMessage:
        """Train, or carry out a step of a secure sum, as requested by `message`.

        Raises the errors of `FederatedClient.train` and `SumClient.answer`.
        """
        share, request = self._study.settings.secure_sum, read_sum_request(message.content)
        if share is None:
            plain = read_message(message.content, TrainRequest)
            self._policy.check_round(plain.sampled, has_secure_sum=False)
            return self._client(plain).train(plain)
        if request is None:
            raise RefusedError("this federation has secure-sum; its clients send nothing else")
        summing = SumClient(
            self._state_folder(request.federation) / "secure-sum", share, self._study.digest,
            self._study.settings.unmask_again,
            memory=self._node.state_folder / UNMASKED / self._study.digest / self._name,
        )  # fmt: skip
        if not isinstance(request, KeysRequest):
            return summing.answer(request)
        self._policy.check_round(threshold(share, request.sampled), has_secure_sum=True)
        summing.check(request)  # before it trains
        reply, summand = self._client(request).summand(request, self._study.spec.guard, self._study.spec.weights)
        return summing.begin(request, reply.samples, reply.steps, summand)

    def _state_folder(self, federation: str) -> Path:
        return self._node.state_folder / checked_federation(federation) / self._name

    def _client(self, request: TrainRequest) -> FederatedClient:
        study = self._study
        objective = study.objective()
        return FederatedClient(
            method=study.method(objective),
            objective=objective,
            data=self._data(request.number),
            plan=study.plan,
            folder=self._state_folder(request.federation),
            digest=study.digest,
        )

    def _data(self, number: int) -> FederatedData:
        """Return this client's samples as those of client `number`; a part of a named set keeps its own number."""
        if self._study.own_samples:
            return own_samples(self._study, self._own(), number)
        spec = self._study.spec.model_copy(update={"data_dir": self._node.data_dir or self._study.spec.data_dir})
        assert self._node.partition_id is not None  # noqa: S101 (`client_name` has checked it)
        return federated_data(spec).alone(self._node.partition_id)

    def _own(self) -> tuple[Any, Any] | LoadedDataset:
        """Return this client's own samples."""
        if self._samples is None and self._study.reads_files:
            if self._node.data is None:
                raise InputError("node-config: data is missing: the folder or file with this client's samples")
            return files_of(self._study, self._node.data)
        return (self._samples or stored)(self._node_config)


def _reply(message: Message, work: Callable[[], ClientMessage]) -> Message:
    """Reply with the result of `work`, or with the reason why it failed.

    The text of an unexpected error stays in the client's log, because it might contain values of samples, and so does
    that of an error about the client's own samples.
    """
    result: ClientMessage | Failure
    try:
        with allow_code():  # that of the app
            result = work()
    except SamplesError as error:
        log.error("%s", printable(str(error)))
        result = Failure("its own samples do not fit the study; the client's log says why")
    except (InputError, RefusedError, NonFiniteError) as error:
        log.error("%s", printable(str(error)))
        result = Failure(str(error))
    except Exception as error:
        log.exception("a message could not be answered")
        result = Failure(f"{type(error).__name__}, of which the client's log has more")
    return Message(to_records(result), reply_to=message)
