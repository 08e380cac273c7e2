"""What a client refuses: whatever could unmask its sums, or another client's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedflat.federation.messages import PackedTensor, RefusedError
from fedflat.federation.secure_sum import client as sum_client
from fedflat.federation.secure_sum import secret_sharing
from fedflat.federation.secure_sum.client import CHANNEL, MASK, SELF, SHARE_BYTES, SumClient
from fedflat.federation.secure_sum.keys import add_mask, agreed_key, derived, opened, public_key
from fedflat.federation.secure_sum.messages import (
    KeysRequest,
    MaskRequest,
    SharesRequest,
    UnmaskRequest,
    joined,
    lowered,
    threshold,
)
from fedflat.federation.secure_sum.session import LOCK, Session, SessionFolder
from fedflat.rounds.exact_sum import ExactSum

CLIENTS = range(5)
FEDERATION = "f" * 16
COMMON = (4, FEDERATION, "session")


def begun(
    folder: Path, t: int = 4, federation: str = FEDERATION, memory: Path | None = None,
    downs: Mapping[int, Any] | None = None, **settings: Any,
) -> tuple[dict[int, SumClient], SharesRequest]:  # fmt: skip
    """Five clients after step 1 of round `t`, and the request for step 2."""
    kept = {i: folder / str(i) / "unmasked" if memory is None else memory / str(i) for i in CLIENTS}
    clients = {i: SumClient(folder / str(i), 0.6, "study", memory=kept[i], **settings) for i in CLIENTS}
    keys = []
    for i, client in clients.items():
        one = ExactSum(torch.empty(1, 3))
        one.add(torch.tensor([[1.0, -2.0, i]]), torch.ones(1, 1))
        request = KeysRequest(
            t, -1, (), i, 1.0, 5, federation, "study", (downs or {}).get(i, {}), session="session", weight=1.0
        )
        keys.append(client.begin(request, 10, 2, {"a": one}))
    places = (max(one.places[0] for one in keys),)
    channel_keys, mask_keys = tuple(one.channel_key for one in keys), tuple(one.mask_key for one in keys)
    return clients, SharesRequest(t, federation, "session", tuple(CLIENTS), channel_keys, mask_keys, places)


class Clients(dict[int, SumClient]):
    """Clients by number, with what each has confirmed to each."""

    def __init__(self, clients: dict[int, SumClient]) -> None:
        super().__init__(clients)
        self.confirmations: dict[tuple[int, int], bytes] = {}


def masked(
    folder: Path, senders: tuple[int, ...] = tuple(CLIENTS), t: int = 4, **settings: Any
) -> tuple[Clients, dict[int, Any]]:
    """The same after step 3, with the requests for it."""
    clients, request = begun(folder, t, **settings)
    sent = {i: clients[i].answer(request).shares for i in senders}
    masks = {
        i: MaskRequest(t, request.federation, "session", senders, tuple(sent[j][i] for j in senders)) for i in senders
    }
    clients = Clients(clients)
    for i in senders:
        clients.confirmations |= {
            (i, j): tag for j, tag in zip(senders, clients[i].answer(masks[i]).confirmations, strict=True)
        }
    return clients, masks


def asking(
    clients: Clients, reader: int, survivors: tuple[int, ...], t: int = 4, federation: str = FEDERATION
) -> UnmaskRequest:
    """Step 4, with what the survivors have confirmed to one client."""
    tags = tuple(clients.confirmations.get((i, reader), b"") for i in survivors)
    return UnmaskRequest(t, federation, "session", survivors, tags)


def test_a_share_of_the_seed_or_of_the_key_never_both(tmp_path: Path) -> None:
    """Of one that survived the seed's, of one that has gone the key's; then the session is over."""
    clients, _ = masked(tmp_path)
    told = clients[0].answer(asking(clients, 0, (0, 1, 2))).shares
    assert [len(share) for share in told] == [SHARE_BYTES] * 5
    for survivors in ((0, 3, 4), (0, 1, 2)):
        with pytest.raises(RefusedError, match="this session of a secure sum is over"):
            clients[0].answer(asking(clients, 0, survivors))
    other = clients[1].answer(asking(clients, 1, (0, 1, 2))).shares
    assert not set(told) & set(other), "every client has shares of its own"


@pytest.mark.parametrize(
    ("survivors", "line"),
    [
        ((0, 1), "2 survivors are fewer than 3"),
        ((1, 2, 3), "the survivors are not what they must be"),
        ((0, 1, 1, 2), "the survivors are not what they must be"),
        ((2, 1, 0), "the survivors are not what they must be"),
        ((0, 1, 7), "the survivors are not what they must be"),
        ((0, 1, 4), "the survivors are not what they must be"),  # it sent no shares
    ],
)
def test_survivors_that_unmask_too_much(survivors: tuple[int, ...], line: str, tmp_path: Path) -> None:
    clients, _ = masked(tmp_path, senders=(0, 1, 2, 3))
    with pytest.raises(RefusedError, match=line):
        clients[0].answer(asking(clients, 0, survivors))


def test_sums_are_masked_once(tmp_path: Path) -> None:
    """With the masks of other clients the difference would be masks in the open. The same request is answered again."""
    clients, masks = masked(tmp_path)
    with pytest.raises(RefusedError, match="this step was answered for another request"):
        clients[0].answer(replace(masks[0], senders=(0, 1, 2), shares=masks[0].shares[:3]))
    again = clients[0].answer(masks[0])
    assert again == clients[0].answer(masks[0])


def test_the_places_of_a_session_are_those_of_the_first_request(tmp_path: Path) -> None:
    clients, request = begun(tmp_path)
    clients[0].answer(request)
    with pytest.raises(RefusedError, match="this step was answered for another request"):
        clients[0].answer(replace(request, places=(request.places[0] + 1,)))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"participants": (0, 1)}, "2 participants are fewer than 3, which must take part"),
        ({"participants": (1, 2, 3)}, "the participants are not what they must be"),
        ({"participants": (0, 0, 1, 2, 3)}, "the participants are not what they must be"),
        ({"participants": tuple(range(6))}, "6 participants are too many for a threshold of 3"),
        ({"channel_keys": (b"x" * 32,) * 5}, "the participants' keys are not one of each kind"),
        ({"mask_keys": ()}, "the participants' keys are not one of each kind"),
        ({"mask_keys": tuple(bytes([i]) * 32 for i in range(5))}, "this client's keys are others"),
        ({"mask_keys": tuple(bytes([i]) * 31 for i in range(5))}, "the participants' keys are not one of each kind"),
        ({"places": (-3,)}, "the places are lower than this client's"),
        ({"places": ()}, "the places are lower than this client's"),
        ({"session": "another"}, "this session of a secure sum is over"),
        ({"t": 5}, "the session is of another round"),
        ({"federation": "0" * 16}, "the session is of another round"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else None,
)
def test_participants_with_whom_it_is_not_summed(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    clients, request = begun(tmp_path)
    with pytest.raises(RefusedError, match=line):
        clients[0].answer(replace(request, **changes))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"senders": (0, 1)}, "2 senders are fewer than 3"),
        ({"senders": (1, 2, 3)}, "the senders are not what they must be"),
        ({"senders": (0, 1, 9)}, "the senders are not what they must be"),
        ({"shares": (b"",) * 4}, "there is not one share for each sender"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else None,
)
def test_senders_with_whose_masks_it_is_not_masked(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    clients, request = begun(tmp_path)
    clients[0].answer(request)
    with pytest.raises(RefusedError, match=line):
        clients[0].answer(replace(MaskRequest(*COMMON, (0, 1, 2), (b"",) * 3), **changes))


def test_a_round_is_unmasked_for_one_set_of_clients_in_all_of_its_sessions(tmp_path: Path) -> None:
    """The difference of two sums over other clients would be what single clients sent."""
    first, other = (0, 1, 2, 3), (0, 1, 2)
    once, _ = masked(tmp_path)
    once[0].answer(asking(once, 0, first))
    clients, _ = masked(tmp_path)
    with pytest.raises(RefusedError, match="round 4 has been unmasked for 4 clients, and these are others: see unmask"):
        clients[0].answer(asking(clients, 0, other))
    assert len(clients[0].answer(asking(clients, 0, first)).shares) == 5, "the same sum tells nothing new"
    later, _ = masked(tmp_path, t=5)
    assert len(later[0].answer(asking(later, 0, other, t=5)).shares) == 5, "another round has its own"
    again, _ = masked(tmp_path)
    with pytest.raises(RefusedError, match="round 4 has been unmasked for 4 clients"):
        again[0].answer(asking(again, 0, other))


def test_the_operator_may_have_rounds_unmasked_again(tmp_path: Path) -> None:
    """`unmask_again` is a round: it and later ones are unmasked for one set of clients, as ever."""
    for unmask_again in (4, 5):
        once, _ = masked(tmp_path / "a")
        once[0].answer(asking(once, 0, (0, 1, 2, 3)))
        clients, _ = masked(tmp_path / "a", unmask_again=unmask_again)
        request = asking(clients, 0, (0, 1, 2))
        if unmask_again == 4:
            with pytest.raises(RefusedError, match="round 4 has been unmasked"):
                clients[0].answer(request)
        else:
            assert len(clients[0].answer(request).shares) == 5


def test_the_server_is_told_for_whom_the_round_was_unmasked(tmp_path: Path) -> None:
    request = KeysRequest(4, -1, (), 0, 1.0, 5, FEDERATION, "study", session="session", weight=1.0)
    one = ExactSum(torch.zeros(1, 3))
    found = []
    for unmask_again in (0, 4, 5):
        clients, _ = masked(tmp_path)
        clients[0].answer(asking(clients, 0, (0, 1, 2, 3)))
        client = SumClient(tmp_path / "0", 0.6, "study", unmask_again)
        found.append(client.begin(request, 10, 2, {"a": one}).unmasked)
        found.append(client.begin(replace(request, t=3), 10, 2, {"a": one}).unmasked)
    assert found == [(0, 1, 2, 3), (), (0, 1, 2, 3), (), (), ()]


def test_a_round_is_unmasked_in_one_federation_of_a_study(tmp_path: Path) -> None:
    """Another name is another folder; what was unmasked is kept beside them, and the difference would be records."""
    ours, other = (0, 1, 2, 3), "0" * 16
    once, _ = masked(tmp_path)
    once[0].answer(asking(once, 0, ours))
    memory = {"memory": tmp_path / "0" / "unmasked"}
    request = KeysRequest(4, -1, (), 0, 1.0, 5, other, "study", session="session", weight=1.0)
    one = ExactSum(torch.zeros(1, 3))
    client = SumClient(tmp_path / "other", 0.6, "study", **memory)
    line = f"round 4 of study study has been unmasked in federation {FEDERATION}, and this is {other}: take another"
    with pytest.raises(RefusedError, match=line):
        client.begin(request, 10, 2, {"a": one})
    assert not (tmp_path / "other").exists()
    assert client.begin(replace(request, t=5), 10, 2, {"a": one}).unmasked == (), "a round that was never unmasked"
    assert SumClient(tmp_path / "other", 0.6, "study", 5, **memory).begin(request, 10, 2, {"a": one}).unmasked == ()


def test_two_federations_that_have_masked_the_same_round_do_not_both_unmask_it(tmp_path: Path) -> None:
    """Both have begun before either has unmasked; the file that they share decides."""
    survivors, other = (0, 1, 2, 3), "0" * 16
    first, _ = masked(tmp_path / "a", memory=tmp_path / "kept")
    second, _ = masked(tmp_path / "b", federation=other, memory=tmp_path / "kept")
    first[0].answer(asking(first, 0, survivors))
    with pytest.raises(RefusedError, match="has been unmasked in federation"):
        second[0].answer(asking(second, 0, survivors, federation=other))


@pytest.mark.parametrize("up", [1, 2, 10**6])
def test_places_at_which_nothing_is_left_of_its_numbers_are_refused(up: int, tmp_path: Path) -> None:
    """Numbers of -2 to 4 have units of 1 and 2**-36; those of the next place are 2**36, and so nothing of them."""
    clients, request = begun(tmp_path)
    high = replace(request, places=(request.places[0] + up,))
    sent = {i: client.answer(high).shares for i, client in clients.items()}
    mask = MaskRequest(*COMMON, tuple(CLIENTS), tuple(sent[j][0] for j in CLIENTS))
    if up == 1:
        assert clients[0].answer(mask).masked, "as in a sum without masks, what is left are the numbers' whole parts"
        return
    with pytest.raises(RefusedError, match="a: the places are so high that nothing would be left"):
        clients[0].answer(mask)


def split(folder: Path, what: str) -> Clients:
    """Five clients after step 3, of whom the fourth was told something else than the others."""
    down = {"w": PackedTensor("<f4", (1,), b"1234")}
    clients, request = begun(folder, downs={3: down} if what == "model" else {})
    requests = dict.fromkeys(CLIENTS, request)
    if what == "places":
        requests[3] = replace(request, places=(request.places[0] + 1,))
    if what == "keys":
        requests[3] = replace(request, mask_keys=(*request.mask_keys[:4], public_key(b"s" * 32)))
    if what == "participants":
        fewer = (request.participants[:4], request.channel_keys[:4], request.mask_keys[:4])
        requests[3] = replace(request, **dict(zip(("participants", "channel_keys", "mask_keys"), fewer, strict=True)))
    sent = {i: client.answer(requests[i]).shares for i, client in clients.items()}
    found = Clients(clients)
    for i in CLIENTS:
        senders = (0, 1, 3) if (i, what) == (3, "senders") else requests[i].participants
        reply = clients[i].answer(MaskRequest(*COMMON, senders, tuple(sent[j][min(i, 3)] for j in senders)))
        found.confirmations |= {(i, j): tag for j, tag in zip(senders, reply.confirmations, strict=True)}
    return found


@pytest.mark.parametrize("what", ["model", "places", "keys", "participants", "senders"])
def test_nobody_unmasks_a_client_that_was_told_something_else(what: str, tmp_path: Path) -> None:
    """Without its seed the mask that it has alone stays; and it unmasks nobody, being alone with what it was told."""
    clients = split(tmp_path, what)
    line = r"1 of \d survivors received the same as this client, 3 must be"
    with pytest.raises(RefusedError, match=line):
        clients[3].answer(asking(clients, 3, (0, 1, 3)))
    for i in (0, 1, 2, 4):
        told = clients[i].answer(asking(clients, i, tuple(CLIENTS))).shares
        assert told[3] == b""


def test_confirmations_of_others_or_of_another_client_are_none(tmp_path: Path) -> None:
    """Each is for one receiver: what was meant for another one, or comes back to its sender, confirms nothing."""
    clients, _ = masked(tmp_path)
    good = asking(clients, 0, (0, 1, 2))
    tags = clients.confirmations
    for wrong in (tags[1, 2], tags[0, 1], tags[2, 0], b"", bytes(32)):
        with pytest.raises(RefusedError, match="2 of 3 survivors received the same as this client, 3 must be"):
            clients[0].answer(replace(good, confirmations=(b"", wrong, good.confirmations[2])))
    with pytest.raises(RefusedError, match="there is not one confirmation for each survivor"):
        clients[0].answer(replace(good, confirmations=good.confirmations[:2]))
    assert len(clients[0].answer(good).shares) == 5


def session_of(folder: Path, number: int) -> Session:
    return SessionFolder(folder / str(number)).load("session")


def opened_share(sessions: dict[int, Session], reader: int, sender: int, receiver: int, message: bytes) -> bytes:
    """A share from `sender` to `receiver`, as `reader` may open it."""
    public = public_key(sessions[sender].channel_secret)
    key = agreed_key(sessions[reader].channel_secret, public, CHANNEL)
    return opened(key, message, f"{sessions[sender].about}/{sender}/{receiver}")


def combined(shares: Sequence[bytes]) -> bytes | None:
    """What shares give, None if that is nothing."""
    try:
        return secret_sharing.combined(shares)
    except ValueError:
        return None


def test_as_many_shares_as_the_threshold_give_the_secrets_and_fewer_do_not(tmp_path: Path) -> None:
    """Those that a client sends, three of which are needed: of its seed, and of its key."""
    clients, request = begun(tmp_path)
    sessions = {i: session_of(tmp_path, i) for i in CLIENTS}
    sent = clients[3].answer(request).shares
    both = [opened_share(sessions, i, 3, i, sent[i]) for i in CLIENTS]
    for part, secret in (
        (slice(0, SHARE_BYTES), sessions[3].seed),
        (slice(SHARE_BYTES, None), sessions[3].mask_secret),
    ):
        shares = [one[part] for one in both]
        assert all(combined(some) == secret for some in combinations(shares, 3))
        assert not any(combined(some) == secret for number in (1, 2) for some in combinations(shares, number))


def test_a_sealed_share_opens_for_its_receiver_alone(tmp_path: Path) -> None:
    clients, request = begun(tmp_path)
    sessions = {i: session_of(tmp_path, i) for i in CLIENTS}
    sent = clients[3].answer(request).shares
    assert len(opened_share(sessions, 1, 3, 1, sent[1])) == 2 * SHARE_BYTES
    for reader, receiver in ((0, 1), (2, 1), (4, 1), (1, 2)):
        with pytest.raises(RefusedError, match="a sealed message cannot be opened"):
            opened_share(sessions, reader, 3, 1, sent[receiver])
    for key in (bytes(32), public_key(sessions[3].channel_secret), public_key(sessions[1].channel_secret)):
        with pytest.raises(RefusedError, match="a sealed message cannot be opened"):
            opened(key, sent[1], f"{sessions[3].about}/3/1")


def test_what_a_client_tells_is_the_half_that_it_should(tmp_path: Path) -> None:
    """Of each survivor the share of its seed, and of each of the others that of its key."""
    clients, masks = masked(tmp_path)
    sessions = {i: session_of(tmp_path, i) for i in CLIENTS}
    both = [opened_share(sessions, 1, j, 1, message) for j, message in zip(CLIENTS, masks[1].shares, strict=True)]
    told = clients[1].answer(asking(clients, 1, (0, 1, 4))).shares
    halves = [one[:SHARE_BYTES] if j in (0, 1, 4) else one[SHARE_BYTES:] for j, one in zip(CLIENTS, both, strict=True)]
    assert list(told) == halves


def test_either_kind_of_mask_alone_hides_the_sums(tmp_path: Path) -> None:
    """Without its own mask, and without those of pairs, no word is that of the record; without both, all are."""
    clients, masks = masked(tmp_path)
    session = session_of(tmp_path, 2)
    sums, places = SessionFolder(tmp_path / "2").summand(session), session.shares_request
    assert places is not None
    record = joined([lowered(sums["a"], places.places[0] - session.places[0])])
    words = np.frombuffer(clients[2].answer(masks[2]).masked["a"].data, "<u8")
    own, pairs = np.zeros_like(words), np.zeros_like(words)
    add_mask(own, derived(session.seed, SELF), 1)
    for other in (0, 1, 3, 4):
        public = public_key(session_of(tmp_path, other).mask_secret)
        add_mask(pairs, agreed_key(session.mask_secret, public, f"{MASK} {session.about}"), 1 if other > 2 else -1)
    assert np.array_equal(words - own - pairs, record)
    for left in (words, words - own, words - pairs):
        assert not np.any(left == record)


def test_all_secrets_are_new_in_every_session(tmp_path: Path) -> None:
    """Also those of the same client, in a session of the same name, on the same sums."""
    found: list[bytes] = []
    for _ in range(2):
        begun(tmp_path)
        for i in CLIENTS:
            session = session_of(tmp_path, i)
            found += [session.seed, session.mask_secret, session.channel_secret]
    publics = [public_key(secret) for secret in found]
    assert len({*found, *publics}) == 2 * 2 * 5 * 3


def test_secrets_are_gone_before_a_share_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process ends in between, nothing can be asked of it again."""
    clients, _ = masked(tmp_path)
    left: list[list[str]] = []

    def looking(key: bytes, message: bytes, about: str) -> bytes:
        left.append(sorted(path.name for path in (tmp_path / "0").iterdir()))
        return opened(key, message, about)

    monkeypatch.setattr(sum_client, "opened", looking)
    clients[0].answer(asking(clients, 0, (0, 1, 2)))
    assert left == [[LOCK, "unmasked"]] * 5


