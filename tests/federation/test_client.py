"""A client trains only for requests that are meant for it, and reports if its state is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.federation.codec import RefusedError
from fedflat.federation.server import RoundFailedError
from fedflat.methods import find
from support.transports import InProcessTransport, federated_clients, federated_server

CLIENT = ff.Client(lr=0.1, epochs=1, batch_size=4)
Scaffold, FedAvg = find("Scaffold"), find("FedAvg")


def test_a_missing_client_state_is_reported(tmp_path: Path) -> None:
    transport = InProcessTransport(federated_clients(Scaffold(), tmp_path, CLIENT))
    server = federated_server(Scaffold(), CLIENT, rule=1.0)
    server.round(transport)
    (tmp_path / "clinic-02" / "round-00000000.safetensors").unlink()
    with pytest.raises(InputError, match=r"client record .*clinic-02/round-00000000.safetensors cannot be read"):
        server.round(transport)


@pytest.mark.parametrize(
    ("change", "line"),
    [({"digest": "another"}, "the order is for study another, this is study study"),
     ({"number": 3}, "the order is for client 3, this is client 0")],
)  # fmt: skip
def test_a_client_refuses_requests_that_are_not_for_it(tmp_path: Path, change: dict[str, object], line: str) -> None:
    sent = {}

    class Recording:
        def exchange(self, requests, deadline):
            sent.update(requests)
            return iter(())

    with pytest.raises(RoundFailedError):
        federated_server(FedAvg(), CLIENT, rule=1.0).round(Recording())
    request, client = sent["clinic-00"], federated_clients(FedAvg(), tmp_path, CLIENT)["clinic-00"]
    with pytest.raises(RefusedError, match=line):
        client.train(replace(request, **change))
    with pytest.raises(RefusedError, match="w: bytes is 4, expected 292"):
        client.train(replace(request, down={"w": replace(request.down["w"], data=b"1234")}))
    assert client.train(request).samples == 5
