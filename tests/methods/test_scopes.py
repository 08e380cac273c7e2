"""Where weight decay and clipping act, against NumPy: section by section of the released codes' conventions."""

from __future__ import annotations

import numpy as np
import pytest

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.methods import find
from support.problem import Problem, Tanh, unit

BOUND = 0.3


def simulate(p: Problem, method: Method, **client) -> np.ndarray:
    settings = {"lr": p.eta, "lr_decay": p.decay, "steps": p.K, "batch_size": None, "weight_decay": p.wd} | client
    data = ff.FederatedData.from_clients(p.data, classes=p.classes)
    cohorts = [list(cohort) for cohort in p.cohorts]
    sim = ff.Simulation(model=p.module, data=data, method=method, client=ff.Client(**settings), participation=cohorts)
    return sim.run().w.numpy()


def clip(d: np.ndarray) -> np.ndarray:
    return d * min(1.0, BOUND / np.linalg.norm(d))


def test_decay_inside_is_mixed_with_momentum() -> None:
    """MoFedSAM: v = beta (g~ + wd w) + (1 - beta) Delta; the perturbation still contains no decay."""
    p, rho, beta = Problem(), 0.3, 0.4
    w, delta = p.w0, np.zeros_like(p.w0)
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                sharp = p.grad(i, v + rho * unit(p.grad(i, v))) + p.wd * v
                v = v - p.lr(t) * (beta * sharp + (1 - beta) * delta)
            ends.append(v)
        new = p.mean(cohort, ends)
        delta, w = (w - new) / (p.lr(t) * p.K), new
    got = simulate(p, find("MoFedSAM")(rho=rho, beta=beta), wd_scope="inside")
    assert np.abs(got - w).max() <= 1e-10
    assert np.abs(simulate(p, find("MoFedSAM")(rho=rho, beta=beta)) - w).max() > 1e-3


@pytest.mark.parametrize("name", ["FedAvg", "FedSAM", "Scaffold", "FedDyn", "FedSMOO"])
def test_inside_and_outside_are_one_without_momentum(name: str) -> None:
    runs = [simulate(Problem(), find(name)(), wd_scope=scope) for scope in ("inside", "outside")]
    assert np.array_equal(*runs)


@pytest.mark.parametrize("scope", ["full", "loss_only", "gradient", "flsim"])
def test_what_is_clipped_in_feddyn(scope: str) -> None:
    p, alpha = Problem(), 0.5
    w, h = p.w0, np.zeros_like(p.w0)
    hi = [np.zeros_like(w) for _ in range(p.N)]
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                g = p.grad(i, v)
                d = {
                    "full": lambda g=g, v=v, w=w, i=i: clip(g + alpha * hi[i] + alpha * (v - w)),
                    "loss_only": lambda g=g, v=v, w=w, i=i: clip(g) + alpha * hi[i] + alpha * (v - w),
                    "gradient": lambda g=g, v=v, w=w, i=i: clip(g) + alpha * hi[i] + alpha * (v - w),
                    "flsim": lambda g=g, v=v, w=w, i=i: clip(g + alpha * hi[i] - alpha * w) + alpha * v,
                }[scope]()
                v = p.step(v, d, p.lr(t))
            hi[i] = hi[i] + v - w
            ends.append(v)
        h = sum(hi) / p.N
        w = sum(ends) / len(ends) + h
    assert np.abs(simulate(p, find("FedDyn")(alpha=alpha), max_norm=BOUND, clip_scope=scope) - w).max() <= 1e-10


def test_gradient_clips_each_gradient_before_the_method_sees_it() -> None:
    """FedSpeed with one client a round mixes two gradients, so that clipping their mix is something else."""
    p, rho, mix, alpha = Problem(cohorts=((0,), (1,), (0,))), 0.3, 0.4, 0.2
    w, hi = p.w0, [np.zeros_like(p.w0) for _ in range(p.N)]
    for t, (i,) in enumerate(p.cohorts):
        v = w
        for _ in range(p.K):
            g = clip(p.grad(i, v))
            sharp = clip(p.grad(i, v + rho * unit(g)))
            v = p.step(v, (1 - mix) * g + mix * sharp + alpha * (hi[i] + v - w), p.lr(t))
        hi[i] = hi[i] + v - w
        w = v + sum(hi) / p.N
    method = find("FedSpeed")(rho=rho, mix=mix, alpha=alpha)
    assert np.abs(simulate(p, method, max_norm=BOUND, clip_scope="gradient") - w).max() <= 1e-10
    assert np.abs(simulate(p, method, max_norm=BOUND, clip_scope="loss_only") - w).max() > 1e-5


class Signs(find("FedAvg")):
    """client  d = sign(g)  server  -"""

    linear_in_gradient = False

    def step(self, w, client, down, grad, ctx):
        return grad(w).sign(), client


@pytest.mark.parametrize("client", [{"max_norm": BOUND, "clip_scope": "loss_only"}, {"wd_scope": "inside"}])
def test_scopes_of_a_linear_direction_are_refused_for_another(client: dict) -> None:
    name = list(client)[-1]
    with pytest.raises(InputError, match=rf"client\.{name} = .* does not go with Signs"):
        simulate(Problem(), Signs(), **client)


def test_loss_only_clips_the_second_gradient_of_sam() -> None:
    p, rho = Problem(), 0.3
    w = p.w0
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, clip(p.grad(i, v + rho * unit(p.grad(i, v)))), p.lr(t))
            ends.append(v)
        w = p.mean(cohort, ends)
    assert np.abs(simulate(p, find("FedSAM")(rho=rho), max_norm=BOUND, clip_scope="loss_only") - w).max() <= 1e-10


@pytest.mark.parametrize("client", [{"wd_scope": "inside"}, {"max_norm": BOUND, "clip_scope": "loss_only"}])
def test_fedspeeds_mix_is_its_gradient(client: dict) -> None:
    """Decay and clipping act on q as on any descent gradient, so a = 0 is FedDyn under every scope."""
    mixed = simulate(Problem(), find("FedSpeed")(rho=0.3, alpha=0.2, mix=0.0), **client)
    assert np.abs(mixed - simulate(Problem(), find("FedDyn")(alpha=0.2), **client)).max() <= 1e-12
    nearly = simulate(Problem(), find("FedSpeed")(rho=1e-9, alpha=0.2, mix=0.6), **client)
    assert np.abs(nearly - mixed).max() <= 1e-6


def test_loss_only_keeps_momentums_first_round_a_scaled_step() -> None:
    """FedCM's round 0 is FedAvg's with the rate times alpha, clipping included."""
    client = {"max_norm": BOUND, "clip_scope": "loss_only", "weight_decay": 0.0}
    p = Problem(cohorts=((0, 1, 2),))
    scaled = simulate(p, find("FedAvg")(), **(client | {"lr": p.eta * 0.3}))
    assert np.abs(simulate(p, find("FedCM")(alpha=0.3), **client) - scaled).max() <= 1e-12


@pytest.mark.slow
def test_scopes_run_for_every_method(covering_method: Method) -> None:
    for scope in ("full", "loss_only", "gradient", "flsim"):
        client = {"max_norm": BOUND, "clip_scope": scope, "wd_scope": "inside"}
        assert np.isfinite(simulate(Problem(Tanh()), covering_method, **client)).all()
