"""The family tree: which method with which hyper-parameter is which other one, on real minibatches.

Every pair runs four rounds with partial participation and uneven clients in float64; no weight
decay and no clipping, because those act after the direction. See the references in each method.
"""

from __future__ import annotations

from functools import cache
from math import inf

import pytest
import torch

from fedflat.core.method import Method
from fedflat.methods import find
from support.effort import chosen
from support.federation import final_w, simulation


def make(name: str, **hyper: object) -> Method:
    return find(name)(**hyper)


@cache
def end(method: Method, executor: str = "auto", rounds: int = 5) -> torch.Tensor:
    """The last model of a run; many pairs share one."""
    return final_w(method, executor=executor, rounds=rounds)


EQUAL = [
    # below FedAvg: the plain gradient
    (make("FedCM", alpha=1.0), make("FedAvg")),
    (make("FedSAM", rho=0.0), make("FedAvg")),
    (make("FedLESAM", rho=0.0), make("FedAvg")),
    (make("FedSMOO", rho=0.0, dynamic_reg=False), make("FedAvg")),
    (make("FedGF", rho=0.0, c=0.0), make("FedAvg")),
    (make("FedVSSAM", rho=0.0, gamma_l=1.0, gamma_g=1.0), make("FedAvg")),
    (make("FedAvgM", beta=0.0), make("FedAvg")),
    (make("FedProx", mu=0.0), make("FedAvg")),
    (make("FedACG", lam=0.0, beta=0.0), make("FedAvg")),
    (make("MimeLite", beta=0.0), make("FedAvg")),
    (make("FedRobust", eta2=0.0), make("FedAvg")),
    (make("FedGMT", gamma=0.0, beta=None), make("FedAvg")),
    (make("FedASAM", rho=0.0), make("FedAvg")),
    (make("FedSWA", rho=1.0, server_lr=1.0), make("FedAvg")),
    (make("FedSWA", rho=1.0, server_lr=1.3), make("FedAvg", server_lr=1.3)),
    (make("FedNSAM", rho=0.0, gamma=0.0), make("FedAvg")),
    (make("FedSOL", rho=0.0), make("FedAvg")),
    (make("FedExP", average_last=False, eps=1e12), make("FedAvg")),
    (make("FedInit", beta=0.0), make("FedAvg")),
    (make("Ditto", lam=0.7), make("FedAvg")),  # own models do not touch the server's
    # below FedProx: the proximal term alone
    (make("FedACG", lam=0.0, beta=0.3), make("FedProx", mu=0.3)),
    # below FedACG: the look-ahead alone
    (make("FedNSAM", rho=0.0, gamma=0.7), make("FedACG", lam=0.7, beta=0.0)),
    (make("FedNSAM", rho=0.0, gamma=0.7, perturbation="local"), make("FedACG", lam=0.7, beta=0.0)),
    # below FedLESAM: the server's last move as the perturbation
    (make("FedNSAM", rho=0.3, gamma=0.0), make("FedLESAM", rho=0.3, direction="server_last")),
    # below FedMoSWA: one step size, one divisor
    (make("FedMoSWA", rho=1.0, lr_sum="ends"), make("FedMoSWA", rho=1.0)),
    # below Scaffold: the variates alone
    (make("FedGAMMA", rho=0.0), make("Scaffold")),
    (make("FedLESAM_S", rho=0.0), make("Scaffold")),
    (make("FedWMSAM", rho=0.0, alpha=1.0, lam=0.0), make("Scaffold")),
    # below FedSAM: the local perturbation alone
    (make("MoFedSAM", beta=1.0, rho=0.3), make("FedSAM", rho=0.3)),
    (make("FedSMOO", rho=0.3, dynamic_reg=False, sam_correction=False), make("FedSAM", rho=0.3)),
    (make("FedGloSS", rho=0.0, rho_0=0.0, rho_l=0.3, dynamic_reg=False), make("FedSAM", rho=0.3)),
    (make("FedNSAM", rho=0.3, gamma=0.0, perturbation="local"), make("FedSAM", rho=0.3)),
    (make("FedGF", rho=0.3, c=0.0), make("FedSAM", rho=0.3)),
    (make("FedGF", rho=0.3, threshold=inf), make("FedSAM", rho=0.3)),
    (make("FedVSSAM", rho=0.3, gamma_l=1.0, gamma_g=1.0), make("FedSAM", rho=0.3)),
    (make("FedFSA", rho=0.3, rho_larger=0.3, alpha=1.0), make("FedSAM", rho=0.3)),
    # below FedCM: momentum alone
    (make("FedFSA", rho=0.0, rho_larger=0.0, alpha=0.2), make("FedCM", alpha=0.2)),
    (make("MoFedSAM", rho=0.0, beta=0.2), make("FedCM", alpha=0.2)),
    (make("FedVSSAM", rho=0.0, gamma_l=1.0, gamma_update=0.2, gamma_g=1.0), make("FedCM", alpha=0.2)),
    (make("FedWMSAM", rho=0.0, alpha=0.2, lam=0.0, correction=False), make("FedCM", alpha=0.2)),
    # below MoFedSAM: the ablation LU of FedVSSAM
    (make("FedVSSAM", rho=0.3, gamma_l=1.0, gamma_update=0.2, gamma_g=1.0), make("MoFedSAM", rho=0.3, beta=0.2)),
    (make("FedFSA", rho=0.3, rho_larger=0.3, alpha=0.2), make("MoFedSAM", rho=0.3, beta=0.2)),
    (make("FedFSA", rho=0.3, top_c=0, alpha=0.2), make("MoFedSAM", rho=0.3, beta=0.2)),
    # below FedDyn: the regulariser alone
    (make("FedSMOO", rho=0.0, beta=5.0), make("FedDyn", alpha=0.2)),
    (make("FedSpeed", rho=0.0, alpha=0.2), make("FedDyn", alpha=0.2)),
    (make("FedSpeed", mix=0.0, alpha=0.2), make("FedDyn", alpha=0.2)),
    (make("FedLESAM_D", rho=0.0, beta=5.0), make("FedDyn", alpha=0.2)),
    (make("FedGloSS", rho=0.0, rho_0=0.0, rho_l=0.0, beta=5.0), make("FedDyn", alpha=0.2)),
    (make("FedTOGA", rho=0.0, beta=0.0, alpha=0.2), make("FedDyn", alpha=0.2)),
    # below FedSpeed: FedDyn on the SAM gradient
    (
        make("FedTOGA", rho=0.3, kappa=0.0, beta=0.0, alpha=0.2, perturbation="local"),
        make("FedSpeed", rho=0.3, alpha=0.2),
    ),
    (make("FedGloSS", rho=0.0, rho_0=0.0, rho_l=0.3, beta=5.0), make("FedSpeed", rho=0.3, alpha=0.2)),
    (make("FedSMOO", rho=0.3, beta=5.0, sam_correction=False), make("FedSpeed", rho=0.3, alpha=0.2)),
]

