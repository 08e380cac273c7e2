"""A federation of participants with their own data: the simulator's bits, and a model that only good answers move."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedflat as ff
from fedflat.core.errors import ChangedWarning, InputError
from fedflat.core.method import Method
from fedflat.federation.codec import RefusedError, pack
from fedflat.federation.membership import Membership
from fedflat.federation.messages import Failure, TrainReply
from fedflat.federation.server import FederatedServer, RoundFailedError, RoundTerms
from fedflat.methods import find
from fedflat.rounds import segments
from fedflat.rounds.participation import Share
from support.federation import federation, simulation, tanh_network
from support.transports import InProcess, coordinator, names, participants

CLIENT = ff.Client(lr=0.1, lr_decay=0.95, epochs=3, batch_size=4, momentum=0.5, weight_decay=0.01, max_norm=5.0)
Scaffold, FedAvg, FedSMOO = map(find, ("Scaffold", "FedAvg", "FedSMOO"))


def simulated(method: Method, rounds: int, **changes) -> ff.Simulation:
    settings = {"model": tanh_network().float(), "executor": "sequential", "rounds": rounds, "data": federation()}
    sim = ff.Simulation(method=method, client=CLIENT, participation=3, dtype=torch.float32, **settings | changes)
    list(sim)
    return sim


def assert_same(server: FederatedServer, sim: ff.Simulation) -> None:
    for name, x in sim.server.tensors().items():
        assert torch.equal(getattr(server.server, name), x), name


def test_every_method_ends_with_the_bits_of_the_simulator(method: Method, tmp_path: Path) -> None:
    """Five rounds of three in six uneven clients, answers in any order, records in files."""
    server, carrier = coordinator(method, CLIENT), InProcess(participants(method, tmp_path, CLIENT))
    reports = [server.round(carrier) for _ in range(5)]
    assert not any(report.missing for report in reports)
    sim = simulated(method, 5)
    assert_same(server, sim)
    for report, row in zip(reports, sim.history, strict=True):
        assert report.metrics["drift"] == pytest.approx(row["drift"], rel=1e-6)
        assert report.metrics["lr"] == row["lr"]
        assert report.metrics["gradients"] == row["gradients"]


def test_weights_by_samples(tmp_path: Path) -> None:
    server = coordinator(FedAvg(), CLIENT, weights="samples")
    carrier = InProcess(participants(FedAvg(), tmp_path, CLIENT))
    for _ in range(3):
        server.round(carrier)
    assert_same(server, simulated(FedAvg(), 3, weights="samples"))


def test_who_is_missing_does_not_count_and_is_named(tmp_path: Path) -> None:
    """The mean is that of those who answered: as if the cohort had been smaller, but for its share."""
    silent = names(federation())[simulated(FedAvg(), 1).cohort(0)[0]]
    carrier = InProcess(participants(FedAvg(), tmp_path, CLIENT), lambda name, a: None if name == silent else a)
    server = coordinator(FedAvg(), CLIENT)
    report = server.round(carrier)
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
    carrier = InProcess(participants(Scaffold(), tmp_path, CLIENT), lambda name, answer: Failure("out of memory"))
    server = coordinator(Scaffold(), CLIENT, terms=RoundTerms(quorum=0.5))
    before = server.w.clone()
    with pytest.raises(RoundFailedError, match=r"round 0: 0 of 3 clients have answered, 2 must \(clinic-\d\d: out"):
        server.round(carrier)
    assert server.t == 0
    assert torch.equal(server.w, before)


def test_the_server_goes_back_and_clients_go_with_it(tmp_path: Path) -> None:
    """Stopped after round 4 with only round 2 saved: clients have records of rounds that never were."""
    carrier = InProcess(participants(FedSMOO(), tmp_path / "clients", CLIENT))
    server = coordinator(FedSMOO(), CLIENT)
    for t in range(4):
        server.round(carrier)
        if t == 1:
            server.save(tmp_path / "round.safetensors")
    again = coordinator(FedSMOO(), CLIENT)
    again.load(tmp_path / "round.safetensors")
    assert again.t == 2
    restarted = InProcess(participants(FedSMOO(), tmp_path / "clients", CLIENT))
    for _ in range(4):
        again.round(restarted)
    assert_same(again, simulated(FedSMOO(), 6))
    assert max(len(list(folder.iterdir())) for folder in (tmp_path / "clients").iterdir()) <= 3, "two, were all saved"


def test_other_versions_at_the_server_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, carrier = coordinator(FedAvg(), CLIENT), InProcess(participants(FedAvg(), tmp_path, CLIENT))
    server.round(carrier)
    server.save(tmp_path / "state.safetensors")
    coordinator(FedAvg(), CLIENT).load(tmp_path / "state.safetensors")
    monkeypatch.setattr(segments, "versions", lambda names: dict.fromkeys(names, "9.9"))
    with pytest.warns(ChangedWarning, match=r"torch was .*, now it is 9\.9"):
        coordinator(FedAvg(), CLIENT).load(tmp_path / "state.safetensors")


@pytest.mark.parametrize("name", ["Scaffold", "FedDyn", "FedSMOO", "FedGMT"])
def test_training_that_does_not_count_leaves_no_trace(name: str, tmp_path: Path) -> None:
    """One client is late in two rounds: as if it had not been there, though it has trained."""

    class Deaf(InProcess):
        def exchange(self, orders, deadline):
            late = min(orders) if next(iter(orders.values())).t in (1, 2) else None
            yield from super().exchange({n: x for n, x in orders.items() if n != late}, deadline)
            if late and self.trains:
                self.participants[late].train(orders[late])

    servers = []
    for trains in (True, False):
        carrier = Deaf(participants(find(name)(), tmp_path / str(trains), CLIENT))
        carrier.trains = trains
        servers.append(coordinator(find(name)(), CLIENT, rule=4))
        reports = []
        for t in range(7):
            reports.append(servers[-1].round(carrier))
            servers[-1].save(tmp_path / f"{t}.safetensors")
        assert [len(report.missing) for report in reports] == [0, 1, 1, 0, 0, 0, 0]
    for field, x in servers[0].server.tensors().items():
        assert torch.equal(getattr(servers[1].server, field), x), field
    kept = max(len(list(folder.iterdir())) for folder in (tmp_path / "True").iterdir())
    assert kept <= 4, "one for each state that the server can go back to, and the newest"


def test_a_client_whose_records_are_lost_says_so(tmp_path: Path) -> None:
    carrier = InProcess(participants(Scaffold(), tmp_path, CLIENT))
    server = coordinator(Scaffold(), CLIENT, rule=1.0)
    server.round(carrier)
    (tmp_path / "clinic-02" / "round-00000000.safetensors").unlink()
    with pytest.raises(InputError, match=r"client record .*clinic-02/round-00000000.safetensors cannot be read"):
        server.round(carrier)


def test_a_checkpoint_of_another_federation_is_refused(tmp_path: Path) -> None:
    server = coordinator(FedAvg(), CLIENT)
    server.save(tmp_path / "round.safetensors")
    other = FederatedServer(
        FedAvg(), tanh_network().float(), CLIENT, Membership({"a": 5}, "here"), Share(1.0), "uniform", 0,
        "study", (6,),
    )  # fmt: skip
    with pytest.raises(InputError, match="members was"):
        other.load(tmp_path / "round.safetensors")


@pytest.mark.parametrize(
    ("change", "line"),
    [({"digest": "another"}, "the order is for study another, this is study study"),
     ({"number": 3}, "the order is for client 3, this is client 0")],
)  # fmt: skip
def test_a_client_refuses_orders_that_are_not_for_it(tmp_path: Path, change: dict[str, object], line: str) -> None:
    server, found = coordinator(FedAvg(), CLIENT, rule=1.0), {}

    class Listening:
        def exchange(self, orders, deadline):
            found.update(orders)
            return iter(())

    with pytest.raises(RoundFailedError):
        server.round(Listening())
    mine = participants(FedAvg(), tmp_path, CLIENT)["clinic-00"]
    with pytest.raises(RefusedError, match=line):
        mine.train(replace(found["clinic-00"], **change))
    with pytest.raises(RefusedError, match="w: bytes is 4, expected 292"):
        mine.train(replace(found["clinic-00"], down={"w": replace(found["clinic-00"].down["w"], data=b"1234")}))
    assert mine.train(found["clinic-00"]).samples == 5


@pytest.mark.parametrize(
    ("arguments", "line"),
    [({"quorum": 0.0}, "quorum must be in"), ({"quorum": 1.5}, "quorum must be in"),
     ({"deadline": 0.0}, "deadline must be more than 0"), ({"deadline": float("nan")}, "deadline must be more than 0")],
)  # fmt: skip
def test_terms_that_make_no_sense(arguments: dict[str, float], line: str) -> None:
    with pytest.raises(InputError, match=line):
        RoundTerms(**arguments)


def test_what_nobody_asked_for_is_not_heard(tmp_path: Path) -> None:
    """Strangers, clients that were not sampled, and a second answer of the same client."""
    carrier = InProcess(participants(FedAvg(), tmp_path, CLIENT))

    class Noisy(InProcess):
        def exchange(self, orders, deadline):
            noise = TrainReply(0, 5, 6, 6, 1.0, pack(FedAvg.up(delta=torch.full((73,), 9.0))))
            yield "stranger", noise
            yield next(name for name in self.participants if name not in orders), noise
            for name, answer in super().exchange(orders, deadline):
                yield name, answer
                yield name, replace(noise, samples=answer.samples, steps=answer.steps)

    server, quiet = coordinator(FedAvg(), CLIENT), coordinator(FedAvg(), CLIENT)
    server.round(Noisy(carrier.participants))
    quiet.round(InProcess(participants(FedAvg(), tmp_path / "other", CLIENT)))
    assert torch.equal(server.w, quiet.w)


def test_the_clients_of_these_rounds_are_uneven() -> None:
    """Equal bits would mean little if all clients took the same number of steps."""
    sim = simulation(Scaffold())
    assert len({float(x) for x in sim.executor.batches.steps(sim.cohort(0))}) > 1
