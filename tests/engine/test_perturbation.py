"""Options of a perturbation in every executor, in a federation, in configurations and in checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.core.objective import Objective
from fedflat.experiments.config_errors import validated
from fedflat.experiments.spec import RunSpec, StudySpec
from fedflat.federation.client import FederatedClient
from fedflat.federation.membership import Membership
from fedflat.federation.server import FederatedServer
from fedflat.methods import find
from fedflat.rounds.model_parts import method_of_run
from fedflat.rounds.participation import participation
from fedflat.rounds.run_plan import RunPlan
from support.effort import chosen, in_turns
from support.federation import federation, final_w, simulation, tanh_network, whole_and_resumed
from support.transports import DIGEST, InProcessTransport, client_names

EVERY = {"schedule": "cosine", "rho_end": 0.02, "radius": "layer", "layers": ["2.weight", "0"], "adaptive": True,
         "eta": 0.1, "sigma": 0.9, "ema": 0.7}  # fmt: skip
OPTIONS = {
    "cosine": ff.Perturbation(schedule="cosine", rho_end=0.02),
    "lr": ff.Perturbation(schedule="lr"),
    "layer": ff.Perturbation(radius="layer"),
    "adaptive": ff.Perturbation(adaptive=True),
    "friendly": ff.Perturbation(sigma=1.0),
    "every": ff.Perturbation(**EVERY),
}
METHODS = {"FedSAM": find("FedSAM")(), "FedSpeed": find("FedSpeed")(mix=0.7), "MoFedSAM": find("MoFedSAM")()}


@pytest.mark.parametrize(("name", "method"), in_turns(OPTIONS, list(METHODS)))
def test_stacks_train_as_one_client_after_another(name: str, method: str) -> None:
    """Also clients with uneven numbers of steps, which leave the stack one after another."""
    settings = {"method": METHODS[method], "perturbation": OPTIONS[name]}
    one, many = (final_w(**settings, executor=kind) for kind in ("sequential", "stacked"))
    torch.testing.assert_close(many, one, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", chosen(["lr", "every"], list(OPTIONS)))
def test_a_traced_step_has_the_options(name: str, traced: None) -> None:
    """Round and step are tensors in it."""
    one, many = (simulation(METHODS["FedSAM"], perturbation=OPTIONS[name], executor=kind)
                 for kind in ("sequential", "compiled"))  # fmt: skip
    for sim in (one, many):
        for _ in sim:
            pass
    assert many.executor.step.works
    torch.testing.assert_close(many.w, one.w, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("forked_processes")
def test_workers_change_no_bit() -> None:
    settings = {"perturbation": OPTIONS["every"], "executor": "sequential"}
    one, two = (simulation(METHODS["FedSAM"], workers=number, **settings) for number in (1, 2))
    for sim in (one, two):
        for _ in sim:
            pass
        sim.close()
    assert torch.equal(one.w, two.w)


def test_a_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    make = lambda: simulation(METHODS["FedSAM"], perturbation=OPTIONS["every"], executor="sequential")  # noqa: E731
    whole, resumed = whole_and_resumed(make, 3, tmp_path)
    assert torch.equal(resumed.w, whole.w)


def test_a_checkpoint_with_other_options_is_refused(tmp_path: Path) -> None:
    first = simulation(METHODS["FedSAM"], perturbation=OPTIONS["lr"])
    first.save(tmp_path / "state.safetensors")
    with pytest.raises(InputError, match=r"perturbation was Perturbation\(schedule='lr'\), now it is None"):
        simulation(METHODS["FedSAM"]).load(tmp_path / "state.safetensors")


@pytest.mark.parametrize("keep", [[], ["2.bias"]], ids=str)
def test_a_federation_has_the_bits_of_a_simulation(keep: list[str], tmp_path: Path) -> None:
    client, options, rounds = ff.Client(lr=0.1, epochs=2, batch_size=4), OPTIONS["every"], 3
    method, data = METHODS["FedSAM"], federation()
    plan, names = RunPlan(client, participation(3), rounds=rounds), client_names(data)

    def party() -> tuple[Method, Objective]:
        objective = Objective(tanh_network())
        return method_of_run(method, objective, client, keep=keep, perturbation=options), objective

    members = Membership(dict(zip(names, data.sizes.tolist(), strict=True)), "here")
    server = FederatedServer(*party(), plan, members, "uniform", DIGEST, data.shape)
    transport = InProcessTransport({
        who: FederatedClient(*party(), data.alone(i), plan, tmp_path / who, DIGEST) for i, who in enumerate(names)
    })  # fmt: skip
    sim = ff.Simulation(tanh_network(), data, method, client, rounds, 3, executor="sequential", workers=1, keep=keep,
                        perturbation=options)  # fmt: skip
    for _ in range(rounds):
        assert not server.round(transport).missing
        sim.round()
    assert torch.equal(server.state.w, sim.server.w)


def test_patterns_of_layers_have_a_match_among_what_is_trained_and_sent() -> None:
    for pattern, keep in (("3.*", []), ("2.bias", ["2.bias"]), ("", [])):
        with pytest.raises(
            InputError, match=r"perturbation\.layers = '.*' matches no parameter that is trained and sent"
        ):
            simulation(METHODS["FedSAM"], perturbation=ff.Perturbation(layers=["0.bias", pattern]), keep=keep)


@pytest.mark.parametrize("options", ["layer", "every"])
def test_a_head_that_stays_is_not_perturbed(options: str) -> None:
    """A run whose head stays perturbs what is sent alone; to choose that layer says the same."""
    settings = {"keep": ["2"], "executor": "sequential"}
    one_layer = replace(OPTIONS[options], layers=("0",))
    same = final_w(METHODS["FedSAM"], perturbation=replace(one_layer, layers=()), **settings)
    assert torch.equal(final_w(METHODS["FedSAM"], perturbation=one_layer, **settings), same)


@pytest.mark.parametrize("settings", [{"optimizer": "adamw", "lr": 0.01}, {"momentum": 0.8}], ids=str)
def test_a_kept_optimiser_and_parts_that_stay_go_with_all_options(settings: dict[str, object]) -> None:
    """The record of a client has the state of the optimiser and, in a round, the mean of the gradients."""
    changes = {"client": settings | {"optimizer_state": "kept"}, "keep": ["2.bias"], "perturbation": OPTIONS["every"]}
    one, many = (final_w(METHODS["FedSAM"], executor=kind, **changes) for kind in ("sequential", "stacked"))
    torch.testing.assert_close(many, one, rtol=1e-11, atol=1e-12)


def test_factors_in_turns_have_the_perturbation_of_those_that_move() -> None:
    """In mode alternate the frozen factor has no part in norms: with one factor of rank 1, layers are the whole."""
    data, lora = federation(), ff.LoRA(targets=("1",), mode="alternate", r=1, head="frozen")
    ends = []
    for options in (None, ff.Perturbation(radius="layer"), ff.Perturbation(sigma=0.9)):
        sim = ff.Simulation("mlp", data, METHODS["FedSAM"], ff.Client(steps=2), 3, adapter=lora, perturbation=options,
                            model_options={"hidden": [4]}, dtype=torch.float64)  # fmt: skip
        ends.append(sim.run().w)
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=1e-13)
    assert (ends[2] - ends[0]).abs().max() > 1e-6


SETTINGS = {"method": "FedSAM", "data": {"clients": 5}, "rounds": 4}


def test_default_options_are_no_setting() -> None:
    """Results from before there were options keep their names, digests and settings."""
    plain, table = validated(RunSpec, SETTINGS), validated(RunSpec, SETTINGS | {"perturbation": {}})
    assert plain.decisive() == table.decisive()
    assert "perturbation" not in plain.decisive()
    some = validated(RunSpec, SETTINGS | {"perturbation": {"layers": ["1"]}})
    assert list(some.decisive()["perturbation"].items()) == [("layers", ("1",))]
    assert simulation(METHODS["FedSAM"], perturbation=OPTIONS["lr"]).settings()["perturbation"] == {
        "class": "Perturbation", "schedule": "lr",
    }  # fmt: skip
    assert "perturbation" not in simulation(METHODS["FedSAM"], perturbation=ff.Perturbation()).settings()
    scheduled = validated(RunSpec, SETTINGS | {"perturbation": {"schedule": "lr"}})
    assert scheduled.decisive()["perturbation"] == {"schedule": "lr"}
    assert scheduled.digest() != plain.digest()


def test_a_table_and_flags_reach_the_simulation() -> None:
    spec = validated(RunSpec, SETTINGS | {"perturbation": EVERY})
    assert spec.perturbation == ff.Perturbation(**EVERY)
    assert spec.perturbation.layers == ("2.weight", "0")
    assert validated(RunSpec, SETTINGS | {"perturbation": {"layers": ["1"]}}).build().perturbation.layers == ("1",)
    assert validated(RunSpec, spec.table()) == spec


def test_a_radius_that_depends_on_the_planned_rounds_is_not_extended() -> None:
    """As a step size that does."""
    planned = {name: validated(RunSpec, SETTINGS | {"perturbation": {"schedule": name}}).planned_by_rounds()
               for name in ("linear", "cosine", "lr", "constant")}  # fmt: skip
    assert planned == {"linear": "perturbation.schedule", "cosine": "perturbation.schedule", "lr": None,
                       "constant": None}  # fmt: skip
    settings = simulation(METHODS["FedSAM"], perturbation=OPTIONS["cosine"]).settings()
    assert settings["rounds"] == 4


REFUSED = [
    ({"rho_end": 0.1}, r"perturbation.rho_end = 0.1 is not used by perturbation.schedule = 'constant'"),
    ({"ema": 0.9}, r"perturbation.ema = 0.9 is not used by perturbation.sigma = 0"),
    ({"sigma": 1.0, "ema": 1.1}, r"perturbation.ema:? must be a number in \[0, 1\]"),
    ({"eta": 0.1}, r"perturbation.eta = 0.1 is not used by perturbation.adaptive = False"),
    ({"schedule": "cosine", "rho_start": 0.1}, "perturbation.rho_start = 0.1 is not used by"),
    ({"schedule": "linear", "rho_rounds": 3}, "perturbation.rho_rounds = 3 is not used by"),
    ({"schedule": "warmup"}, "perturbation.schedule = 'warmup' needs perturbation.rho_rounds"),
    ({"schedule": "linear", "rho_end": -0.1}, "perturbation.rho_end:? must be a number in"),
    ({"schedule": "step"}, "perturbation.schedule:? must be one of"),
]


@pytest.mark.parametrize(("table", "message"), REFUSED, ids=str)
def test_options_that_say_nothing_are_refused(table: dict[str, object], message: str) -> None:
    for make in (lambda: ff.Perturbation(**table), lambda: validated(RunSpec, SETTINGS | {"perturbation": table})):
        with pytest.raises(InputError, match=message) as error:
            make()
        assert "\n" not in str(error.value)


def test_options_that_do_not_go_with_other_settings_are_refused_before_training() -> None:
    warm = {"client": {"warmup": 2}, "perturbation": {"schedule": "lr"}}
    with pytest.raises(InputError, match=r"perturbation\.schedule = 'lr' does not go with client\.warmup = 2"):
        validated(RunSpec, SETTINGS | warm)
    with pytest.raises(InputError, match=r"perturbation\.schedule = 'lr' does not go with FedAvg"):
        validated(StudySpec, {"methods": ["FedSAM", "FedAvg"], "perturbation": {"schedule": "lr"}})
    with pytest.raises(InputError, match=r"perturbation must be fedflat\.Perturbation"):
        simulation(METHODS["FedSAM"], perturbation={"schedule": "lr"})
