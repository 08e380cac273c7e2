"""FedSAM with the options of its perturbation, against a transcription, and what equals what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import cos, pi

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.ascent import Ascent, Perturbed
from fedflat.core.errors import InputError
from fedflat.core.method import Context, Method
from fedflat.methods import all_methods, find
from support.effort import for_few_rounds
from support.federation import final_w, simulation
from support.problem import Problem, assert_agrees, unit
from support.quadratic_clients import bowls

RHO = 0.3
FedSAM, FedAvg = find("FedSAM"), find("FedAvg")
Radius = Callable[[Problem, int], float]
Parts = Callable[[Problem], list[slice]]
Mask = Callable[[Problem], np.ndarray | float]
Scale = Callable[[Problem, np.ndarray], np.ndarray | float]


def transcription(
    p: Problem,
    radius: Radius = lambda p, t: RHO,
    parts: Parts = lambda p: [slice(None)],
    perturbed: Mask = lambda p: 1.0,
    scale: Scale = lambda p, v: 1.0,
    sigma: float = 0.0,
    ema: float = 0.0,
) -> np.ndarray:
    """parts: what has a norm of its own. perturbed: 1 where coordinates are perturbed, else 0. scale: T of ASAM.

    sigma, ema: those of Friendly-SAM (Li et al., CVPR 2024).
    """
    w = p.w0
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            v, m = w, None
            for _ in range(p.K):
                g = p.grad(i, v)
                a, m = (g, g) if m is None else (g - sigma * m, ema * m + (1 - ema) * g)
                e, a, T = np.zeros_like(v), a * perturbed(p), scale(p, v) * np.ones_like(v)
                for part in parts(p):
                    e[part] = radius(p, t) * T[part] * unit(T[part] * a[part])
                v = p.step(v, p.grad(i, v + e), p.lr(t))
            moves.append(v - w)
        w = w + p.mean(cohort, moves)
    return w


SCHEDULES: dict[str, tuple[ff.Perturbation, Radius]] = {
    "constant": (ff.Perturbation(), lambda p, t: RHO),
    "linear": (ff.Perturbation(schedule="linear", rho_end=0.1), lambda p, t: RHO + (0.1 - RHO) * t / len(p.cohorts)),
    "cosine": (ff.Perturbation(schedule="cosine", rho_end=0.5),
               lambda p, t: 0.5 + (RHO - 0.5) * (1 + cos(pi * t / len(p.cohorts))) / 2),
    "warmup": (ff.Perturbation(schedule="warmup", rho_start=0.05, rho_rounds=3),
               lambda p, t: [0.05, 0.05 + 0.25 / 3, 0.05 + 0.5 / 3, RHO, RHO, RHO][t]),
    "lr": (ff.Perturbation(schedule="lr"), lambda p, t: RHO * p.lr(t) / p.lr(0)),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_radius_by_round(name: str) -> None:
    options, radius = SCHEDULES[name]
    assert_agrees(lambda p: transcription(p, radius), FedSAM(rho=RHO), perturbation=options)


def tensors(p: Problem) -> list[slice]:
    """Where each parameter tensor of the problem's model is in its vector."""
    ends = np.cumsum([0, *(x.numel() for x in p.module.parameters())])
    return [slice(*pair) for pair in pairwise(ends)]


def weights(p: Problem) -> np.ndarray:
    """1 where the coordinate is one of a weight, which is every second tensor, from the first on."""
    marks = np.zeros_like(p.w0)
    for part in tensors(p)[::2]:
        marks[part] = 1.0
    return marks


def test_radius_by_layer() -> None:
    assert_agrees(
        lambda p: transcription(p, parts=tensors), FedSAM(rho=RHO), perturbation=ff.Perturbation(radius="layer")
    )


def test_chosen_layers() -> None:
    one = ff.Perturbation(layers=("*weight",))
    assert_agrees(lambda p: transcription(p, perturbed=weights), FedSAM(rho=RHO), perturbation=one)


def test_radius_by_layer_and_by_round_of_chosen_layers() -> None:
    options, radius = SCHEDULES["cosine"]
    every = replace(options, radius="layer", layers=("*weight",))
    expected = lambda p: transcription(p, radius, tensors, weights)  # noqa: E731
    assert_agrees(expected, FedSAM(rho=RHO), perturbation=every)


def sizes_of_weights(p: Problem, v: np.ndarray) -> np.ndarray:
    return np.where(weights(p) == 1, np.abs(v) + 0.3, 1.0)


@pytest.mark.parametrize("by_layer", [False, True])
def test_adaptive(by_layer: bool) -> None:
    options = ff.Perturbation(adaptive=True, eta=0.3, radius="layer" if by_layer else "global")
    parts = tensors if by_layer else lambda p: [slice(None)]
    expected = lambda p: transcription(p, parts=parts, scale=sizes_of_weights)  # noqa: E731
    assert_agrees(expected, FedSAM(rho=RHO), perturbation=options)


