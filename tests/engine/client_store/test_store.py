"""Clients' records: the same in memory and in a file, in every round, after every crash."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedflat.core.errors import InputError
from fedflat.engine.client_store import ClientStore
from fedflat.engine.slot_file import NAME, START
from fedflat.methods import find
from fedflat.rounds import checkpoint
from support.crashes import Crash, Disk
from support.effort import chosen, in_turns
from support.federation import simulation
from support.files import refused
from support.memory import counted

Scaffold = find("Scaffold")()
IN_MEMORY, IN_A_FILE = 10**9, 0  # budgets


def down(method, clients: int, value: float = 3.0):
    return method.broadcast(method.init_server(torch.full((4,), value))).map(lambda x: x.expand(clients, -1))


def put(store: ClientStore, clients: np.ndarray, records) -> None:
    """Keep the records of `clients` at once."""
    store.stage(clients, records)
    store.commit()


def variates(*values: float):
    """Scaffold's records, one row per value."""
    return Scaffold.client(torch.tensor(values)[:, None].expand(-1, 4))


def kept(store: ClientStore, *clients: int) -> list[float]:
    """The first number of Scaffold's records."""
    return store.get(np.array(clients), down(Scaffold, len(clients))).c[:, 0].tolist()


@pytest.fixture(params=[IN_MEMORY, IN_A_FILE], ids=["memory", "file"])
def budget(request: pytest.FixtureRequest) -> int:
    return request.param


def test_first_contact_is_made_from_the_first_message_later_ones_from_what_was_kept(budget: int) -> None:
    method = find("FedLESAM")()
    store = ClientStore(method, 10, torch.zeros(4), budget)
    assert torch.equal(store.get(np.array([2, 7]), down(method, 2)).w_old, torch.full((2, 4), 3.0))
    put(store, np.array([7, 2]), method.client(torch.tensor([[7.0] * 4, [2.0] * 4])))
    got = store.get(np.array([2, 5, 7]), down(method, 3, value=9.0))
    assert got.w_old[:, 0].tolist() == [2.0, 9.0, 7.0]


def test_what_lasts_a_round_begins_anew(budget: int) -> None:
    method = find("FedSMOO")()
    store = ClientStore(method, 3, torch.zeros(4), budget)
    ones = method.client.zeros(torch.zeros(3, 4), method).map(lambda x: x + 1)
    put(store, np.arange(3), ones)
    found = store.get(np.arange(3), down(method, 3))
    assert (found.h.sum(), found.mu.sum(), found.s_i.sum()) == (12, 12, 0)
    assert all(x.is_contiguous() for x in found.tensors().values())


def test_what_is_staged_counts_from_the_commit_on(budget: int) -> None:
    store = ClientStore(Scaffold, 5, torch.zeros(4), budget)
    put(store, np.array([1, 3]), variates(1, 3))
    store.stage(np.array([3, 4]), variates(30, 40))
    assert kept(store, 1, 3, 4) == [1, 3, 0]
    store.discard()
    assert kept(store, 1, 3, 4) == [1, 3, 0]
    store.stage(np.array([3]), variates(31))
    store.stage(np.array([0]), variates(5))
    store.commit()
    assert kept(store, 0, 1, 3, 4) == [5, 1, 31, 0]


def test_a_staged_record_may_be_overwritten_by_its_owner(budget: int) -> None:
    """Workers hand over memory that they use again."""
    store, mine = ClientStore(Scaffold, 5, torch.zeros(4), budget), torch.ones(2, 4)
    store.stage(np.array([1, 2]), Scaffold.client(mine))
    mine.zero_()
    store.commit()
    assert kept(store, 1, 2) == [1, 1]


def test_what_was_announced_may_be_asked_for_or_not(budget: int) -> None:
    store = ClientStore(Scaffold, 9, torch.zeros(4), budget)
    put(store, np.arange(6), variates(*range(6)))
    store.prefetch(np.array([3, 8, 1]))
    assert kept(store, 3, 8, 1) == [3, 0, 1]
    store.prefetch(np.array([2, 4]))
    assert kept(store, 0) == [0]
    store.prefetch(np.array([2, 4]))
    for value in (21, 22):  # the second time into the slots that were read ahead
        put(store, np.array([2, 4]), variates(value, -value))
    assert kept(store, 2, 4) == [22, -22]


