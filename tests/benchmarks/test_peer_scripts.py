from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.workloads import WORKLOADS

README = Path(__file__).parents[2] / "benchmarks" / "README.md"
ASKED = Namespace(clients=None, rounds=None, repeats=3, threads=1, workers=2)


@pytest.mark.parametrize("script", ["pfl_research", "fed_lab", "flower", "blaze_fl", "fluke_fl"])
def test_a_script_without_its_framework_names_the_version_that_the_page_installs(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import results

    def nothing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(results, "version", nothing)
    monkeypatch.setattr(sys, "argv", [script])
    with pytest.raises(SystemExit) as ended:
        import_module(script).main()
    assert ended.value.code == 2
    [told] = capsys.readouterr().err.splitlines()
    requirement = told.split("'")[1]
    assert "==" in requirement
    assert requirement in README.read_text()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    work = replace(WORKLOADS["W3"], clients=5, samples=6, pool=30, cohort=4, timed=2, batch=4, steps=2, rounds=1)
    monkeypatch.setitem(WORKLOADS, "W3", work)


def local_steps(module: nn.Module, lr: float, batches: Any) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(module(x), y).backward()
        optimizer.step()


def checked(found: list[Any], samples: list[list[Tensor]]) -> None:
    """Assert what holds of every result; `samples` are the labels of all batches of a client's epoch, of all epochs."""
    for one in found:
        assert one.steps == 2
        assert one.moved > 0
        assert one.scaled == "2 of 4 clients trained, times 2"
        assert len(one.seconds) == len(one.wall) == 3
    assert len(samples) == len(found) * 4 * 2, "a warm-up and three rounds of two clients"
    assert {tuple(map(len, epoch)) for epoch in samples} == {(4, 2)}


# Stand-ins with the frameworks' interfaces, written for these tests: enough of them to see what the scripts hand over.


def blazefl(samples: list[list[Tensor]]) -> tuple[ModuleType, list[int | None]]:
    parallel: list[int | None] = []

    class Server:
        def __init__(self, **settings: Any) -> None:
            self.chosen = int(settings["num_clients"] * settings["sample_ratio"])
            self.model = settings["model_selector"].select_model(settings["model_name"])

        def sample_clients(self) -> list[int]:
            return list(range(self.chosen))

        def downlink_package(self) -> dict[str, Tensor]:
            return self.model.state_dict()

        def load(self, package: dict[str, Tensor]) -> None:
            self.model.load_state_dict(package)

    class Trainer:
        def __init__(self, num_parallels: int | None = None, **settings: Any) -> None:
            parallel.append(num_parallels)
            self.settings = SimpleNamespace(**settings)
            self.trained: list[dict[str, Tensor]] = []

        def local_process(self, payload: dict[str, Tensor], cid_list: list[int]) -> None:
            given = self.settings
            for cid in cid_list:
                module = given.model_selector.select_model(given.model_name)
                module.load_state_dict(payload)
                loader = given.dataset.get_dataloader(
                    type_="train", cid=cid, batch_size=given.batch_size, generator=torch.Generator()
                )
                for _ in range(given.epochs):
                    batches = list(loader)
                    samples.append([y for _, y in batches])
                    local_steps(module, given.lr, batches)
                self.trained.append(module.state_dict())

        def uplink_package(self) -> list[dict[str, Tensor]]:
            trained, self.trained = self.trained, []
            return trained

    contrib: Any = ModuleType("blazefl.contrib")
    contrib.FedAvgBaseServerHandler = Server
    contrib.FedAvgBaseClientTrainer = contrib.FedAvgThreadPoolClientTrainer = Trainer
    return contrib, parallel


@pytest.mark.usefixtures("small")
def test_blazefl_is_timed_one_client_after_another_and_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    import blaze_fl

    samples: list[list[Tensor]] = []
    contrib, parallel = blazefl(samples)
    monkeypatch.setitem(sys.modules, "blazefl", ModuleType("blazefl"))
    monkeypatch.setitem(sys.modules, "blazefl.contrib", contrib)
    found = list(blaze_fl.every("W3", "3", ASKED))
    assert [one.method for one in found] == ["FedAvg", "FedAvg 2 threads"]
    assert parallel == [None, 2]
    checked(found, samples)


def fluke(samples: list[list[Tensor]]) -> dict[str, ModuleType]:
    evaluations = {"server": True}
    names = ("fluke", "fluke.data", "fluke.utils", "fluke.algorithms", "fluke.algorithms.fedavg")
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}

    class FastDataLoader:
        def __init__(self, x: Tensor, y: Tensor, num_labels: int, batch_size: int, shuffle: bool) -> None:
            assert shuffle
            assert y.max() < num_labels
            self.given = x, y, batch_size

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            x, y, size = self.given
            return zip(x.split(size), y.split(size), strict=True)

    class FedAVG:
        def __init__(self, n_clients: int, data_splitter: Any, hyper_params: Any) -> None:
            self.loaders, _, self.server_data = data_splitter
            assert len(self.loaders) == n_clients
            self.hyper = hyper_params

        def set_callbacks(self, callbacks: list[Any]) -> None:
            self.callbacks = callbacks

        def run(self, n_rounds: int, eligible_perc: float) -> None:
            assert not evaluations["server"]
            client = self.hyper["client"]
            for round in range(n_rounds):
                for loader in self.loaders[: int(len(self.loaders) * eligible_perc)]:
                    epochs = [list(loader) for _ in range(client["local_epochs"])]
                    samples.extend([y for _, y in epoch] for epoch in epochs)
                    local_steps(self.hyper["model"], client["optimizer"]["lr"], chain.from_iterable(epochs))
                for callback in self.callbacks:
                    callback.end_round(round + 1)

    modules["fluke"].FlukeENV = lambda: SimpleNamespace(
        set_seed=torch.manual_seed, set_eval_cfg=lambda **given: evaluations.update(given)
    )
    modules["fluke"].DDict = dict
    modules["fluke.data"].FastDataLoader = FastDataLoader
    modules["fluke.data"].DummyDataContainer = lambda clients, tests, server, num_classes: (clients, tests, server)
    modules["fluke.data"].DataSplitter = lambda container: container
    modules["fluke.utils"].FederationObserver = object
    modules["fluke.algorithms.fedavg"].FedAVG = FedAVG
    return modules


@pytest.mark.usefixtures("small")
def test_fluke_is_timed_without_its_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    import fluke_fl

    samples: list[list[Tensor]] = []
    for name, module in fluke(samples).items():
        monkeypatch.setitem(sys.modules, name, module)
    found = fluke_fl.time("W3", "0", ASKED)
    assert (found.peer, found.method) == ("fluke", "FedAvg")
    checked([found], samples)
