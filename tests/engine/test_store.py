from __future__ import annotations

import numpy as np
import torch

from fedflat.engine.store import ClientStore
from fedflat.methods import find


def down(method, clients: int, value: float = 3.0):
    return method.broadcast(method.init_server(torch.full((4,), value))).map(lambda x: x.expand(clients, -1))


def test_first_contact_is_made_from_the_first_message_later_ones_from_what_was_kept() -> None:
    method = find("FedLESAM")()
    store = ClientStore(method, 10, torch.zeros(4))
    assert torch.equal(store.get(np.array([2, 7]), down(method, 2)).w_old, torch.full((2, 4), 3.0))
    store.put(np.array([7, 2]), method.client(torch.tensor([[7.0] * 4, [2.0] * 4])))
    got = store.get(np.array([2, 5, 7]), down(method, 3, value=9.0))
    assert got.w_old[:, 0].tolist() == [2.0, 9.0, 7.0]


def test_only_clients_seen_use_space() -> None:
    method = find("FedSMOO")()
    store = ClientStore(method, 10**6, torch.zeros(4))
    for start in (0, 500_000):
        clients = np.arange(start, start + 3)
        store.put(clients, store.get(clients, down(method, 3)))
    tensors = store.tensors()
    assert {name: tuple(x.shape) for name, x in tensors.items()} == {"slots": (10**6,), "h": (6, 4), "mu": (6, 4)}


def test_restored_is_what_was_kept() -> None:
    method = find("Scaffold")()
    store, other = (ClientStore(method, 5, torch.zeros(4)) for _ in "ab")
    store.put(np.array([1, 3]), method.client(torch.randn(2, 4)))
    other.restore(store.tensors())
    for clients in ([1, 3], [0, 3, 4]):
        here, there = (s.get(np.array(clients), down(method, len(clients))) for s in (store, other))
        assert torch.equal(here.c, there.c)
    other.put(np.array([0]), method.client(torch.ones(1, 4)))
    assert torch.equal(other.get(np.array([0]), down(method, 1)).c, torch.ones(1, 4))


def test_methods_without_state_keep_nothing() -> None:
    method = find("FedAvg")()
    store = ClientStore(method, 5, torch.zeros(4))
    store.put(np.array([1]), method.client())
    assert list(store.tensors()) == ["slots"]
