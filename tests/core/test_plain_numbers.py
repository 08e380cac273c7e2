"""Numbers of numpy and torch are numbers wherever a setting is one, and what is written of them can be read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.hyper import plain_number, plain_numbers
from fedflat.experiments import studies
from fedflat.experiments.spec import StudySpec
from fedflat.rounds.participation import participation

REALS: list[Callable[[Any], Any]] = [np.float16, np.float32, np.float64, torch.tensor, np.array,
                                     lambda x: torch.tensor(x, dtype=torch.bfloat16),
                                     lambda x: torch.tensor(x, requires_grad=True)]  # fmt: skip
WHOLES: list[Callable[[Any], Any]] = [np.int8, np.uint8, np.int32, np.int64, torch.tensor, np.array]
DIGITS = ff.data.load("digits", clients=4, seed=0)
SMALL = {"methods": ["FedAvg"], "seeds": [0], "rounds": 1, "data": {"clients": 4}}
X, Y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2


def test_a_number_is_what_it_is() -> None:
    assert plain_number(np.float32(0.1)) == float(np.float32(0.1)) != 0.1
    assert type(plain_number(np.float64(0.1))) is float
    assert type(plain_number(np.bool_(True))) is bool
    for other in ([0.1], np.array([0.1]), torch.ones(1), "0.1", None, torch.ones((), device="meta"), 1 + 2j):
        assert plain_number(other) is other
    assert plain_numbers({"a": [np.int64(1), {"b": np.float32(0.5)}]}) == {"a": [1, {"b": 0.5}]}


@pytest.mark.parametrize("kind", REALS)
def test_real_numbers(kind: Callable[[Any], Any]) -> None:
    made = [ff.Client(lr=kind(0.5)).lr, ff.methods.FedSAM(rho=kind(0.5)).rho, ff.Dirichlet(alpha=kind(0.5)).alpha,
            ff.LoRA(targets=("1",), alpha=kind(0.5)).alpha, ff.Attack(kind="scaling", share=kind(0.5)).share,
            ff.Privacy(epsilon=kind(0.5), delta=kind(0.25), clip=kind(0.5), rate=kind(0.5)).rate,
            ff.Guard(multiple=kind(1.5)).multiple - 1, ff.Bernoulli(kind(0.5)).p, participation(kind(0.5)).share,
            ff.HeldOut(kind(0.5), kind(0.5)).share, ff.Unreliable(0.5, dropouts=kind(0.5)).dropouts,
            ff.EarlyStopping(min_delta=kind(0.5)).min_delta]  # fmt: skip
    assert [type(one) for one in made] == [float] * len(made)
    assert set(made) == {0.5}
    swa = ff.methods.SWA(base=ff.methods.FedSAM(rho=kind(0.5)), begin=kind(0.5))
    assert (repr(swa), swa.base.rho) == (repr(ff.methods.SWA(base=ff.methods.FedSAM(rho=0.5), begin=0.5)), 0.5)
    split = ff.FederatedData.split(X, Y, clients=2, test=kind(0.25), validation=kind(0.25))
    assert len(split.test[1]) == 10


@pytest.mark.parametrize("kind", WHOLES)
def test_whole_numbers(kind: Callable[[Any], Any], tmp_path: Path) -> None:
    assert type(ff.Client(epochs=kind(2), batch_size=kind(20)).epochs) is int
    assert ff.Shards(kind(2)).shards_per_client == 2
    listed = participation([[kind(0), kind(1)], torch.tensor([1, 2])])
    assert repr(listed) == repr(participation([[0, 1], [1, 2]]))
    data = ff.data.load("digits", clients=kind(4), seed=kind(0), train_samples=kind(120))
    assert data.clients == 4
    own = ff.FederatedData.from_clients([(X, Y)], classes=kind(3), seed=kind(1))
    assert own.classes == 3
    sim = ff.Simulation("mlp", data, ff.methods.FedAvg(), ff.Client(steps=kind(1), batch_size=kind(5)),
                        rounds=kind(1), participation=kind(2), seed=kind(1), last=kind(1), eval_every=kind(1),
                        workers=kind(1), probe_every=kind(1), model_options={"hidden": [kind(4)]})  # fmt: skip
    run = sim.run()
    run.save(tmp_path / "run")
    kept = ff.load_run(tmp_path / "run")
    assert (kept.seed, kept.model(torch.zeros(1, 1, 8, 8)).shape) == (1, (1, 10))
    sim.save(tmp_path / "state")
    sim.load(tmp_path / "state")
    assert json.dumps(kept.settings)


def test_studies_and_grids_and_what_they_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "carry_out_study", lambda spec, *_: spec)
    found: Any = ff.study(
        out=tmp_path, methods=[ff.methods.FedSAM(rho=np.float32(0.1)), {"name": "FedProx", "mu": torch.tensor(0.5)}],
        seeds=[np.int64(0), np.int32(1)], rounds=np.array(3), participation={"share": np.float32(0.5)},
        targets=[np.float32(0.5)], data={"name": "digits", "clients": np.int64(4)},
        client=ff.Client(lr=np.float64(0.25)),
        grid={"client.momentum": np.array([0.0, 0.5], dtype="float32"), "FedSAM.rho": [np.float32(0.1)]},
    )  # fmt: skip
    (tmp_path / "written.toml").write_text(found.to_toml())
    again = StudySpec.load(tmp_path / "written.toml")
    assert again == found
    assert [run.decisive() for run in again.runs()] == [run.decisive() for run in found.runs()]
    assert found.methods[0].rho == float(np.float32(0.1))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: ff.Client(lr=np.float32("nan")), "Client.lr must be"),
        (lambda: ff.Client(epochs=np.float32(2.0)), "Client.epochs must be a whole number"),
        (lambda: ff.Client(epochs=np.bool_(True)), "Client.epochs must be a whole number"),
        (lambda: ff.Client(lr=np.array([0.1])), "Client.lr must be a number"),
        (lambda: ff.Client(lr=np.complex64(1)), "Client.lr must be a number"),
        (lambda: ff.methods.FedSAM(rho=np.str_("0.1")), "FedSAM.rho must be a number"),
        (lambda: ff.methods.FedSAM(rho=np.longdouble("0.1")), "FedSAM.rho must be a number"),
        (lambda: ff.Simulation("mlp", DIGITS, ff.methods.FedAvg(), rounds=np.float64(2)), "rounds must be a whole"),
        (lambda: ff.data.load("digits", clients=torch.ones(1)), "data.clients must be a whole number"),
    ],
)  # fmt: skip
def test_what_is_no_such_number_is_refused(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        make()
