"""A client's part in a secure sum: it answers the server's requests, unless an answer could reveal its record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from hmac import compare_digest
from pathlib import Path

from ...rounds.exact_sum import ExactSum
from ..messages import PackedTensor, RefusedError
from .keys import (
    KEY_BYTES,
    WORD,
    add_mask,
    agreed_key,
    derived,
    digest,
    new_secret,
    opened,
    public_key,
    sealed,
    sign_of,
)
from .messages import (
    Integers,
    KeysReply,
    KeysRequest,
    LaterReply,
    LaterRequest,
    MaskReply,
    MaskRequest,
    SharesReply,
    SharesRequest,
    UnmaskReply,
    UnmaskRequest,
    joined,
    lowered,
    separated,
    threshold,
)
from .secret_sharing import create_shares
from .session import Session, SessionFolder, UnmaskedRounds

SHARE_BYTES = 52  # of a share of one secret: 4 for its index, and 48 for the secret padded to a multiple of 16
# The purposes for which keys are derived.
MASK = "fedflat secure sum: mask"
CHANNEL = "fedflat secure sum: channel"
SELF = "fedflat secure sum: own mask"
VIEW = "fedflat secure sum: view"


def about_round(study: str, federation: str, t: int, session: str) -> str:
    """Return the context to which all messages between the clients of a session are bound."""
    return f"{study}/{federation}/{t}/{session}"


class SumClient:
    """Answers the requests of a session; stores its state between the steps in a folder.

    Each step is answered for one request only, so that no mask is used for two sums, and nobody learns both a share of
    a client's seed and a share of its key. In all sessions together, a round of a study is unmasked for only one set
    of clients of one federation: the difference of two sums would reveal what single clients sent.

    With its masked sums, the client sends every other sender a confirmation of what it received in this session: the
    model, the threshold, the participants and their keys, the highest places of the sums, and the senders. It discloses
    no share of the seed of a client that received something different. It discloses no share at all if fewer clients
    than the threshold, including this client, received the same.
    """

    def __init__(
        self, folder: Path, share: float, study: str, unmask_again: int = 0, memory: Path | None = None
    ) -> None:
        """Use the state in `folder`.

        share: the fraction of a round's clients that must help to unmask. study: the study's digest. unmask_again:
        rounds before this round are unmasked for any clients that the server names. memory: the folder with the record
        of unmasked rounds in all federations of the study, by default a folder in `folder`.
        """
        self._folder, self._share, self._study = SessionFolder(folder), share, study
        self._unmask_again = unmask_again
        self._unmasked = UnmaskedRounds(memory or folder / "unmasked")

    def check(self, request: KeysRequest) -> tuple[int, ...]:
        """Return the survivors for whom this client has already unmasked the round; empty if it has not.

        Raises RefusedError if the round was unmasked in another federation.
        """
        return self._unmasked_for(request.t, request.federation)

    def begin(self, request: KeysRequest, samples: int, steps: int, summand: Mapping[str, ExactSum]) -> KeysReply:
        """Carry out step 1, after training: store the client's sums in a new session, and make keys for it.

        Raises RefusedError for sums that cannot be added exactly to those of other clients.
        """
        integers = {name: _integers(name, one) for name, one in summand.items()}
        unmasked = self.check(request)
        session = Session(
            name=request.session,
            about=about_round(self._study, request.federation, request.t, request.session),
            number=request.number,
            threshold=threshold(self._share, request.sampled),
            channel_secret=new_secret(),
            mask_secret=new_secret(),
            seed=new_secret(),
            names=tuple(summand),
            places=tuple(one.top for one in summand.values()),
            numbers=sum(one.sums.numel() for one in summand.values()),
            model=digest(b"".join(name.encode() + b"\0" + digest(x.data) for name, x in sorted(request.down.items()))),
        )
        self._folder.begin(session, integers)
        return KeysReply(
            t=request.t, samples=samples, steps=steps, channel_key=public_key(session.channel_secret),
            mask_key=public_key(session.mask_secret), seed_digest=digest(session.seed), places=session.places,
            unmasked=unmasked,
        )  # fmt: skip

    def answer(self, request: LaterRequest) -> LaterReply:
        """Carry out steps 2 to 4. Raises RefusedError, and discloses nothing, if a request does not fit the session."""
        with self._folder.locked():
            session = self._folder.load(request.session)
            if about_round(self._study, request.federation, request.t, request.session) != session.about:
                raise RefusedError("the session is of another round")
            if isinstance(request, SharesRequest):
                return self._shares(session, request)
            if isinstance(request, MaskRequest):
                return self._masked(session, request)
            return self._unmask(session, request)

    def _shares(self, session: Session, request: SharesRequest) -> SharesReply:
        _check_participants(session, request)
        _check_repeated(session.shares_request, request)
        self._folder.save(replace(session, shares_request=request))
        count = len(request.participants)
        of_seed, of_key = (
            create_shares(secret, session.threshold, count) for secret in (session.seed, session.mask_secret)
        )
        shares = []
        for other, public, one, two in zip(request.participants, request.channel_keys, of_seed, of_key, strict=True):
            key = agreed_key(session.channel_secret, public, CHANNEL)
            shares.append(sealed(key, one + two, _tied(session.about, session.number, other)))
        return SharesReply(session.name, tuple(shares))

    def _masked(self, session: Session, request: MaskRequest) -> MaskReply:
        agreed = session.shares_request
        if agreed is None:
            raise RefusedError("masked sums come after shares")
        _check_subset("senders", request.senders, agreed.participants, session)
        if len(request.shares) != len(request.senders):
            raise RefusedError("there is not one share for each sender")
        _check_repeated(session.mask_request, request)
        sums = self._folder.summand(session)
        places = zip(sums.values(), agreed.places, session.places, strict=True)
        cut = [lowered(one, high - own) for one, high, own in places]
        for name, before, after in zip(session.names, sums.values(), cut, strict=True):
            if before.any() and not after.any():
                raise RefusedError(f"{name}: the places are so high that nothing would be left of its numbers")
        self._folder.save(replace(session, mask_request=request))
        words = joined(cut)
        add_mask(words, derived(session.seed, SELF), 1)
        publics = dict(zip(agreed.participants, agreed.mask_keys, strict=True))
        for other in request.senders:
            if other != session.number:
                key = agreed_key(session.mask_secret, publics[other], f"{MASK} {session.about}")
                add_mask(words, key, sign_of(session.number, other))
        parts = separated(words, {name: one.shape for name, one in sums.items()})
        masked = {name: PackedTensor(WORD.str, x.shape, x.tobytes()) for name, x in parts.items()}
        keys = dict(zip(agreed.participants, agreed.channel_keys, strict=True))
        view = _view(session, agreed, request.senders)
        tags = tuple(_confirmation(session, keys[other], session.number, other, view) for other in request.senders)
        return MaskReply(session.name, tags, masked)

    def _unmask(self, session: Session, request: UnmaskRequest) -> UnmaskReply:
        """Carry out step 4: record the survivors, remove the session's secrets, and only then disclose shares."""
        agreed, masked = session.shares_request, session.mask_request
        if agreed is None or masked is None:
            raise RefusedError("unmasking comes after masked sums")
        _check_subset("survivors", request.survivors, masked.senders, session)
        alike = self._alike(session, agreed, masked.senders, request)
        with self._unmasked.locked():
            before = self._unmasked_for(request.t, request.federation)
            if before and before != request.survivors:
                raise RefusedError(f"round {request.t} has been unmasked for {len(before)} clients, and these are "
                                   "others: see unmask-again in docs/secure_sum.md")  # fmt: skip
            self._unmasked.claim(request.t, request.federation, request.survivors)
        self._folder.end()
        publics = dict(zip(agreed.participants, agreed.channel_keys, strict=True))
        shares = []
        for sender, message in zip(masked.senders, masked.shares, strict=True):
            try:
                key = agreed_key(session.channel_secret, publics[sender], CHANNEL)
                both = opened(key, message, _tied(session.about, sender, session.number))
            except RefusedError:
                both = b""  # the sender's fault; its shares for other clients may be readable
            survived = sender in request.survivors
            disclosed = both[:SHARE_BYTES] if survived else both[SHARE_BYTES : 2 * SHARE_BYTES]
            shares.append(disclosed if sender in alike or not survived else b"")
        return UnmaskReply(session.name, tuple(shares))

    def _alike(
        self, session: Session, agreed: SharesRequest, senders: tuple[int, ...], request: UnmaskRequest
    ) -> set[int]:
        """Return the survivors that received the same as this client, including this client.

        agreed: the request of step 2. senders: those in the request of step 3. Raises RefusedError if fewer survivors
        than the threshold received the same.
        """
        if len(request.confirmations) != len(request.survivors):
            raise RefusedError("there is not one confirmation for each survivor")
        keys, view = dict(zip(agreed.participants, agreed.channel_keys, strict=True)), _view(session, agreed, senders)
        found = {
            other
            for other, tag in zip(request.survivors, request.confirmations, strict=True)
            if compare_digest(tag, _confirmation(session, keys[other], other, session.number, view))
        } | {session.number}
        if len(found) < session.threshold:
            raise RefusedError(f"{len(found)} of {len(request.survivors)} survivors received the same as this client, "
                               f"{session.threshold} must be")  # fmt: skip
        return found

    def _unmasked_for(self, t: int, federation: str) -> tuple[int, ...]:
        """Return the only survivors for whom round `t` may be unmasked; empty without such a restriction."""
        return () if t < self._unmask_again else self._unmasked.of(t, federation, self._study)