def test_the_adaptive_perturbation_of_fedsam_is_fedasams() -> None:
    """And of methods that are FedSAM at some value; on biases alone, T = 1, it is FedSAM's."""
    adaptive = ff.Perturbation(adaptive=True, eta=0.3)
    expected = final_w(find("FedASAM")(rho=RHO, eta=0.3))
    assert torch.equal(final_w(FedSAM(rho=RHO), perturbation=adaptive), expected)
    for same in (find("FedGF")(rho=RHO, c=0.0), find("MoFedSAM")(rho=RHO, beta=1.0),
                 find("FedVSSAM")(rho=RHO, gamma_l=1.0, gamma_g=1.0)):  # fmt: skip
        torch.testing.assert_close(final_w(same, perturbation=adaptive), expected, rtol=0, atol=1e-11)
    biases = ff.Perturbation(layers=("*bias",))
    both = replace(adaptive, layers=("*bias",))
    assert torch.equal(*(final_w(FedSAM(rho=RHO), perturbation=one) for one in (biases, both)))


@pytest.mark.parametrize("ema", [0.0, 0.7])
@pytest.mark.parametrize("sigma", [0.4, 1.0])
def test_friendly(sigma: float, ema: float) -> None:
    """With ema = 0 and sigma = 1, e is along g_k - g_{k-1}."""
    options = ff.Perturbation(sigma=sigma, ema=ema)
    assert_agrees(lambda p: transcription(p, sigma=sigma, ema=ema), FedSAM(rho=RHO), perturbation=options)


def test_all_options_together() -> None:
    options, radius = SCHEDULES["cosine"]
    every = replace(options, sigma=0.8, ema=0.5, adaptive=True, eta=0.3, radius="layer", layers=("*weight",))
    expected = lambda p: transcription(p, radius, tensors, weights, sizes_of_weights, 0.8, 0.5)  # noqa: E731
    assert_agrees(expected, FedSAM(rho=RHO), perturbation=every)


def test_friendly_is_sam_in_a_round_of_one_step_and_no_other() -> None:
    friendly = ff.Perturbation(sigma=1.0)
    one = {"epochs": None, "steps": 1}
    ends = [final_w(FedSAM(rho=RHO), client=one, perturbation=options) for options in (None, friendly)]
    assert torch.equal(*ends), "the mean is reset in each round"
    two = {"epochs": None, "steps": 2}
    ends = [final_w(FedSAM(rho=RHO), client=two, perturbation=options) for options in (None, friendly)]
    assert not torch.equal(*ends)


def test_the_mean_of_gradients_is_not_kept_and_not_sent() -> None:
    cost = [final_cost(options) for options in (None, ff.Perturbation(sigma=1.0))]
    assert cost[0] == cost[1]


def final_cost(options: ff.Perturbation | None) -> object:
    sim = simulation(find("FedGAMMA")(), perturbation=options, rounds=1)
    sim.run()
    return sim.cost, sim.history[-1]["gradients"]


def test_one_tensor_is_one_layer() -> None:
    """Bowls have one parameter tensor; all layers together are no choice."""
    ends = []
    for options in (None, ff.Perturbation(radius="layer"), ff.Perturbation(layers=("weight",))):
        sim = bowls().simulation(FedSAM(rho=RHO), rounds=3, perturbation=options)
        ends.append(sim.run().w)
    assert torch.equal(ends[1], ends[0])
    assert torch.equal(ends[2], ends[0])


def test_the_perturbation_of_L_layers_has_the_length_rho_root_L() -> None:
    """And of chosen ones that of these; a layer whose gradient is 0 has none."""
    a = torch.tensor([[3.0, 4.0, 1.0, -2.0, 0.5, 0.0]]).double()
    where = torch.tensor([True, True, True, True, False, False])
    ctx = Context(t=0, lr=0.1, share=1.0, layers=(slice(0, 2), slice(2, 4), slice(4, 6)))
    for mask, layers in ((None, 3), (where, 2)):
        by_layer = Perturbed.of(FedSAM(), ff.Perturbation(radius="layer"), 0.1, mask)
        ascent = Ascent(lambda w: w, by_layer, ctx, a[..., :0]).ascent
        e = ascent(a, a, RHO)
        assert e.norm() == pytest.approx(RHO * layers**0.5)
        assert bool((e * a).sum() > 0)
        assert torch.equal(ascent(a, 0 * a, RHO), 0 * a)