def test_writes_that_failed_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ClientStore(Scaffold, 9, torch.zeros(4), IN_A_FILE)
    put(store, np.array([1]), variates(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", Failing(pwritev, after=0))
        store.stage(np.array([1]), variates(5))
        store.stage(np.array([2]), variates(6))
        with refused("a temporary file in", "No space left on device"):
            store.commit()
        store.discard()
    assert kept(store, 1, 2) == [1, 0]
    put(store, np.array([2]), variates(2))
    assert kept(store, 1, 2) == [1, 2]


def test_only_clients_seen_use_space(budget: int) -> None:
    method = find("FedSMOO")()
    store = ClientStore(method, 10**6, torch.zeros(4), budget)
    for start in (0, 500_000):
        clients = np.arange(start, start + 3)
        put(store, clients, store.get(clients, down(method, 3)))
    tensors = store.tensors()
    assert {name: tuple(x.shape) for name, x in tensors.items()} == {"slots": (10**6,), "h": (6, 4), "mu": (6, 4)}


def test_restored_is_what_was_kept(budget: int) -> None:
    for target in (IN_MEMORY, IN_A_FILE):
        store = ClientStore(Scaffold, 5, torch.zeros(4), budget)
        other = ClientStore(Scaffold, 5, torch.zeros(4), target)
        put(store, np.array([3, 1, 0]), variates(3, 1, 7))
        put(store, np.array([3]), variates(33))
        put(other, np.array([2]), variates(2))
        other.restore(store.tensors())
        assert kept(other, 0, 1, 2, 3, 4) == [7, 1, 0, 33, 0]
        put(other, np.array([4]), variates(4))
        assert kept(other, 0, 1, 2, 3, 4) == [7, 1, 0, 33, 4]


def test_a_store_for_none_of_those_seen_restores_nothing(budget: int) -> None:
    """A rank whose clients have not come yet goes on from a checkpoint as the others do."""
    store = ClientStore(Scaffold, 5, torch.zeros(4), budget)
    put(store, np.array([3, 1]), variates(3, 1))
    rank = ClientStore(Scaffold, 5, torch.zeros(4), budget, owned=lambda clients: clients % 3 == 2)
    rank.restore(store.tensors())
    assert len(rank.seen()) == 0
    assert rank.rows("c", rank.seen()).shape == (0, 4)
    put(rank, np.array([2]), variates(2))
    assert kept(rank, 2, 3) == [2, 0]


def test_methods_without_state_keep_nothing(budget: int) -> None:
    method = find("FedAvg")()
    store = ClientStore(method, 5, torch.zeros(4), budget)
    put(store, np.array([1]), method.client())
    assert list(store.tensors()) == ["slots"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_numbers_keep_their_bits(dtype: torch.dtype, budget: int) -> None:
    """Also NaN with a payload, and -0."""
    store, c = ClientStore(Scaffold, 3, torch.zeros(4, dtype=dtype), budget), torch.randn(3, 4).to(dtype)
    c.view(torch.uint8)[0] = 255
    c[1] = -0.0
    put(store, np.arange(3), Scaffold.client(c))
    found = store.get(np.arange(3), down(Scaffold, 3).map(lambda x: x.to(dtype))).c
    assert torch.equal(found.view(torch.uint8), c.view(torch.uint8))
    assert found.data_ptr() % 64 == 0


def test_the_budget_counts_all_clients_and_growth(tmp_path: Path) -> None:
    """Two vectors of four float32 for ten clients: 320 bytes, twice while they grow."""
    for budget, file in ((640, False), (639, True)):
        method, folder = find("FedSMOO")(), tmp_path / str(budget)
        folder.mkdir()
        store = ClientStore(method, 10, torch.zeros(4), budget, folder)
        assert not list(folder.iterdir()), "before the first record there is nothing to keep"
        put(store, np.array([9]), method.client.zeros(torch.zeros(1, 4), method))
        assert [path.name for path in folder.iterdir()] == [NAME] * file


# --- rounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "executor"), in_turns(["Scaffold", "FedSMOO", "FedLESAM_D"], ["sequential", "stacked"])
)
def test_rounds_are_the_same_bit_by_bit(
    method: str, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uneven clients, two chunks in a round, a file with and without a name."""
    settings = {"executor": executor, "rounds": 9, "participation": 3, "dtype": torch.float32}
    monkeypatch.setattr(type(simulation(find(method)(), **settings).executor), "chunk", 2)
    expected = simulation(find(method)(), **settings).run()
    assert expected.settings["executor"].lower() == executor
    for folder in (None, tmp_path):
        sim = simulation(find(method)(), store_budget=IN_A_FILE, store_folder=folder, **settings)
        assert torch.equal(sim.run().w, expected.w)
    assert (tmp_path / NAME).stat().st_size > START


def rounds(sim, number: int):
    for _ in range(number):
        sim.round()
    return sim


def filed(folder: Path | None, method: str = "Scaffold", **changes):
    """A simulation that keeps its records in a file."""
    return simulation(find(method)(), store_budget=IN_A_FILE, store_folder=folder, **changes)


@pytest.mark.parametrize("moment", ["in training", "in a write"])
def test_a_round_that_fails_leaves_no_trace(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten failures in a row: the same bits as without them, and the file does not grow."""
    expected = simulation(Scaffold, executor="sequential").run().w
    sim = rounds(filed(tmp_path, executor="sequential"), 4)
    sim.save(tmp_path / "a.safetensors")
    failing = Failing(sim.executor.run if moment == "in training" else os.pwritev, after=2)
    monkeypatch.setattr(*((sim.executor, "run") if moment == "in training" else (os, "pwritev")), failing)
    size = None
    for _ in range(10):
        with pytest.raises((KeyboardInterrupt, InputError)):
            sim.round()
        failing.calls = 0
        size = size or (tmp_path / NAME).stat().st_size
        assert (tmp_path / NAME).stat().st_size == size
    monkeypatch.undo()
    assert sim.t == 4
    assert torch.equal(sim.run().w, expected)


class Failing:
    """Does what it is asked until it has been asked too often."""

    def __init__(self, function, after: int) -> None:
        self.function, self.after, self.calls = function, after, 0

    def __call__(self, *args):
        self.calls += 1
        if self.calls > self.after:
            raise KeyboardInterrupt if self.function is not pwritev else OSError(28, "No space left on device")
        return self.function(*args)


pwritev = os.pwritev


def test_a_dry_round_writes_nothing(tmp_path: Path) -> None:
    """Neither in the run's own simulation nor in one that opened its checkpoint."""
    sim = rounds(filed(tmp_path), 3)
    sim.save(tmp_path / "a.safetensors")
    before = (tmp_path / NAME).read_bytes()
    other = filed(None)
    other.load(tmp_path / "a.safetensors")
    found = [one.flatness(["consistency"])["consistency"] for one in (sim, other)]
    assert found[0] == found[1]
    assert (tmp_path / NAME).read_bytes() == before


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_beside_its_file_a_checkpoint_holds_no_records(tmp_path: Path) -> None:
    sim = rounds(filed(tmp_path, participation=6), 2)
    (tmp_path / "elsewhere").mkdir()
    for name in ("small", "elsewhere/whole"):
        sim.save(tmp_path / f"{name}.safetensors")
    small, whole = (checkpoint.load(tmp_path / f"{name}.safetensors")[0] for name in ("small", "elsewhere/whole"))
    assert {name for name in small if name.startswith("clients.")} == {
        "clients.slots",
        "clients.slot-file",
        "clients.digests",
    }
    assert whole["clients.c"].shape == (6, len(sim.w))


@pytest.mark.slow
@pytest.mark.parametrize("method", chosen(["FedSMOO"], ["Scaffold", "FedSMOO"]))  # which has two records of a client
@pytest.mark.parametrize(
    ("folder", "places"),
    in_turns(["here", "elsewhere", None], [(IN_A_FILE, IN_A_FILE), (IN_A_FILE, IN_MEMORY), (IN_MEMORY, IN_A_FILE)]),
)
def test_a_checkpoint_is_gone_on_from_to_the_same_bits(
    method: str, folder: str | None, places: tuple[int, int], tmp_path: Path
) -> None:
    """In the folder of the file or in another one, with or without a file of one's own."""
    first, then = places
    expected = simulation(find(method)()).run().w
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    sim = rounds(simulation(find(method)(), store_budget=first, store_folder=tmp_path / "here"), 2)
    sim.save(tmp_path / "here" / "a.safetensors")
    sim.round()  # what is not in the checkpoint is as if it had not been
    sim.close()
    own = None if folder is None else tmp_path / folder
    other = simulation(find(method)(), store_budget=then, store_folder=own)
    other.load(tmp_path / "here" / "a.safetensors")
    rounds(other, 1).save(tmp_path / "here" / "b.safetensors")
    other.close()
    again = simulation(find(method)(), store_budget=then, store_folder=own)
    again.load(tmp_path / "here" / "b.safetensors")
    assert torch.equal(again.run().w, expected)


def test_a_checkpoint_that_could_not_be_written_is_not_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before it stays good, also after a complete one was saved elsewhere."""
    expected = simulation(Scaffold).run().w
    (tmp_path / "elsewhere").mkdir()
    sim = rounds(filed(tmp_path), 2)
    sim.save(tmp_path / "a.safetensors")
    rounds(sim, 1)
    with monkeypatch.context() as patch, refused("b.safetensors", "No space left on device"):
        patch.setattr(os, "replace", Failing(pwritev, after=0))
        sim.save(tmp_path / "b.safetensors")
    sim.save(tmp_path / "elsewhere" / "c.safetensors")
    rounds(sim, 3).close()
    for path in ("a", "elsewhere/c"):
        other = filed(None)
        other.load(tmp_path / f"{path}.safetensors")
        assert torch.equal(other.run().w, expected)


@pytest.mark.slow
def test_a_nameless_file_is_saved_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Piece by piece, here two records at once, and read back so."""
    expected = simulation(find("FedSMOO")(), participation=5).run().w
    sim = rounds(filed(None, "FedSMOO", participation=5), 3)
    monkeypatch.setattr(checkpoint, "AT_ONCE", 2 * 2 * 8 * len(sim.w))
    sim.save(tmp_path / "a.safetensors")
    other = filed(None, "FedSMOO", participation=5)
    other.load(tmp_path / "a.safetensors")
    assert torch.equal(other.run().w, expected)


@pytest.mark.slow
def test_of_the_last_checkpoints_each_is_gone_on_from_and_an_older_one_is_refused(tmp_path: Path) -> None:
    expected = simulation(Scaffold).run().w
    for last in "bcd":
        folder = tmp_path / last
        folder.mkdir()
        sim = filed(folder)
        for name in "abcd":
            rounds(sim, 1).save(folder / f"{name}.safetensors")
        sim.close()
        with refused("a.safetensors", NAME, "does not fit the checkpoint"):
            filed(folder).load(folder / "a.safetensors")
        again = filed(folder)
        again.load(folder / f"{last}.safetensors")
        for name in "efg"[: sim.rounds - again.t]:
            rounds(again, 1).save(folder / f"{name}.safetensors")
        assert torch.equal(again.run().w, expected)


def test_a_reader_of_a_run_that_goes_on_notices(tmp_path: Path) -> None:
    sim = filed(tmp_path)
    rounds(sim, 2).save(tmp_path / "a.safetensors")
    reader = filed(None)
    reader.load(tmp_path / "a.safetensors")
    rounds(sim, 1)
    reader.dry_round(np.arange(6), Nobody())
    for name in "bcd":
        reader.dry_round(np.arange(6), Nobody())
        sim.save(tmp_path / f"{name}.safetensors")
    with refused(NAME, "was written since"):
        reader.dry_round(np.arange(6), Nobody())


class Nobody:
    def step(self, *_) -> None: ...

    def done(self, *_) -> None: ...


def test_two_simulations_cannot_write_one_file(tmp_path: Path) -> None:
    sim = rounds(filed(tmp_path), 2)
    sim.save(tmp_path / "a.safetensors")
    other = filed(tmp_path)
    other.load(tmp_path / "a.safetensors")
    before = other.w.clone()
    with refused(NAME, "is being written by another simulation"):
        other.round()
    assert torch.equal(other.w, before)
    sim.close()
    assert torch.equal(other.run().w, simulation(Scaffold).run().w)


def test_a_new_run_spares_the_records_of_an_old_one(tmp_path: Path) -> None:
    sim = rounds(filed(tmp_path), 1)
    sim.save(tmp_path / "a.safetensors")
    sim.close()
    with refused(NAME, "belongs to a checkpoint; load that, remove the file, or use another folder"):
        filed(tmp_path).round()


@pytest.mark.slow
def test_a_swapped_or_shortened_file_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        rounds(filed(tmp_path / name), 2).save(tmp_path / name / "c.safetensors")
    gc.collect()
    path = tmp_path / "a" / NAME
    content = path.read_bytes()
    for wrong in ((tmp_path / "b" / NAME).read_bytes(), content[:-1], b""):
        path.write_bytes(wrong)
        sim = filed(tmp_path / "a")
        with refused("c.safetensors", str(path)):
            sim.load(tmp_path / "a" / "c.safetensors")
        assert sim.t == 0
    path.unlink()
    with refused(str(path), "No such file"):
        sim.load(tmp_path / "a" / "c.safetensors")
    path.write_bytes(content)
    sim.load(tmp_path / "a" / "c.safetensors")
    assert torch.equal(sim.run().w, simulation(Scaffold).run().w)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "none", tmp_path / "file"):
        sim = filed(folder)
        with refused(str(folder), "cannot be opened"):
            sim.round()
        assert sim.t == 0


def test_the_budget_is_a_number_of_bytes() -> None:
    with refused("store_budget must be a whole number of at least 0, got -1"):
        simulation(Scaffold, store_budget=-1)


# --- crashes ----------------------------------------------------------------------------------------------------------


def script(folder: Path, snapshots: dict[str, dict[int, float]]) -> None:
    """Rounds of three in six clients, every fourth of which fails, and checkpoints, of which the last is kept."""
    store, rng, current, older = (
        ClientStore(Scaffold, 6, torch.zeros(4), IN_A_FILE, folder),
        np.random.default_rng(5),
        {},
        None,
    )
    for t in range(10):
        clients = rng.choice(6, 3, replace=False)
        values = 10.0 * t + clients
        for some in (slice(0, 2), slice(2, 3)):
            store.stage(clients[some], variates(*values[some]))
        if t % 4 == 3:
            store.discard()
        else:
            store.commit()
            current |= dict(zip(clients.tolist(), values.tolist(), strict=True))
        if t % 2:
            path = folder / f"{t:02d}.safetensors"
            snapshots[path.name] = dict(current)
            checkpoint.save(path, store.tensors(folder), {})
            store.saved()
            if older:
                older.unlink()
            older = path


@pytest.mark.slow
@pytest.mark.parametrize("power", ["stays", "fails", "fails otherwise"])
def test_after_a_crash_at_any_write_the_last_checkpoint_has_its_records(
    power: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and in the middle of every write and flush; where power fails, what was not flushed may be lost."""
    (tmp_path / "whole").mkdir()
    with monkeypatch.context() as patch:
        whole = Disk(patch)
        script(tmp_path / "whole", {})
    assert whole.calls > 40
    found = set()
    for number in range(whole.calls):
        folder, snapshots = tmp_path / str(number), {}
        folder.mkdir()
        with monkeypatch.context() as patch:
            disk = Disk(patch, at=number)
            with pytest.raises(Crash):
                script(folder, snapshots)
            rng = None if power == "stays" else np.random.default_rng([number, len(power)])
            left = disk.left(folder, tmp_path / f"{number}-left", rng)
        if paths := sorted(left.glob("*.safetensors")):
            found.add(paths[-1].name)
            assert_goes_on(left, paths[-1], snapshots[paths[-1].name])
    assert len(found) >= 4, "crashes before, between and after the checkpoints"


def assert_goes_on(folder: Path, path: Path, expected: dict[int, float]) -> None:
    """The records are those of the checkpoint, and remain so while a next process writes and until it saves."""
    store = ClientStore(Scaffold, 6, torch.zeros(4), IN_A_FILE, folder)
    store.restore(checkpoint.load(path)[0], folder)
    values = [expected.get(client, 0.0) for client in range(6)]
    assert kept(store, *range(6)) == values
    put(store, np.array([0, 4]), variates(-1, -2))
    store.close()
    again = ClientStore(Scaffold, 6, torch.zeros(4), IN_A_FILE, folder)
    again.restore(checkpoint.load(path)[0], folder)
    assert kept(again, *range(6)) == values


PROGRAM = """
import os, signal, sys
from support.federation import simulation
from fedflat.methods import find

folder, writes = sys.argv[1], int(sys.argv[2])
sim = simulation(find("FedSMOO")(), store_budget=0, store_folder=folder, executor="sequential")
for _ in range(2):
    sim.round()
sim.save(folder + "/a.safetensors")
write, calls = os.pwritev, []

def killed(*args):
    calls.append(args)
    if len(calls) == writes:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(*args)

os.pwritev = killed
for _ in sim:
    pass
"""


def child(program: str, *arguments: object, check: bool = True) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=check)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
def test_killed_in_a_round_it_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """A real process and a real SIGKILL, in the second client of the second round after the checkpoint."""
    assert child(PROGRAM, tmp_path, 5, check=False).returncode == -9
    sim = filed(tmp_path, "FedSMOO", executor="sequential")
    sim.load(tmp_path / "a.safetensors")
    assert sim.t == 2
    assert torch.equal(sim.run().w, simulation(find("FedSMOO")(), executor="sequential").run().w)


FULL = """
import resource, sys, torch
from support.federation import simulation
from fedflat.methods import find

expected = simulation(find("FedSMOO")()).run().w
sim = simulation(find("FedSMOO")(), store_budget=0, store_folder=sys.argv[1])
for _ in range(2):
    sim.round()
sim.save(sys.argv[1] + "/a.safetensors")
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, unlimited[1]))
for act in (sim.round, sim.round, lambda: sim.save(sys.argv[1] + "/b.safetensors")):
    try:
        act()
    except ValueError as error:
        print(type(error).__name__, error)
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
print(torch.equal(sim.run().w, expected))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
def test_a_full_disk_is_one_line_and_costs_one_round(tmp_path: Path) -> None:
    """The system lets no file grow; once it does again, the run goes on as if nothing had been."""
    lines = child(FULL, tmp_path).stdout.splitlines()
    named = f"InputError client records: {tmp_path / NAME} cannot be written: "
    assert [line.startswith(named) for line in lines] == [True, True, False, False]
    assert lines[2].startswith(f"InputError {tmp_path / 'b.safetensors'} cannot be written: ")
    assert lines[3] == "True"


MILLION = """
import numpy as np, torch
from fedflat.rounds import checkpoint
from fedflat.engine.client_store import ClientStore
from fedflat.methods import find

folder, clients = Path(sys.argv[1]), np.arange(1_000_000)
method, w = find("Scaffold")(), torch.zeros(16)
down = method.broadcast(method.init_server(w))
(folder / "small").mkdir()
small = ClientStore(method, 100, w, 0, folder / "small")  # what the first use imports and starts is not counted
small.stage(clients[:100], small.get(clients[:100], down.map(lambda x: x.expand(100, -1))))
small.commit()
checkpoint.save(folder / "small" / "0.safetensors", small.tensors(folder / "small"), {})
small.saved()
store = ClientStore(method, len(clients), w, 0, folder)
begin()
for t in range(3):
    for some in np.split(clients, 50):
        records = store.get(some, down.map(lambda x: x.expand(len(some), -1)))
        store.stage(some, records.map(lambda x: x + torch.from_numpy(some)[:, None]))
    store.commit()
    checkpoint.save(folder / f"{t}.safetensors", store.tensors(folder), {})
    store.saved()
some = clients[999::1000]
found = store.get(some, down.map(lambda x: x.expand(len(some), -1))).c
print(peak(), int((found == 3 * torch.from_numpy(some)[:, None]).all()))
"""


@pytest.mark.slow
def test_a_million_clients_in_one_round(tmp_path: Path) -> None:
    """Records of 64 MB in three rounds: memory holds slots and digests only, the file three states of every client."""
    peak, right = counted(MILLION, tmp_path)
    assert right
    assert (tmp_path / NAME).stat().st_size == START + 3 * 10**6 * 64
    assert (tmp_path / "2.safetensors").stat().st_size < 12.6e6
    assert peak < 112e6  # it is 85 to 98 MB; a state of all clients in memory would add 64
