"""The server's part in a secure sum: it relays the messages between clients, and removes the masks from the sum."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...core.local import lr_factors_of
from ...core.method import Context, Method
from ...rounds.aggregation import RunningMean
from ...rounds.guard import GuardState, lower_median
from ..membership import RoundFailedError, first_reasons
from ..messages import Failure, PackedTensor, RefusedError, TrainRequest, Transport, quoted
from ..terms import SETTINGS
from ..update_aggregator import CLOSED, NO_REPLY, ExpectedReply
from .client import MASK, SELF, SHARE_BYTES, about_round
from .keys import (
    KEY_BYTES,
    SEAL_BYTES,
    WORD,
    Words,
    add_mask,
    agreed_key,
    derived,
    digest,
    new_secret,
    public_key,
    sign_of,
)
from .messages import (
    FIGURES,
    FIGURES_FIELD,
    Integers,
    KeysReply,
    KeysRequest,
    MaskReply,
    MaskRequest,
    SharesReply,
    SharesRequest,
    UnmaskReply,
    UnmaskRequest,
    figures_sum,
    separated,
    summand_layout,
    threshold,
)
from .secret_sharing import combined

STEPS = {KeysRequest: "training", SharesRequest: "sharing keys", MaskRequest: "masking", UnmaskRequest: "unmasking"}
# The largest drift that an honest client is assumed to have, as a multiple of the initial model's norm.
PLAUSIBLE: float = SETTINGS["norm_multiple"].default
ROUNDING = 1e-9  # relative rounding error of the sum of drifts
T = TypeVar("T")


@dataclass(frozen=True)
class MaskedSum:
    """The server's state of one attempt at a sum, before the masks are removed."""

    session: str
    keys: Mapping[str, KeysReply]  # of the participants, by name
    places: tuple[int, ...]  # the highest place of each sum, at which all participants cut their numbers
    senders: tuple[str, ...]  # the participants that have sent shares
    survivors: Mapping[str, Mapping[str, bytes]]  # senders whose masked sums are in `words`, and their confirmations
    words: Words


