"""Which clients are registered, and at which nodes."""

from __future__ import annotations

import random

from fedflat.federation.membership import ClientRegistry, NodeKey
from fedflat.federation.messages import ClientInfo
from support.transports import DIGEST


def test_clients_that_do_not_fit_are_refused() -> None:
    rng = random.Random(0)
    registry = ClientRegistry((6,), DIGEST, "1")
    right = {"name": "clinic-a", "samples": 5, "shape": (6,), "digest": DIGEST, "version": "1"}
    wrong = {
        "name": ["", "../a", "a/b", "a" * 65, "ä", ".hidden", 5], "samples": [0, -1, 2**60, 1.5, True, "5"],
        "shape": [(7,), (6, 1), (), "6"], "digest": ["other", 3], "version": ["2"],
    }  # fmt: skip
    for key, values in wrong.items():
        for value in values:
            assert not registry.register(rng.randrange(10**6), ClientInfo(**right | {key: value})), (key, value)
    assert len(registry.refused) == sum(map(len, wrong.values()))
    assert registry.members == {}
    assert registry.register(3, ClientInfo(**right))
    assert registry.members == {"clinic-a": 5}


def test_a_client_has_one_node_and_a_node_one_client() -> None:
    """A client cannot register at a second node before the first one has disconnected."""
    registry = ClientRegistry((6,), DIGEST, "1")
    info = {"samples": 5, "shape": (6,), "digest": DIGEST, "version": "1"}
    assert registry.register(3, ClientInfo("clinic-a", **info))
    assert not registry.register(4, ClientInfo("clinic-a", **info))
    assert "another node has this name" in registry.refused[4]
    assert registry.disconnect_others({4}) == ["clinic-a"]
    assert (registry.nodes.get("clinic-a"), registry.members) == (None, {"clinic-a": 5})
    assert registry.register(4, ClientInfo("clinic-a", **info))
    assert (registry.nodes.get("clinic-a"), registry.refused) == (4, {})
    assert registry.register(4, ClientInfo("clinic-b", **info))
    assert (registry.nodes.get("clinic-a"), registry.nodes.get("clinic-b")) == (None, 4)
    assert [node in registry.nodes.values() for node in (3, 4)] == [False, True]


def test_a_key_that_was_registered_with_a_name_registers_no_other() -> None:
    registry = ClientRegistry((6,), DIGEST, "1")
    info = {"samples": 5, "shape": (6,), "digest": DIGEST, "version": "1"}
    assert not registry.register(3, ClientInfo("clinic-a", **info), key=NodeKey("clinic-b"))
    assert registry.refused == {3: "clinic-a: its key was registered with the name clinic-b"}
    assert registry.register(3, ClientInfo("clinic-b", **info), key=NodeKey("clinic-b"))
    assert registry.register(4, ClientInfo("clinic-a", **info)), "a key without a name proves none"
