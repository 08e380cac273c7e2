"""Attacks: who attacks, what is sent, and data whose labels are flipped."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.records import Delta
from fedflat.methods import all_methods
from fedflat.rounds.attack import Attackers, HonestMoments, with_flipped_labels
from support.federation import federation

CLIENTS = np.arange(3, 23)


def attackers(seed: int = 0, **settings) -> Attackers:
    return Attackers(ff.Attack(**settings), ff.methods.FedAvg(), CLIENTS, seed)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"kind": "lie"}, "attack.kind must be one of"), ({"share": 0.0}, "attack.share must be"),
     ({"scale": float("inf")}, "finite"), ({"claims": 0}, "attack.claims must be"),
     ({"deviations": -1.0}, "attack.deviations must be")],
)  # fmt: skip
def test_what_is_no_attack_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ff.Attack(**settings)


def test_attackers_are_a_share_that_the_seed_chooses() -> None:
    chosen = [attackers(seed, share=0.3).clients.tolist() for seed in range(20)]
    assert all(len(set(some)) == 6 and set(some) <= set(CLIENTS) for some in chosen)
    assert len(set(map(tuple, chosen))) > 15
    assert chosen[3] == attackers(3, share=0.3).clients.tolist()
    assert len(attackers(share=0.001).clients) == 1, "at least one"
    assert attackers(share=1.0).among(np.array([1, 5, 22])).tolist() == [1, 2]


def test_noise_is_as_long_as_asked_and_depends_on_the_client_alone() -> None:
    """Of a thousand coordinates its length is scale times the record's, to a tenth."""
    found, up = attackers(kind="noise", scale=4.0, share=1.0), Delta(torch.linspace(-1, 2, 3000).reshape(3, 1000))
    known = HonestMoments(3, 3)
    noise = found.sent(up, 5, CLIENTS[:3], known).delta
    ratio = noise.norm(dim=1) / up.delta.norm(dim=1)
    assert ratio.tolist() == pytest.approx([4.0] * 3, rel=0.1)
    alone = found.sent(Delta(up.delta[1:2]), 5, CLIENTS[1:2], known).delta
    assert torch.equal(alone[0], noise[1])
    assert not torch.equal(found.sent(up, 6, CLIENTS[:3], known).delta, noise)


@pytest.mark.parametrize(("clients", "bad"), [(50, 12), (51, 24), (10, 1), (10, 6), (4, 4)])
def test_deviations_are_those_of_the_paper(clients: int, bad: int) -> None:
    """The paper's formula with scipy: of 50 workers with 12 attackers 24 / 38 of the honest ones are nearer."""
    supporters = max(1, clients // 2 + 1 - bad)
    honest = clients - bad
    expected = max(0.0, norm.ppf((honest - supporters) / honest)) if honest else 0.0
    assert HonestMoments(clients, bad).deviations == pytest.approx(expected, abs=1e-12)
    assert HonestMoments(50, 12).deviations == pytest.approx(norm.ppf(24 / 38))


def test_moments_are_those_of_all_chunks_together() -> None:
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    known = HonestMoments(9, 2)
    for part in (x[:3], x[3:4], x[4:]):
        known.add(Delta(part))
    np.testing.assert_allclose(known.mean("delta"), x.double().numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(known.std("delta"), x.double().numpy().std(0), rtol=1e-7)


def test_without_honest_clients_colluding_ones_send_nothing() -> None:
    for kind in ("inner-product", "little-is-enough"):
        found = attackers(kind=kind, share=1.0).sent(Delta(torch.ones(2, 4)), 0, CLIENTS[:2], HonestMoments(2, 2))
        assert torch.equal(found.delta, torch.zeros(2, 4))


def test_flipped_labels_are_the_attackers_own() -> None:
    """Samples that they share with others keep their labels there; what is evaluated is not touched."""
    data = federation()
    shared = ff.FederatedData(data.x, data.y, np.concatenate([data.members, data.members[:4]]),
                              np.append(data.offsets, data.offsets[-1] + 4), data.classes, data.test)  # fmt: skip
    flipped = with_flipped_labels(shared, np.array([1, 6]))
    for client in range(shared.clients):
        mine = slice(*shared.offsets[client : client + 2])
        before, after = shared.members[mine], flipped.members[mine]
        assert torch.equal(flipped.x[after], shared.x[before])
        expected = 2 - shared.y[before] if client in (1, 6) else shared.y[before]
        assert torch.equal(flipped.y[after], expected)
    assert torch.equal(flipped.test[1], shared.test[1])
    with pytest.raises(InputError, match="label-flip is for classes"):
        with_flipped_labels(
            ff.FederatedData.from_clients([(np.ones((3, 2)), np.ones(3))], task="regression"), np.array([0])
        )


def test_of_every_method_the_server_averages_what_clients_send() -> None:
    """Attackers act on messages: what is sent can be read off what is averaged."""
    for cls in all_methods().values():
        if cls.training == "federated":
            Attackers(ff.Attack(), cls(), CLIENTS, 0)
