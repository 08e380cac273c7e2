"""The mean of a private round, from bounded records and noise, and the secret random numbers of a round."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import replace
from math import floor, log2
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.local import lr_factors_of
from ..core.method import Context, Method
from ..core.records import Record, record_norm, shortened_to
from ..core.user_code import check_record
from ..data.types import Index
from .aggregation import RunningMean

FINENESS = 20  # bits by which the unit of the grid is below the standard deviation of the noise
SLACK = 2.0**-20  # share by which records stay below the bound; more than all rounding errors


class PrivateMean(RunningMean):
    """Bounds every record, sums them on a grid, and returns the noised sum over the expected number of clients.

    The norm of a record is taken over all fields, in the unit of parameters: a field with the scale of gradients is
    multiplied by the sum of the step sizes. Records are clipped to a norm of at most `clip`. Coordinates are then
    rounded towards zero to a grid that depends on the settings alone. So a client changes the sum by at most `clip`,
    exactly. The noise is rounded to the same grid, so that the released sum is the ideal noised sum, rounded: its last
    bits reveal nothing more.

    If the server computes a part of each message by itself, this part is subtracted from every record before it is
    clipped, and added once to the mean; a client that does not take part then counts as one that sends this part.
    """

    def __init__(
        self, method: Method, like: Tensor, ctx: Context, steps: int, clip: float, noise_multiplier: float,
        expected: float, noise_key: Callable[[bytes], bytes], down: Any = None,
    ) -> None:  # fmt: skip
        """Start with zero. steps: the local steps of a client. expected: the expected number of clients, the divisor.

        like: a vector (d,) that gives precision and device. noise_key: returns the key of the noise from the `digest`
        of the sums. Different sums must have different keys: in the difference of two sums with the same noise, the
        noise cancels. down: what clients receive, if the public part of their messages is subtracted.
        """
        super().__init__(method, like)
        self._clip, self._expected, self._noise_key = clip, expected, noise_key
        self._steps = like.new_full((1, 1), float(steps))
        self._factors = lr_factors_of(method, ctx, self._steps)
        self._lr_sum = self._factors * ctx.lr
        self._public = None if down is None else self._public_part(method, down, ctx)
        gradients = self._record.marked("gradient_scale")
        units = {name: float(self._lr_sum) if name in gradients else 1.0 for name in self._sums}
        self._deviations = {name: noise_multiplier * clip / unit for name, unit in units.items()}

    def add(self, received: Record, steps: Tensor, weights: Tensor, lr_factors: Tensor | None = None) -> None:
        """Add the bounded records of clients (c, width), all with equal weights."""
        super().add(self.bounded(received), steps, torch.ones_like(weights), lr_factors)

    def bounded(self, received: Record) -> Any:
        """Clip the records `received` (c, width) before they are added; a record that is not finite becomes zero."""
        if self._public is not None:
            received = received.map(lambda x, known: x - known, self._public)
        norm = record_norm(received, self._lr_sum.expand(len(next(iter(received.tensors().values()))), 1))
        shorter = shortened_to(received, norm, self._clip * (1 - SLACK))
        fields = {}
        for name, x in shorter.tensors().items():
            unit = self._grid_unit(name)
            fields[name] = torch.where(norm.isfinite(), torch.trunc(x / unit) * unit, 0.0).to(x.dtype)
        return self._record(**fields)

    def value(self) -> Any:
        """Return the noised sum divided by the expected number of clients; every call returns the same."""
        key, means = self._noise_key(self.digest()), {}
        for name, x in self._sums.items():
            total, unit = x.value(), self._grid_unit(name)
            deviates = normal_deviates(key, f"noise of {name}", len(total)) * self._deviations[name]
            # Multiples of the grid's unit in float64, so that nothing is rounded.
            noised = total + torch.from_numpy(np.rint(deviates / unit) * unit).to(total.device)
            means[name] = (noised / self._expected).to(self.like.dtype)
        mean = self._record(**means)
        return mean if self._public is None else mean.map(lambda x, known: x + known[0], self._public)

    def digest(self) -> bytes:
        """Return the SHA-256 of the exact sums and of the standard deviations of the noise.

        The sums, the standard deviations and the key of the noise determine `value`.
        """
        found = hashlib.sha256()
        for name, x in self._sums.items():
            total = x.value().cpu().numpy() + 0.0  # no zero has a sign
            found.update(f"{name} {self._deviations[name].hex()} {len(total)} ".encode() + total.tobytes())
        return found.digest()

    @property
    def steps(self) -> Tensor:
        """The local steps that every client takes, (1,)."""
        return self._steps[0]

    @property
    def lr_factors(self) -> Tensor:
        """The sum of the factors on the step size over these steps, (1,)."""
        return self._factors[0]

    def _public_part(self, method: Method, down: Any, ctx: Context) -> Any:
        """Return what the server makes of the public part of a client's message, (1, width)."""
        at_client = replace(ctx, steps=self._steps, lr_sum=self._lr_sum)
        public = method.public(down.map(lambda x: x[None]), at_client)
        return check_record(method, "receive", method.receive(public, at_client), method.mean)

    def _grid_unit(self, name: str) -> float:
        return 2.0 ** (floor(log2(self._deviations[name])) - FINENESS)


KEY_BYTES = 32


def system_key() -> bytes:
    """Draw a key from the operating system's generator."""
    return secrets.token_bytes(KEY_BYTES)


def seeded_key(seed: int, t: int) -> bytes:
    """Derive a key from the seed, which is not secret: for tests, not for a private run."""
    return hashlib.sha256(f"not private: seed {seed}, round {t}".encode()).digest()


def derived_key(key: bytes, purpose: bytes) -> bytes:
    """Derive a key for one purpose by HMAC-SHA256: it reveals neither `key` nor the keys for other purposes."""
    return hmac.digest(key, purpose, "sha256")


def words(key: bytes, purpose: str, number: int) -> NDArray[np.uint64]:
    """Generate words of 64 bits (number,), an independent stream for each purpose: SHAKE-256 of key and purpose."""
    return np.frombuffer(hashlib.shake_256(key + purpose.encode()).digest(8 * number), dtype="<u8")


def poisson_sample(key: bytes, rate: float, clients: int) -> Index:
    """Draw each of `clients` clients independently with probability `rate`; return a rising, possibly empty sample."""
    if rate == 1:
        return np.arange(clients)
    return np.flatnonzero(words(key, "cohort", clients) < np.uint64(int(rate * 2**64)))


def normal_deviates(key: bytes, purpose: str, number: int) -> NDArray[np.float64]:
    """Draw independent standard normal deviates (number,), by the method of Box and Muller in double precision.

    The radius has 64 random bits, so the largest deviate is 9.4.
    """
    half = -(-number // 2)
    uniform = (words(key, purpose, 2 * half) + 0.5) * 2.0**-64  # in (0, 1]
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:number]
