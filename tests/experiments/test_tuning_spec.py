"""What a search for hyper-parameters tries, and which searches are refused."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest

from fedflat.core.errors import InputError
from fedflat.experiments.config_errors import validated
from fedflat.experiments.tuning_spec import LEARNING_RATES, OneOf, Range, TuningSpec, drawn
from fedflat.methods import all_methods
from support.studies import SMALL

BOX = {"client.lr": {"low": 0.01, "high": 1.0, "log": True}, "FedSAM.rho": [0.01, 0.1, 0.5]}
TUNE = {"configurations": 8, "rounds": [2, 4], "box": BOX}


def search(**changes: Any) -> TuningSpec:
    data = {"name": "digits", "clients": 10, "validation": 0.2}
    table = SMALL | {"data": data, "methods": ["fedavg", "fedsam"], "seeds": [0, 1], "tune": TUNE} | changes
    return validated(TuningSpec, table)


def tried(spec: TuningSpec, key: str) -> list[list[Any]]:
    """The values of a key that each method tries beside the file's."""
    return [[one.values.get(key) for one in spec.configurations_of(method)[1:]] for method in spec.methods]


def test_a_range_is_uniform_or_uniform_in_its_logarithm() -> None:
    assert [Range(low=1, high=3).at(u) for u in (0, 0.25)] == [1, 1.5]
    assert Range(low=0.01, high=1, log=True).at(0) == 0.01
    assert Range(low=0.01, high=1, log=True).at(0.5) == pytest.approx(sqrt(0.01), rel=5e-3)


def test_no_rounding_leaves_a_range() -> None:
    for one in (Range(low=0.12345, high=0.12349), Range(low=1.2345, high=9.8765, log=True)):
        assert all(one.low <= one.at(u) <= one.high for u in (0, 0.1, 0.5, 0.9999999))


def test_a_file_without_a_search_is_said() -> None:
    with pytest.raises(InputError, match=r"^tune: a search needs a section \[tune\]"):
        validated(TuningSpec, {"methods": ["fedavg"]})


@pytest.mark.parametrize("seed", range(5))
def test_every_stratum_of_every_key_has_one_point(seed: int) -> None:
    box = {"a": Range(low=0, high=1), "b": OneOf(("x", "y", "z", "u")), "c": Range(low=1, high=1000, log=True)}
    points = drawn(box, 8, seed, {})
    for stratum, a in enumerate(sorted(point["a"] for point in points)):
        assert stratum / 8 - 5e-4 <= a <= (stratum + 1) / 8 + 5e-4, "three digits"
    assert sorted(point["b"] for point in points) == sorted(["x", "y", "z", "u"] * 2)
    assert len({point["c"] for point in points}) == 8


def test_points_are_different_and_none_is_the_files_own() -> None:
    box = {"a": OneOf((1, 2, 3)), "b": OneOf((1, 2, 3, 4))}
    own = {"a": 2, "b": 2, "other": 5}
    points = drawn(box, 10, 0, own)
    assert len({tuple(point.values()) for point in points}) == 10
    assert {"a": 2, "b": 2} not in points
    assert len(drawn(box, 11, 0, own)) == 11, "all of them"
    assert len(drawn(box, 50, 0, own)) == 11, "there are no more"
    assert len(drawn({"a": Range(low=1, high=1.004)}, 20, 0, {})) == 1, "one number of three digits"


def test_methods_try_the_same_values_of_a_key_that_they_share() -> None:
    spec = search()
    avg, sam = tried(spec, "client.lr")
    assert avg == sam
    assert len(set(avg)) == 3
    assert search(methods=["fedsam", "fedavg"]).configurations_of(spec.methods[0]) == spec.configurations_of(
        spec.methods[0]
    ), "whatever their order"
    assert search(tune=TUNE | {"seeds": [7]}).configurations_of(spec.methods[0]) != spec.configurations_of(
        spec.methods[0]
    )


def test_the_first_configuration_is_the_files() -> None:
    for method in search().methods:
        assert search().configurations_of(method)[0].values == {}


def test_a_method_without_keys_has_the_values_that_papers_tried() -> None:
    grid = all_methods()["FedProx"].sources.grids["mu"]
    spec = search(methods=["fedprox"], tune={"configurations": len(grid) * len(LEARNING_RATES), "rounds": [2]})
    assert set(tried(spec, "method.mu")[0]) == set(grid)
    assert set(tried(spec, "client.lr")[0]) == set(LEARNING_RATES)
    spec = search(methods=["fedsam", "fedprox"], tune=TUNE)
    assert set(tried(spec, "method.rho")[0]) <= {0.01, 0.1, 0.5}
    assert all(0.01 <= lr <= 1 for lr in tried(spec, "client.lr")[1])


