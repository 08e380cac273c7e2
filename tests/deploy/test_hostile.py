"""Hostile and broken answers: each is refused by name, and leaves the model and the memory as they are."""

from __future__ import annotations

import io
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.records import Record, Vector
from fedflat.deploy.coordinator import RoundFailedError, Terms
from fedflat.deploy.messages import Answer
from fedflat.deploy.wire import Packed, RefusedError, pack, unpack
from fedflat.methods import find
from support.carriers import InProcess, coordinator, participants

CLIENT = ff.Client(lr=0.1, epochs=1, batch_size=4)
FedSMOO = find("FedSMOO")
Mutation = Callable[[random.Random, Answer], Answer]


def first(answer: Answer, **changes: Any) -> Answer:
    """The first vector of an answer changed."""
    name = next(iter(answer.up))
    return replace(answer, up={**answer.up, name: replace(answer.up[name], **changes)})


def one_number(value: float) -> Mutation:
    def mutate(rng: random.Random, answer: Answer) -> Answer:
        name = rng.choice(sorted(answer.up))
        numbers = np.frombuffer(answer.up[name].data, "<f4").copy()
        numbers[rng.randrange(len(numbers))] = value
        return replace(answer, up={**answer.up, name: replace(answer.up[name], data=numbers.tobytes())})

    return mutate


def bomb() -> bytes:
    """A small archive of a very large file of zeros, as numpy would read it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("arr_0.npy", bytes(10**7))
    return file.getvalue()


def header(rng: random.Random) -> bytes:
    """A file of numpy's that claims 10**13 numbers, and has none."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": rng.choice(["<f4", "|O"]), "fortran_order": False, "shape": (10**13,)}
    )
    return file.getvalue()


MUTATIONS: dict[str, Mutation] = {
    "NaN": one_number(np.nan),
    "infinity": one_number(np.inf),
    "minus infinity": one_number(-np.inf),
    "shape": lambda rng, a: first(a, shape=tuple(rng.randrange(-3, 73) for _ in range(rng.randrange(4)))),
    "bytes": lambda rng, a: first(a, data=rng.randbytes(rng.randrange(291))),
    "too many bytes": lambda rng, a: first(a, data=rng.randbytes(293 + rng.randrange(2000))),
    "kind": lambda rng, a: first(a, kind=rng.choice(["<f8", "<f2", ">f4", "|O", "float32", "", "<f4 ", "V4"])),
    "double": lambda rng, a: first(a, kind="<f8", data=np.zeros(73).tobytes()),
    "missing": lambda rng, a: replace(a, up={}),
    "one missing": lambda rng, a: replace(a, up=dict(list(a.up.items())[1:])),
    "one more": lambda rng, a: replace(a, up={**a.up, f"x{rng.random()}": next(iter(a.up.values()))}),
    "renamed": lambda rng, a: replace(a, up={f"{name} ": x for name, x in a.up.items()}),
    "samples": lambda rng, a: replace(a, samples=rng.choice([-1, 0, 10**9, True, 5.0, float("nan"), "5", None])),
    "steps": lambda rng, a: replace(a, steps=rng.choice([-1, 0, 10**9, float("inf"), "1", None])),
    "round": lambda rng, a: replace(a, t=rng.choice([-1, 1, 7, None])),
    "drift": lambda rng, a: replace(a, drift=rng.choice([-1.0, float("nan"), float("inf"), "0", None])),
    "gradients": lambda rng, a: replace(a, gradients=rng.choice([-1, 2**60, 0.5, None])),
    "lying header": lambda rng, a: first(a, data=header(rng)),
    "archive bomb": lambda rng, a: first(a, data=bomb()),
    "long name": lambda rng, a: replace(a, up={"x" * 10**6: next(iter(a.up.values()))}),
}


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
        server = coordinator(FedSMOO(), CLIENT, rule=1.0, terms=Terms(quorum=0.1))
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

    def __init__(self, answers: dict[str, Answer]) -> None:
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

    def huge(name: str, answer: Answer) -> Answer:
        return first(answer, data=np.full(73, 3e38, "<f4").tobytes())

    server = coordinator(find("FedAvg")(server_lr=10.0), CLIENT)
    before = server.w.clone()
    with pytest.raises(RoundFailedError, match="the server's w became NaN or infinite; the model is unchanged"):
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
