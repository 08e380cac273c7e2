"""A folder whose permissions are lost, or that is removed, while it is written: one line, and no bit is lost."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedflat.core.errors import InputError
from fedflat.engine.simulation import Round
from fedflat.experiments import runner, studies
from fedflat.experiments.runner import RunObserver
from fedflat.experiments.spec import RunSpec
from support.effort import chosen
from support.flower_fixtures import GridFederation, study_of
from support.local_grid import LocalGrid
from support.permissions import binding_root, is_refused, linux
from support.studies import run_spec, study_spec

pytestmark = [linux, pytest.mark.slow]
READ_ONLY, CLOSED, USUAL = 0o500, 0o000, 0o700
MODEL = "model.safetensors"
SOME = [(".", READ_ONLY), ("checkpoint", CLOSED), (".", None)]
CASES = chosen(SOME, [*SOME, ("checkpoint", READ_ONLY), ("checkpoint", None)])


@pytest.fixture(autouse=True)
def _bound() -> Iterator[None]:
    with binding_root():
        yield


class Losing(RunObserver):
    """Takes the permissions of `folder` after the third round of a run, or removes the folder if they are None."""

    def __init__(self, folder: Path, mode: int | None) -> None:
        self.folder, self.mode, self.lost = folder, mode, False

    def round_ended(self, spec: RunSpec, result: Round) -> None:
        if result.t != 2 or self.lost:
            return
        self.lost = True
        if self.mode is None:
            shutil.rmtree(self.folder)
        else:
            self.folder.chmod(self.mode)
            assert is_refused(self.folder)


def spec_of(**changes: Any) -> RunSpec:
    return run_spec(method="scaffold", store_megabytes=0, **changes)  # clients' records are in files


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of a run that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    runner.run(spec_of(), folder)
    return (folder / MODEL).read_bytes()


@pytest.mark.parametrize(("place", "mode"), CASES)
def test_a_run_that_loses_its_folder_goes_on_with_the_same_bits(
    place: str, mode: int | None, whole: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError) as told:
        runner.run(spec_of(), out, Losing(out / place, mode))
    assert len(str(told.value).splitlines()) == 1
    assert str(out) in str(told.value)
    if mode is not None and place == ".":  # the folder of checkpoints gets its permissions back from whoever owns it
        with pytest.raises(InputError, match=r"Permission denied"):
            runner.run(spec_of(), out)
        out.chmod(USUAL)
    runner.run(spec_of(), out)
    assert (out / MODEL).read_bytes() == whole
    assert not list(out.rglob(".tmp-*"))


def test_a_study_that_loses_its_folder_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Of its runs, which the second run needs; its own file is written before."""
    spec, out = study_spec(methods=["fedavg"], flatness=[]), tmp_path / "out"
    studies.carry_out_study(spec, tmp_path / "whole")
    with pytest.raises(InputError, match=r"^[^\n]*Permission denied$"):
        studies.carry_out_study(spec, out, Losing(out / "runs", READ_ONLY))
    (out / "runs").chmod(USUAL)
    studies.carry_out_study(spec, out)
    for one in spec.runs():
        paths = [studies.run_directory(one, study).path / MODEL for study in (out, tmp_path / "whole")]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def losing_in(t: int, folder: Path) -> type[LocalGrid]:
    """A grid on which `folder` becomes read-only in round `t`, when clients have trained in it."""

    class Grid(LocalGrid):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if found and found[0].metadata.group_id == str(t):
                folder.chmod(READ_ONLY)
            return found

    return Grid


@pytest.mark.parametrize("place", ["out", "out/checkpoint"])
def test_a_federations_server_that_loses_its_folder_goes_on_with_the_same_bits(place: str, tmp_path: Path) -> None:
    spec = study_of(method="scaffold")
    runner.run(spec, tmp_path / "simulation")
    federation = GridFederation(spec, tmp_path / "federation")
    folder = federation.folder / place
    with pytest.raises(InputError, match=r"^[^\n]*Permission denied$"):
        federation.serve(grid=losing_in(2, folder))
    if place == "out":
        with pytest.raises(InputError, match=r"^[^\n]*Permission denied$"):
            federation.serve()
        folder.chmod(USUAL)
    assert federation.serve() == (tmp_path / "simulation" / MODEL).read_bytes()


def test_nodes_that_lose_their_states_are_missing_by_name_until_they_have_them_again(tmp_path: Path) -> None:
    """The round is not lost with too few of them: it waits, and the model has the bits of the simulator."""
    spec = study_of(method="scaffold")
    runner.run(spec, tmp_path / "simulation")
    federation = GridFederation(spec, tmp_path / "federation")
    state = federation.folder / "state"

    asked = Counter[int]()  # how often nodes were asked to train in round 2

    class Grid(LocalGrid):
        def push_messages(self, messages):
            sent = list(messages)
            asked.update(one.metadata.dst_node_id for one in sent if one.metadata.group_id == "2")
            for folder in state.iterdir() if state.is_dir() else ():
                folder.chmod(CLOSED if max(asked.values(), default=0) == 1 else USUAL)
            return super().push_messages(sent)

    found = federation.serve(grid=Grid)
    [failed] = federation.events("round failed")
    assert re.search(r"client-\d: .*Permission denied", failed["reason"])
    assert found == (tmp_path / "simulation" / MODEL).read_bytes()