@pytest.mark.parametrize("value", [2.0**70, -(2.0**70), 1e305, float("nan"), float("inf")])
def test_numbers_that_cannot_be_summed_exactly_do_not_leave_the_client(value: float, tmp_path: Path) -> None:
    """In whole numbers they would be beyond 64 bits, or so near that the sum of all clients is."""
    one = ExactSum(torch.empty(1, 3))
    one.add(torch.ones(1, 3), torch.ones(1, 1))
    one.sums[0, 1] = value
    request = KeysRequest(4, -1, (), 0, 1.0, 5, FEDERATION, "study", session="session", weight=1.0)
    with pytest.raises(RefusedError, match="a: a number is "):
        SumClient(tmp_path, 0.6, "study").begin(request, 10, 2, {"a": one})
    assert not list(tmp_path.iterdir())


def test_the_largest_whole_number_of_a_vector_may_leave_and_the_next_may_not(tmp_path: Path) -> None:
    request = KeysRequest(4, -1, (), 0, 1.0, 5, FEDERATION, "study", session="session", weight=1.0)
    one = ExactSum(torch.empty(1, 2))
    one.add(torch.ones(1, 2), torch.ones(1, 1))
    unit = 2.0 ** (36 * one.top)
    one.sums[0] = torch.tensor([2.0**35, -(2.0**35)]) * unit
    SumClient(tmp_path, 0.6, "study").begin(request, 10, 2, {"a": one})
    for wrong in (2.0**35 + 1, -(2.0**35) - 1):
        one.sums[0, 0] = wrong * unit
        with pytest.raises(RefusedError, match="a: a number is beyond 34359738368 units, and so too large"):
            SumClient(tmp_path, 0.6, "study").begin(request, 10, 2, {"a": one})


