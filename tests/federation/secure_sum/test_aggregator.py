"""A round under masks: the bits of one without, whoever drops out at whichever step, and lies are found out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.federation.messages import TrainReply
from fedflat.federation.secure_sum.aggregator import MaskedSum
from fedflat.federation.secure_sum.client import SumClient
from fedflat.federation.secure_sum.keys import WORD
from fedflat.federation.secure_sum.messages import (
    FIGURES,
    FIGURES_FIELD,
    KeysReply,
    KeysRequest,
    MaskReply,
    MaskRequest,
    SharesReply,
    SharesRequest,
    UnmaskReply,
    UnmaskRequest,
    figures_sum,
)
from fedflat.federation.server import FederatedServer, RoundFailedError, RoundTerms
from fedflat.methods import find
from support.effort import in_turns
from support.federation import federation
from support.malicious_replies import change_vector
from support.secure_sums import CLIENT, SummingTransport, dropping, summing_federation
from support.transports import DIGEST, InProcessTransport, client_names, federated_clients, federated_server

NAMES = client_names(federation())
GONE = {NAMES[0], NAMES[3]}
STEPS = (KeysRequest, SharesRequest, MaskRequest, UnmaskRequest)
FedAvg, Scaffold = find("FedAvg"), find("Scaffold")


def plain(method: Method, folder: Path, gone: dict[int, set[str]], rounds: int, **changes: Any) -> FederatedServer:
    """The same federation without masks, after some rounds in which the replies of some clients are missing."""

    def change(client: str, reply: TrainReply) -> TrainReply | None:
        return None if client in gone.get(reply.t, set()) else reply

    rule = changes.pop("rule", 1.0)
    dtype = changes.pop("dtype", torch.float32)
    server = federated_server(method, CLIENT, rule, dtype, **changes)
    transport = InProcessTransport(federated_clients(method, folder, CLIENT, dtype, rule), change)
    for _ in range(rounds):
        server.round(transport)
    return server


def assert_same(one: FederatedServer, other: FederatedServer) -> None:
    """The state and all that is reported, of which the drift's sum is rounded in another order."""
    for field, x in other.state.tensors().items():
        assert torch.equal(getattr(one.state, field), x), field
    for row, expected in zip(one.history, other.history, strict=True):
        assert row == expected | {"drift": pytest.approx(expected["drift"], rel=1e-12)}


@pytest.mark.slow
def test_every_method_has_the_bits_of_a_federation_without_masks(covering_method: Method, tmp_path: Path) -> None:
    """Two rounds of three in six clients, one of whom drops out of the second round after it has trained."""
    method = covering_method
    server, transport = summing_federation(method, tmp_path / "sum", rule=3)
    server.round(transport)
    last = {server.names[server.cohort(1)[-1]]}
    transport.change = dropping(MaskRequest, *last, t=1)
    assert set(server.round(transport).missing) == last
    assert_same(server, plain(method, tmp_path / "plain", {1: last}, rounds=2, rule=3))


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, FederatedServer]:
    """Scaffold without masks after two rounds, by whether two clients are missing in the first one."""
    folder = tmp_path_factory.mktemp("references")
    return {some: plain(Scaffold(), folder / str(some), {0: GONE if some else set()}, 2) for some in (True, False)}


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_third_may_drop_out_at_any_step(
    step: type[Any], references: dict[bool, FederatedServer], tmp_path: Path
) -> None:
    """Whoever is gone before its masked sum came is missing, and whoever goes after it is in the mean.

    They are back in the next round, with the records that they had.
    """
    server, transport = summing_federation(Scaffold(), tmp_path, change=dropping(step, *GONE))
    reports = [server.round(transport) for _ in range(2)]
    missing = set() if step is UnmaskRequest else GONE
    assert [set(report.missing) for report in reports] == [missing, set()]
    assert_same(server, references[bool(missing)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "line"),
    [
        (KeysRequest, "3 of 6 clients replied, 4 must (clinic-00: training: no answer before"),
        (SharesRequest, "3 of 6 clients replied, 4 must (clinic-00: sharing keys: no answer"),
        (MaskRequest, "3 of 6 clients replied, 4 must (clinic-00: masking: no answer before"),
        (UnmaskRequest, "3 of 6 clients replied, 4 must (clinic-00: unmasking: no answer"),
    ],
)
def test_if_more_drop_out_the_round_fails_and_may_be_tried_again(
    step: type[Any], line: str, references: dict[bool, FederatedServer], tmp_path: Path
) -> None:
    server, transport = summing_federation(Scaffold(), tmp_path, change=dropping(step, *NAMES[:3]))
    before = server.w.clone()
    with pytest.raises(RoundFailedError) as e:
        server.round(transport)
    assert str(e.value).startswith(f"round 0: {line}")
    assert torch.equal(server.w, before)
    transport.change = lambda client, request, reply: reply
    for _ in range(2):
        assert server.round(transport).missing == {}
    assert_same(server, references[False])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_by_samples_in_both_precisions(dtype: torch.dtype, tmp_path: Path) -> None:
    changes = {"weights": "samples", "dtype": dtype}
    server, transport = summing_federation(FedAvg(), tmp_path / "sum", **changes)
    server.round(transport)
    assert_same(server, plain(FedAvg(), tmp_path / "plain", {}, rounds=1, **changes))


