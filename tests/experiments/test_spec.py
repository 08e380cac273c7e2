"""Configurations: what they build, how they are written and read, and which are refused."""

from __future__ import annotations

import tomllib

import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.core.object_references import allow_code
from fedflat.experiments.config_errors import validated
from fedflat.experiments.spec import RunSpec, StudySpec, participation_of
from fedflat.rounds.participation import Bernoulli, Explicit, HeldOut, Number, Participation, Share, Unreliable
from support.effort import FEW_ROUNDS
from support.studies import SMALL, run_spec, study_spec


def test_toml_comes_back_the_same(method: Method) -> None:
    """Every method with its defaults goes to TOML and back, infinities and absent values included."""
    spec = run_spec(method={"name": type(method).__name__} | FEW_ROUNDS.get(type(method).__name__, {}))
    again = RunSpec(**tomllib.loads(spec.to_toml()))
    assert again == spec
    assert again.digest() == spec.digest()
    assert again.method.object == method


def test_names_are_forgiving_values_are_not() -> None:
    assert run_spec(method="fed-SMOO").method.object == ff.methods.FedSMOO()
    assert run_spec(method={"name": "fedsam", "rho": 0.3}).method.object == ff.methods.FedSAM(rho=0.3)
    assert run_spec(partition={"name": "IID"}).partition.name == "iid"


def test_a_spec_builds_what_it_says() -> None:
    spec = run_spec(method={"name": "fedgf", "c": 0.5}, participation={"bernoulli": 0.5}, dtype="float64", seed=4)
    sim = spec.build()
    assert sim.method == ff.methods.FedGF(c=0.5)
    assert sim.settings()["participation"] == {"class": "Bernoulli", "p": 0.5}
    assert (sim.data.clients, sim.rounds, sim.seed, sim.w.dtype) == (10, 6, 4, torch.float64)


# Another value of every setting of a run; two runs that differ in one have two folders,
CHANGED = {
    "data": {"name": "digits", "clients": 11}, "partition": "iid", "model": {"name": "cnn"}, "client": {"lr": 0.2},
    "rounds": 7, "participation": 0.4, "weights": "samples", "device": "cpu", "dtype": "float64", "precision": "bf16",
    "executor": "stacked", "eval_every": 2, "last": 2, "flatness": [], "probes": ["gradient-norm"], "probe_every": 3,
    "method": "fedsam", "seed": 1, "loss": "regression", "adapter": {"targets": ["1"]},
    "privacy": {"epsilon": 8, "delta": 1e-3, "clip": 1, "rate": 0.1},
    "guard": {"bound": 1.0}, "attack": {"kind": "noise"}, "metrics": ["macro-f1"], "perturbation": {"schedule": "lr"},
    "compress": {"share": 0.1},
}  # fmt: skip
NEEDED = {"perturbation": {"method": "fedsam"}}  # what a setting does not go without
# unless no result depends on it: where data lie, how state is kept, who computes, and what is read off the curve.
WITHOUT_EFFECT = {"data_dir": "/data", "workers": 2, "targets": [0.5], "checkpoint_every": 3, "store_megabytes": 1}


@pytest.mark.parametrize("name", RunSpec.model_fields)
def test_the_folder_depends_on_the_settings_that_results_depend_on(name: str) -> None:
    assert CHANGED.keys() | WITHOUT_EFFECT.keys() == set(RunSpec.model_fields), "a new setting is in one of the two"
    needed = NEEDED.get(name, {})
    one, other = RunSpec(**needed), RunSpec(**needed, **{name: (CHANGED | WITHOUT_EFFECT)[name]})
    assert getattr(other, name) != getattr(one, name)
    assert (other.digest() == one.digest()) == (name in WITHOUT_EFFECT)


