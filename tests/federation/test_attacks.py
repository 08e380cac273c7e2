"""One client in ten that sends what it likes: refused by name, and the rest go on as if it were silent."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import ChangedWarning, InputError
from fedflat.core.method import Method
from fedflat.core.records import Record, Vector, gradient_scale
from fedflat.federation.client import FederatedClient
from fedflat.federation.codec import RefusedError
from fedflat.federation.membership import Membership
from fedflat.federation.norm_bounds import NormBounds
from fedflat.federation.server import FederatedServer, RoundTerms
from fedflat.methods import find
from fedflat.rounds import checkpoint
from fedflat.rounds.participation import participation
from support.attacks import LIAR, Attack, Crowd, every_number, times
from support.transports import InProcess, coordinator, participants

METHODS = ("FedAvg", "Scaffold", "FedSMOO", "FedCM", "MoFedSAM", "FedWMSAM")
ROUNDS = 8
ATTACKS = {"at once": every_number(1e30), "later": every_number(1e30, of=2), "inflated": times(1e5)}


class Silent(Crowd):
    """The liar trains and says nothing, from a round on."""

    def __init__(self, method: Method, folder: Path, of: int) -> None:
        super().__init__(method, folder)
        self.of = of

    def exchange(self, orders, deadline):
        for name, answer in super().exchange(orders, deadline):
            if name != LIAR or orders[name].t < self.of:
                yield name, answer


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_huge_numbers_are_refused_and_the_rest_train_on(name: str, attack: Attack, tmp_path: Path) -> None:
    """The bits are those of a federation whose liar is silent instead; its accuracy is one of training."""
    crowd = Crowd(find(name)(), tmp_path / "lying", attack)
    accuracy = crowd.run(ROUNDS)
    begin = 2 if attack is ATTACKS["later"] else 0
    assert [list(missing) for missing in crowd.missing] == [[]] * begin + [[LIAR]] * (ROUNDS - begin)
    assert all(
        "norm is" in missing[LIAR] and "norm-multiple = 100" in missing[LIAR] for missing in crowd.missing[begin:]
    )
    quiet = Silent(find(name)(), tmp_path / "silent", begin)
    assert quiet.run(ROUNDS) == accuracy > 0.2, "chance is 0.1"
    for field, x in quiet.server.server.tensors().items():
        assert torch.equal(getattr(crowd.server.server, field), x), field


def test_without_the_bound_one_message_ends_the_federation(tmp_path: Path) -> None:
    """So the tests above would fail without it."""
    crowd = Crowd(find("FedAvg")(), tmp_path, ATTACKS["at once"], norm_multiple=inf)
    with pytest.raises(ff.NonFiniteError):
        crowd.run(3)


def test_a_client_cannot_raise_the_bound_by_sending_as_much_as_it_may(tmp_path: Path) -> None:
    """It counts each time, and moves the model; but what is allowed follows the others."""
    crowd = Crowd(find("FedAvg")(), tmp_path, norm_multiple=3.0)
    sent = []

    def greedy(order, answer):
        norms = crowd.server._norms
        largest = 2.9 * max(norms.start, norms.seen.get("delta", 0.0))
        sent.append(largest)
        delta = np.zeros(answer.up["delta"].shape, "<f4")
        delta[0] = largest
        return replace(answer, up={"delta": replace(answer.up["delta"], data=delta.tobytes())})

    crowd.attack = greedy
    crowd.run(8)
    assert not any(crowd.missing), "it is careful"
    assert max(sent) < 10 * sent[0] < 2.9**7 * sent[0]


def test_honest_clients_are_never_refused(method: Method, tmp_path: Path) -> None:
    """Twelve rounds of three in six, from one step a round to many, of every method."""
    for name, settings in {"few": {"steps": 1}, "many": {"epochs": 10, "batch_size": 1}}.items():
        client = ff.Client(lr=0.05, lr_decay=0.9, **settings)
        server = coordinator(method, client)
        carrier = InProcess(participants(method, tmp_path / name, client))
        assert [dict(server.round(carrier).missing) for _ in range(12)] == [{}] * 12


def test_large_gradients_with_a_small_step_are_honest(method: Method, tmp_path: Path) -> None:
    """Samples as they were measured, in the thousands: gradients are, and moves of the model are not."""
    rng, client = np.random.default_rng(0), ff.Client(lr=1e-6, steps=3, batch_size=None)
    samples = [(rng.normal(0, 5000, (8, 6)).astype("float32"), rng.integers(3, size=8)) for _ in range(3)]
    data = ff.FederatedData.from_clients(samples, classes=3)
    torch.manual_seed(0)
    module, names = torch.nn.Linear(6, 3), ["a", "b", "c"]
    server = FederatedServer(
        method, module, client, Membership(dict.fromkeys(names, 8), "here"), participation(1.0), "uniform", 0, "study",
        (6,),
    )  # fmt: skip
    carrier = InProcess({
        name: FederatedClient(method, module, data.alone(i), client, 0, tmp_path / name, "study")
        for i, name in enumerate(names)
    })  # fmt: skip
    assert [dict(server.round(carrier).missing) for _ in range(4)] == [{}] * 4


def test_the_bound_is_part_of_the_checkpoint(tmp_path: Path) -> None:
    """One that has gone on decides as one that was never stopped; an older checkpoint begins to look anew."""
    crowd = Crowd(find("Scaffold")(), tmp_path / "clients")
    crowd.run(2)
    file = tmp_path / "round.safetensors"
    crowd.server.save(file)
    again = Crowd(find("Scaffold")(), tmp_path / "clients").server
    again.load(file)
    assert again._norms == crowd.server._norms
    assert again._norms.seen.keys() == {"delta", "dc"}
    tensors, meta = checkpoint.load(file)
    of_old = {key: meta[key] for key in ("t", "history", "counted", "settings")}
    checkpoint.save(file, tensors, of_old)
    with pytest.warns(ChangedWarning, match="it is of format 1"):
        again.load(file)
    assert (again.t, dict(again._norms.seen)) == (2, {})


class Two(Record):
    a: Vector
    b: Vector = gradient_scale()


def two(a: float, b: float) -> Two:
    return Two(torch.full((1, 4), a / 2), torch.full((1, 4), b / 2))


def test_the_bound_by_hand() -> None:
    """Of parameters 10 x 3, then 10 x 5; of gradients 10 x 3 / 0.5, whatever was seen of them below that."""
    norms = NormBounds(10.0, 3.0)
    assert norms.of(two(29.9, 59.9), lr_sum=0.5) == pytest.approx({"a": 29.9, "b": 59.9})
    with pytest.raises(RefusedError, match=r"a: norm is 30.2, at most 30 is allowed, norm-multiple = 10 times"):
        norms.of(two(30.2, 0), lr_sum=0.5)
    with pytest.raises(RefusedError, match=r"b: norm is 60.2, at most 60"):
        norms.of(two(0, 60.2), lr_sum=0.5)
    after = norms.after([{"a": x, "b": 2.0} for x in (1.0, 900.0, 5.0)])
    assert after.seen == {"a": 5.0, "b": 2.0}, "the lower median"
    assert norms.after([{"a": 1.0}, {"a": 900.0}]).seen == {"a": 1.0}, "more than half of two are both"
    assert after.after([{"a": 4.0, "b": 3.0}]).seen == {"a": 5.0, "b": 3.0}, "the largest of all rounds"
    assert after.of(two(49.9, 59.9), lr_sum=0.5)
    with pytest.raises(RefusedError, match=r"a: norm is 50.2, at most 50"):
        after.of(two(50.2, 0), lr_sum=0.5)


@pytest.mark.parametrize("number", [nan, inf, 1e200])
def test_what_the_server_makes_of_a_message_is_bounded_too(number: float) -> None:
    """A small message over a smaller step may not be finite any more; squares of large numbers are not."""
    huge = Two(torch.zeros(1, 4, dtype=torch.float64), torch.full((1, 4), number, dtype=torch.float64))
    with pytest.raises(RefusedError, match="b: norm is"):
        NormBounds(100.0, 1.0).of(huge, lr_sum=1.0)


@pytest.mark.parametrize("multiple", [0.0, 0.5, -1.0, nan])
def test_bounds_that_would_refuse_everybody(multiple: float) -> None:
    with pytest.raises(InputError, match="norm-multiple must be at least 1"):
        RoundTerms(norm_multiple=multiple)
