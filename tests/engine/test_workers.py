"""Worker processes: no bit of a result depends on them, and none is left running, however the parent ends."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedflat as ff
from fedflat.cli.flags import resolve
from fedflat.core.errors import InputError
from fedflat.core.method import Context
from fedflat.engine.cohort import InProcess, _split
from fedflat.engine.stacked import Stacked
from fedflat.engine.workers import WorkerError, Workers, process, training_pool
from fedflat.engine.workers.training_pool import ChunkTask, TrainingPool
from fedflat.engine.workers.worker_pool import WorkItem
from fedflat.experiments import runner
from fedflat.experiments.run_directory import RunDirectory
from fedflat.experiments.spec import RunSpec
from fedflat.methods import find
from fedflat.rounds import checkpoint
from fedflat.rounds.executor import Executor
from support.effort import chosen, covering_methods, effort, for_few_rounds, in_test_all, in_turns
from support.federation import federation, simulation
from support.processes import (
    MARK,
    PATIENCE,
    DivergingNetwork,
    KillingNetwork,
    children,
    has_ended,
    maps,
    wait_until,
    workers,
)
from support.studies import run_spec

FedAvg, Scaffold, FedSMOO = map(find, ("FedAvg", "Scaffold", "FedSMOO"))
looks_at_processes = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="workers need a POSIX system")


@pytest.fixture
def small_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients of the federation at once."""
    monkeypatch.setattr(Stacked, "numbers_at_once", 2 * 73)


def marked(client: int) -> ff.FederatedData:
    """The federation with a marked sample at `client`, see `support.processes`."""
    data = federation()
    data.x[data.offsets[client], 0] = MARK
    return data


def assert_same(one: ff.Simulation, other: ff.Simulation, folder: Path) -> None:
    """The histories, the server's state and the clients' records are equal bit by bit."""
    assert [row | {"seconds": 0} for row in one.history] == [row | {"seconds": 0} for row in other.history]
    kept: list[dict[str, torch.Tensor]] = []
    for sim in (one, other):
        sim.save(folder / "state.safetensors")
        kept.append(checkpoint.load(folder / "state.safetensors")[0])
    assert kept[0].keys() == kept[1].keys()
    assert {"server.w"} <= kept[0].keys()
    assert all(torch.equal(x, kept[1][name]) for name, x in kept[0].items())


class ReversedPool:
    """In the place of a worker pool: this process runs the tasks in shared memory, the last one first."""

    def __init__(self, size: int, new_worker, attempts: int) -> None:
        (setup, _) = new_worker.args
        self.run, self.items, self.most = setup(), list[WorkItem](), 0

    def start(self, number: int) -> None: ...

    def submit(self, task: ChunkTask) -> WorkItem:
        self.items.append(WorkItem(task))
        self.most = max(self.most, len(self.items))
        return self.items[-1]

    def wait(self) -> None:
        item = self.items.pop()
        item.finish(self.run(item.task, print))

    def close(self) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize(("name", "executor"), in_turns(covering_methods(), ["sequential", "stacked"]))