def test_if_the_only_client_at_the_highest_place_drops_out_the_others_begin_again(tmp_path: Path) -> None:
    """Its numbers are 2**30 times as large, so the others' sums were cut above what their mean keeps."""
    bad = NAMES[2]
    server, transport = summing_federation(FedAvg(), tmp_path / "sum", change=dropping(MaskRequest, bad))
    honest = transport.clients[bad].train

    def large(request: Any) -> TrainReply:
        reply = honest(request)
        numbers = np.frombuffer(reply.up["delta"].data, "<f4") * np.float32(2**30)
        return change_vector(reply, data=numbers.tobytes())

    transport.clients[bad].train = large
    claiming(transport, bad, drift=1.0)  # or the place of that would give it away
    report = server.round(transport)
    assert list(report.missing) == [bad]
    assert_same(server, plain(FedAvg(), tmp_path / "plain", {0: {bad}}, rounds=1))
    steps = Counter(type(request).__name__ for name, request, _ in transport.seen if name == NAMES[0])
    assert steps == {"KeysRequest": 2, "SharesRequest": 2, "MaskRequest": 2, "UnmaskRequest": 1}
    unmasked = {request.session for _, request, _ in transport.seen if isinstance(request, UnmaskRequest)}
    masked = {request.session for _, request, _ in transport.seen if isinstance(request, MaskRequest)}
    assert len(masked) == 2
    assert len(unmasked) == 1


def test_clients_shorten_to_the_bound_what_the_server_would_have_shortened(tmp_path: Path) -> None:
    guard = ff.Guard(bound=0.3, max_weight=1.5)
    server, transport = summing_federation(Scaffold(), tmp_path / "sum", guard=guard, weights="samples")
    for _ in range(2):
        server.round(transport)
    other = plain(Scaffold(), tmp_path / "plain", {}, rounds=2, guard=guard, weights="samples")
    assert_same(server, other)
    assert sum(row["clipped"] for row in server.history) > 0


@pytest.mark.parametrize(
    ("guard", "norm_multiple", "line"),
    [
        (None, 100.0, "norm-multiple: under secure-sum the server sees no client's norm; set norm-multiple = inf"),
        (ff.Guard(max_weight=2.0), 100.0, "norm-multiple: under secure-sum"),
        (ff.Guard(multiple=2.0), inf, "guard: the server sees no client's norm under secure-sum; set bound alone"),
        (ff.Guard(bound=1.0, multiple=2.0), inf, "guard: the server sees no client's norm under secure-sum"),
        (ff.Guard(bound=1.0, action="refuse"), inf, "guard: the server sees no client's norm under secure-sum"),
    ],
)
def test_bounds_that_the_server_cannot_check_are_refused(
    guard: ff.Guard | None, norm_multiple: float, line: str
) -> None:
    terms = RoundTerms(norm_multiple=norm_multiple, secure_sum=0.6)
    with pytest.raises(InputError) as e:
        federated_server(FedAvg(), CLIENT, terms=terms, guard=guard)
    assert str(e.value).startswith(line)
    federated_server(FedAvg(), CLIENT, terms=RoundTerms(), guard=guard)


def words_of(reply: MaskReply) -> np.ndarray:
    return np.concatenate([np.frombuffer(x.data, "<u8") for x in reply.masked.values()])


