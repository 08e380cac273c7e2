"""Hostile and broken answers: each is refused by name, and leaves the model and the memory as they are."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.records import Record, Vector
from fedflat.federation.codec import Packed, RefusedError, pack, unpack
from fedflat.federation.messages import TrainReply
from fedflat.federation.server import RoundFailedError, RoundTerms
from fedflat.methods import find
from support.malicious_replies import MUTATIONS, first
from support.transports import InProcess, coordinator, participants

CLIENT = ff.Client(lr=0.1, epochs=1, batch_size=4)
FedSMOO = find("FedSMOO")


def test_two_thousand_mutated_answers(tmp_path: Path) -> None:
    """A round of six of which all but one lie: no lie is heard, by name, and the model is that of the honest one."""
    rng, count = random.Random(0), 0
    crowd = participants(FedSMOO(), tmp_path, CLIENT)
    honest = {}
    coordinator(FedSMOO(), CLIENT, rule=1.0).round(InProcess(crowd, honest.setdefault))
    liars = sorted(crowd)[1:]
    expected = None
    tracemalloc.start()
    while count < 2000:
        chosen = {name: rng.choice(sorted(MUTATIONS)) for name in liars}
        lies = {name: MUTATIONS[kind](rng, honest[name]) for name, kind in chosen.items()}
        server = coordinator(FedSMOO(), CLIENT, rule=1.0, terms=RoundTerms(quorum=0.1))
        report = server.round(Ready(honest | lies))
        assert set(report.missing) == set(liars), chosen
        assert all(0 < len(why) < 300 for why in report.missing.values()), "what was sent is not repeated at length"
        expected = server.w.clone() if expected is None else expected
        assert torch.equal(server.w, expected)
        count += len(lies)
    assert tracemalloc.get_traced_memory()[1] < 50 * 10**6
    tracemalloc.stop()


class Ready:
    """Answers that are there already."""

    def __init__(self, answers: dict[str, TrainReply]) -> None:
        self._answers = answers

    def exchange(self, orders, deadline):
        yield from self._answers.items()


@pytest.mark.parametrize("kind", sorted(MUTATIONS))
def test_every_kind_alone_fails_the_round_and_leaves_the_model(kind: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    crowd = participants(FedSMOO(), tmp_path, CLIENT)
    server = coordinator(FedSMOO(), CLIENT)
    before = {name: x.clone() for name, x in server.server.tensors().items()}
    with pytest.raises(RoundFailedError, match="0 of 3 clients have answered"):
        server.round(InProcess(crowd, lambda name, answer: MUTATIONS[kind](rng, answer)))
    assert all(torch.equal(getattr(server.server, name), x) for name, x in before.items())


def test_numbers_that_overflow_when_they_are_used_leave_the_model(tmp_path: Path) -> None:
    """Finite, but not what comes of them: nothing says which client it was, so the round counts for nobody."""

    def huge(name: str, answer: TrainReply) -> TrainReply:
        return first(answer, data=np.full(73, 3e38, "<f4").tobytes())

    server = coordinator(find("FedAvg")(server_lr=10.0), CLIENT, terms=RoundTerms(norm_multiple=float("inf")))
    before = server.w.clone()
    with pytest.raises(RoundFailedError, match="w became NaN or infinite in round 0; the model is unchanged"):
        server.round(InProcess(participants(find("FedAvg")(server_lr=10.0), tmp_path, CLIENT), huge))
    assert torch.equal(server.w, before)


class Pair(Record):
    a: Vector
    b: Vector


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_packed_is_unpacked_to_the_same_bits(dtype: torch.dtype) -> None:
    pair = Pair(a=torch.randn(5, dtype=dtype), b=torch.randn(7, dtype=dtype) * 1e-30)
    packed = pack(pair)
    again = unpack(Pair, {"a": 5, "b": 7}, dtype, packed)
    assert torch.equal(again.a, pair.a)
    assert torch.equal(again.b, pair.b)
    assert packed["a"] == Packed("<f4" if dtype == torch.float32 else "<f8", (5,), pair.a.numpy().tobytes())
    with pytest.raises(RefusedError, match=r"a: shape is \(5,\), expected \(6,\)"):
        unpack(Pair, {"a": 6, "b": 7}, dtype, packed)