def _integers(name: str, one: ExactSum) -> Integers:
    """Return a client's sum as integers. Raises RefusedError if one of them is too large for a single vector."""
    try:
        found: Integers = one.integers().cpu().numpy()
    except ValueError as error:
        raise RefusedError(f"{name}: {error}") from error
    if max(found.max(), -found.min()) > one.limit:
        raise RefusedError(f"{name}: a number is beyond {one.limit} units, and so too large to be summed exactly")
    return found


def _view(session: Session, agreed: SharesRequest, senders: tuple[int, ...]) -> bytes:
    """Return the SHA-256 of everything that must be the same for all clients of a session."""
    common = [session.about, session.threshold, agreed.participants, agreed.places, senders]
    keys = b"".join((session.model, *agreed.channel_keys, *agreed.mask_keys))
    return digest(json.dumps(common).encode() + keys)


def _confirmation(session: Session, public: bytes, sender: int, receiver: int, view: bytes) -> bytes:
    """Return the confirmation of `view` that `sender` sends to `receiver`.

    session: the session of one of these two clients. public: the public channel key of the other client.
    """
    key = agreed_key(session.channel_secret, public, CHANNEL)
    return derived(key, f"{VIEW} {_tied(session.about, sender, receiver)}", view)


def _tied(about: str, sender: int, receiver: int) -> str:
    return f"{about}/{sender}/{receiver}"