def test_schedules_with_the_same_radius_are_the_same() -> None:
    """With rho_start or rho_end = rho, and `lr` where the step size stays, every round has the method's radius."""
    same = {
        "warmup": {"rho_start": RHO, "rho_rounds": 3}, "linear": {"rho_end": RHO}, "cosine": {"rho_end": RHO}, "lr": {},
    }  # fmt: skip
    stays = {"lr_decay": 1.0}
    expected = final_w(FedSAM(rho=RHO), client=stays)
    for name, further in same.items():
        options = ff.Perturbation(schedule=name, **further)
        assert torch.equal(final_w(FedSAM(rho=RHO), client=stays, perturbation=options), expected), name


def test_the_radius_0_stays_0() -> None:
    options = ff.Perturbation(schedule="warmup", rho_start=0.2, rho_rounds=3)
    assert torch.equal(final_w(FedSAM(rho=0.0), perturbation=options), final_w(FedAvg()))


def test_the_radius_0_of_a_coordinate_stays_0() -> None:
    """FedFSA has a radius for each coordinate; of the others, half the way from 0.4 to 0.2 is 0.3."""
    given, expected = (torch.tensor([0.0, radius], dtype=torch.float64) for radius in (0.4, 0.3))
    radii = ff.Perturbation(schedule="linear", rho_end=0.2).scheduled(given, 2, 4, 1.0)
    torch.testing.assert_close(radii, expected, rtol=0, atol=1e-15)


# The options, each with a value that changes a run of every method that takes it.
OPTIONS = {
    "schedule": ff.Perturbation(schedule="linear"),
    "radius": ff.Perturbation(radius="layer"),
    "layers": ff.Perturbation(layers=("2.*",)),
    "adaptive": ff.Perturbation(adaptive=True),
    "sigma": ff.Perturbation(sigma=1.0),
}
METHODS = {name: for_few_rounds(cls) for name, cls in all_methods().items() if cls.training == "federated"}
# Their perturbation is something else by default; what the field is for is in the method's docstring.
VARIANTS: dict[str, Method] = {
    "FedNSAM, local": find("FedNSAM")(perturbation="local"),
    "FedSMOO, uncorrected": find("FedSMOO")(sam_correction=False),
    "FedGloSS, released": find("FedGloSS")(released_schedule=True, warm_up=2),
    "FedTOGA, neighbour": find("FedTOGA")(perturbation="neighbour"),
    "FedSOL, adaptive": find("FedSOL")(adaptive="layer"),
    "FedLESAM, released": find("FedLESAM")(norm="layer_sum"),
    "SWA, FedSAM": find("SWA")(base=FedSAM(), begin=0.0, cycle=1),
    "FedGF": find("FedGF")(c=0.5),  # both of its perturbations count
}  # fmt: skip
# By the equations of each: a perturbation along its gradient, along another direction, and a step at w alone.
ALONG_GRADIENT = {"FedSAM", "FedASAM", "FedGAMMA", "FedSpeed", "MoFedSAM", "FedGF", "FedGloSS", "FedNSAM, local",
                  "FedSMOO, uncorrected", "FedGloSS, released", "SWA, FedSAM", "FedFSA", "FedTOGA", "FedSOL",
                  "FedSOL, adaptive", "FedVSSAM"}  # fmt: skip
ALONG_OTHER = {"FedLESAM", "FedLESAM_D", "FedLESAM_S", "FedNSAM", "FedWMSAM", "FedTOGA, neighbour"}
OF_ANY = ("schedule", "radius", "layers")
REFUSED = {  # what the method has itself
    ("FedGloSS, released", "schedule"), ("FedASAM", "adaptive"), ("FedSOL, adaptive", "adaptive"),
    # or whose gradient is not the loss's alone, so that its mean over steps is another thing
    ("FedTOGA", "sigma"), ("FedVSSAM", "sigma"), ("FedSOL", "sigma"), ("FedSOL, adaptive", "sigma"),
}  # fmt: skip


def takes(name: str, option: str) -> bool:
    if name == "FedSMOO":  # its s, which all clients agree on, has the length rho
        return option == "layers"
    taken = name in ALONG_GRADIENT or (name in ALONG_OTHER and option in OF_ANY)
    return taken and (name, option) not in REFUSED


@cache
def without_options(name: str) -> torch.Tensor:
    return final_w((METHODS | VARIANTS)[name], rounds=2)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", METHODS | VARIANTS)
def test_a_method_takes_an_option_or_refuses_it(name: str, option: str) -> None:
    method, options = (METHODS | VARIANTS)[name], OPTIONS[option]
    if not takes(name, option):
        with pytest.raises(InputError, match=rf"^perturbation\.{option} = .* does not go with "):
            final_w(method, perturbation=options, rounds=1)
        return
    assert not torch.equal(final_w(method, perturbation=options, rounds=2), without_options(name))
