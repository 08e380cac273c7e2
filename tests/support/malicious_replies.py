"""Changes that turn an honest reply into one that must be rejected."""

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


def change_vector(reply: TrainReply, **changes: Any) -> TrainReply:
    """Change the first vector of a reply."""
    name = next(iter(reply.up))
    return replace(reply, up={**reply.up, name: replace(reply.up[name], **changes)})


def one_number(value: float) -> Mutation:
    """Replace one number of one vector."""

    def mutate(rng: random.Random, reply: TrainReply) -> TrainReply:
        name = rng.choice(sorted(reply.up))
        numbers = np.frombuffer(reply.up[name].data, "<f4").copy()
        numbers[rng.randrange(len(numbers))] = value
        return replace(reply, up={**reply.up, name: replace(reply.up[name], data=numbers.tobytes())})

    return mutate


def archive_bomb() -> bytes:
    """A small archive that numpy would expand to a very large array of zeros."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("arr_0.npy", bytes(10**7))
    return file.getvalue()


def lying_header(rng: random.Random) -> bytes:
    """A file in numpy's format whose header claims 10**13 numbers, without any number."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": rng.choice(["<f4", "|O"]), "fortran_order": False, "shape": (10**13,)}
    )
    return file.getvalue()


MUTATIONS: dict[str, Mutation] = {
    "NaN": one_number(np.nan),
    "infinity": one_number(np.inf),
    "minus infinity": one_number(-np.inf),
    "shape": lambda rng, a: change_vector(a, shape=tuple(rng.randrange(-3, 73) for _ in range(rng.randrange(4)))),
    "bytes": lambda rng, a: change_vector(a, data=rng.randbytes(rng.randrange(291))),
    "too many bytes": lambda rng, a: change_vector(a, data=rng.randbytes(293 + rng.randrange(2000))),
    "dtype": lambda rng, a: change_vector(
        a, dtype=rng.choice(["<f8", "<f2", ">f4", "|O", "float32", "", "<f4 ", "V4"])
    ),
    "double": lambda rng, a: change_vector(a, dtype="<f8", data=np.zeros(73).tobytes()),
    "missing": lambda rng, a: replace(a, up={}),
    "one missing": lambda rng, a: replace(a, up=dict(list(a.up.items())[1:])),
    "one more": lambda rng, a: replace(a, up={**a.up, f"x{rng.random()}": next(iter(a.up.values()))}),
    "renamed": lambda rng, a: replace(a, up={f"{name} ": x for name, x in a.up.items()}),
    "samples": lambda rng, a: replace(a, samples=rng.choice([-1, 0, 10**9, True, 5.0, float("nan"), "5", None])),
    "steps": lambda rng, a: replace(a, steps=rng.choice([-1, 0, 10**9, float("inf"), "1", None])),
    "round": lambda rng, a: replace(a, t=rng.choice([-1, 1, 7, None])),
    "drift": lambda rng, a: replace(a, drift=rng.choice([-1.0, float("nan"), float("inf"), "0", None])),
    "gradients": lambda rng, a: replace(a, gradients=rng.choice([-1, 2**60, 0.5, None])),
    "lying header": lambda rng, a: change_vector(a, data=lying_header(rng)),
    "archive bomb": lambda rng, a: change_vector(a, data=archive_bomb()),
    "long name": lambda rng, a: replace(a, up={"x" * 10**6: next(iter(a.up.values()))}),
}