@pytest.mark.usefixtures("small_stacks")
def test_every_method_survives_shared_memory_and_answers_out_of_order(
    name: str, executor: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Records, messages and results pass through slots; results are added in the order of the cohort all the same."""
    pools: list[ReversedPool] = []
    monkeypatch.setattr(training_pool, "WorkerPool", lambda *of: pools.append(ReversedPool(*of)) or pools[-1])
    alone, shared = (
        simulation(for_few_rounds(find(name)), executor=executor, participation=6, rounds=2, workers=number)
        for number in (1, 2)
    )
    for sim in (alone, shared):
        list(sim)
    assert [pool.most for pool in pools] == [4], "two slots for each worker; six clients, in four stacks or one by one"
    assert_same(alone, shared, tmp_path)


def test_a_worker_takes_over_what_torch_is_set_to(monkeypatch: pytest.MonkeyPatch) -> None:
    setups = []
    monkeypatch.setattr(
        training_pool, "WorkerPool", lambda size, new_worker, attempts: setups.append(new_worker.args[0])
    )
    sim = simulation(FedAvg())
    before = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    try:
        torch.set_default_dtype(torch.float16)
        torch.set_float32_matmul_precision("medium")
        pool = TrainingPool(sim.executor, 2, torch.float64, Context(0, 0.1, 1.0))
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        setups[0]()
        assert (torch.get_default_dtype(), torch.get_float32_matmul_precision()) == (torch.float16, "medium")
        del pool  # not before: its memory is what the setup reads
    finally:
        torch.set_default_dtype(before[0])
        torch.set_float32_matmul_precision(before[1])


@pytest.mark.slow
@looks_at_processes
@pytest.mark.usefixtures("small_stacks", "forked_processes")
def test_rounds_and_errors_are_those_of_one_process(tmp_path: Path) -> None:
    """A method with two vectors each way and two at each client; uneven clients; one client diverges."""
    settings = {
        "model": DivergingNetwork(),
        "data": marked(3),
        "participation": [[0, 1, 2, 4, 5], [1, 2, 5], [0], [0, 1, 2, 5], [1, 2, 3, 4, 5]],
        "rounds": 5,
        "executor": "stacked",
    }
    number = effort(2, 3)
    alone, shared = (simulation(FedSMOO(), workers=many, **settings) for many in (1, number))
    gc.collect()  # of other tests
    files = len(os.listdir("/proc/self/fd"))
    for t in range(4):
        alone.round()
        shared.round()
        if t == 0:
            started = workers()
            assert len(started) == number
            for pid in started:
                wait_until(lambda pid=pid: "memfd:fedflat" in maps(pid), "a worker to be ready")
                assert "/dev/shm/" not in maps(pid), "memory with a name could be left behind"
                os.kill(pid, signal.SIGINT)
                os.kill(pid, signal.SIGTERM)
    assert workers() == started, "only the parent ends them"
    errors = []
    for sim in (alone, shared):
        with pytest.raises(ff.NonFiniteError, match="client 3 sent NaN or infinity in round 4") as error:
            sim.round()
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    assert_same(alone, shared, tmp_path)
    del shared, sim, error
    gc.collect()
    assert all(map(has_ended, started)), "workers end with their simulation"
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.slow
@looks_at_processes
@pytest.mark.usefixtures("forked_processes")
def test_workers_that_are_killed_or_stopped_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One killed in the middle of a client's training, one between rounds, one stopped: the bits do not change."""
    monkeypatch.setattr(process, "SUSPENDED", 0.5)
    settings = {"data": marked(4), "executor": "sequential", "participation": 6, "rounds": 3, "client": {"steps": 5}}
    settings["client"] |= {"epochs": None}
    alone = simulation(Scaffold(), model=KillingNetwork(tmp_path, times=1), **settings)
    with simulation(Scaffold(), model=KillingNetwork(tmp_path, times=1), workers=2, **settings) as shared:
        shared.round()
        (victim,) = map(int, os.listdir(tmp_path))
        assert has_ended(victim)
        os.kill(workers()[0], signal.SIGKILL)
        shared.round()
        pool = shared._workers._pool._workers
        while any(pool._workers.values()):  # one that still starts would get no task, and nobody would wait for it
            pool.wait()
        stopped = workers()[0]
        os.kill(stopped, signal.SIGSTOP)  # it would never answer, so that the round would never end
        list(shared)
        assert has_ended(stopped)
    assert not workers()
    list(alone)
    assert_same(alone, shared, tmp_path)


@in_test_all
@looks_at_processes
@pytest.mark.usefixtures("forked_processes")
def test_a_worker_that_is_stopped_while_it_trains_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SUSPENDED", 0.5)
    settings = {"data": marked(4), "executor": "sequential", "participation": 6, "rounds": 2}
    alone = simulation(Scaffold(), model=KillingNetwork(tmp_path, times=0), **settings)
    model = KillingNetwork(tmp_path, times=1, number=signal.SIGSTOP)
    with simulation(Scaffold(), model=model, workers=2, **settings) as shared:
        list(shared)
        (victim,) = map(int, os.listdir(tmp_path))
        assert has_ended(victim)
    list(alone)
    assert torch.equal(alone.w, shared.w)


@pytest.mark.slow
@looks_at_processes
@pytest.mark.usefixtures("forked_processes")
def test_a_chunk_that_kills_two_workers_is_an_error_and_leaves_everything_as_it_was(tmp_path: Path) -> None:
    sim = simulation(
        FedAvg(),
        model=KillingNetwork(tmp_path, times=2),
        data=marked(2),
        workers=2,
        participation=6,
        executor="sequential",
    )
    before = sim.w.clone()
    with pytest.raises(
        WorkerError, match=r"worker process \d+ was ended by SIGKILL while it trained client 2 in round 0"
    ):
        sim.round()
    assert len(os.listdir(tmp_path)) == 2
    assert not workers()
    assert torch.equal(sim.w, before)
    assert (sim.t, sim.history) == (0, [])


UNGUARDED = """
import numpy as np
import fedflat as ff

rng = np.random.default_rng(0)
sizes = (8, 8, 200_000, 200_000)  # the last two take minutes
clients = [(rng.normal(size=(n, 6)), rng.integers(3, size=n)) for n in sizes]
sim = ff.Simulation("mlp", ff.FederatedData.from_clients(clients, classes=3), ff.methods.FedAvg(),
                    ff.Client(batch_size=1), participation=[[0, 1], [2, 3]], executor="sequential", workers=2)
sim.round()
print("one round", flush=True)
sim.round()
"""


@pytest.mark.slow
@looks_at_processes
@pytest.mark.usefixtures("forked_processes")
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """In the middle of their work. The script has no `if __name__ == "__main__"`, and need not."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    command = [sys.executable, str(script)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "one round\n"
        started = children(parent.pid)
        assert len(started) == 2
        time.sleep(0.2)  # into the second round
        parent.kill()
    wait_until(lambda: all(map(has_ended, started)), "workers to end without their parent")


ONE_WORKER = """
import sys
import time
from functools import partial
from pathlib import Path
from fedflat.engine.workers.process import WorkerProcess
from support.processes import keep_lock

worker = WorkerProcess(partial(keep_lock, Path(sys.argv[1])))
print(worker.pid, flush=True)
time.sleep(600)
"""


MOMENTS = chosen(["importing"], ["importing", "in a computation that lets no other thread run"])


@pytest.mark.slow
@looks_at_processes
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_ends_at_once_with_a_parent_that_is_killed(moment: str, tmp_path: Path) -> None:
    """The system ends it: nothing in the worker has to notice."""
    begun = tmp_path / "begun"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ONE_WORKER, str(begun)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        try:
            if moment != "importing":
                wait_until(begun.exists, "the computation to begin")
        finally:
            parent.kill()
    killed = time.monotonic()
    wait_until(lambda: has_ended(worker) or time.monotonic() > killed + 10, "the worker to end")
    took = time.monotonic() - killed
    if not has_ended(worker):
        os.kill(worker, signal.SIGKILL)
    assert took < 1.0


@pytest.mark.slow
@looks_at_processes
def test_ctrl_c_on_the_command_line_ends_workers_and_keeps_the_last_round(tmp_path: Path) -> None:
    """All processes are started as users' are."""
    short = {"client": {"lr": 0.1, "epochs": 1, "batch_size": 100}, "rounds": 40, "eval_every": 40, "flatness": []}
    spec = run_spec(executor="sequential", checkpoint_every=1, workers=2, **short)
    config, folder = tmp_path / "spec.toml", tmp_path / "stopped"
    config.write_text(spec.to_toml())
    command = [sys.executable, "-m", "fedflat", "run", str(config), "--out", str(folder)]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, **streams, env=environment, start_new_session=True) as run:
        wait_until(lambda: RunDirectory(folder).checkpoint or run.poll() is not None, "the first checkpoint")
        started = children(run.pid)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        _, errors = run.communicate(timeout=PATIENCE)
    assert (run.returncode, len(started)) == (130, 2), errors
    assert json.loads((folder / "env.json").read_text())[0]["workers"] == 2
    assert "is saved" in errors
    assert len(errors.splitlines()) == 1, "workers print nothing"
    wait_until(lambda: all(map(has_ended, started)), "workers to end")
    for path in (folder, tmp_path / "whole"):
        runner.run(spec.model_copy(update={"workers": 1}), path)
    weights = [(path / "model.safetensors").read_bytes() for path in (folder, tmp_path / "whole")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_rounds_do_not_depend_on_the_number_of_threads() -> None:
    """Several threads add up a convolution's gradient in another order."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(64, 3, 32, 32)).astype(np.float32), rng.integers(10, size=64)) for _ in range(2)]
    data = ff.FederatedData.from_clients(clients, classes=10)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        sim = ff.Simulation("lenet", data, FedAvg(), ff.Client(steps=2, batch_size=64), rounds=1, workers=1)
        sim.round()
        assert torch.get_num_threads() == threads
        torch.set_num_threads(1)
        found.append(sim.w)
    assert torch.equal(*found)


class RecordedStarts:
    """In the place of a training pool: records how many chunks it is started for, and trains them in turn."""

    started: list[int]

    def __init__(self, executor, *_) -> None:
        self.parts = InProcess(executor).parts

    def start(self, chunks: int) -> None:
        self.started.append(chunks)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("number", "cohort", "seconds", "started"),
    [
        (2, 6, 0.0, [6]),
        (2, 1, 0.0, []),  # no other chunk could be trained at the same time
        (1, 6, 99.0, []),
        ("auto", 6, 0.0, []),  # too little work so far
        ("auto", 6, 99.0, [5]),
        ("auto", 6, training_pool.WORTH_STARTING, [5]),
        ("auto", 6, training_pool.WORTH_STARTING / 4, [2]),  # in the middle of a round, with the remaining chunks
        ("auto", 6, training_pool.WORTH_STARTING / 5, []),  # one chunk remains
    ],
)
def test_workers_start_where_they_pay(number, cohort: int, seconds: float, started: list[int], monkeypatch) -> None:
    """`seconds`: that each chunk takes in this process."""
    monkeypatch.setattr(training_pool, "TrainingPool", RecordedStarts)
    monkeypatch.setattr(RecordedStarts, "started", [], raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(training_pool, "perf_counter", (seconds * i for i in range(100)).__next__)
    sim = simulation(FedAvg(), workers=number, participation=cohort, executor="sequential")
    sim.round()
    assert RecordedStarts.started == started


@pytest.mark.parametrize(
    ("function", "number", "started"),
    [(nn.ReLU(), 2, [2]), (nn.ReLU(), 3, [3]), (nn.GELU(), 2, []), (nn.ReLU(), 1, [])],
)
def test_one_stack_is_divided_among_workers_where_no_bit_depends_on_it(
    function: nn.Module, number: int, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_pool, "TrainingPool", RecordedStarts)
    monkeypatch.setattr(RecordedStarts, "started", [], raising=False)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 7), function, nn.Linear(7, 3))
    settings = {"model": model, "dtype": torch.float32, "executor": "stacked", "participation": 6}
    divided, whole = (simulation(FedAvg(), workers=many, **settings) for many in (number, 1))
    for sim in (divided, whole):
        sim.round()
    assert RecordedStarts.started == started
    assert torch.equal(divided.w, whole.w)


@given(places=st.integers(1, 60), most=st.integers(1, 20), at_once=st.integers(1, 8))
def test_chunks_are_equal_and_as_many_as_processes(places: int, most: int, at_once: int) -> None:
    chunks = _split(np.arange(places), most, at_once)
    sizes = [len(chunk) for chunk in chunks]
    assert np.concatenate(chunks).tolist() == list(range(places))
    assert max(sizes) <= most
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert len(chunks) % at_once == 0 or len(chunks) == places


OF_THE_SCRIPT = """
from __future__ import annotations
import numpy as np
import torch
from torch import nn
import fedflat as ff
from fedflat.core.records import Record, Vector
from fedflat.methods.fedavg import FedAvg

def scaled(x):
    return FACTOR * x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)
        self.layer.register_forward_hook(lambda module, inputs, output: output.tanh())

    def forward(self, x):
        return scaled(self.layer(x))

