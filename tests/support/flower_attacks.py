"""What another user of the machine tries at the sockets of a federation's programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClient
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from support.local_user import refusal

OPEN = {"/health", "/v1/control/get-login-details", "/v1/control/get-auth-tokens"}  # they tell and do nothing
REFUSED = {401, 403}


@dataclass(frozen=True)
class Attacker:
    """Somebody who reaches an API of Flower and knows no secret."""

    url: str

    def client(self) -> ProtobufClient:
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        return ProtobufClient(self.url, interceptors=[version], verify=False)

    def paths(self) -> list[str]:
        """What the API offers, as it tells itself to whoever asks."""
        return sorted(httpx.get(f"{self.url}/openapi.json", verify=False, trust_env=False).json()["paths"])

    def status(self, path: str, request: Message) -> int:
        """The status of the answer to a request."""
        try:
            self.client()._unary_unary(path=path, rpc_method="/flwr.proto.X/X", request=request, response_type=Empty)
        except httpx.HTTPStatusError as error:
            return error.response.status_code
        return 200

    def accepted(self, app: bytes) -> list[str]:
        """Everything that is not refused: each path with nothing in it, a run of `app`, a task, a task's input."""
        requests: list[tuple[str, Message]] = [(path, Empty()) for path in self.paths()]
        requests.append(("/v1/control/start-run", StartRunRequest(fab=Fab(content=app))))
        requests.append(("/v1/runtime/acquire-task", AcquireTaskRequest(supported_task_types=["flwr-clientapp"])))
        requests.append(("/v1/runtime/pull-task-input", PullTaskInputRequest()))
        known = {path for path, _ in requests if path not in OPEN} & set(self.paths())
        assert any(path.startswith("/v1/runtime/") for path in known)
        return [f"{path}: {found}" for path, request in requests
                if path in known and (found := self.status(path, request)) not in REFUSED]  # fmt: skip


def readable(paths: Iterable[Path]) -> list[str]:
    """Which of the files can be opened."""
    return [str(path) for path in paths if not refusal(partial(path.open, "rb"))]
