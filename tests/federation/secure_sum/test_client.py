"""What a client refuses: whatever could unmask its sums, or another client's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedflat.federation.codec import RefusedError
from fedflat.federation.secure_sum.client import SHARE_BYTES, SumClient
from fedflat.federation.secure_sum.messages import (
    KeysRequest,
    MaskRequest,
    SharesRequest,
    UnmaskRequest,
    threshold,
)
from fedflat.rounds.exact_sum import ExactSum

CLIENTS = range(5)
FEDERATION = "f" * 16
COMMON = (4, FEDERATION, "session")


def begun(folder: Path) -> tuple[dict[int, SumClient], SharesRequest]:
    """Five clients after step 1, and the request for step 2."""
    clients = {i: SumClient(folder / str(i), 0.6, "study") for i in CLIENTS}
    keys = []
    for i, client in clients.items():
        one = ExactSum(torch.empty(1, 3))
        one.add(torch.tensor([[1.0, -2.0, i]]), torch.ones(1, 1))
        request = KeysRequest(4, -1, (), i, 1.0, 5, FEDERATION, "study", session="session", weight=1.0)
        keys.append(client.begin(request, 10, 2, {"a": one}))
    places = (max(one.places[0] for one in keys),)
    return clients, SharesRequest(
        *COMMON, tuple(CLIENTS), tuple(one.channel_key for one in keys), tuple(one.mask_key for one in keys), places
    )


def masked(folder: Path, senders: tuple[int, ...] = tuple(CLIENTS)) -> tuple[dict[int, SumClient], dict[int, Any]]:
    """The same after step 3, with the requests for it."""
    clients, request = begun(folder)
    sent = {i: clients[i].answer(request).shares for i in senders}
    masks = {i: MaskRequest(*COMMON, senders, tuple(sent[j][i] for j in senders)) for i in senders}
    for i in senders:
        clients[i].answer(masks[i])
    return clients, masks


def test_a_share_of_the_seed_or_of_the_key_never_both(tmp_path: Path) -> None:
    """Of one that survived the seed's, of one that has gone the key's; then the session is over."""
    clients, _ = masked(tmp_path)
    told = clients[0].answer(UnmaskRequest(*COMMON, (0, 1, 2))).shares
    assert [len(share) for share in told] == [SHARE_BYTES] * 5
    for survivors in ((0, 3, 4), (0, 1, 2)):
        with pytest.raises(RefusedError, match="this session of a secure sum is over"):
            clients[0].answer(UnmaskRequest(*COMMON, survivors))
    other = clients[1].answer(UnmaskRequest(*COMMON, (0, 1, 2))).shares
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
        clients[0].answer(UnmaskRequest(*COMMON, survivors))


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


def test_the_steps_have_an_order(tmp_path: Path) -> None:
    clients, request = begun(tmp_path)
    mask, unmask = MaskRequest(*COMMON, (0, 1, 2), (b"",) * 3), UnmaskRequest(*COMMON, (0, 1, 2))
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
    clients[0].answer(MaskRequest(*COMMON, tuple(CLIENTS), shares))
    told = clients[0].answer(UnmaskRequest(*COMMON, tuple(CLIENTS))).shares
    assert [len(share) for share in told] == [SHARE_BYTES, SHARE_BYTES, 0, SHARE_BYTES, SHARE_BYTES]


@pytest.mark.parametrize(
    ("share", "asked", "needed"), [(0.6, 5, 3), (0.6, 10, 6), (0.55, 20, 11), (1.0, 7, 7), (0.51, 1, 2), (0.7, 10, 7)]
)
def test_the_threshold_is_the_share_as_it_is_written(share: float, asked: int, needed: int) -> None:
    assert threshold(share, asked) == needed


def test_no_two_halves_of_a_round_can_both_unmask() -> None:
    """One half would tell of a client the seed's shares, the other one the key's."""
    assert all(2 * threshold(share, n) > n for n in range(1, 200) for share in (0.501, 0.51, 0.6, 0.67, 1.0))