class Sum(Record):
    directions: Vector

class Momentum(FedAvg, client=Sum):
    def step(self, w, client, down, grad, ctx):
        total = client.directions / FACTOR + grad(w)
        return total, Sum(total)

FACTOR = 3.0
rng = np.random.default_rng(0)
clients = [(rng.normal(size=(n, 6)).astype(np.float32), rng.integers(3, size=n)) for n in (5, 12, 3, 8)]
data = ff.FederatedData.from_clients(clients, classes=3)
for workers in (1, 2):
    with ff.Simulation(Net(), data, Momentum(), ff.Client(batch_size=4), rounds=2, executor="sequential",
                       workers=workers) as sim:
        for _ in sim: pass
        print(sim.workers, sim.w.tolist())

"""
CELL = """
import code, sys
code.InteractiveInterpreter(vars(sys.modules["__main__"])).runsource(sys.argv[1], symbol="exec")
"""


@pytest.mark.slow
@looks_at_processes
@pytest.mark.parametrize("how", chosen(["notebook"], ["script", "standard input", "notebook"]))
@pytest.mark.usefixtures("forked_processes")
def test_a_model_and_a_method_of_the_script_itself_train_in_workers(how: str, tmp_path: Path) -> None:
    """No main guard is needed; a notebook's main module has no file."""
    script = tmp_path / "script.py"
    script.write_text(OF_THE_SCRIPT)
    arguments = {"script": [str(script)], "standard input": ["-"], "notebook": ["-c", CELL, OF_THE_SCRIPT]}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *arguments[how]]
    done = subprocess.run(command, input=OF_THE_SCRIPT, capture_output=True, text=True, env=environment, check=False)
    assert not done.stderr
    one, two = (line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (one[0], two[0]) == ("1", "2")
    assert one[1] == two[1]


class Locked(DivergingNetwork):
    """A network that can be copied, but not pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, object]) -> Locked:
        return Locked()


@pytest.mark.parametrize("what", ["model", "method"])
def test_what_cannot_be_sent(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`workers = 2` is refused in one line; `auto` trains in one process."""
    model, method = Locked() if what == "model" else DivergingNetwork(), FedAvg()
    if what == "method":
        object.__setattr__(method, "lock", threading.Lock())
    with pytest.raises(
        InputError, match=rf"workers = 2: the {what} cannot be sent to another process: .*lock"
    ) as error:
        simulation(method, model=model, workers=2, executor="sequential").round()
    assert "\n" not in str(error.value)
    monkeypatch.setattr(training_pool, "WORTH_STARTING", 0.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    sim = simulation(method, model=model, executor="sequential")
    assert sim.workers == 2
    sim.round()
    assert sim.workers == 1


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "all"])
def test_mistakes_are_named(number) -> None:
    message = f"workers must be 'auto' or a whole number in [1, 4096], got {number!r}"
    with pytest.raises(InputError, match=re.escape(message)):
        simulation(FedAvg(), workers=number)
    with pytest.raises(InputError, match=re.escape(message)):
        resolve(RunSpec, ["--workers", json.dumps(number).strip('"')])


@pytest.mark.parametrize("number", [3, "auto"])
def test_they_are_a_setting_on_which_no_result_depends(number) -> None:
    spec = resolve(RunSpec, ["--workers", str(number)])
    assert spec.workers == number
    assert spec.digest() == RunSpec().digest()
    assert spec.build().workers == (3 if number == 3 else torch.get_num_threads())


def test_a_gpu_has_one_process() -> None:
    def executor() -> Executor:
        raise AssertionError("the executor is not needed before the first round")

    assert Workers(executor, "auto", torch.device("cuda"), bool).number == 1
    with pytest.raises(InputError, match=r"workers = 2: on device = 'cuda' one process trains all clients"):
        Workers(executor, 2, torch.device("cuda"), bool)