def test_what_the_server_gets_of_one_client_looks_random(tmp_path: Path) -> None:
    """The same training twice: masked sums have nothing in common, and their bits are as often one as zero.

    Without masks the higher half of every word would be the sign.
    """
    seen = []
    for name in "ab":
        server, transport = summing_federation(FedAvg(), tmp_path / name)
        server.round(transport)
        seen += [words_of(reply) for client, _, reply in transport.seen
                 if client == NAMES[0] and isinstance(reply, MaskReply)]  # fmt: skip
        assert len({words_of(x).tobytes() for _, _, x in transport.seen if isinstance(x, MaskReply)}) == 6
    assert not np.any(seen[0] == seen[1])
    for words in (*seen, seen[0] - seen[1]):
        high = np.unpackbits((words >> np.uint64(44)).astype(">u8").view(np.uint8)).reshape(-1, 64)[:, 44:]
        assert abs(high.mean() - 0.5) < 6 * 0.5 / np.sqrt(high.size)


def test_of_each_client_the_server_gets_shares_of_one_secret_alone(tmp_path: Path) -> None:
    gone = NAMES[5]
    server, transport = summing_federation(FedAvg(), tmp_path, change=dropping(MaskRequest, gone))
    server.round(transport)
    replies = [reply for _, _, reply in transport.seen if isinstance(reply, UnmaskReply)]
    assert [len(reply.shares) for reply in replies] == [6] * 5
    assert not list(tmp_path.glob(f"{NAMES[0]}/secure-sum/s*")), "secrets go with the last step"
    assert len(list(tmp_path.glob(f"{gone}/secure-sum/s*"))) == 2, "until the next round, of a client that dropped out"


def asked(transport: SummingTransport, step: type[Any]) -> set[str]:
    """The clients that were asked for a step."""
    return {name for name, request, _ in transport.seen if isinstance(request, step)}


@pytest.fixture
def told_too_late(tmp_path: Path) -> Path:
    """The clients' folders after a round whose sum all six have unmasked, and three of them after the deadline.

    A server that keeps what comes late knows the sum.
    """
    server, transport = summing_federation(FedAvg(), tmp_path, change=dropping(UnmaskRequest, *NAMES[:3]))
    with pytest.raises(RoundFailedError, match="3 of 6 clients replied, 4 must"):
        server.round(transport)
    return tmp_path


@pytest.mark.parametrize("step", STEPS[:3], ids=lambda step: step.__name__)
def test_a_round_that_was_unmasked_is_not_unmasked_for_others(step: type[Any], told_too_late: Path) -> None:
    """Else the difference of both sums would be the record of the client that has gone. A new process is the server.

    Nobody is asked to unmask, and when all are back the round succeeds.
    """
    server, transport = summing_federation(FedAvg(), told_too_late, change=dropping(step, NAMES[5]))
    with pytest.raises(RoundFailedError) as e:
        server.round(transport)
    line = "round 0: shares were disclosed for a sum over 6 clients, 5 of them are here, and the difference to another"
    assert str(e.value).startswith(line)
    assert "set unmask-again = 1, see docs/secure_sum.md (clinic-05: " in str(e.value)
    assert asked(transport, UnmaskRequest) == set()
    transport.change = lambda client, request, reply: reply
    assert server.round(transport).missing == {}
    assert torch.equal(server.w, plain(FedAvg(), told_too_late / "plain", {}, rounds=1).w)


def test_a_client_itself_refuses_a_second_sum_of_a_round(told_too_late: Path) -> None:
    """Whatever a server that does not look at what it is told may ask."""
    hidden = {"unmasked": ()}

    def change(name: str, request: Any, reply: Any) -> Any:
        if name == NAMES[5]:
            return None
        return replace(reply, **hidden) if isinstance(reply, KeysReply) else reply

    server, transport = summing_federation(FedAvg(), told_too_late, change=change)
    with pytest.raises(RoundFailedError, match="unmasking: round 0 has been unmasked for 6 clients, and these are"):
        server.round(transport)
    assert asked(transport, UnmaskRequest) == set(NAMES[:5])
    assert not [reply for _, _, reply in transport.seen if isinstance(reply, UnmaskReply)]


