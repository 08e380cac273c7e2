"""FedSAM with the options of its perturbation, against a transcription, and what equals what."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.methods import all_methods, find
from support.effort import for_few_rounds
from support.federation import final_w
from support.problem import Problem, assert_agrees, unit

RHO = 0.3
FedSAM, FedAvg = find("FedSAM"), find("FedAvg")
Radius = Callable[[Problem, int], float]


def transcription(p: Problem, radius: Radius = lambda p, t: RHO) -> np.ndarray:
    w = p.w0
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                e = radius(p, t) * unit(p.grad(i, v))
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


# The options, each with a value that changes a run of every method that takes it.
OPTIONS = {"schedule": ff.Perturbation(schedule="linear")}
METHODS = {name: for_few_rounds(cls) for name, cls in all_methods().items() if cls.training == "federated"}
# Their perturbation is something else by default; what the field is for is in the method's docstring.
VARIANTS: dict[str, Method] = {
    "FedNSAM, local": find("FedNSAM")(perturbation="local"),
    "FedSMOO, uncorrected": find("FedSMOO")(sam_correction=False),
    "FedGloSS, released": find("FedGloSS")(released_schedule=True, warm_up=2),
    "FedLESAM, released": find("FedLESAM")(norm="layer_sum"),
    "SWA, FedSAM": find("SWA")(base=FedSAM(), begin=0.0, cycle=1),
    "FedGF": find("FedGF")(c=0.5),  # both of its perturbations count
}  # fmt: skip
# By the equations of each: a perturbation along its gradient, along another direction, and a step at w alone.
ALONG_GRADIENT = {"FedSAM", "FedASAM", "FedGAMMA", "FedSpeed", "MoFedSAM", "FedGF", "FedGloSS", "FedNSAM, local",
                  "FedSMOO, uncorrected", "FedGloSS, released", "SWA, FedSAM"}  # fmt: skip
ALONG_OTHER = {"FedLESAM", "FedLESAM_D", "FedLESAM_S", "FedNSAM", "FedWMSAM", "FedSOL", "FedVSSAM"}
REFUSED = {("FedGloSS, released", "schedule")}  # it has a schedule of its own


def takes(name: str, option: str) -> bool:
    return (name in ALONG_GRADIENT or (name in ALONG_OTHER and option in ("schedule",))) and (
        name,
        option,
    ) not in REFUSED


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", METHODS | VARIANTS)
def test_a_method_takes_an_option_or_refuses_it(name: str, option: str) -> None:
    method, options = (METHODS | VARIANTS)[name], OPTIONS[option]
    if not takes(name, option):
        with pytest.raises(InputError, match=rf"^perturbation\.{option} = .* does not go with "):
            final_w(method, perturbation=options, rounds=1)
        return
    plain, changed = (final_w(method, perturbation=one, rounds=3) for one in (None, options))
    assert not torch.equal(plain, changed)
