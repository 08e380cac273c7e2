"""Damaged files are named and cost a few rounds, and changed versions give a warning."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedflat.core.errors import ChangedWarning, InputError
from fedflat.experiments import runner
from fedflat.experiments.interrupt import Interrupted
from fedflat.experiments.run_directory import RunDirectory, StoredRun
from fedflat.experiments.spec import RunSpec
from fedflat.experiments.verification import Verdict, verify_run
from fedflat.rounds import checkpoint, segments
from support.durability import difference, facts
from support.effort import effort
from support.studies import run_spec
from support.watching import Watched

STORES = pytest.mark.parametrize("megabytes", [2048, 0], ids=["memory", "file"])


def stopped(folder: Path, **changes) -> RunSpec:
    """A run of Scaffold that was stopped after four of six rounds; three states are kept."""
    spec = run_spec(**{"method": "scaffold", "checkpoint_every": 1, "flatness": [], "executor": "sequential"} | changes)
    with pytest.raises(Interrupted):
        runner.run(spec, folder, Watched(signal_after=3))
    return spec


def flip(path: Path, rng: np.random.Generator, start: int = 0) -> None:
    """One bit of a file from `start` on."""
    place = int(rng.integers(start, path.stat().st_size))
    with path.open("r+b") as file:
        file.seek(place)
        before = file.read(1)[0]
        file.seek(place)
        file.write(bytes([before ^ 1 << int(rng.integers(8))]))


def problems(folder: Path) -> dict[str, Verdict]:
    """The damaged files that `verify` finds, by name."""
    return {verdict.path.name: verdict for verdict in verify_run(folder) if verdict.problem}


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@STORES
def test_no_flipped_bit_of_a_state_passes(tmp_path: Path, megabytes: int) -> None:
    """Of the header, the tensors and the sum, one at a time."""
    stopped(tmp_path, store_megabytes=megabytes)
    path, rng = RunDirectory(tmp_path).checkpoint, np.random.default_rng(0)
    whole = path.read_bytes()
    checkpoint.load(path)
    for _ in range(effort(1000, 10_000)):
        flip(path, rng)
        with pytest.raises(InputError, match=r"^checkpoint .*round-000004\.safetensors .*") as error:
            checkpoint.load(path)
        assert "\n" not in str(error.value)
        path.write_bytes(whole)


@pytest.mark.slow
@STORES
def test_a_damaged_state_costs_the_rounds_since_the_one_before(tmp_path: Path, megabytes: int) -> None:
    spec = stopped(tmp_path / "damaged", store_megabytes=megabytes)
    directory = RunDirectory(tmp_path / "damaged")
    assert [path.name[:12] for path in directory.checkpoints] == ["round-000002", "round-000003", "round-000004"]
    flip(directory.checkpoints[2], np.random.default_rng(1))
    assert "resumes from round-000003" in problems(directory.path)["round-000004.safetensors"].remedy
    with pytest.warns(
        ChangedWarning, match=r"round-000004.* SHA-256 .*; resuming from round-000003\.safetensors instead"
    ):
        runner.run(spec, directory.path, watched := Watched())
    assert watched.rounds == [3, 4, 5]
    runner.run(spec, tmp_path / "whole")
    assert difference(facts(tmp_path / "whole"), facts(directory.path)) is None
    assert problems(directory.path) == {}


@pytest.mark.slow
def test_damaged_records_cost_the_rounds_since_those_that_are_whole(tmp_path: Path) -> None:
    """Each record in turn: the run resumes from the newest state that does not need it. The records of clients that
    have not taken part since the oldest state are in one place only; without these no state is whole."""
    spec = stopped(tmp_path / "damaged", store_megabytes=0, participation=0.3)
    runner.run(spec, tmp_path / "whole")
    slots = {path.name: slots_of(path) for path in RunDirectory(tmp_path / "damaged").checkpoints}
    newest = slots.pop("round-000004.safetensors")
    expected = {slot: any(slot not in older for older in slots.values()) for slot in newest}
    assert set(expected.values()) == {True, False}
    for slot, is_survived in expected.items():
        folder = tmp_path / str(slot)
        shutil.copytree(tmp_path / "damaged", folder)
        file = folder / "checkpoint" / "clients.slots"
        flip_in(file, 4096 + slot * int.from_bytes(file.read_bytes()[16:24], "little"))
        assert "round-000004.safetensors" in problems(folder)
        if is_survived:
            with pytest.warns(ChangedWarning, match="a record has another digest"):
                runner.run(spec, folder)
            assert difference(facts(tmp_path / "whole"), facts(folder)) is None
        else:
            with pytest.raises(InputError, match="all 3 checkpoints are damaged"):
                runner.run(spec, folder)


def slots_of(path: Path) -> list[int]:
    """The slots that a checkpoint refers to."""
    slots = checkpoint.load(path)[0]["clients.slots"]
    return slots[slots >= 0].tolist()


def flip_in(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        before = file.read(1)[0]
        file.seek(place)
        file.write(bytes([before ^ 1]))


def test_when_no_state_is_whole_it_says_so(tmp_path: Path) -> None:
    spec = stopped(tmp_path)
    for path in RunDirectory(tmp_path).checkpoints:
        path.write_bytes(b"")
    with pytest.raises(InputError, match=r"all 3 checkpoints are damaged; delete .* to start over"):
        runner.run(spec, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["metrics.parquet", "summary.json", "model.safetensors", "partition.parquet", "env.json"]
)
def test_a_damaged_file_of_a_finished_run_is_made_again_from_its_state(tmp_path: Path, name: str) -> None:
    spec = run_spec(method="scaffold", flatness=["sharpness"], executor="sequential")
    for folder in ("whole", "damaged"):
        runner.run(spec, tmp_path / folder)
    flip(tmp_path / "damaged" / name, np.random.default_rng(2))
    verdict = problems(tmp_path / "damaged")[name]
    assert verdict.problem == "its SHA-256 is another one"
    assert "restores it from round-000006.safetensors" in verdict.remedy
    with pytest.warns(ChangedWarning, match=f"{name} is damaged, and is restored"):
        runner.run(spec, tmp_path / "damaged", watched := Watched())
    assert watched.rounds == [], "nothing is trained again"
    assert difference(facts(tmp_path / "whole"), facts(tmp_path / "damaged")) is None


def test_every_result_is_read_only_if_it_is_what_was_written(tmp_path: Path) -> None:
    run = runner.run(run_spec(flatness=["sharpness"]), tmp_path)
    for name, read in {
        "summary.json": lambda: StoredRun(run.directory).summary,
        "metrics.parquet": lambda: StoredRun(run.directory).metrics,
        "partition.parquet": lambda: StoredRun(run.directory).counts,
        "flatness.json": lambda: StoredRun(run.directory).flatness,
        "config.toml": run.directory.spec,
    }.items():
        read()
        whole = (tmp_path / name).read_bytes()
        flip(tmp_path / name, np.random.default_rng(3))
        with pytest.raises(InputError, match=f"{name} is missing or damaged: its SHA-256 is another one"):
            read()
        (tmp_path / name).write_bytes(whole)


def test_sha256sum_can_check_the_checksums(tmp_path: Path) -> None:
    runner.run(run_spec(flatness=["sharpness"]), tmp_path)
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    names = {line.split(":")[0] for line in done.stdout.splitlines()}
    assert names == {path.name for path in tmp_path.iterdir() if path.is_file()} - {"SHA256SUMS", ".lock"}


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_come_from_the_state(tmp_path: Path) -> None:
    """A run that was stopped between its last checkpoint and its metrics, or that has no metrics."""
    spec = stopped(tmp_path)
    (tmp_path / "metrics.parquet").unlink()
    assert problems(tmp_path)["metrics.parquet"].problem == "it has 0 of 4 rows"
    with pytest.raises(Interrupted):
        runner.run(spec.model_copy(update={"rounds": 7}), tmp_path / "other", Watched(signal_after=5))
    run = runner.run(spec, tmp_path)
    assert run.metrics.num_rows == 6


def test_all_rounds_done_and_no_metrics_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash after the last checkpoint of a run that has only one."""

    class Gone(BaseException):
        pass

    write_table = pq.write_table

    def crash_at_metrics(table: pa.Table, *place: object) -> None:
        if "gradients" in table.column_names:
            raise Gone
        write_table(table, *place)

    spec = run_spec(checkpoint_every=100, flatness=[])
    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", crash_at_metrics)
        with pytest.raises(Gone):
            runner.run(spec, tmp_path)
    assert RunDirectory(tmp_path).checkpoint.name == "round-000006.safetensors"
    runner.run(spec, tmp_path, watched := Watched())
    assert watched.rounds == []
    assert pq.read_table(tmp_path / "metrics.parquet").num_rows == 6


