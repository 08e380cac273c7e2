"""A client trains only for requests that are meant for it, and reports if its state is missing."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.federation.messages import RefusedError
from fedflat.federation.secure_sum.messages import KeysRequest
from fedflat.federation.server import RoundFailedError
from fedflat.methods import find
from fedflat.rounds.aggregation import Weights
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
    ("weights", "guard", "possible", "impossible"),
    [
        ("uniform", None, [1.0], [0.0, 1e-200, 0.5, 2.0, 5.0, -1.0, nan, inf]),
        ("uniform", ff.Guard(max_weight=2.0), [1.0], [1e-200, 2.0]),
        ("samples", None, [5.0], [0.0, 1e-200, 1.0, 4.0, 6.0, nan, inf]),
        ("samples", ff.Guard(bound=1.0), [5.0], [1e-200, 1.0, 6.0]),
        ("samples", ff.Guard(max_weight=2.0), [1.0, 3.0, 5.0], [0.0, 1e-200, 0.5, 6.0, nan]),
    ],
)
def test_a_client_takes_part_in_a_sum_with_no_weight_but_its_own(
    weights: Weights, guard: ff.Guard | None, possible: list[float], impossible: list[float], tmp_path: Path
) -> None:
    """If all others' weights were next to nothing, the sum would be its record. It has five samples."""
    client = federated_clients(FedAvg(), tmp_path, CLIENT)["clinic-00"]
    trained = []
    client.train = lambda request: trained.append(request.weight) or _raise(RefusedError("trained"))
    request = KeysRequest(0, -1, (), 0, 1.0, 6, "f" * 16, "study", session="session", weight=1.0)
    for weight in possible:
        with pytest.raises(RefusedError, match="trained"):
            client.summand(replace(request, weight=weight), guard, weights)
    for weight in impossible:
        with pytest.raises(RefusedError, match=f"the weight is {weight}, which is not that of 5 samples, weights = "):
            client.summand(replace(request, weight=weight), guard, weights)
    assert trained == possible


def _raise(error: Exception) -> None:
    raise error


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