DIFFERENT = [
    (make("FedDyn", alpha=1e-12), make("FedAvg")),  # the server still adds h
    (make("FedSMOO", beta=1e12), make("FedSMOO", dynamic_reg=False)),  # likewise
    (make("FedSAM", rho=0.3), make("FedAvg")),
    (make("MoFedSAM", rho=0.3), make("FedCM")),
    (make("FedLESAM", rho=0.3), make("FedAvg")),
    (make("FedSMOO", sam_correction=False), make("FedSMOO")),
    (make("FedVSSAM", gamma_search=0.2), make("FedVSSAM", gamma_update=0.2)),
    (make("FedGF", c=0.5), make("FedGF", c=1.0)),
    (make("Scaffold"), make("FedAvg")),
    (make("FedASAM", rho=0.3), make("FedSAM", rho=0.3)),
    (make("FedGAMMA", rho=0.3), make("FedSAM", rho=0.3)),
    (make("FedSpeed", active_prox_correct=True), make("FedSpeed")),
    (make("FedGloSS", rho=0.3), make("FedGloSS", rho=0.0, rho_0=0.0)),
    (make("FedGMT", dual_scope="active"), make("FedGMT")),
    (make("FedRobust", eta2=0.5), make("FedAvg")),
    (make("FedSWA", server_lr=1.0), make("FedAvg")),
    (make("FedMoSWA", gamma=0.0), make("FedSWA")),  # c_i corrects all the same
    (make("FedMoSWA", lr_sum="ends"), make("FedMoSWA")),
    (make("FedNSAM", rho=0.3, perturbation="local"), make("FedNSAM", rho=0.3)),
    (make("FedSOL"), make("FedAvg")),
    (make("FedSOL", adaptive="layer"), make("FedSOL")),
    (make("FedExP", average_last=False, eps=1e-6), make("FedAvg")),
    (make("FedInit"), make("FedAvg")),
    (make("FedRep"), make("FedAvg")),
    (make("FedRep", head_steps=0), make("FedRep")),
    (make("FedTOGA", perturbation="local"), make("FedTOGA")),
    (make("FedTOGA", perturbation="neighbour"), make("FedTOGA")),
    (make("FedTOGA", global_update="gradient"), make("FedTOGA")),
    (make("FedTOGA", beta=0.0), make("FedTOGA")),
    (make("FedFSA", alpha=0.2), make("MoFedSAM", rho=0.05, beta=0.2)),
    (make("FedFSA", top_c=1), make("FedFSA")),
]