# --- versions ---------------------------------------------------------------------------------------------------------


def test_other_versions_give_a_warning_and_are_refused_when_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = stopped(tmp_path)
    monkeypatch.setattr(segments, "versions", lambda names: dict.fromkeys(names, "9.9"))
    with pytest.raises(InputError, match=r"torch was .*, now it is 9\.9.*; without --strict the run continues"):
        runner.run(spec, tmp_path, strict=True)
    with pytest.warns(ChangedWarning, match=r"torch was .*, now it is 9\.9"):
        runner.run(spec, tmp_path)
    noted = checkpoint.load(RunDirectory(tmp_path).checkpoint)[1]["segments"]
    assert [(one["start"], one["versions"]["torch"]) for one in noted] == [(0, torch.__version__), (4, "9.9")]


def test_other_code_of_the_method_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = stopped(tmp_path)
    monkeypatch.setattr(segments, "source_digest", lambda kind: "0" * 16)
    with pytest.warns(ChangedWarning, match="the method's code was .*, now it is 0000000000000000"):
        runner.run(spec, tmp_path)


def test_the_digest_is_of_the_files_that_a_method_is_made_from(tmp_path: Path) -> None:
    from fedflat.methods import find

    fedsam, fedavg = find("FedSAM"), find("FedAvg")
    assert segments.source_digest(fedsam) != segments.source_digest(fedavg)
    assert segments.source_digest(type("Own", (fedavg,), {"__module__": "__nowhere__"})) == segments.UNKNOWN