def test_who_was_not_in_the_sum_is_not_in_its_repetition(tmp_path: Path) -> None:
    """The client that was gone is back, and the round is repeated without it."""
    gone = NAMES[5]
    late = dropping(UnmaskRequest, *NAMES[:3])
    before = dropping(MaskRequest, gone)
    server, transport = summing_federation(FedAvg(), tmp_path / "sum", change=lambda *one: late(*one) and before(*one))
    with pytest.raises(RoundFailedError):
        server.round(transport)
    server, transport = summing_federation(FedAvg(), tmp_path / "sum")
    report = server.round(transport)
    assert report.missing == {gone: "the round is repeated as it was, without it"}
    assert asked(transport, SharesRequest) == set(NAMES[:5])
    assert torch.equal(server.w, plain(FedAvg(), tmp_path / "plain", {0: {gone}}, rounds=1).w)


def test_as_long_as_too_few_have_told_shares_others_may_be_summed(tmp_path: Path) -> None:
    """Two of six clients have been asked: the four others are enough for a sum, and the two for none."""

    def unreached(name: str, request: Any) -> Any:
        return None if isinstance(request, UnmaskRequest) and name not in NAMES[:2] else answer(name, request)

    server, transport = summing_federation(FedAvg(), tmp_path / "sum")
    answer = transport.reply
    transport.reply = unreached
    with pytest.raises(RoundFailedError, match="2 of 6 clients replied, 4 must"):
        server.round(transport)
    server, transport = summing_federation(FedAvg(), tmp_path / "sum", change=dropping(KeysRequest, NAMES[0]))
    assert list(server.round(transport).missing) == [NAMES[0]]
    assert torch.equal(server.w, plain(FedAvg(), tmp_path / "plain", {0: {NAMES[0]}}, rounds=1).w)


def test_the_operator_may_go_on_without_a_client_that_never_comes_back(told_too_late: Path) -> None:
    gone = NAMES[5]
    change = dropping(KeysRequest, gone)
    server, transport = summing_federation(FedAvg(), told_too_late, change=change, unmask_again=1)
    assert list(server.round(transport).missing) == [gone]
    assert torch.equal(server.w, plain(FedAvg(), told_too_late / "plain", {0: {gone}}, rounds=1).w)


def test_a_share_under_another_clients_index_is_passed_over(tmp_path: Path) -> None:
    """Two shares of one index would be no secret; those of the other five clients are enough."""

    def change(name: str, request: Any, reply: Any) -> Any:
        if name != NAMES[1] or not isinstance(reply, UnmaskReply):
            return reply
        return replace(reply, shares=tuple((1).to_bytes(4, "little") + share[4:] for share in reply.shares))

    server, transport = summing_federation(FedAvg(), tmp_path / "sum", change=change)
    assert server.round(transport).missing == {}
    assert torch.equal(server.w, plain(FedAvg(), tmp_path / "plain", {}, rounds=1).w)


def wrong(kind: type[Any], client: str, **changes: Any) -> Any:
    def change(name: str, request: Any, reply: Any) -> Any:
        return replace(reply, **changes) if name == client and isinstance(reply, kind) else reply

    return change


@pytest.fixture(scope="module")
def without_the_second(tmp_path_factory: pytest.TempPathFactory) -> FederatedServer:
    """FedAvg without masks after a round in which the second client is missing."""
    return plain(FedAvg(), tmp_path_factory.mktemp("reference"), {0: {NAMES[1]}}, rounds=1)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        (KeysReply, {"samples": 7}, "training: samples is 7, expected 12"),
        (KeysReply, {"steps": 1}, "training: steps is 1, expected 6"),
        (KeysReply, {"t": 3}, "training: t is 3, expected 0"),
        (KeysReply, {"channel_key": bytes(32)}, "training: a public key is no X25519 key"),
        (KeysReply, {"mask_key": b"short"}, "training: a public key is no X25519 key"),
        (KeysReply, {"seed_digest": b""}, "training: there are 1 shares or keys, expected 1 of [32] bytes"),
        (KeysReply, {"places": (0,)}, "training: places are (0,), expected one for each of 2 sums"),
        (KeysReply, {"places": (0, 10**6)}, "training: places are (0, 1000000), expected one for each of 2"),
        (SharesReply, {"shares": (b"",) * 6}, "sharing keys: there are 6 shares or keys, expected 6 of [132] bytes"),
        (SharesReply, {"session": "other"}, "sharing keys: its reply is of another session"),
        (MaskReply, {"confirmations": ()}, "masking: there are 0 shares or keys, expected 6 of [32] bytes"),
        (MaskReply, {"masked": {}}, "masking: the masked sums are {}, expected {'mean.delta': ('<u8', (2, 73), 1168)"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else None,
)
def test_a_malformed_reply_costs_its_sender_alone(
    kind: type[Any], changes: dict[str, Any], reason: str, without_the_second: FederatedServer, tmp_path: Path
) -> None:
    bad = NAMES[1]
    server, transport = summing_federation(FedAvg(), tmp_path, change=wrong(kind, bad, **changes))
    report = server.round(transport)
    assert list(report.missing) == [bad]
    assert report.missing[bad].startswith(reason)
    assert report.metrics["clients"] == 5
    assert torch.equal(server.w, without_the_second.w)


