"""The server and its clients over an in-process transport: the simulator's bits, and only accepted replies matter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import ChangedWarning, InputError
from fedflat.core.method import Method
from fedflat.core.objective import Objective
from fedflat.federation.membership import Membership
from fedflat.federation.messages import Failure, TrainReply
from fedflat.federation.server import FederatedServer, RoundFailedError, RoundTerms
from fedflat.methods import find
from fedflat.rounds import segments
from fedflat.rounds.participation import Number, Unreliable, participation
from fedflat.rounds.run_plan import RunPlan
from support.effort import chosen
from support.federation import federation, simulation, tanh_network
from support.malicious_replies import change_vector
from support.transports import InProcessTransport, client_names, federated_clients, federated_server

CLIENT = ff.Client(lr=0.1, lr_decay=0.95, epochs=3, batch_size=4, momentum=0.5, weight_decay=0.01, max_norm=5.0)
Scaffold, FedAvg, FedSMOO = map(find, ("Scaffold", "FedAvg", "FedSMOO"))


def simulated(method: Method, rounds: int, **changes) -> ff.Simulation:
    settings = {"model": tanh_network().float(), "executor": "sequential", "rounds": rounds, "data": federation()}
    settings |= {"participation": 3} | changes
    sim = ff.Simulation(method=method, client=CLIENT, dtype=torch.float32, **settings)
    list(sim)
    return sim


def assert_same(server: FederatedServer, sim: ff.Simulation) -> None:
    for name, x in sim.server.tensors().items():
        assert torch.equal(getattr(server.state, name), x), name


@pytest.mark.slow
def test_every_method_ends_with_the_bits_of_the_simulator(covering_method: Method, tmp_path: Path) -> None:
    """Four rounds of three in six uneven clients, replies in any order, client state in files."""
    method = covering_method
    server = federated_server(method, CLIENT)
    transport = InProcessTransport(federated_clients(method, tmp_path, CLIENT))
    reports = [server.round(transport) for _ in range(5)]
    assert not any(report.missing for report in reports)
    sim = simulated(method, 5)
    assert_same(server, sim)
    for report, row in zip(reports, sim.history, strict=True):
        assert report.metrics["drift"] == pytest.approx(row["drift"], rel=1e-6)
        assert report.metrics["lr"] == row["lr"]
        assert report.metrics["gradients"] == row["gradients"]


def test_slow_and_silent_clients_are_those_of_the_simulator(tmp_path: Path) -> None:
    """The server expects the steps that its stragglers take, and refuses nobody."""
    rule = Unreliable(Number(4), dropouts=0.3, stragglers=0.7)
    server = federated_server(find("Scaffold")(), CLIENT, rule)
    transport = InProcessTransport(federated_clients(find("Scaffold")(), tmp_path, CLIENT, rule=rule))
    reports = [server.round(transport) for _ in range(4)]
    assert not any(report.missing for report in reports)
    assert_same(server, simulated(find("Scaffold")(), 4, participation=rule))


def test_weights_by_samples(tmp_path: Path) -> None:
    server = federated_server(FedAvg(), CLIENT, weights="samples")
    transport = InProcessTransport(federated_clients(FedAvg(), tmp_path, CLIENT))
    for _ in range(3):
        server.round(transport)
    assert_same(server, simulated(FedAvg(), 3, weights="samples"))


def test_a_missing_client_does_not_count_and_is_named(tmp_path: Path) -> None:
    """The mean is that of the other replies, as in a smaller cohort."""
    silent = client_names(federation())[simulated(FedAvg(), 1).cohort(0)[0]]
    transport = InProcessTransport(
        federated_clients(FedAvg(), tmp_path, CLIENT), lambda name, reply: None if name == silent else reply
    )
    server = federated_server(FedAvg(), CLIENT)
    report = server.round(transport)
    assert report.missing == {silent: "no answer before the deadline"}
    assert report.metrics["clients"] == 2
    others = [int(i) for i in simulated(FedAvg(), 1).cohort(0)[1:]]
    alone = ff.Simulation(
        model=tanh_network().float(), data=federation(), method=FedAvg(), client=CLIENT, participation=[others],
        executor="sequential", dtype=torch.float32,
    )  # fmt: skip
    alone.round()
    assert torch.equal(server.w, alone.w)


def test_below_the_quorum_nothing_changes(tmp_path: Path) -> None:
    transport = InProcessTransport(
        federated_clients(find("Scaffold")(), tmp_path, CLIENT), lambda name, reply: Failure("out of memory")
    )
    server = federated_server(Scaffold(), CLIENT, terms=RoundTerms(quorum=0.5))
    before = server.w.clone()
    with pytest.raises(RoundFailedError, match=r"round 0: 0 of 3 clients replied, 2 must \(clinic-\d\d: out"):
        server.round(transport)
    assert server.t == 0
    assert torch.equal(server.w, before)


@pytest.mark.slow
def test_the_server_goes_back_and_clients_go_with_it(tmp_path: Path) -> None:
    """Stopped after round 4 with only round 2 saved: clients have the state of rounds that the server does not know."""
    transport = InProcessTransport(federated_clients(FedSMOO(), tmp_path / "clients", CLIENT))
    server = federated_server(FedSMOO(), CLIENT)
    for t in range(4):
        server.round(transport)
        if t == 1:
            server.save(tmp_path / "round.safetensors")
    again = federated_server(FedSMOO(), CLIENT)
    again.load(tmp_path / "round.safetensors")
    assert again.t == 2
    restarted = InProcessTransport(federated_clients(FedSMOO(), tmp_path / "clients", CLIENT))
    for _ in range(4):
        again.round(restarted)
    assert_same(again, simulated(FedSMOO(), 6))
    assert max(len(list(folder.iterdir())) for folder in (tmp_path / "clients").iterdir()) <= 3, (
        "it would be two if each round was saved"
    )


def test_a_checkpoint_of_other_versions_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = federated_server(FedAvg(), CLIENT)
    transport = InProcessTransport(federated_clients(FedAvg(), tmp_path, CLIENT))
    server.round(transport)
    server.save(tmp_path / "state.safetensors")
    federated_server(FedAvg(), CLIENT).load(tmp_path / "state.safetensors")
    monkeypatch.setattr(segments, "versions", lambda names: dict.fromkeys(names, "9.9"))
    with pytest.warns(ChangedWarning, match=r"torch was .*, now it is 9\.9"):
        federated_server(FedAvg(), CLIENT).load(tmp_path / "state.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("name", chosen(["FedSMOO", "FedGMT"], ["Scaffold", "FedDyn", "FedSMOO", "FedGMT"]))
def test_training_that_does_not_count_leaves_no_trace(name: str, tmp_path: Path) -> None:
    """One client is late in two rounds: the results are the same whether it has trained or not."""

    class OneLate(InProcessTransport):
        def exchange(self, requests, deadline):
            late = min(requests) if next(iter(requests.values())).t in (1, 2) else None
            yield from super().exchange({n: x for n, x in requests.items() if n != late}, deadline)
            if late and self.trains:
                self.clients[late].train(requests[late])

    servers = []
    for trains in (True, False):
        transport = OneLate(federated_clients(find(name)(), tmp_path / str(trains), CLIENT))
        transport.trains = trains
        servers.append(federated_server(find(name)(), CLIENT, rule=4))
        reports = []
        for t in range(7):
            reports.append(servers[-1].round(transport))
            servers[-1].save(tmp_path / f"{t}.safetensors")
        assert [len(report.missing) for report in reports] == [0, 1, 1, 0, 0, 0, 0]
    for field, x in servers[0].state.tensors().items():
        assert torch.equal(getattr(servers[1].state, field), x), field
    kept = max(len(list(folder.iterdir())) for folder in (tmp_path / "True").iterdir())
    assert kept <= 4, "one for each checkpoint that the server can go back to, and the newest"


def test_a_checkpoint_of_another_federation_is_refused(tmp_path: Path) -> None:
    server = federated_server(FedAvg(), CLIENT)
    server.save(tmp_path / "round.safetensors")
    other = FederatedServer(
        FedAvg(), Objective(tanh_network().float()), RunPlan(CLIENT, participation(3)), Membership({"a": 5}, "here"),
        "uniform", "study", (6,),
    )  # fmt: skip
    with pytest.raises(InputError, match="members was"):
        other.load(tmp_path / "round.safetensors")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [({"quorum": 0.0}, "quorum must be more than 0 and at most 1, got 0.0"), ({"quorum": 1.5}, "at most 1, got 1.5"),
     ({"deadline": 0.0}, "deadline must be more than 0"), ({"deadline": float("nan")}, "deadline must be more than 0")],
)  # fmt: skip
def test_terms_that_make_no_sense(arguments: dict[str, float], line: str) -> None:
    with pytest.raises(InputError, match=line):
        RoundTerms(**arguments)


def test_the_clients_of_these_rounds_are_uneven() -> None:
    """Equal bits would mean little if all clients took the same number of steps."""
    sim = simulation(Scaffold())
    assert len({float(x) for x in sim.executor.batches.steps(0, sim.cohort(0))}) > 1


def test_numbers_that_overflow_when_they_are_used_leave_the_model(tmp_path: Path) -> None:
    """The numbers are finite, and the update computed from them is not: the round fails, and no client is rejected."""

    def huge(name: str, reply: TrainReply) -> TrainReply:
        return change_vector(reply, data=np.full(73, 3e38, "<f4").tobytes())

    server = federated_server(find("FedAvg")(server_lr=10.0), CLIENT, terms=RoundTerms(norm_multiple=float("inf")))
    before = server.w.clone()
    with pytest.raises(RoundFailedError, match="w became NaN or infinite in round 0; the model is unchanged"):
        server.round(InProcessTransport(federated_clients(find("FedAvg")(server_lr=10.0), tmp_path, CLIENT), huge))
    assert torch.equal(server.w, before)