def test_a_study_is_every_method_with_every_seed() -> None:
    runs = study_spec().runs()
    assert [run.label for run in runs] == ["FedAvg-seed0", "FedSAM-seed0", "FedAvg-seed1", "FedSAM-seed1"]
    assert len({run.digest() for run in runs}) == 4


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"methd": 1}, "methd: unknown key; did you mean method?"),
        (
            {"loss": "mse"},
            "loss: Input should be 'cross-entropy', 'multi-label', 'regression', 'next-",
        ),
        ({"zzz": 1}, "zzz: unknown key; known are data, data_dir, partition, model, "),
        ({"client": {"epoch": 3}}, "client.epoch: unknown key; did you mean epochs?"),
        ({"method": {"name": "fedsam", "roh": 1}}, "method.roh: unknown key; did you mean rho?"),
        ({"method": {"name": "fedsam", "rho": -1}}, "method.rho: must be a number in [0, inf), got -1"),
        ({"method": {"name": "fedsom"}}, "method: unknown name 'fedsom'; known are Centralised, "),
        ({"method": {"rho": 1}}, "method.rho: unknown key; known are name, server_lr"),
        ({"rounds": True}, "rounds must be a number, got true"),
        ({"method": {"name": "fedsam", "rho": True}}, "method.rho: must be a number in [0, inf), got True"),
        ({"data": {"name": "cifar"}}, "data.name = 'cifar' is unknown; known are ag_news, "),
        ({"model": {"name": "vgg"}}, "model = 'vgg' is unknown; known are causal-transformer, cnn, "),
        ({"partition": {"name": "dirichlet", "alpha": "x"}}, "partition.alpha: must be a number in (0, inf), got 'x'"),
        ({"rounds": 0}, "rounds: Input should be greater than or equal to 1, got 0"),
        ({"rounds": 0, "seed": -1}, "rounds: Input should be greater than or equal to 1, got 0 (and 1 more)"),
        ({"participation": "most"}, "participation: participation must be a share, "),
        ({"participation": {"bernouli": 0.1}}, "participation: bernouli: unknown key; did you mean bernoulli?"),
        ({"weights": "samples", "method": "scaffold"}, "weights = 'samples' does not fit Scaffold"),
    ],
)
def test_mistakes_are_one_line_that_names_the_field(table: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        validated(RunSpec, table)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"methods": ["fedavg", {"name": "fedsam", "rho": -2}]},
            "methods.1.rho: must be a number in [0, inf), got -2",
        ),
        ({"methods": []}, "methods: List should have at least 1 item"),
        ({"methods": ["fedavg", "FedAvg"]}, "methods: number 1 is the same as number 0: FedAvg"),
        ({"seeds": [0, 0]}, "seeds: seeds must be different integers from 0"),
        ({"targets": [95]}, "targets: 95.0 is no test accuracy in"),
        ({"client_of": {"feddin": {}}}, "client_of: unknown method 'feddin'"),
        ({"methods": ["feddyn"], "client_of": {"feddyn": {"lr": -1}}}, "client_of.FedDyn.lr: must be a number in (0"),
        ({"weights": "samples", "methods": ["fedavg", "scaffold"]}, "weights = 'samples' does not fit Scaffold"),
    ],
)
def test_mistakes_in_a_study(table: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        validated(StudySpec, table)
    assert str(error.value).startswith(message)


def test_a_file_that_is_no_toml_is_named(tmp_path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("rounds = = 3")
    with pytest.raises(InputError, match=r"configuration .*bad\.toml cannot be read"):
        RunSpec.load(path)
    with pytest.raises(InputError, match=r"missing\.toml cannot be read"):
        RunSpec.load(tmp_path / "missing.toml")


def test_a_protocol_that_cannot_be_shown_is_refused_before_training() -> None:
    with pytest.raises(
        ValueError, match=r"protocol = 'best-validation' needs validation samples; set data\.validation"
    ):
        validated(StudySpec, {"protocol": "best-validation"})
    assert validated(StudySpec, {"protocol": "best-validation", "data": {"validation": 0.2}})


@pytest.mark.parametrize("text", ['{"bernoulli": 0.1}', "{bernoulli = 0.1}"])
def test_participation_may_be_a_table_in_either_spelling(text: str) -> None:
    assert validated(RunSpec, {"participation": text}).participation == {"bernoulli": 0.1}


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ({"share": 0.2}, Share(0.2)),
        ({"number": 3}, Number(3)),
        ({"bernoulli": 0.3}, Bernoulli(0.3)),
        ({"cohorts": [[0], [1]]}, Explicit([[0], [1]])),
        ({"share": 0.2, "dropouts": 0.1, "stragglers": 0.3}, Unreliable(Share(0.2), 0.1, 0.3)),
        ({"number": 3, "held_out": 0.2}, HeldOut(Number(3), 0.2)),
        ({"number": 3, "held_out": 0.2, "dropouts": 0.5}, Unreliable(HeldOut(Number(3), 0.2), 0.5)),
    ],
)
def test_participation_is_what_its_table_says(table: dict, rule: Participation) -> None:
    spec = validated(RunSpec, {"participation": table})
    assert participation_of(spec.participation) == rule
    assert validated(RunSpec, tomllib.loads(spec.to_toml())) == spec


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"dropouts": 0.1}, "participation: participation needs one of share, number, bernoulli and cohorts"),
        ({"share": 0.1, "number": 3}, "participation: participation needs one of share, number, bernoulli and cohorts"),
        ({"share": 0.1, "dropouts": 1}, "participation: dropouts: Input should be less than 1, got 1"),
        ({"cohorts": [[0]], "held_out": 0.5}, "participation: held_out does not go with listed cohorts"),
    ],
)
def test_a_participation_that_cannot_be_is_named(table: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        validated(RunSpec, {"participation": table})
    assert str(error.value).startswith(message)


PRIVATE = {"privacy": {"epsilon": 100, "delta": 1e-3, "clip": 0.5, "rate": 0.5, "noise_multiplier": 2}}


def private_spec(**changes) -> RunSpec:
    shared = {name: value for name, value in SMALL.items() if name not in ("participation", "flatness")}
    return validated(RunSpec, shared | changes)


def test_a_private_run_is_built_with_its_rate_and_takes_no_measure_by_default() -> None:
    spec = private_spec(**PRIVATE, client={"steps": 2})
    sim = spec.build()
    assert sim.settings()["participation"] == {"class": "Poisson", "rate": 0.5}
    assert (spec.flatness, spec.decisive()["privacy"]["clip"]) == ([], 0.5)
    assert RunSpec.model_validate(spec.table()).digest() == spec.digest()


def test_participation_and_privacy_exclude_each_other() -> None:
    with pytest.raises(InputError, match="participation = 3 cannot be combined with privacy"):
        private_spec(**PRIVATE, participation=3)


@pytest.mark.parametrize("missing", ["epsilon", "delta", "clip", "rate"])
def test_what_privacy_needs_is_asked_for(missing: str) -> None:
    table = {name: value for name, value in PRIVATE["privacy"].items() if name != missing}
    with pytest.raises(InputError, match=rf"privacy\.{missing}"):
        private_spec(privacy=table)


def test_noise_that_was_solved_for_belongs_to_the_planned_rounds() -> None:
    solved = {name: value for name, value in PRIVATE["privacy"].items() if name != "noise_multiplier"}
    assert private_spec(**PRIVATE).planned_by_rounds() is None
    assert private_spec(privacy=solved).planned_by_rounds() == "FedAvg with noise for a given epsilon"


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"guard": {"bound": -1.0}}, "guard.bound: "), ({"guard": {"action": "clip"}}, "guard: nothing is bounded"),
     ({"guard": {"limit": 1.0}}, "guard.limit"), ({"attack": {"kind": "lie"}}, "attack.kind: "),
     ({"attack": {"scale": float("inf")}}, "attack: scale and deviations are finite")],
)  # fmt: skip
def test_guards_and_attacks_that_cannot_be_are_named(settings: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as error:
        validated(RunSpec, settings)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_guard_and_attack_go_to_toml_and_back() -> None:
    spec = run_spec(guard={"multiple": 2.0, "max_weight": 3.0}, attack={"kind": "noise", "share": 0.3})
    again = RunSpec(**tomllib.loads(spec.to_toml()))
    assert again == spec
    assert (again.build().guard, again.build().attack) == (
        ff.Guard(multiple=2.0, max_weight=3.0), ff.Attack(kind="noise", share=0.3),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"data": {"test_domain": 3}}, "data.test_domain: must be a text or none, got 3"),
        ({"adapter": {"targets": ["1"], "head": 0}}, "adapter.head: must be a text, got 0"),
        ({"client": {"epochs": 1, "steps": 2}}, "client.epochs and client.steps exclude each other"),
        ({"client": 3}, "client: must be a table, got 3"),
        ({"method": 3}, "method: must be a name or a table with a name, got 3"),
        ({"privacy": {"epsilon": 1}}, "privacy.delta: a value is needed"),
        ({"participation": Share(0.2)}, "participation: a study has a number, a list or a table here"),
    ],
)
def test_what_a_class_refuses_is_refused_by_its_key(table: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        validated(RunSpec, table)
    assert str(error.value).startswith(message)


def test_values_are_read_as_the_types_of_their_fields() -> None:
    table = {"client": {"lr": "0.5", "epochs": 2.0}, "method": {"name": "fedgmt", "beta": "none"},
             "data": {"train_samples": "none", "augment": None, "class_names": ["a", "b"]}}  # fmt: skip
    spec = validated(RunSpec, table)
    assert (spec.client, type(spec.client.epochs)) == (ff.Client(lr=0.5, epochs=2), int)
    assert spec.method.object == ff.methods.FedGMT(beta=None)
    assert (spec.data.train_samples, spec.data.augment, spec.data.class_names) == (None, "none", ("a", "b"))


def test_a_method_that_was_read_without_its_code_is_built_once_code_may_run(tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from fedflat.methods import FedSAM\n\n\nclass Mine(FedSAM):\n    '''client  server  '''\n")
    spec = validated(RunSpec, {"method": {"name": f"{file}:Mine", "rho": 0.4}})
    assert not spec.method.is_loaded
    with pytest.raises(InputError, match="names code, which is not run without permission"):
        _ = spec.method.object
    with allow_code():
        assert spec.method.object.rho == 0.4
