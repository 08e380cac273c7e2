"""The server's folder: checkpoints to go back to, metrics that come from them, and damage that is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedflat.core.errors import InputError
from fedflat.experiments import runner
from fedflat.experiments.run_directory import RunDirectory
from fedflat.federation.flower import directory
from fedflat.federation.flower.directory import FederationDirectory, check
from fedflat.federation.flower.event_log import EVENTS, EventLog
from fedflat.rounds import checksums
from support.effort import in_turns
from support.flower_fixtures import GridFederation, failing, study_of
from support.local_grid import ServerEnded, ending_in

ROUNDS = 6
METHODS = ("fedavg", "scaffold", "fedsmoo")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished federations, which tests copy. Not all clients take part in each round, and some methods have state."""
    folders = {method: tmp_path_factory.mktemp(method) for method in METHODS}
    for method, folder in folders.items():
        GridFederation(study_of(method=method, rounds=ROUNDS), folder).serve()
    return folders


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same, stopped in the middle of round 5: clients have the state of it, and of all checkpoints."""
    folders = {method: tmp_path_factory.mktemp(method) for method in METHODS}
    for method, folder in folders.items():
        with pytest.raises(ServerEnded):
            GridFederation(study_of(method=method, rounds=ROUNDS), folder).serve(grid=ending_in(5))
    return folders


def copied(folders: dict[str, Path], method: str, folder: Path) -> GridFederation:
    """A copy of a federation, to be changed by one test."""
    shutil.copytree(folders[method], folder, dirs_exist_ok=True)
    return GridFederation(study_of(method=method, rounds=ROUNDS), folder)


def states(federation: GridFederation) -> list[int]:
    return list(FederationDirectory(federation.out).states)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "back"), in_turns(METHODS, [3, 4, 5]))
def test_going_back_and_on_again_ends_with_the_same_bits(
    method: str, back: int, uninterrupted: dict[str, Path], interrupted: dict[str, Path], tmp_path: Path
) -> None:
    federation = copied(interrupted, method, tmp_path)
    assert states(federation) == [3, 4, 5]
    aside = FederationDirectory(federation.out).roll_back(back)
    assert states(federation) == [t for t in (3, 4, 5) if t <= back]
    assert len(aside) == 5 - back
    assert all((federation.out / name).exists() for name in aside)
    assert pq.read_table(federation.out / "metrics.parquet")["t"].to_pylist() == list(range(back))
    assert federation.serve() == (uninterrupted[method] / "out" / "model.safetensors").read_bytes()
    assert [event["done"] for event in federation.events("begun")] == [0, back]
    assert [(event["done"], event["set_aside"]) for event in federation.events("rolled back")] == [(back, aside)]
    assert states(federation) == [4, 5, 6]
    same_metrics(federation.out, uninterrupted[method] / "out")
    assert problems(federation.out) == {}


def same_metrics(one: Path, other: Path) -> None:
    assert pq.read_table(one / "metrics.parquet").equals(pq.read_table(other / "metrics.parquet"))


def problems(path: Path) -> dict[str, str]:
    return {name: problem for name, problem in check(path) if problem}


@pytest.mark.slow
def test_going_back_from_the_end_and_twice(uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    """The model and the result are set aside too. For a second, earlier checkpoint clients still have their state."""
    federation = copied(uninterrupted, "scaffold", tmp_path)
    model = (federation.out / "model.safetensors").read_bytes()
    aside = FederationDirectory(federation.out).roll_back(5)
    assert [name.rpartition(".")[0] for name in aside] == [
        "result.json", "model.safetensors", "checkpoint/round-000006.safetensors"
    ]  # fmt: skip
    assert not (federation.out / "result.json").exists()
    assert not (federation.out / "model.safetensors").exists()
    FederationDirectory(federation.out).roll_back(4)
    assert federation.serve() == model
    assert problems(federation.out) == {}


def test_checkpoints_that_cannot_be_gone_back_to(uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(uninterrupted["fedavg"] / "out", tmp_path / "out")
    folder = FederationDirectory(tmp_path / "out")
    before = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    with failing(InputError, f"{tmp_path / 'out'} has no state after 3 rounds; kept: 4, 5, 6"):
        folder.roll_back(3)
    with failing(InputError, "holds no federation"):
        FederationDirectory(tmp_path / "none").roll_back(3)
    with RunDirectory(tmp_path / "out").writing(), pytest.raises(InputError, match="is being written"):
        folder.roll_back(5)
    damage(folder.states[5])
    with pytest.raises(InputError, match="round-000005"):
        folder.roll_back(5)
    after = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    assert after == before
    assert not (tmp_path / "none").exists()


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def test_the_command(fedflat, uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(uninterrupted["fedavg"] / "out", tmp_path / "out")
    code, out, err = fedflat("flower rollback out --to-round 4")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "out is as it was after 4 rounds"
    assert [line.rpartition(".")[0] for line in out.splitlines()[1:]] == [
        "set aside: result.json", "set aside: model.safetensors", "set aside: checkpoint/round-000006.safetensors",
        "set aside: checkpoint/round-000005.safetensors",
    ]  # fmt: skip
    code, _, err = fedflat("flower rollback out --to-round 5")
    assert (code, err) == (2, "fedflat: out has no state after 5 rounds; kept: 4\n")


@pytest.mark.slow
def test_checking_and_rolling_back_need_no_flower() -> None:
    program = (
        "import sys, fedflat.federation.flower.directory; "
        "print([name for name in sys.modules if name.startswith('flwr')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "t"), in_turns(["metrics", "model", "result"], [2, ROUNDS]))
def test_a_crash_after_a_checkpoint_loses_no_file_that_is_derived_from_it(
    name: str, t: int, uninterrupted: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the last round, when only the file that was not written is left to do."""
    original, calls = directory.write_atomically, []
    at = {"metrics": "metrics.parquet", "result": "result.json"}.get(name)

    def crashing(path: Path, write, private: bool = False) -> None:
        calls.append(path.name)
        if path.name == at and (name == "result" or calls.count(at) == t):
            raise ServerEnded
        original(path, write, private)

    def crash(*_: object) -> None:
        raise ServerEnded

    with monkeypatch.context() as patch:
        patch.setattr(directory, "write_atomically", crashing)
        if name == "result":
            patch.setattr(checksums, "write_atomically", crashing)
        if name == "model":
            patch.setattr(directory, "save_model", crash)
        federation = GridFederation(study_of(rounds=ROUNDS), tmp_path)
        with pytest.raises(ServerEnded):
            federation.serve()
    assert federation.serve() == (uninterrupted["fedavg"] / "out" / "model.safetensors").read_bytes()
    same_metrics(federation.out, uninterrupted["fedavg"] / "out")
    assert problems(federation.out) == {}


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_between_a_checkpoint_and_its_event_loses_no_event(
    torn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who counted in the round, and who was refused and why; also if half of the line was written."""
    federation = GridFederation(study_of(rounds=2, participation=1.0), tmp_path)
    federation.config["deadline"] = 2.0
    federation.nodes[101].tamper = lambda number, contents: None if federation.events("begun") else contents
    write = EventLog._write

    def crashing(log: EventLog, content: bytes) -> None:
        event = json.loads(content)
        if event["event"] == "round" and event["t"] == t:
            with (federation.out / EVENTS).open("ab") as file:
                file.write(content[: len(content) // 2 if torn else 0])
            raise ServerEnded
        write(log, content)

    for t in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(EventLog, "_write", crashing)
            with pytest.raises(ServerEnded):
                federation.serve()
        assert [event["t"] for event in federation.events("round")] == list(range(t))
    federation.serve()
    rounds = federation.events("round")
    assert [(event["t"], list(event["missing"])) for event in rounds] == [(0, ["client-1"]), (1, ["client-1"])]
    assert [event["counted"] for event in rounds] == [[f"client-{i}" for i in (0, 2, 3, 4)]] * 2
    assert problems(federation.out) == {}


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    uninterrupted: dict[str, Path], interrupted: dict[str, Path], tmp_path: Path
) -> None:
    federation = copied(interrupted, "fedsmoo", tmp_path)
    folder = FederationDirectory(federation.out)
    for t in (4, 5):
        damage(folder.states[t])
    assert federation.serve() == (uninterrupted["fedsmoo"] / "out" / "model.safetensors").read_bytes()
    damaged = federation.events("damaged state")
    assert [event["instead"] for event in damaged] == ["round-000003.safetensors"] * 2
    assert ["round-000005" in damaged[0]["reason"], "round-000004" in damaged[1]["reason"]] == [True, True]
    assert [event["done"] for event in federation.events("begun")] == [0, 3]
    same_metrics(federation.out, uninterrupted["fedsmoo"] / "out")


def test_if_every_checkpoint_is_damaged_the_federation_does_not_start_again(tmp_path: Path) -> None:
    federation = GridFederation(study_of(rounds=2), tmp_path)
    federation.serve()
    for file in FederationDirectory(federation.out).states.values():
        damage(file)
    with failing(InputError, "round-000002.safetensors"):
        federation.serve()


def damage_study(out: Path) -> None:
    replace(out / "federated-study.toml", "rounds = 6", "rounds = 7")


def damage_metrics(out: Path) -> None:
    table = pq.read_table(out / "metrics.parquet")
    pq.write_table(table.slice(0, len(table) - 1), out / "metrics.parquet")


def damage_events(out: Path) -> None:
    with (out / "events.jsonl").open("a") as file:
        file.write("17\n")


DAMAGE = {
    "federated-study.toml": damage_study,
    "metrics.parquet": damage_metrics,
    "events.jsonl": damage_events,
    "checkpoint/round-000005.safetensors": lambda out: damage(out / "checkpoint" / "round-000005.safetensors"),
    "model.safetensors": lambda out: (out / "model.safetensors").write_bytes(b"other"),
    "result.json": lambda out: replace(out / "result.json", '"rounds": 6', '"rounds": 7'),
    "ejected.json": lambda out: replace(out / "ejected.json", "{}", '{"client-0": ""}'),
}


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("name", DAMAGE)
def test_a_check_names_the_damaged_file(name: str, uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(uninterrupted["fedavg"] / "out", out)
    names = [file for file, problem in check(out) if not problem]
    assert names == ["federated-study.toml", *(f"checkpoint/round-{t:06d}.safetensors" for t in (4, 5, 6)),
                     "metrics.parquet", "result.json", "model.safetensors", "ejected.json", "events.jsonl"]  # fmt: skip
    DAMAGE[name](out)
    found = problems(out)
    assert name in found
    assert set(found) <= {name, "model.safetensors"}, "without the result, the digest of the model is unknown"
    assert all(problem.isprintable() for problem in found.values())


def test_a_server_between_two_files_is_no_problem(
    uninterrupted: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metrics of the newest checkpoint are written while somebody checks."""
    out = tmp_path / "out"
    shutil.copytree(uninterrupted["fedavg"] / "out", out)
    whole = (out / "metrics.parquet").read_bytes()
    damage_metrics(out)
    monkeypatch.setattr(directory, "sleep", lambda seconds: (out / "metrics.parquet").write_bytes(whole))
    assert problems(out) == {}


def test_a_checkpoint_of_another_round_is_a_problem(uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(uninterrupted["fedavg"] / "out", out)
    shutil.copy(out / "checkpoint" / "round-000004.safetensors", out / "checkpoint" / "round-000005.safetensors")
    assert list(problems(out)) == ["checkpoint/round-000005.safetensors"]


def test_an_incomplete_event_is_no_problem(uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(uninterrupted["fedavg"] / "out", out)
    with (out / "events.jsonl").open("a") as file:
        file.write('{"time": "2026')
    assert problems(out) == {}
    directory.EventLog(out).append("begun")
    assert problems(out) == {}
    assert list(problems(tmp_path / "nothing")) == ["federated-study.toml"]


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    federation = GridFederation(study_of(rounds=1), tmp_path / "federation")
    federation.serve()
    other = GridFederation(study_of(rounds=1, seed=3), tmp_path / "other", out=str(federation.out))
    with failing(InputError, "holds another federation: seed"):
        other.serve()
    runner.run(study_of(rounds=1), tmp_path / "run")
    with failing(InputError, "holds a run; choose another folder"):
        GridFederation(study_of(), tmp_path / "third", out=str(tmp_path / "run")).serve()
