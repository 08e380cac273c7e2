"""Folders of private runs that are killed, extended, copied or damaged: what was released stays the same, or counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fedflat.core.errors import ChangedWarning, InputError
from fedflat.experiments import runner
from fedflat.experiments.interrupt import Interrupted
from fedflat.experiments.run_directory import RunDirectory, StoredRun
from fedflat.experiments.spec import RunSpec
from fedflat.experiments.studies import extend_run
from fedflat.rounds import private_mean
from fedflat.rounds.private_rounds import logs_in, read_log
from support.effort import effort
from support.forgetful_disk import ForgetfulDisk
from support.watching import Watched

pytestmark = pytest.mark.slow
PRIVACY = {"epsilon": 100, "delta": 1e-3, "clip": 0.5, "rate": 1, "noise_multiplier": 6}


def spec(**changes) -> RunSpec:
    settings = {
        "data": {"name": "digits", "clients": 4}, "model": {"name": "mlp", "options": {"hidden": [3]}}, "rounds": 4,
        "client": {"lr": 0.1, "steps": 1, "batch_size": 10}, "checkpoint_every": 2, "method": "scaffold",
        "executor": "sequential", "workers": 1, "flatness": [], "privacy": PRIVACY,
    }  # fmt: skip
    return RunSpec(**settings | changes)


def final(folder: Path, **changes) -> torch.Tensor:
    """The final model of the run in `folder`, after it has gone on."""
    return torch.cat([x.flatten() for x in runner.run(spec(**changes), folder).model.parameters()])


def test_killed_at_any_file_operation_it_releases_the_same_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that forgets what was not synced. When a noise is drawn, key and record of its round are safe."""
    folder, drawn = tmp_path / "run", dict[bytes, int]()  # the key of each noise, and the crashes before
    folder.mkdir()
    draw = private_mean.normal_deviates

    def watched(key: bytes, *arguments) -> object:
        drawn.setdefault(key, len(disk.crashes))
        for state in disk.after_a_crash():
            assert any(name.startswith("checkpoint/round-") for name in state)
            logs = [text for name, text in state.items() if name.startswith("checkpoint/released-")]
            assert len(logs) == 1
            assert len(logs[0].split(b"\n")[:-1]) == len(drawn)
        return draw(key, *arguments)

    with monkeypatch.context() as patch, ForgetfulDisk(folder, patch) as disk:
        patch.setattr(private_mean, "normal_deviates", watched)
        whole = final(folder)
        disk.end()
    assert len(drawn) == 4
    states = []
    for state in (state for crash in disk.crashes[min(drawn.values()) :] for state in crash):
        if state not in states:
            states.append(state)
    print(f"{len(states)} states")
    for number, state in enumerate(states[:: effort(13, 1)]):
        left = tmp_path / f"{number}"
        for name, content in state.items():
            (left / name).parent.mkdir(parents=True, exist_ok=True)
            (left / name).write_bytes(content)
        assert torch.equal(final(left), whole), sorted(state)
        assert StoredRun.open(left).summary["epsilon"] == StoredRun.open(folder).summary["epsilon"]


def test_killed_before_its_first_state_it_goes_on_with_the_same_noise(tmp_path: Path) -> None:
    """And so does a folder that was copied; one that began anew has another."""
    with pytest.raises(ZeroDivisionError):
        runner.run(spec(checkpoint_every=100), tmp_path / "run", Failing())
    assert [path.name for path in RunDirectory(tmp_path / "run").checkpoints] == ["round-000000.safetensors"]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    whole = final(tmp_path / "run", checkpoint_every=100)
    assert torch.equal(whole, final(tmp_path / "copy", checkpoint_every=100))
    assert not torch.equal(whole, final(tmp_path / "anew", checkpoint_every=100))


class Failing(Watched):
    def round_ended(self, spec: RunSpec, result: object) -> None:
        raise ZeroDivisionError


def test_it_goes_on_from_an_older_state_with_the_same_noise_and_keeps_no_older_key_at_its_end(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        runner.run(spec(checkpoint_every=1), tmp_path / "run", Watched(signal_after=2))
    shutil.copytree(tmp_path / "run", tmp_path / "damaged")
    newest = RunDirectory(tmp_path / "damaged").checkpoints[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(ChangedWarning, match="resuming from"):
        found = final(tmp_path / "damaged", checkpoint_every=1)
    assert torch.equal(found, final(tmp_path / "run", checkpoint_every=1))
    assert [path.name for path in RunDirectory(tmp_path / "run").checkpoints] == ["round-000004.safetensors"]


def test_two_extensions_release_the_same(tmp_path: Path) -> None:
    final(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for name in ("run", "copy"):
        extend_run(RunDirectory(tmp_path / name), 6)
    assert torch.equal(final(tmp_path / "run", rounds=6), final(tmp_path / "copy", rounds=6))
    assert {t for t, _ in read_log(*logs_in(tmp_path / "run" / "checkpoint"))} == set(range(6))


def test_a_folder_whose_keys_are_gone_is_refused(tmp_path: Path) -> None:
    final(tmp_path / "run")
    for path in RunDirectory(tmp_path / "run").checkpoints:
        path.unlink()
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(InputError, match="has lost the checkpoint that can repeat the noise") as error:
        final(tmp_path / "run")
    assert "\n" not in str(error.value)
