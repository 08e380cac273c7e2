"""The server's folder: states that can be gone back to, metrics that are made of them, and what is wrong with it."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from fedflat.core.errors import InputError
from fedflat.federation.flower import directory as folders
from fedflat.federation.flower import event_log
from fedflat.federation.flower.directory import FederationDirectory, check
from fedflat.files import locked
from support.flower_fixtures import Tried, failing, hurried, study_of  # noqa: F401 (a fixture)
from support.local_grid import LocalGrid

ROUNDS = 6


class Crash(BaseException):
    """The process is gone."""


def ending_in(t: int) -> type[LocalGrid]:
    """A grid whose server ends in round `t`, when clients have trained in it."""

    class Ending(LocalGrid):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if found and found[0].metadata.group_id == str(t):
                raise Crash
            return found

    return Ending


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished federations, which tests copy; clients take part now and then, and some keep records."""
    made = {}
    patch = pytest.MonkeyPatch()
    patch.setattr("fedflat.federation.flower.transport.POLL", 0.001)
    patch.setattr("fedflat.federation.flower.transport.LOOK", 0.0)
    for method in ("fedavg", "scaffold", "fedsmoo"):
        made[method] = tmp_path_factory.mktemp("federations") / method
        Tried(study_of(method=method, rounds=ROUNDS), made[method]).serve()
    patch.undo()
    return made


def states(tried: Tried) -> list[int]:
    return list(FederationDirectory(tried.out).states)


@pytest.mark.parametrize("back", [3, 4, 5])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedsmoo"])
def test_going_back_and_on_again_ends_with_the_same_bits(
    method: str, back: int, uninterrupted: dict[str, Path], tmp_path: Path
) -> None:
    """Stopped in the middle of round 5: clients have records of it, and of all that the server can go back to."""
    tried = Tried(study_of(method=method, rounds=ROUNDS), tmp_path)
    with pytest.raises(Crash):
        tried.serve(grid=ending_in(5))
    assert states(tried) == [3, 4, 5]
    aside = FederationDirectory(tried.out).roll_back(back)
    assert states(tried) == [t for t in (3, 4, 5) if t <= back]
    assert len(aside) == 5 - back
    assert all((tried.out / name).exists() for name in aside)
    assert pq.read_table(tried.out / "metrics.parquet")["t"].to_pylist() == list(range(back))
    assert tried.serve() == (uninterrupted[method] / "out" / "model.safetensors").read_bytes()
    assert [event["done"] for event in tried.events("begun")] == [0, back]
    assert [(event["done"], event["set_aside"]) for event in tried.events("rolled back")] == [(back, aside)]
    assert states(tried) == [4, 5, 6]
    same_metrics(tried.out, uninterrupted[method] / "out")
    assert wrong(tried.out) == {}


def same_metrics(one: Path, other: Path) -> None:
    assert pq.read_table(one / "metrics.parquet").equals(pq.read_table(other / "metrics.parquet"))


def wrong(path: Path) -> dict[str, str]:
    return {name: why for name, why in check(path) if why}