EQUAL_IN_ROUND_0 = [
    (make("Scaffold"), make("FedAvg")),
    (make("FedLESAM", rho=0.3), make("FedAvg")),
    (make("FedGAMMA", rho=0.0), make("FedAvg")),
    (make("FedGAMMA", rho=0.3), make("FedSAM", rho=0.3)),
    (make("FedLESAM_S", rho=0.3), make("Scaffold")),
    (make("FedLESAM_D", rho=0.3, beta=5.0), make("FedDyn", alpha=0.2)),
    (make("FedGF", rho=0.3, threshold=0.0), make("FedSAM", rho=0.3)),
    (make("FedGF", rho=0.3, c=1.0), make("FedSAM", rho=0.3)),
    (make("FedMoSWA"), make("FedSWA")),
    (make("FedNSAM", rho=0.3), make("FedAvg")),
    (make("FedNSAM", rho=0.3, perturbation="local"), make("FedSAM", rho=0.3)),
    (make("FedInit"), make("FedAvg")),
    (make("FedTOGA", rho=0.3, alpha=0.2, perturbation="local"), make("FedSpeed", rho=0.3, alpha=0.2)),
    (make("FedFSA", rho=0.3, alpha=0.2), make("MoFedSAM", rho=0.3, beta=0.2)),
]


def label(method: Method) -> str:
    changed = {n: v for n, v in vars(method).items() if v != type(method).__dataclass_fields__[n].default}
    return type(method).__name__ + (f"({', '.join(f'{n}={v}' for n, v in changed.items())})" if changed else "")


def pairs(cases: list[tuple[Method, Method]], sign: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("one", "other"), cases, ids=[f"{label(a)} {sign} {label(b)}" for a, b in cases])


# Each equality on one executor, in turns, or in `make test-all` on both.
ON_EXECUTORS = [
    pytest.param(one, other, executor, id=f"{executor}-{label(one)} = {label(other)}")
    for i, (one, other) in enumerate(EQUAL)
    for executor in chosen([("sequential", "stacked")[i % 2]], ["sequential", "stacked"])
]


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other", "executor"), ON_EXECUTORS)
def test_equal(one: Method, other: Method, executor: str) -> None:
    difference = end(one, executor) - end(other, executor)
    assert difference.abs().max() <= 1e-12


@pytest.mark.slow
@pairs(DIFFERENT, "≠")
def test_different(one: Method, other: Method) -> None:
    assert (end(one) - end(other)).abs().max() > 1e-4


@pytest.mark.slow
@pairs(EQUAL_IN_ROUND_0, "=")
def test_equal_in_the_first_round_only(one: Method, other: Method) -> None:
    assert (end(one, rounds=1) - end(other, rounds=1)).abs().max() <= 1e-12
    assert (end(one, rounds=3) - end(other, rounds=3)).abs().max() > 1e-6


@pytest.mark.parametrize(
    ("one", "other"),
    [(make("MoFedSAM", rho=0.3, beta=0.2), make("FedSAM", rho=0.3)), (make("FedCM", alpha=0.2), make("FedAvg"))],
    ids=["MoFedSAM", "FedCM"],
)
def test_momentum_starts_as_a_scaled_step(one: Method, other: Method) -> None:
    """Round 0 of FedCM and MoFedSAM is their base with the local rate scaled by the fresh weight 0.2."""
    scaled = final_w(other, rounds=1, client={"lr": 0.1 * 0.2})
    assert (final_w(one, rounds=1) - scaled).abs().max() <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_mofedsam_1_is_fedsam_and_lu_is_mofedsam_with_weight_decay_too(executor: str) -> None:
    settings = {"client": {"weight_decay": 0.1}, "executor": executor}
    lu = make("FedVSSAM", rho=0.3, gamma_l=1.0, gamma_update=0.2, gamma_g=1.0)
    for one, other in [
        (make("MoFedSAM", beta=1.0, rho=0.3), make("FedSAM", rho=0.3)),
        (lu, make("MoFedSAM", rho=0.3, beta=0.2)),
    ]:
        assert (final_w(one, **settings) - final_w(other, **settings)).abs().max() <= 1e-12


@pytest.mark.parametrize("name", ["MoFedSAM", "FedVSSAM"])
def test_absolute_server_step_of_lr_times_steps_is_plain_averaging(name: str) -> None:
    fresh = {"MoFedSAM": {"beta": 1.0}, "FedVSSAM": {"gamma_l": 1.0, "gamma_g": 1.0}}[name]
    method = make(name, rho=0.3, server_lr=0.1 * 4, server_lr_mode="absolute", **fresh)
    client = {"steps": 4, "epochs": None, "lr_decay": 1.0}
    difference = final_w(method, client=client) - final_w(make("FedSAM", rho=0.3), client=client)
    assert difference.abs().max() <= 1e-12


def test_a_server_that_saw_nobody_move_stays_where_it_is(method: Method) -> None:
    """With a rate of almost zero, whatever the method: no direction comes from nowhere."""
    sim = simulation(method, client={"lr": 1e-300, "lr_decay": 1.0}, rounds=1)
    before = sim.w.clone()
    sim.round()
    torch.testing.assert_close(sim.w, before, rtol=0, atol=1e-290)