def _check_participants(session: Session, request: SharesRequest) -> None:
    """Raise RefusedError unless participants, keys and places are valid, and include those of this client."""
    participants, keys = request.participants, (*request.channel_keys, *request.mask_keys)
    _check_subset("participants", participants, participants, session)
    if len(participants) >= 2 * session.threshold:  # two halves could be asked for both shares of one client
        raise RefusedError(f"{len(participants)} participants are too many for a threshold of {session.threshold}")
    lengths = {len(request.channel_keys), len(request.mask_keys)}
    if lengths != {len(participants)} or {len(key) for key in keys} != {KEY_BYTES} or len(set(keys)) != len(keys):
        raise RefusedError("the participants' keys are not one of each kind for each of them")
    me = participants.index(session.number)
    mine = public_key(session.channel_secret), public_key(session.mask_secret)
    if (request.channel_keys[me], request.mask_keys[me]) != mine:
        raise RefusedError("this client's keys are others")
    highest = list(zip(request.places, session.places, strict=False))
    if len(request.places) != len(session.places) or any(high < own for high, own in highest):
        raise RefusedError("the places are lower than this client's")


def _check_subset(what: str, numbers: tuple[int, ...], of: tuple[int, ...], session: Session) -> None:
    """Raise RefusedError unless `numbers` are sorted, distinct, in `of`, and at least as many as the threshold.

    `numbers` must include this client. what: the role of the clients with these numbers, for the error message.
    """
    if list(numbers) != sorted(set(numbers)) or not set(numbers) <= set(of) or session.number not in numbers:
        raise RefusedError(f"the {what} are not what they must be")
    if len(numbers) < session.threshold:
        raise RefusedError(f"{len(numbers)} {what} are fewer than {session.threshold}, which must take part")


def _check_repeated(answered: LaterRequest | None, request: LaterRequest) -> None:
    """Raise RefusedError if the step was already answered for a different request."""
    if answered is not None and answered != request:
        raise RefusedError("this step was answered for another request")