def test_going_back_from_the_end_and_twice(uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    """The model and its result are set aside with the states; back once more, a client's record of then is there."""
    shutil.copytree(uninterrupted["scaffold"], tmp_path / "f")
    tried = Tried(study_of(method="scaffold", rounds=ROUNDS), tmp_path / "f")
    model = (tried.out / "model.safetensors").read_bytes()
    aside = FederationDirectory(tried.out).roll_back(5)
    assert [name.rpartition(".")[0] for name in aside] == [
        "result.json", "model.safetensors", "checkpoint/round-000006.safetensors"
    ]  # fmt: skip
    assert not (tried.out / "result.json").exists()
    assert not (tried.out / "model.safetensors").exists()
    FederationDirectory(tried.out).roll_back(4)
    assert tried.serve() == model
    assert wrong(tried.out) == {}


def test_what_cannot_be_gone_back_to(uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(uninterrupted["fedavg"] / "out", tmp_path / "out")
    folder = FederationDirectory(tmp_path / "out")
    before = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    with failing(InputError, f"{tmp_path / 'out'} has no state after 3 rounds; kept are those after 4, 5 and 6"):
        folder.roll_back(3)
    with failing(InputError, "holds no federation"):
        FederationDirectory(tmp_path / "none").roll_back(3)
    with locked(tmp_path / "out" / ".lock", "busy"), pytest.raises(InputError, match="is being written"):
        folder.roll_back(5)
    damage(folder.states[5])
    with pytest.raises(InputError, match="round-000005"):
        folder.roll_back(5)
    after = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    assert after == sorted({*before, ".lock"})
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
    assert (code, err) == (2, "fedflat: out has no state after 5 rounds; kept is that after 4\n")


def test_folders_are_checked_and_gone_back_in_without_flower() -> None:
    program = (
        "import sys, fedflat.federation.flower.directory; "
        "print([name for name in sys.modules if name.startswith('flwr')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ["metrics", "model", "result"])
@pytest.mark.parametrize("t", [2, ROUNDS])
def test_a_crash_after_a_state_loses_nothing_that_is_made_of_it(
    name: str, t: int, uninterrupted: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the last round, when nothing is left to do but what was not written."""
    original, calls = folders.write_atomically, []
    at = {"metrics": "metrics.parquet", "result": "result.json"}.get(name)

    def crashing(path: Path, write, private: bool = False) -> None:
        calls.append(path.name)
        if path.name == at and (name == "result" or calls.count(at) == t):
            raise Crash
        original(path, write, private)

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(folders, "write_atomically", crashing)
        if name == "model":
            patch.setattr(folders, "save_model", crash)
        tried = Tried(study_of(rounds=ROUNDS), tmp_path)
        with pytest.raises(Crash):
            tried.serve()
    assert tried.serve() == (uninterrupted["fedavg"] / "out" / "model.safetensors").read_bytes()
    same_metrics(tried.out, uninterrupted["fedavg"] / "out")
    assert wrong(tried.out) == {}


def test_a_damaged_state_is_named_and_the_one_before_it_is_taken(
    uninterrupted: dict[str, Path], tmp_path: Path
) -> None:
    tried = Tried(study_of(method="fedsmoo", rounds=ROUNDS), tmp_path)
    with pytest.raises(Crash):
        tried.serve(grid=ending_in(5))
    folder = FederationDirectory(tried.out)
    for t in (4, 5):
        damage(folder.states[t])
    assert tried.serve() == (uninterrupted["fedsmoo"] / "out" / "model.safetensors").read_bytes()
    told = tried.events("damaged state")
    assert [event["instead"] for event in told] == ["round-000003.safetensors"] * 2
    assert ["round-000005" in told[0]["reason"], "round-000004" in told[1]["reason"]] == [True, True]
    assert [event["done"] for event in tried.events("begun")] == [0, 3]
    same_metrics(tried.out, uninterrupted["fedsmoo"] / "out")


def test_if_every_state_is_damaged_nothing_begins_anew(tmp_path: Path) -> None:
    tried = Tried(study_of(rounds=2), tmp_path)
    tried.serve()
    for file in FederationDirectory(tried.out).states.values():
        damage(file)
    with failing(InputError, "round-000002.safetensors"):
        tried.serve()


def spoil_study(out: Path) -> None:
    (out / "federated-study.toml").write_text("rounds = [")


def spoil_metrics(out: Path) -> None:
    table = pq.read_table(out / "metrics.parquet")
    pq.write_table(table.slice(0, len(table) - 1), out / "metrics.parquet")


def spoil_events(out: Path) -> None:
    with (out / "events.jsonl").open("a") as file:
        file.write("17\n")


SPOILT = {
    "federated-study.toml": spoil_study,
    "metrics.parquet": spoil_metrics,
    "events.jsonl": spoil_events,
    "checkpoint/round-000005.safetensors": lambda out: damage(out / "checkpoint" / "round-000005.safetensors"),
    "model.safetensors": lambda out: (out / "model.safetensors").write_bytes(b"other"),
    "result.json": lambda out: (out / "result.json").write_text('{"model_sha256": 5}'),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_check_says_what_is_wrong(name: str, uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(uninterrupted["fedavg"] / "out", out)
    names = [found for found, why in check(out) if not why]
    assert names == ["federated-study.toml", *(f"checkpoint/round-{t:06d}.safetensors" for t in (4, 5, 6)),
                     "metrics.parquet", "result.json", "model.safetensors", "events.jsonl"]  # fmt: skip
    SPOILT[name](out)
    found = wrong(out)
    assert name in found
    assert set(found) <= {name, "model.safetensors"}, "without its result a model is not known"
    assert all(why.isprintable() and why for why in found.values())


def test_a_check_of_a_state_that_is_another_rounds(uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(uninterrupted["fedavg"] / "out", out)
    shutil.copy(out / "checkpoint" / "round-000004.safetensors", out / "checkpoint" / "round-000005.safetensors")
    assert list(wrong(out)) == ["checkpoint/round-000005.safetensors"]


def test_a_line_that_a_power_failure_has_cut_is_not_wrong(uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(uninterrupted["fedavg"] / "out", out)
    with (out / "events.jsonl").open("a") as file:
        file.write('{"time": "2026')
    assert wrong(out) == {}
    event_log.EventLog(out).tell("begun")
    assert wrong(out) == {}
    assert list(wrong(tmp_path / "nothing")) == ["federated-study.toml"]


def test_what_a_client_says_stays_on_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the events, in Flower's log, and on the terminal, whatever it says."""
    from fedflat.cli.console import Console
    from fedflat.cli.flower import event_lines

    nasty = "no\x1b[2J\nfinished  model_sha256 0\u2028\u202e"
    tried = Tried(study_of(participation=1.0, rounds=1), tmp_path, quorum=0.5)
    honest = tried.nodes[100].app

    def saying(message, context):
        reply = honest(message, context)
        if message.metadata.message_type == "train":
            from flwr.app import Message

            from fedflat.federation.flower.records import to_records
            from fedflat.federation.messages import Failure

            return Message(to_records(Failure(nasty)), reply_to=message)
        return reply

    tried.nodes[100].app = saying
    with caplog.at_level("INFO", logger="flwr"):
        tried.serve()
    [event] = tried.events("round")
    said = event["missing"]["client-0"]
    assert said == "no\\x1b[2J\\x0afinished  model_sha256 0\\x2028\\x202e"
    assert all(record.getMessage().isprintable() for record in caplog.records if "fedflat" in record.getMessage())
    with io.StringIO() as screen:
        Console(file=screen, width=500).say(*event_lines({**event, "missing": {"client-0": nasty}}))
        shown = screen.getvalue().splitlines()
    assert [line.isprintable() for line in shown] == [True, True]
    assert json.loads((tried.out / "result.json").read_text())["rounds"] == 1
    assert load_file(tried.out / "model.safetensors")


def test_the_log_has_a_line_for_an_event_whatever_is_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        event_log.EventLog(tmp_path).tell("failed", reason="one\ntwo\x1b[2J")
    assert caplog.messages == ["fedflat: failed reason=one\\x0atwo\\x1b[2J"]
    assert [event["reason"] for event in event_log.read(tmp_path)] == ["one\ntwo\x1b[2J"]