def test_the_steps_have_an_order(tmp_path: Path) -> None:
    clients, request = begun(tmp_path)
    mask, unmask = MaskRequest(*COMMON, (0, 1, 2), (b"",) * 3), UnmaskRequest(*COMMON, (0, 1, 2), (b"",) * 3)
    for early, line in ((mask, "masked sums come after shares"), (unmask, "unmasking comes after masked sums")):
        with pytest.raises(RefusedError, match=line):
            clients[0].answer(early)
    clients[0].answer(request)
    with pytest.raises(RefusedError, match="unmasking comes after masked sums"):
        clients[0].answer(unmask)


def test_shares_that_cannot_be_opened_are_told_as_nothing(tmp_path: Path) -> None:
    """A client that sends others what they cannot read keeps nobody from unmasking."""
    clients, request = begun(tmp_path)
    sent = {i: clients[i].answer(request).shares for i in CLIENTS}
    shares = tuple(sent[j][0] if j != 2 else sent[2][1] for j in CLIENTS)
    clients = Clients(clients)
    for i in CLIENTS:
        reply = clients[i].answer(MaskRequest(*COMMON, tuple(CLIENTS), shares))
        clients.confirmations[i, 0] = reply.confirmations[0]
    told = clients[0].answer(asking(clients, 0, tuple(CLIENTS))).shares
    assert [len(share) for share in told] == [SHARE_BYTES, SHARE_BYTES, 0, SHARE_BYTES, SHARE_BYTES]


@pytest.mark.parametrize(
    ("share", "asked", "needed"), [(0.6, 5, 3), (0.6, 10, 6), (0.55, 20, 11), (1.0, 7, 7), (0.51, 1, 2), (0.7, 10, 7)]
)
def test_the_threshold_is_the_share_as_it_is_written(share: float, asked: int, needed: int) -> None:
    assert threshold(share, asked) == needed


def test_no_two_halves_of_a_round_can_both_unmask() -> None:
    """One half would tell of a client the seed's shares, the other one the key's."""
    assert all(2 * threshold(share, n) > n for n in range(1, 200) for share in (0.501, 0.51, 0.6, 0.67, 1.0))