def test_wrong_shares_are_found_out_before_the_model_changes(tmp_path: Path) -> None:
    """A digest of each seed and the public keys were sent before; the round fails, and says of whose secret."""

    def change(name: str, request: Any, reply: Any) -> Any:
        if name != NAMES[0] or not isinstance(reply, UnmaskReply):
            return reply
        return replace(reply, shares=tuple(share[:-1] + bytes([share[-1] ^ 1]) for share in reply.shares))

    server, transport = summing_federation(FedAvg(), tmp_path, change=change)
    before = server.w.clone()
    with pytest.raises(RoundFailedError, match=r"round 0: the shares of clinic-0\d's secret are not what it was split"):
        server.round(transport)
    assert torch.equal(server.w, before)


def test_words_that_are_no_record_are_found_out(tmp_path: Path) -> None:
    """Random words end up far beyond what six clients can add up to."""

    def change(name: str, request: Any, reply: Any) -> Any:
        if name != NAMES[0] or not isinstance(reply, MaskReply):
            return reply
        masked = {
            field: replace(x, data=np.random.default_rng(0).bytes(len(x.data))) for field, x in reply.masked.items()
        }
        return replace(reply, masked=masked)

    server, transport = summing_federation(FedAvg(), tmp_path, change=change)
    with pytest.raises(
        RoundFailedError, match=r"the sum of mean\.delta is beyond its range: a client has sent what is"
    ):
        server.round(transport)


def test_the_lowest_whole_number_is_beyond_the_range(tmp_path: Path) -> None:
    """Its absolute value in NumPy is itself, and negative."""
    server, _ = summing_federation(FedAvg(), tmp_path)
    aggregator = server._aggregator(server.cohort(0), server.context(6))
    words = np.zeros(sum(a * b for a, b in aggregator._shapes.values()), WORD)
    words[3] = 2**63  # -2**63, where no other client has anything
    found = MaskedSum("s", {}, (0, 0), (), tuple(NAMES), words)
    with pytest.raises(RoundFailedError, match=r"the sum of mean\.delta is beyond its range"):
        aggregator._add(found)


@pytest.mark.parametrize("kind", ["its own", "another's"])
def test_a_public_key_that_has_come_before_costs_its_sender_alone(kind: str, tmp_path: Path) -> None:
    """All other clients would refuse to share keys with it, and each of them would be missing in its place."""
    first: list[KeysReply] = []

    def change(name: str, request: Any, reply: Any) -> Any:
        if not isinstance(reply, KeysReply):
            return reply
        first.append(reply)
        source = reply if kind == "its own" else first[0]
        return replace(reply, mask_key=source.channel_key) if len(first) == 3 else reply

    server, transport = summing_federation(FedAvg(), tmp_path, change=change)
    report = server.round(transport)
    assert list(report.missing.values()) == [
        "training: a public key has come before; all keys of a round must be different"
    ]
    assert report.metrics["clients"] == 5


def test_a_record_that_is_not_finite_does_not_leave_its_client(tmp_path: Path) -> None:
    server, transport = summing_federation(FedAvg(), tmp_path)
    honest = transport.clients[NAMES[0]].train
    transport.clients[NAMES[0]].train = lambda request: change_vector(
        honest(request), data=np.full(73, np.nan, "<f4").tobytes()
    )
    report = server.round(transport)
    assert report.missing == {NAMES[0]: "training: delta: 73 of 73 numbers are NaN or infinite"}


def test_a_round_of_one_client_is_no_sum(tmp_path: Path) -> None:
    server, transport = summing_federation(FedAvg(), tmp_path, rule=1)
    with pytest.raises(RoundFailedError, match="1 of 1 clients replied, 2 must"):
        server.round(transport)


