"""One malicious client in ten: its updates are rejected by their norm, and the others train as if it were silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.core.objective import Objective
from fedflat.core.records import Record, Vector, gradient_scale
from fedflat.federation.client import FederatedClient
from fedflat.federation.membership import Membership
from fedflat.federation.messages import RefusedError
from fedflat.federation.server import FederatedServer, RoundTerms
from fedflat.federation.update_aggregator import checked_norms
from fedflat.methods import find
from fedflat.rounds.guard import GuardState
from fedflat.rounds.run_plan import RunPlan
from support.attacks import ATTACKER, AttackedFederation, every_number, scaled
from support.effort import chosen, effort
from support.transports import InProcessTransport, federated_clients, federated_server, knowing

METHODS = ("FedAvg", "Scaffold", "FedSMOO", "FedCM", "MoFedSAM", "FedWMSAM")
ROUNDS = 6
# Updates alone; with the clients' control variates; a dual and a second field; a momentum, as the other two have.
USUAL = {"FedAvg": "at once", "Scaffold": "later", "FedSMOO": "inflated", "FedCM": "at once"}
ATTACKS = {"at once": every_number(1e30), "later": every_number(1e30, from_round=2), "inflated": scaled(1e5)}


class Silent(AttackedFederation):
    """The first client trains but does not reply, from a round on."""

    def __init__(self, method: Method, folder: Path, from_round: int) -> None:
        super().__init__(method, folder)
        self.from_round = from_round

    def exchange(self, requests, deadline):
        for name, reply in super().exchange(requests, deadline):
            if name != ATTACKER or requests[name].t < self.from_round:
                yield name, reply


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], tuple[AttackedFederation, float]]:
    """Federations whose first client is silent from a round on, after their rounds, and their accuracies."""

    @cache
    def run(method: str, from_round: int) -> tuple[AttackedFederation, float]:
        federation = Silent(find(method)(), tmp_path_factory.mktemp("silent"), from_round)
        return federation, federation.run(ROUNDS)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), chosen(list(USUAL.items()), list(product(METHODS, ATTACKS))))
def test_huge_numbers_are_refused_and_the_rest_train_on(name: str, kind: str, silent, tmp_path: Path) -> None:
    """The model has the bits of a federation whose first client does not reply instead, and it has learned."""
    attacked = AttackedFederation(find(name)(), tmp_path, ATTACKS[kind])
    accuracy = attacked.run(ROUNDS)
    begin = 2 if kind == "later" else 0
    assert [list(missing) for missing in attacked.missing] == [[]] * begin + [[ATTACKER]] * (ROUNDS - begin)
    assert all(
        "norm is" in missing[ATTACKER] and "norm-multiple = 100" in missing[ATTACKER]
        for missing in attacked.missing[begin:]
    )
    other, expected = silent(name, begin)
    assert expected == accuracy > 0.2, "chance is 0.1"
    for field, x in other.server.state.tensors().items():
        assert torch.equal(getattr(attacked.server.state, field), x), field


def test_without_the_bound_one_message_ends_the_federation(tmp_path: Path) -> None:
    """This shows that the test above needs it."""
    attacked = AttackedFederation(find("FedAvg")(), tmp_path, ATTACKS["at once"], norm_multiple=inf)
    with pytest.raises(ff.NonFiniteError):
        attacked.run(3)


@pytest.mark.slow
def test_a_client_cannot_raise_the_bound_by_sending_as_much_as_it_may(tmp_path: Path) -> None:
    """Its updates are accepted and move the model; but the bound follows the norms of the majority."""
    attacked = AttackedFederation(find("FedAvg")(), tmp_path, norm_multiple=3.0)
    sent = []

    def greedy(request, reply):
        bounds = attacked.server.guard
        largest = 2.9 * max(bounds.start, bounds.field_norms.get("delta", 0.0))
        sent.append(largest)
        delta = np.zeros(reply.up["delta"].shape, "<f4")
        delta[0] = largest
        return replace(reply, up={"delta": replace(reply.up["delta"], data=delta.tobytes())})

    attacked.attack = greedy
    attacked.run(8)
    assert not any(attacked.missing), "no update is above its bound"
    assert max(sent) < 10 * sent[0] < 2.9**7 * sent[0]


@pytest.mark.slow
def test_honest_clients_are_never_refused(covering_method: Method, tmp_path: Path) -> None:
    """Rounds of three in six, from one step a round to many."""
    method, rounds = covering_method, effort(4, 12)
    for name, settings in {"few": {"steps": 1}, "many": {"epochs": effort(4, 10), "batch_size": 1}}.items():
        client = ff.Client(lr=0.05, lr_decay=0.9, **settings)
        server = federated_server(method, client)
        transport = InProcessTransport(federated_clients(method, tmp_path / name, client))
        assert [dict(server.round(transport).missing) for _ in range(rounds)] == [{}] * rounds


def test_large_gradients_with_a_small_step_are_honest(covering_method: Method, tmp_path: Path) -> None:
    """Samples that are not scaled, in the thousands: gradients are that large, and updates of the model are not."""
    rng, client = np.random.default_rng(0), ff.Client(lr=1e-6, steps=3, batch_size=None)
    samples = [(rng.normal(0, 5000, (8, 6)).astype("float32"), rng.integers(3, size=8)) for _ in range(3)]
    data = ff.FederatedData.from_clients(samples, classes=3)
    torch.manual_seed(0)
    module, names, plan = torch.nn.Linear(6, 3), ["a", "b", "c"], RunPlan(client, rounds=4)
    method = knowing(covering_method, module)
    server = FederatedServer(
        method, Objective(module), plan, Membership(dict.fromkeys(names, 8), "here"), "uniform", "study", (6,)
    )  # fmt: skip
    transport = InProcessTransport({
        name: FederatedClient(method, Objective(module), data.alone(i), plan, tmp_path / name, "study")
        for i, name in enumerate(names)
    })  # fmt: skip
    assert [dict(server.round(transport).missing) for _ in range(4)] == [{}] * 4


def test_the_bound_is_part_of_the_checkpoint(tmp_path: Path) -> None:
    """A server that is resumed has the same bounds."""
    attacked = AttackedFederation(find("Scaffold")(), tmp_path / "clients")
    attacked.run(2)
    file = tmp_path / "round.safetensors"
    attacked.server.save(file)
    again = AttackedFederation(find("Scaffold")(), tmp_path / "clients").server
    again.load(file)
    assert again.guard == attacked.server.guard
    assert again.guard.field_norms.keys() == {"delta", "dc"}


class Fields(Record):
    a: Vector
    b: Vector = gradient_scale()


def fields(a: float, b: float) -> Fields:
    return Fields(torch.full((1, 4), a / 2), torch.full((1, 4), b / 2))


def test_the_bound_by_hand() -> None:
    """For parameters 10 x 3, then 10 x 5; for gradients 10 x 3 / 0.5, as long as smaller ones were seen."""
    bounds = GuardState(None, 3.0, field_multiple=10.0)
    assert checked_norms(bounds, fields(29.9, 59.9), lr_sum=0.5) == pytest.approx({"a": 29.9, "b": 59.9})
    with pytest.raises(RefusedError, match=r"a: norm is 30.2, at most 30 is allowed, norm-multiple = 10 times"):
        checked_norms(bounds, fields(30.2, 0), lr_sum=0.5)
    with pytest.raises(RefusedError, match=r"b: norm is 60.2, at most 60"):
        checked_norms(bounds, fields(0, 60.2), lr_sum=0.5)
    after = bounds.updated([], [{"a": x, "b": 2.0} for x in (1.0, 900.0, 5.0)])
    assert after.field_norms == {"a": 5.0, "b": 2.0}, "the lower median"
    assert bounds.updated([], [{"a": 1.0}, {"a": 900.0}]).field_norms == {"a": 1.0}, "more than half of two are both"
    assert after.updated([], [{"a": 4.0, "b": 3.0}]).field_norms == {"a": 5.0, "b": 3.0}, "the largest of all rounds"
    assert checked_norms(after, fields(49.9, 59.9), lr_sum=0.5)
    with pytest.raises(RefusedError, match=r"a: norm is 50.2, at most 50"):
        checked_norms(after, fields(50.2, 0), lr_sum=0.5)


@pytest.mark.parametrize("number", [nan, inf, 1e200])
def test_the_bound_is_on_what_the_server_receives(number: float) -> None:
    """A small message divided by a smaller step may be infinite; the square of a large number is."""
    huge = Fields(torch.zeros(1, 4, dtype=torch.float64), torch.full((1, 4), number, dtype=torch.float64))
    with pytest.raises(RefusedError, match="b: norm is"):
        checked_norms(GuardState(None, 1.0, field_multiple=100.0), huge, lr_sum=1.0)


@pytest.mark.parametrize("multiple", [0.0, 0.5, -1.0, nan])
def test_bounds_that_would_refuse_everybody(multiple: float) -> None:
    with pytest.raises(InputError, match="norm-multiple must be at least 1"):
        RoundTerms(norm_multiple=multiple)
