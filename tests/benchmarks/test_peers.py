from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.peer_results import read_peers
from benchmarks.workloads import WORKLOADS


def batches(rows: int, size: int) -> int:
    return len(torch.arange(rows).split(size))


@pytest.mark.parametrize("name", ["W1", "W1a", "W2", "W3", "W5"])
def test_epochs_over_a_clients_rows_make_the_steps_of_the_work(name: str) -> None:
    import tasks

    work = WORKLOADS[name]
    order, epochs = tasks._passes(work)
    assert epochs * batches(len(order), work.batch) == work.steps
    assert set(order.tolist()) == set(range(work.samples))


def test_a_client_has_the_samples_that_fedflat_gives_it() -> None:
    import tasks

    task = tasks.Task.of("W3", cohort=4)
    x, y = task.client(7)
    theirs = task.work.data().client(7)
    assert torch.equal(x, theirs[0])
    assert torch.equal(y, theirs[1])
    assert (task.factor, task.scaled) == (2.5, "4 of 10 clients trained, times 2.5")
    assert replace(task, cohort=10).scaled is None


def test_the_warm_up_is_left_out_and_rounds_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    import timing

    clock = iter([0, 100, 101, 104, 200, 202, 208])
    monkeypatch.setattr(timing, "perf_counter", lambda: next(clock) * 2)
    laps = timing.Laps(processor=iter([0, 100, 101, 104, 200, 202, 208]).__next__)
    laps.end()  # the warm-up: 100
    laps.end()
    laps.end()  # 1 and 3
    laps.begin()
    laps.end()
    laps.end()  # 2 and 6, from 200
    assert laps.rounds == 5
    assert laps.seconds(2) == ([2, 4], [4, 8])


@pytest.mark.slow
def test_only_local_steps_of_the_warm_up_are_counted() -> None:
    import timing

    local, server, other = (make([nn.Parameter(torch.ones(1))], lr=0.1) for make in (SGD, SGD, torch.optim.Adam))
    laps = timing.Laps(server=server)
    for optimizer in (local, server, other, local):
        optimizer.step()
    laps.end()
    local.step()
    assert laps.steps == 2


SGD = torch.optim.SGD
BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells it of other processes")
def test_the_seconds_of_a_family_are_those_of_its_children_too() -> None:
    import timing

    before = timing.family_time()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        during = timing.family_time()
        child.communicate(b"\n", timeout=60)
    assert during - before > 0.25


def test_a_missing_framework_is_told_in_one_line_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    import results

    with pytest.raises(SystemExit) as ended:
        results.installed("Other", "no-such-framework", "other==1")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "Other is not installed: pip install 'other==1'\n"


