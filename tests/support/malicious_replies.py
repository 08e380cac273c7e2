"""Answers that lie: each of them must be refused."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedflat.federation.messages import TrainReply

Mutation = Callable[[random.Random, TrainReply], TrainReply]


def first(answer: TrainReply, **changes: Any) -> TrainReply:
    """The first vector of an answer changed."""
    name = next(iter(answer.up))
    return replace(answer, up={**answer.up, name: replace(answer.up[name], **changes)})


def one_number(value: float) -> Mutation:
    def mutate(rng: random.Random, answer: TrainReply) -> TrainReply:
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