def test_unchanged_versions_give_no_warning(tmp_path: Path) -> None:
    spec = stopped(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner.run(spec, tmp_path, strict=True)
    assert len(checkpoint.load(RunDirectory(tmp_path).checkpoint)[1]["segments"]) == 1


def test_env_json_has_a_segment_for_every_start(tmp_path: Path) -> None:
    import json

    spec = stopped(tmp_path)
    runner.run(spec, tmp_path)
    assert [one["from round"] for one in json.loads((tmp_path / "env.json").read_text())] == [0, 4]


def test_fewer_rounds_than_there_are_are_refused(tmp_path: Path) -> None:
    stopped(tmp_path)
    sim = run_spec(method="scaffold", flatness=[], executor="sequential", rounds=3).build()
    with pytest.raises(InputError, match="has 4 rounds, rounds = 3 is less"):
        sim.load(RunDirectory(tmp_path).checkpoint)


# --- a user's files ---------------------------------------------------------------------------------------------------


def test_nothing_of_a_users_is_touched(tmp_path: Path) -> None:
    """Files and folders with names like those of half-written ones, at any depth."""
    folder = tmp_path / "run"
    (folder / "mine" / ".tmp-x").mkdir(parents=True)
    mine = [folder / ".tmp-notes", folder / "mine" / ".tmp-fedflat-0123456789abcdef", folder / "mine" / ".tmp-x" / "y"]
    for path in mine:
        path.write_text("mine")
    runner.run(run_spec(), folder)
    assert [path.read_text() for path in mine] == ["mine"] * 3


def test_temporary_files_of_a_finished_run_are_removed(tmp_path: Path) -> None:
    """The run was finished; started again, it has nothing else to do."""
    runner.run(run_spec(), tmp_path)
    (tmp_path / ".tmp-fedflat-0123456789abcdef").write_text("half")
    runner.run(run_spec(), tmp_path)
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_claim_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".claim").symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match=r"\.claim cannot be read"):
        runner.run(run_spec(), tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_state_is_its_owners_and_the_rest_as_the_umask_says(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        runner.run(run_spec(method="scaffold", store_megabytes=0), tmp_path / "run")
    finally:
        os.umask(before)
    state = RunDirectory(tmp_path / "run").state
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").rglob("*")}
    assert modes.pop(state) == 0o700
    assert {mode for path, mode in modes.items() if path.parent == state} == {0o600}
    assert {mode for path, mode in modes.items() if path.parent != state} == {0o666 & ~umask}


def test_what_interrupted_saves_have_left_is_removed_by_the_next(tmp_path: Path) -> None:
    spec = stopped(tmp_path)
    state = RunDirectory(tmp_path).state
    for t in (0, 1, 99):  # states that should have gone, and one of another past
        shutil.copy(state / "round-000004.safetensors", state / f"round-{t:06d}.safetensors")
    (state / "round-000099.safetensors").write_bytes(b"")
    (state / ".tmp-fedflat-0123456789abcdef.safetensors").write_text("half")
    with pytest.warns(ChangedWarning, match="round-000099"):
        runner.run(spec, tmp_path)
    assert sorted(path.name for path in state.iterdir()) == [f"round-{t:06d}.safetensors" for t in (4, 5, 6)]
