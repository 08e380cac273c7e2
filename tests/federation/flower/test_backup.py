"""The drill of docs/operate.md: plain copies that were taken while a federation ran, and what they restore."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedflat.federation.flower.directory import FederationDirectory, check
from fedflat.federation.server import RoundFailedError
from support.flower_fixtures import GridFederation, study_of
from support.local_grid import LocalGrid, ServerEnded, ending_in

ROUNDS = 6


def copying_in(t: int, copy: Callable[[], object], ends: int) -> type[LocalGrid]:
    """Return a grid on which the operator copies in the middle of round `t`, and whose server ends in round `ends`."""

    class Copied(ending_in(ends)):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if found and found[0].metadata.group_id == str(t):
                copy()
            return found

    return Copied


def copied(federation: GridFederation, folder: Path, ends: int) -> None:
    """Copy the server's folder, and then the clients' states, in the middle of round 2; end in round `ends`."""

    def copy() -> None:
        shutil.copytree(federation.out, folder / "out", dirs_exist_ok=True)
        shutil.copytree(federation.folder / "state", folder / "state", dirs_exist_ok=True)

    with pytest.raises(ServerEnded):
        federation.serve(grid=copying_in(2, copy, ends))


def restored(source: Path, target: Path) -> None:
    shutil.rmtree(target)
    shutil.copytree(source, target)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", "fedsmoo"])
def test_a_server_and_a_client_that_lost_everything_go_on_with_the_same_bits(method: str, tmp_path: Path) -> None:
    """The others have newer states; they keep those of all rounds that the server's last checkpoints can return to."""
    spec = study_of(method=method, participation=1.0, rounds=ROUNDS)
    whole = GridFederation(spec, tmp_path / "whole")
    model = whole.serve()
    federation = GridFederation(spec, tmp_path / "federation")
    copied(federation, tmp_path / "copy", ends=4)
    restored(tmp_path / "copy" / "out", federation.out)
    assert [problem for _, problem in check(federation.out) if problem] == []
    assert FederationDirectory(federation.out).newest().rounds == 2
    [state] = (federation.folder / "state").glob("*/client-3")
    restored(tmp_path / "copy" / "state" / state.parent.name / "client-3", state)
    assert federation.serve() == model


def test_a_client_whose_copy_is_older_than_the_servers_is_named(tmp_path: Path) -> None:
    """So the server's folder is copied first."""
    federation = GridFederation(study_of(method="scaffold", participation=1.0, rounds=ROUNDS), tmp_path / "federation",
                                quorum=1.0)  # fmt: skip
    copied(federation, tmp_path / "copy", ends=5)
    [state] = (federation.folder / "state").glob("*/client-3")
    restored(tmp_path / "copy" / "state" / state.parent.name / "client-3", state)
    with pytest.raises(RoundFailedError, match=r"client-3: client record .* cannot be read"):
        federation.serve()