class SecureAggregator:
    """Aggregates like an `UpdateAggregator`, without seeing single records: it learns only sums over the survivors.

    The model has the same bits as without masks, because the sums are integers, and only the survivors determine the
    places of these integers. The sum of drifts is exact here, whereas an `UpdateAggregator` rounds it.
    """

    largest = "a client that the secure sum hides"  # in place of the sender of the largest number, for an error message

    def __init__(
        self, method: Method, like: Tensor, ctx: Context, expected: Mapping[str, ExpectedReply], guard: GuardState,
        share: float, needed: int, study: str,
    ) -> None:  # fmt: skip
        """Begin a round; the first five arguments are those of an `UpdateAggregator`.

        share: the fraction of clients that must help to unmask. needed: the number of replies that the quorum requires.
        study: the study's digest.
        """
        self._method, self._like, self._ctx, self._expected = method, like, ctx, expected
        self.next_guard, self._study = guard, study  # the server sees no norms, so the bounds do not change
        self._threshold = threshold(share, len(expected))
        self._needed = max(self._threshold, needed)
        # The largest drift of an honest client, which limits its drift to the guard's bound.
        self._longest = guard.bound if isfinite(guard.bound) else PLAUSIBLE * guard.start
        self._layout = summand_layout(method, like)
        self._shapes = {name: (grid.places, width) for name, (grid, width) in self._layout.items()}
        self.mean = RunningMean(method, like)
        self._figures = figures_sum()
        self.accepted: list[str] = []  # the clients that are in the mean, sorted
        self.missing: dict[str, str] = {}  # the clients that are not in the mean, with the reason
        self._numbers = set[int]()  # of the clients that were asked

    def collect(
        self, transport: Transport, requests: Mapping[str, TrainRequest], deadline: float, enough: int | None = None
    ) -> None:
        """Carry out the four steps, each within `deadline` seconds. requests: the training requests, by client name.

        enough: number of replies that close the first step, in which clients train, before its deadline; by default
        all. It is not closed if the round was unmasked in an earlier attempt: all clients of that attempt must reply.

        All participants cut their numbers at the highest place of any participant (see `ExactSum`). If the highest
        place of the survivors is lower, the survivors repeat the steps before anything is unmasked. If clients unmasked
        this round in an earlier attempt, the round is repeated with the clients of that attempt. Raises
        RoundFailedError if too few clients survive, if the survivors are not those of the earlier attempt, or if the
        sum cannot be unmasked.
        """
        asked, self._numbers = dict(requests), {request.number for request in requests.values()}
        while True:
            found = self._masked_sum(transport, asked, deadline, enough)
            if _highest(found.keys[name] for name in found.survivors) == found.places:
                break
            asked = {name: requests[name] for name in found.survivors}
        self._unmask(transport, requests, found, deadline)
        self._add(found)
        self.accepted = sorted(found.survivors)
        self.missing = dict(sorted((name, why) for name, why in self.missing.items() if name not in found.survivors))

    def metrics(self) -> dict[str, float]:
        """Return the metrics of this round; `gradients` counts this round only.

        The mean drift and the number of clipped records are each left out if honest clients cannot have such a value:
        the server does not know which client sent a wrong one.
        """
        sums = dict(zip(FIGURES, self._figures.value().tolist(), strict=True))
        number = len(self.accepted)
        found = {
            "lr": self._ctx.lr, "clients": float(number),
            "gradients": float(sum(self._expected[name].gradients for name in self.accepted)),
        }  # fmt: skip
        if 0 <= sums["drift"] <= number * self._longest * (1 + ROUNDING):
            found["drift"] = sums["drift"] / number
        if self.next_guard.guard is not None:
            found |= {"clipped": sums["clipped"]} if sums["clipped"] in range(number + 1) else {}
            found["refused"] = 0.0
        return found

    def _masked_sum(
        self, transport: Transport, requests: Mapping[str, TrainRequest], deadline: float, enough: int | None
    ) -> MaskedSum:
        """Carry out steps 1 to 3 in a new session."""
        session = secrets.token_hex(16)
        first = {
            name: KeysRequest(**vars(request), session=session, weight=self._expected[name].weight)
            for name, request in requests.items()
        }
        known: set[bytes] = set()

        def close(found: Mapping[str, KeysReply]) -> bool:
            return len(found) == enough and not any(reply.unmasked for reply in found.values())

        keys = self._step(transport, first, deadline, lambda name, reply: self._check_keys(name, reply, known),
                          close=close)  # fmt: skip
        keys = self._as_before(requests, self._without_far_places(keys))
        number = {name: requests[name].number for name in keys}
        common = self._ctx.t, _federation(requests), session

        def check_shares(name: str, reply: SharesReply) -> dict[str, bytes]:
            _check_lengths(reply.shares, len(keys), {SEAL_BYTES + 2 * SHARE_BYTES})
            return dict(zip(keys, reply.shares, strict=True))

        participants = SharesRequest(
            *common, tuple(number.values()), tuple(one.channel_key for one in keys.values()),
            tuple(one.mask_key for one in keys.values()), _highest(keys.values()),
        )  # fmt: skip
        shares = self._step(transport, dict.fromkeys(keys, participants), deadline, check_shares, session)
        senders = tuple(number[name] for name in shares)
        masks = {name: MaskRequest(*common, senders, tuple(one[name] for one in shares.values())) for name in shares}
        words = np.zeros(sum(a * b for a, b in self._shapes.values()), WORD)

        def check_masked(name: str, reply: MaskReply) -> dict[str, bytes]:
            _check_lengths(reply.confirmations, len(shares), {KEY_BYTES})
            self._add_masked(words, reply.masked)
            return dict(zip(shares, reply.confirmations, strict=True))

        survivors = self._step(transport, masks, deadline, check_masked, session)
        if unmasked := self._unmasked_for_others(requests, {name: keys[name] for name in survivors}):
            raise self._other_sum(unmasked, sum(number[name] in unmasked for name in survivors))
        return MaskedSum(session, keys, participants.places, tuple(shares), survivors, words)

    def _unmasked_for_others(self, requests: Mapping[str, TrainRequest], keys: Mapping[str, KeysReply]) -> set[int]:
        """Return the numbers of the clients for whom this round was unmasked before.

        The result is empty if the clients in `keys` may be summed. The clients store these numbers, not the server, so
        they are known after a crash or a rollback of the server. Clients that claim a different earlier sum do not
        stop this sum as long as enough other clients remain to unmask it. If their claim is true, they will not help.
        """
        numbers = tuple(requests[name].number for name in keys)
        claims = {requests[name].number: one.unmasked for name, one in keys.items()}
        others = [
            survivors
            for number, survivors in claims.items()
            if list(survivors) == sorted(set(survivors)) and number in survivors and set(survivors) <= self._numbers
            if len(survivors) >= self._threshold and survivors != numbers
        ]
        if len(keys) - len(others) >= self._threshold:
            return set()
        return set(Counter(others).most_common(1)[0][0])

    def _as_before(self, requests: Mapping[str, TrainRequest], keys: dict[str, KeysReply]) -> dict[str, KeysReply]:
        """Return the part of `keys` that may be summed: all, or the clients for whom this round was unmasked before.

        Raises RoundFailedError if one of these clients is missing.
        """
        unmasked = self._unmasked_for_others(requests, keys)
        if not unmasked:
            return keys
        same = {name: one for name, one in keys.items() if requests[name].number in unmasked}
        self.missing |= dict.fromkeys(keys.keys() - same.keys(), "the round is repeated as it was, without it")
        if len(same) < len(unmasked):
            raise self._other_sum(unmasked, len(same))
        return same

    def _other_sum(self, unmasked: set[int], here: int) -> RoundFailedError:
        return self._failure(
            f"shares were disclosed for a sum over {len(unmasked)} clients, {here} of them are here, and the "
            f"difference to another sum is what single clients sent: continue when all are here, or set unmask-again = "
            f"{self._ctx.t + 1}, see docs/secure_sum.md ({first_reasons(self.missing)})"
        )

    def _without_far_places(self, keys: dict[str, KeysReply]) -> dict[str, KeysReply]:
        """Exclude clients whose highest place is so high that the numbers of most other clients would be cut to zero.

        Raises RoundFailedError if too few clients are left.
        """
        for i, (what, (grid, _)) in enumerate(self._layout.items()):
            places = [one.places[i] for one in keys.values() if one.places[i] > grid.lowest]  # zeros have the lowest
            limit = lower_median(places) + grid.places if places else inf
            far = [name for name, one in keys.items() if one.places[i] >= limit]
            self.missing |= dict.fromkeys(far, f"training: nothing of the others is left at its place of {what}")
            keys = {name: one for name, one in keys.items() if name not in far}
        self._check_number(len(keys), self._needed)
        return keys

    def _add_masked(self, words: Words, masked: Mapping[str, PackedTensor]) -> None:
        """Add a client's masked sums to `words`. Raises RefusedError, before adding, for wrong shapes or dtypes."""
        found = {name: (x.dtype, tuple(x.shape), len(x.data)) for name, x in masked.items()}
        expected = {name: (WORD.str, shape, 8 * shape[0] * shape[1]) for name, shape in self._shapes.items()}
        if found != expected:
            raise RefusedError(f"the masked sums are {quoted(found)}, expected {quoted(expected)}")
        for name, total in separated(words, self._shapes).items():
            np.add(total, np.frombuffer(masked[name].data, WORD).reshape(total.shape), out=total)

    def _unmask(
        self, transport: Transport, requests: Mapping[str, TrainRequest], found: MaskedSum, deadline: float
    ) -> None:
        """Carry out step 4, and remove the masks from `found.words`."""
        number = {name: requests[name].number for name in found.keys}
        survivors = tuple(number[name] for name in found.survivors)
        common = self._ctx.t, _federation(requests), found.session, survivors
        asked = {
            name: UnmaskRequest(*common, tuple(sent[name] for sent in found.survivors.values()))
            for name in found.survivors
        }

        def check(name: str, reply: UnmaskReply) -> list[bytes]:
            _check_lengths(reply.shares, len(found.senders), {0, SHARE_BYTES})
            # Flower's index of a share: the position of the client among the participants, from 1.
            index = (1 + list(found.keys).index(name)).to_bytes(4, "little")
            return [share if share.startswith(index) else b"" for share in reply.shares]

        disclosed = self._step(transport, asked, deadline, check, found.session)
        about = about_round(self._study, _federation(requests), self._ctx.t, found.session)
        for place, name in enumerate(found.senders):
            secret = self._combined(name, [shares[place] for shares in disclosed.values() if shares[place]])
            keys = found.keys[name]
            if name in found.survivors:
                self._check_secret(name, digest(secret) == keys.seed_digest)
                add_mask(found.words, derived(secret, SELF), -1)
                continue
            self._check_secret(name, len(secret) == KEY_BYTES and public_key(secret) == keys.mask_key)
            for other in found.survivors:  # `other` has added this mask with the opposite sign
                key = agreed_key(secret, found.keys[other].mask_key, f"{MASK} {about}")
                add_mask(found.words, key, sign_of(number[name], number[other]))

    def _combined(self, name: str, shares: list[bytes]) -> bytes:
        """Recover a secret of the client `name` from its shares; return b"" if the shares do not fit together.

        Raises RoundFailedError if there are too few shares.
        """
        if len(shares) < self._threshold:
            raise self._failure(f"{len(shares)} shares of {name}'s secret are known, {self._threshold} must be")
        try:
            return combined(shares[: self._threshold])
        except ValueError:
            return b""

    def _check_secret(self, name: str, fits: bool) -> None:
        if not fits:
            raise self._failure(f"the shares of {name}'s secret are not what it was split into: a client sent others")

    def _add(self, found: MaskedSum) -> None:
        """Add the unmasked sums to the mean, with the survivors' steps and weights, which the server knows."""
        sums = {f"mean.{name}": one for name, one in self.mean.record_sums.items()} | {FIGURES_FIELD: self._figures}
        totals = separated(found.words, self._shapes)
        for (name, (grid, _)), place in zip(self._layout.items(), found.places, strict=True):
            integers: Integers = totals[name].astype(WORD).view("<i8").astype(np.int64)
            bound = len(found.survivors) << (grid.step - 1)
            if integers.max() > bound or integers.min() < -bound:  # np.abs of the lowest int64 is itself
                raise self._failure(f"the sum of {name} is beyond its range: a client has sent what is no record")
            sums[name].add_integers(place, torch.from_numpy(integers).to(self._like.device))
        for name in found.survivors:
            expected = self._expected[name]
            steps = self._like.new_full((1, 1), float(expected.steps))
            weight = self._like.new_full((1, 1), expected.weight, dtype=torch.float64)
            self.mean.count(steps, weight, lr_factors_of(self._method, self._ctx, steps))

    def _step(
        self, transport: Transport, requests: Mapping[str, Any], deadline: float, check: Callable[[str, Any], T],
        session: str | None = None, close: Callable[[Mapping[str, T]], bool] = lambda found: False,
    ) -> dict[str, T]:  # fmt: skip
        """Send the requests of one step; return what `check` returns for each valid reply, in the order of `requests`.

        check: is called with client name and reply, and raises RefusedError for an invalid reply. session: the session
        that a reply must name. close: whether these valid replies end the step before its deadline. Raises
        RoundFailedError if there are too few valid replies.
        """
        step = STEPS[type(next(iter(requests.values())))]
        needed = self._threshold if step == STEPS[UnmaskRequest] else self._needed
        found: dict[str, T] = {}
        refused: dict[str, str] = {}
        no_reply = NO_REPLY
        for name, reply in transport.exchange(requests, deadline):
            if name not in requests or name in found or name in refused:
                continue
            try:
                if isinstance(reply, Failure):
                    raise RefusedError(reply.reason)
                if session is not None and reply.session != session:
                    raise RefusedError("its reply is of another session")
                found[name] = check(name, reply)
            except RefusedError as error:
                refused[name] = str(error)
            if close(found):
                no_reply = CLOSED
                break
        gone = {name: f"{step}: {refused.get(name, no_reply)}" for name in requests if name not in found}
        self.missing |= gone
        self._check_number(len(found), needed)
        return {name: found[name] for name in requests if name in found}

    def _check_number(self, found: int, needed: int) -> None:
        if found < needed:
            raise self._failure(
                f"{found} of {len(self._expected)} clients replied, {needed} must ({first_reasons(self.missing)})"
            )

    def _check_keys(self, name: str, reply: KeysReply, known: set[bytes]) -> KeysReply:
        """Return a reply after checking its fields, and that no other client will refuse its keys.

        known: the keys of earlier replies; the keys of this reply are added. Raises RefusedError, naming the field.
        """
        expected = self._expected[name]
        for field, value in {"t": self._ctx.t, "samples": expected.samples, "steps": expected.steps}.items():
            if getattr(reply, field) != value:
                raise RefusedError(f"{field} is {quoted(getattr(reply, field))}, expected {value}")
        for key in (reply.channel_key, reply.mask_key):
            agreed_key(new_secret(), key, MASK)
        grids = [grid for grid, _ in self._layout.values()]
        _check_lengths((reply.seed_digest,), 1, {KEY_BYTES})
        if len(reply.places) != len(grids) or not all(
            grid.lowest <= place <= grid.highest for place, grid in zip(reply.places, grids, strict=True)
        ):
            raise RefusedError(f"places are {quoted(reply.places)}, expected one for each of {len(grids)} sums")
        if reply.places[-1] > grids[-1].top(max(self._longest, 1.0)):  # the last place is that of the figures
            raise RefusedError(f"its drift is in place {reply.places[-1]}, which is beyond {self._longest:.3g}")
        if reply.channel_key == reply.mask_key or known & {reply.channel_key, reply.mask_key}:
            raise RefusedError("a public key has come before; all keys of a round must be different")
        known |= {reply.channel_key, reply.mask_key}
        return reply

    def _failure(self, reason: str) -> RoundFailedError:
        return RoundFailedError(f"round {self._ctx.t}: {reason}")


def _highest(keys: Iterable[KeysReply]) -> tuple[int, ...]:
    """Return the highest place of each sum in any of the replies `keys`."""
    return tuple(map(max, zip(*(one.places for one in keys), strict=True)))


def _federation(requests: Mapping[str, TrainRequest]) -> str:
    return next(iter(requests.values())).federation


def _check_lengths(found: tuple[bytes, ...], number: int, lengths: set[int]) -> None:
    """Raise RefusedError unless there are `number` shares or keys, and each has one of these lengths in bytes."""
    if len(found) != number or not {len(one) for one in found} <= lengths:
        raise RefusedError(f"there are {len(found)} shares or keys, expected {number} of {sorted(lengths)} bytes")