def claiming(transport: SummingTransport, name: str, **figures: float) -> None:
    """Let a client put other figures into the sum."""
    honest = transport.clients[name].summand

    def summand(*asked: Any) -> Any:
        reply, sums = honest(*asked)
        row = torch.tensor([[figures.get(figure, 0.0) for figure in FIGURES]], dtype=torch.float64)
        sums[FIGURES_FIELD] = figures_sum()
        sums[FIGURES_FIELD].add(row, torch.ones(1, 1, dtype=torch.float64))
        return reply, sums

    transport.clients[name].summand = summand


def test_a_drift_that_nobody_can_have_costs_its_sender_alone(
    without_the_second: FederatedServer, tmp_path: Path
) -> None:
    """The place of its largest figure is not hidden."""
    bad = NAMES[1]
    server, transport = summing_federation(FedAvg(), tmp_path)
    claiming(transport, bad, drift=1e149)
    report = server.round(transport)
    assert list(report.missing) == [bad]
    assert report.missing[bad].startswith("training: its drift is in place 19, which is beyond ")
    assert torch.equal(server.w, without_the_second.w)


@pytest.mark.parametrize(
    ("figures", "left"),
    [({"drift": -1e4}, {"clipped"}), ({"clipped": 7.0}, {"drift"}), ({"clipped": 0.5}, {"drift"}),
     ({"clipped": -1.0, "drift": 4.0}, set())],
)  # fmt: skip
def test_sums_of_figures_that_cannot_be_are_left_out(figures: dict[str, float], left: set[str], tmp_path: Path) -> None:
    """Nobody knows who has sent them. A guard bounds the drift of each of six clients by 0.5."""
    server, transport = summing_federation(FedAvg(), tmp_path, guard=ff.Guard(bound=0.5))
    claiming(transport, NAMES[1], **figures)
    row = server.round(transport).metrics
    assert row.keys() & set(FIGURES) == left
    assert row["gradients"] == 2 * (2 + 3 + 1 + 2 + 1 + 3), "as many as steps, which are known"


def with_share(transport: SummingTransport, folder: Path, share: float) -> None:
    transport.summing = {name: SumClient(folder / name / "secure-sum", share, DIGEST) for name in transport.clients}


LIES = [(0, 2), (1,), (1, 2), (0, 1, 2, 3, 4, 7), (5, 4, 3, 2, 1, 0), (1, 1, 1, 1, 1, 1), (-1, 0, 1, 2, 3, 4)]


@pytest.mark.parametrize(("lie", "share"), in_turns(LIES, [0.6, 0.9, 1.0]))
def test_one_client_that_lies_about_whom_it_unmasked_stops_no_round(
    lie: tuple[int, ...], share: float, tmp_path: Path
) -> None:
    """At shares 0.9 and 1.0 of six all must help: what it says is no sum of this round, and so keeps nobody from it."""
    terms = RoundTerms(quorum=0.5, norm_multiple=inf, secure_sum=share)
    change = wrong(KeysReply, NAMES[1], unmasked=lie)
    server, transport = summing_federation(FedAvg(), tmp_path / "sum", change=change, terms=terms)
    with_share(transport, tmp_path / "sum", share)
    for _ in range(2):
        assert server.round(transport).missing == {}
    assert torch.equal(server.w, plain(FedAvg(), tmp_path / "plain", {}, rounds=2).w)


def test_a_place_at_which_the_others_vanish_costs_its_sender_alone(
    without_the_second: FederatedServer, tmp_path: Path
) -> None:
    """Two places higher than those of most: their numbers would be zero."""
    bad = NAMES[1]

    def change(name: str, request: Any, reply: Any) -> Any:
        if name != bad or not isinstance(reply, KeysReply):
            return reply
        return replace(reply, places=(reply.places[0] + 2, *reply.places[1:]))

    server, transport = summing_federation(FedAvg(), tmp_path, change=change)
    report = server.round(transport)
    assert report.missing == {bad: "training: nothing of the others is left at its place of mean.delta"}
    assert torch.equal(server.w, without_the_second.w)


def test_a_client_that_confirms_nothing_is_named(tmp_path: Path) -> None:
    """Nobody helps to unmask it, for it might have been told anything."""

    def change(name: str, request: Any, reply: Any) -> Any:
        if name != NAMES[1] or not isinstance(reply, MaskReply):
            return reply
        return replace(reply, confirmations=(bytes(32),) * len(reply.confirmations))

    server, transport = summing_federation(FedAvg(), tmp_path, change=change)
    with pytest.raises(RoundFailedError, match=r"round 0: 1 shares of clinic-01's secret are known, 4 must be"):
        server.round(transport)
