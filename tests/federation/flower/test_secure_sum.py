"""A secure sum through Flower's messages: the simulator's file, clients that drop out, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedflat.core.errors import InputError
from fedflat.federation.flower.client_app import client_app
from fedflat.federation.flower.export import export
from fedflat.federation.flower.records import RECORD, read_reply, read_sum_request, to_records
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.membership import RoundFailedError
from fedflat.federation.messages import Failure, PackedTensor, RefusedError, TrainRequest
from fedflat.federation.secure_sum.messages import (
    KeysReply,
    KeysRequest,
    MaskReply,
    MaskRequest,
    SharesReply,
    SharesRequest,
    UnmaskReply,
    UnmaskRequest,
)
from support.flower_fixtures import GridFederation, failing, simulated, study_of
from support.local_grid import LocalGrid, Node

SECURE = {"secure-sum": 0.6, "norm-multiple": inf}
COMMON = (3, "f" * 16, "session")
VECTORS = {"mean.delta": PackedTensor("<u8", (2, 1), bytes(16))}
REQUESTS = (
    KeysRequest(3, -1, (1, 2), 0, 0.5, 3, "f" * 16, "study", {}, session="session", weight=2.0),
    SharesRequest(*COMMON, (0, 2), (b"a", b"b"), (b"c", b"d"), (0, -1)),
    MaskRequest(*COMMON, (0, 2), (b"a", b"b")),
    UnmaskRequest(*COMMON, (0, 2), (b"a", b"b")),
)
REPLIES = (
    KeysReply(3, 10, 2, b"a", b"b", b"c", (0, -1), (0, 2)),
    SharesReply("session", (b"a", b"")),
    MaskReply("session", (b"a", b"b"), VECTORS),
    UnmaskReply("session", (b"", b"b")),
)


@pytest.mark.slow
def test_it_leaves_the_file_of_the_simulator(tmp_path: Path) -> None:
    """Three of five clients in each round, who keep records; all steps answered, and no secret left."""
    spec = study_of(method="scaffold", rounds=2, guard={"bound": 0.5})
    federation = GridFederation(spec, tmp_path / "federation", **SECURE | {"secure-sum": 0.7})
    assert federation.serve() == simulated(spec, tmp_path / "simulation")
    assert [event["missing"] for event in federation.events("round")] == [{}, {}]
    assert not list(federation.folder.glob("state/*/*/secure-sum/s*"))


def dropping_out(node: Node, record: str) -> Node:
    """The same node, of whose replies nothing arrives from the first request with `record` on.

    The grid says so at once, so that nobody waits for a deadline.
    """
    lost = False

    def app(message: Message, context: Context) -> Message:
        nonlocal lost
        lost = lost or record in message.content
        return node.app(message, context)

    return Node(app, node.config, tamper=lambda number, contents: {} if lost else contents)


@pytest.mark.slow
def test_two_of_five_drop_out_after_they_have_shared_keys(tmp_path: Path) -> None:
    """The file is that of a federation without masks in which the replies of these two are missing."""
    models, missing = [], []
    for name, settings, record in (("sum", SECURE, RECORD[MaskRequest]), ("plain", {}, RECORD[TrainRequest])):
        spec = study_of(method="scaffold", rounds=1, participation=1.0)
        federation = GridFederation(spec, tmp_path / name, **settings)
        for number in (101, 103):
            federation.nodes[number] = dropping_out(federation.nodes[number], record)
        models.append(federation.serve())
        missing.append(federation.events("round")[0]["missing"])
    assert models[0] == models[1]
    assert list(missing[0]) == list(missing[1]) == ["client-1", "client-3"]
    assert all(reason.startswith("masking: its reply cannot be read") for reason in missing[0].values())


def losing(node: Node, step: type[Any]) -> Node:
    """The same node, whose replies to one step are lost after it has been asked to unmask round 1, then included."""
    unmasked = lost = False

    def app(message: Message, context: Context) -> Message:
        nonlocal unmasked, lost
        unmasked = unmasked or message.content.get(RECORD[UnmaskRequest], {}).get("t") == 1
        lost = unmasked and RECORD[step] in message.content
        return node.app(message, context)

    return Node(app, node.config, tamper=lambda number, contents: {} if lost else contents)


@pytest.mark.usefixtures("no_waiting")
def test_a_round_that_was_unmasked_goes_on_with_others_only_if_the_operator_says_so(tmp_path: Path) -> None:
    """Three of five replies to the last step of round 1 are lost, and another client never comes back."""
    federation = GridFederation(study_of(rounds=2, participation=1.0), tmp_path / "federation", **SECURE)
    nodes = federation.nodes | {104: losing(federation.nodes[104], KeysRequest)}
    late = {number: losing(nodes[number], UnmaskRequest) for number in (101, 102, 103)}
    for now in (nodes | late, nodes):  # the second one is another process, which goes on from round 1
        with failing(RoundFailedError, "set unmask-again = 2, see docs/secure_sum.md (client-4: "):
            federation.serve(now)
    first, *others = [event["reason"] for event in federation.events("round failed")]
    assert first.startswith("round 1: 2 of 5 clients replied, 3 must (client-1: unmasking: ")
    line = "round 1: shares were disclosed for a sum over 5 clients, 4 of them are here, and the difference to another"
    assert [reason.startswith(line) for reason in others] == [True] * 5
    federation.config["unmask-again"] = 2
    with failing(RoundFailedError, "round 1: 0 of 5 clients replied"):
        federation.serve(nodes)
    refused = {event["reason"] for event in federation.events("node refused")}
    assert refused == {
        "run-config: unmask-again is 2, at most 0 is allowed by the default of a site's policy (unmask_again = 0)"
    }
    (policy := tmp_path / "policy.toml").write_text("unmask_again = 2\n")
    for node in nodes.values():
        node.config["policy"] = str(policy)
    federation.serve(nodes)
    assert [list(event["missing"]) for event in federation.events("round")] == [[], ["client-4"]]


def answered(federation: GridFederation, request: Any) -> RecordDict:
    """What client 0 replies to a request."""
    grid = LocalGrid(federation.nodes, federation.config)
    (number,) = grid.push_messages([Message(to_records(request), 100, "train")])
    assert number is not None
    (reply,) = grid.pull_messages([number])
    return reply.content


@pytest.mark.parametrize(
    ("settings", "line"),
    [(SECURE, "this federation has secure-sum; its clients send nothing else"), ({}, "the records are")],
    ids=["with", "without"],
)
def test_clients_send_nothing_else(settings: dict[str, Any], line: str, tmp_path: Path) -> None:
    """Neither a record in the open where sums are agreed, nor a step of a sum where they are not."""
    federation = GridFederation(study_of(), tmp_path / "federation", **settings)
    plain = TrainRequest(0, -1, (), 0, 1.0, 5, "f" * 16, federation.study.digest)
    content = answered(federation, plain if settings else REQUESTS[0])
    assert content[RECORD[Failure]]["reason"].startswith(line)


def test_a_step_without_a_session_is_one_line(tmp_path: Path) -> None:
    federation = GridFederation(study_of(), tmp_path / "federation", **SECURE)
    for request in REQUESTS[1:]:
        assert answered(federation, request)[RECORD[Failure]]["reason"] == "there is no session of a secure sum"
    hostile = replace(REQUESTS[1], federation="../../elsewhere")
    assert "federation" in answered(federation, hostile)[RECORD[Failure]]["reason"]
    assert not list(tmp_path.rglob("secure-sum"))


@pytest.mark.parametrize(("request_", "reply"), list(zip(REQUESTS, REPLIES, strict=True)))
def test_messages_come_back_as_they_were(request_: Any, reply: Any) -> None:
    assert read_sum_request(to_records(request_)) == request_
    assert read_reply(to_records(reply), request_) == reply
    assert read_reply(to_records(Failure("tired")), request_) == Failure("tired")


def test_names_on_the_network_do_not_change() -> None:
    """Nodes of other versions read them too."""
    common = {"t", "federation", "session"}
    names = [
        {*common, "since", "safe", "number", "share", "sampled", "digest", "weight"},
        {*common, "participants", "channel_keys", "mask_keys", "places"},
        {*common, "senders", "shares"},
        {*common, "survivors", "confirmations"},
        {"t", "samples", "steps", "channel_key", "mask_key", "seed_digest", "places", "unmasked"},
        {"session", "shares"},
        {"session", "confirmations"},
        {"session", "shares"},
    ]
    records = [f"{step}-{kind}" for kind in ("order", "answer") for step in ("keys", "shares", "mask", "unmask")]
    vectors = {"keys-order": {"down"}, "mask-answer": {"masked"}}
    for message, record, fields in zip((*REQUESTS, *REPLIES), records, names, strict=True):
        content = to_records(message)
        assert set(content) == {record} | vectors.get(record, set())
        assert set(content[record]) == fields


@pytest.mark.parametrize("message", [*REQUESTS, *REPLIES], ids=lambda x: type(x).__name__)
def test_a_field_of_another_type_is_refused_by_name(message: Any) -> None:
    """As a whole number, a text, bytes, a list of the other kind, and missing."""

    def read(content: RecordDict) -> Any:
        if message in REQUESTS:
            return read_sum_request(content)
        return read_reply(content, REQUESTS[REPLIES.index(message)])

    record = RECORD[type(message)]
    good = dict(to_records(message)[record])
    for name, value in good.items():
        for wrong in (7, "x", b"x", 0.5, True, [1], [b"x"], ["x"]):
            one = wrong[0] if isinstance(wrong, list) else wrong
            own = value[0] if isinstance(value, list) and value else value
            if (type(wrong), type(one)) == (type(value), type(own)):
                continue
            content = to_records(message)
            content[record] = ConfigRecord(good | {name: wrong})
            with pytest.raises(RefusedError, match=name):
                read(content)
        content = to_records(message)
        content[record] = ConfigRecord({key: x for key, x in good.items() if key != name})
        with pytest.raises(RefusedError, match="has the fields"):
            read(content)


@pytest.mark.parametrize("share", [0.5, 0.0, 1.1, float("nan"), "most"])
def test_a_share_that_protects_nothing_is_refused(share: object, tmp_path: Path) -> None:
    """Of at most a half of the clients each could be told by another half what unmasks the first."""
    with failing(InputError, "run-config: secure-sum"):
        _ = GridFederation(study_of(), tmp_path / "federation", **SECURE | {"secure-sum": share}).study


@pytest.mark.parametrize(
    ("guard", "norm_multiple", "line"),
    [(None, 100.0, "norm-multiple: under secure-sum the server sees no client's norm; set norm-multiple = inf"),
     ({"multiple": 3.0}, inf, "guard: the server sees no client's norm under secure-sum; set bound alone")],
)  # fmt: skip
def test_bounds_of_the_server_are_refused_before_anything_starts(
    guard: Any, norm_multiple: float, line: str, tmp_path: Path
) -> None:
    spec = study_of(guard=guard) if guard else study_of()
    with failing(InputError, line):
        _ = GridFederation(spec, tmp_path / "federation", **SECURE | {"norm-multiple": norm_multiple}).study


ASKED = KeysRequest(0, -1, (), 0, 1.0, 5, "f" * 16, "study", session="session", weight=1.0)


def test_the_app_that_a_node_has_is_asked_with_its_own_settings_or_stricter_ones(tmp_path: Path) -> None:
    """Those in the app's folder, which its digest covers."""
    federation = GridFederation(study_of(), tmp_path / "federation", **SECURE)
    export(federation.spec, RunSettings.parse("app", {"clients": 5, **SECURE, "secure-sum": 0.9}), tmp_path / "app")
    node = Node(client_app(tmp_path / "app"), federation.nodes[100].config)
    for share, wanted in (
        (0.6, "run-config: secure-sum is 0.6, at least 0.9 is required by the app's pyproject.toml (secure-sum = 0.9)"),
        (0.95, "the order is for study"),
    ):
        federation.nodes[100], federation.config["secure-sum"] = node, share
        assert answered(federation, ASKED)[RECORD[Failure]]["reason"].startswith(wanted)