@pytest.mark.parametrize("cls", all_methods().values(), ids=all_methods())
def test_what_papers_tried_can_be_tried(cls: Any) -> None:
    for name, values in cls.sources.grids.items():
        assert len(set(values)) == len(values) > 1
        assert all(getattr(cls(**{name: value}), name) == value for value in values)


def test_trials_look_at_validation_samples_alone() -> None:
    spec = search(flatness=["trace"], targets=[0.5], probes=["sharpness"])
    for method in spec.methods:
        for one in spec.configurations_of(method):
            trial = spec.trial(one, 1000, 2)
            assert trial.data.without_test
            assert (trial.flatness, trial.probes, trial.targets, trial.rounds) == ([], [], [], 2)
            assert trial.build().data.test is None


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"tune": TUNE | {"box": {"FedSAM.radius": [0.1]}}}, "tune.box.FedSAM.radius: no method FedSAM has"),
        ({"tune": TUNE | {"box": {"client.rate": [0.1, 0.2]}}}, "tune.box: client.rate"),
        ({"tune": TUNE | {"box": {"method.rho": []}}}, "tune: box.method.rho must be a list of values"),
        ({"tune": TUNE | {"box": {"method.rho": 0.1}}}, "box.method.rho must be a list of values"),
        ({"tune": TUNE | {"box": {"method.rho": [0.1, 0.1]}}}, "box.method.rho has a value twice"),
        ({"tune": TUNE | {"box": {"method.rho": [-1.0, 0.1]}}}, "tune.box: method.rho"),
        ({"tune": TUNE | {"box": {"method.rho": {"low": 1, "high": 0.1}}}}, "low must be less than high"),
        ({"tune": TUNE | {"box": {"method.rho": {"low": 0, "high": 0.1, "log": True}}}}, "more than 0 with log"),
        ({"tune": TUNE | {"box": {"method.rho": {"low": 0.1}}}}, "box.method.rho: high"),
        ({"tune": TUNE | {"configurations": 1}}, "tune.configurations = 1 is less than the number of methods, 2"),
        (
            {"tune": TUNE | {"configurations": 5}},
            "tune.configurations = 5 is not a multiple of the number of methods",
        ),
        ({"tune": TUNE | {"rounds": [4, 2]}}, "tune.rounds: must be rising integers"),
        ({"tune": TUNE | {"rounds": []}}, "tune.rounds"),
        ({"tune": TUNE | {"one_in": 1}}, "tune.one_in"),
        ({"tune": TUNE | {"seeds": [1]}}, "tune.seeds: 1 is also in seeds"),
        ({"tune": TUNE | {"seeds": [5, 5]}}, "tune.seeds: seeds must be different"),
        ({"tune": TUNE | {"halving": 3}}, "tune.halving"),
        ({"data": {"name": "digits", "clients": 10}}, "data.validation: a search needs validation samples"),
        ({"grid": {"client.lr": [0.1, 0.2]}}, "grid: a search chooses from tune.box"),
        ({"tune": TUNE | {"box": {"rounds": [2, 3]}}}, "tune.box.rounds: a search chooses settings of client and of"),
        ({"tune": TUNE | {"box": {"data.validation": [0.1, 0.2]}}}, "tune.box.data.validation: a search chooses"),
        ({"tune": TUNE | {"box": {"partition.alpha": [0.1, 1]}}}, "tune.box.partition.alpha: a search chooses"),
        ({"tune": TUNE | {"box": {".rho": [0.1, 1]}}}, "tune.box..rho: a search chooses"),
        ({"tune": TUNE | {"box": {"fedsam.rho": [0.1, 0.2]}}}, "tune.box.fedsam.rho: write FedSAM.rho"),
        ({"tune": TUNE | {"box": {"client": {"lr": {}}}}}, "box.client.lr must be a list of values, or {low"),
        ({"tune": TUNE | {"box": {"client.lr": {"low": 0.1, "hihg": 1}}}}, "a range has low, high and"),
        ({"tune": TUNE | {"box": {"client.epochs": {"low": 1, "high": 5}}}}, "give integers as a list"),
        ({"tune": TUNE | {"box": {"client.lr": [0.3]}}}, "tune.box has only 2 different ones for FedAvg"),
        ({"tune": TUNE | {"configurations": 40, "box": {}}}, "is 20 for each method, and tune.box has only"),
        ({"methods": ["fedsam", {"name": "fedsam", "rho": 0.2}]}, "methods: FedSAM is listed twice"),
    ],
)
def test_a_search_that_cannot_be_is_one_line_that_names_the_key(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as raised:
        search(**changes)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)