@pytest.mark.parametrize("folder", [None, "."])
def test_fl_simulator_without_a_checkout_says_so(folder: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    import fl_simulator

    with pytest.raises(SystemExit) as ended:
        fl_simulator.usable(folder and Path(folder))
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


# A stand-in with FL-Simulator's interface, written for this test: enough of it to see what the script hands over.
SERVER = """
import torch
import utils
from torch.nn.functional import cross_entropy

class Server:
    def __init__(self, device, model_func, init_model, init_par_list, datasets, method, args):
        self.server_model, self.model_func, self.datasets, self.args = init_model, model_func, datasets, args
        self.seen, self.tested = [], []

    def train(self):
        for t in range(self.args.comm_rounds):
            clients = self._activate_clients_(t)
            self.seen.append([int(c) for c in clients])
            for client in clients:
                self.local(self.datasets.client_x[client], self.datasets.client_y[client])
                self.postprocess(client, {"of": client})
            self._test_(t, clients)
        self._save_results_()
        self._summary_()

    def local(self, x, y):
        optimizer = torch.optim.SGD(self.server_model.parameters(), lr=self.args.local_learning_rate)
        x, y = torch.as_tensor(x), torch.as_tensor(y).reshape(-1)
        for _ in range(self.args.local_epochs):
            for a, b in zip(x.split(self.args.batchsize), y.split(self.args.batchsize)):
                optimizer.zero_grad()
                cross_entropy(self.server_model(a), b).backward()
                optimizer.step()

    def _test_(self, t, selected):
        self.tested.append((t, len(self.datasets.test_x)))

    def _save_results_(self):
        raise AssertionError("it would write files")

    _summary_ = _save_results_

class FedAvg(Server):
    def postprocess(self, client, received_vecs):
        assert received_vecs == {"of": client}

class SCAFFOLD(Server):
    def postprocess(self, client):
        pass
"""
UTILS = """
import torch

def get_mdl_params(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "server.py").write_text(SERVER)
    (tmp_path / "server" / "__init__.py").write_text("from .server import FedAvg, SCAFFOLD\n")
    (tmp_path / "utils.py").write_text(UTILS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    small = replace(WORKLOADS["W1a"], clients=5, samples=6, pool=30, cohort=4, timed=2, batch=4, steps=2)
    monkeypatch.setitem(WORKLOADS, "W1a", small)
    return tmp_path


def test_fl_simulator_is_timed_with_and_without_its_evaluation(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import fl_simulator

    monkeypatch.setitem(fl_simulator.METHODS, "W1", ("FedAvg", "SCAFFOLD"))
    monkeypatch.setattr(fl_simulator, "TESTED", 7)
    out = tmp_path / "found.json"
    command = f"fl_simulator.py --workloads W1 --repeats 3 --evaluate --checkout {checkout} --out {out}"
    monkeypatch.setattr(sys, "argv", command.split())
    fl_simulator.main()
    found = json.loads(out.read_text())["results"]
    names = [(one["work"], one["method"]) for one in found]
    assert names == [("W1", "FedAvg"), ("W1 full", "FedAvg"), ("W1", "SCAFFOLD"), ("W1 full", "SCAFFOLD")]
    for one in found:
        assert one["steps"] == 2
        assert one["moved"] > 0
        assert one["scaled"] == "2 of 4 clients trained, times 2"
        assert len(one["seconds"]) == len(one["wall"]) == 3
    assert all(whole > train for whole, train in zip(found[1]["wall"], found[0]["wall"], strict=True))
    assert found[1]["includes"].endswith("evaluation on 37 samples")
    assert [one.name for one in read_peers(out)] == [
        f"FL-Simulator {m}" for m in ("FedAvg", "FedAvg", "Scaffold", "Scaffold")
    ]


@pytest.mark.slow
def test_fl_simulator_gets_the_settings_of_the_work(checkout: Path) -> None:
    import fl_simulator
    from results import Run

    fl_simulator.usable(checkout)
    run = Run.of("W1a", Namespace(clients=None, rounds=1, repeats=2, threads=1))
    data, laps = fl_simulator.Data(run.task, tested=True), fl_simulator.Laps()
    server: Any = fl_simulator.timed("FedAvg", run, data, run.task.build(), laps, fl_simulator.Laps())
    server.train()
    assert [t for t, _ in server.tested] == [1, 2], "not in the warm-up"
    assert all(len(set(clients)) == 2 and set(clients) <= set(range(5)) for clients in server.seen)
    args = server.args
    assert (args.batchsize, args.local_epochs, args.comm_rounds, args.total_client) == (4, 1, 3, 5)
    assert (args.local_learning_rate, args.weight_decay, args.dataset) == (0.01, 1e-3, "CIFAR10")


def test_rounds_that_were_not_timed_are_an_error() -> None:
    from results import Run
    from timing import Laps

    run = Run.of("W3", Namespace(clients=None, rounds=2, repeats=2, threads=1))
    laps = Laps()
    laps.end()
    with pytest.raises(RuntimeError, match="1 rounds were timed instead of 5"):
        run.figures(laps, torch.zeros(3), torch.ones(3))
