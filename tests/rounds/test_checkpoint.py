from __future__ import annotations

import pickle
import struct

import pytest
import torch
from safetensors.torch import load_file

from fedflat.methods import find
from fedflat.rounds import checkpoint
from fedflat.rounds.checkpoint import Stream
from support.federation import simulation
from support.files import refused


def saved(tmp_path, method: str = "Scaffold", **changes):
    sim = simulation(find(method)(), **changes)
    sim.round()
    path = tmp_path / "state.safetensors"
    sim.save(path)
    return path


def test_other_settings_are_refused_by_name(tmp_path) -> None:
    path = saved(tmp_path)
    for changes, name in [
        ({"seed": 1}, "seed"),
        ({"client": {"lr": 0.3}}, r"client\.lr"),
        ({"participation": 2}, r"participation\.number"),
    ]:
        with pytest.raises(ValueError, match=f"{name} was .*, now it is"):
            simulation(find("Scaffold")(), **changes).load(path)
    with pytest.raises(ValueError, match="method was Scaffold"):
        simulation(find("FedDyn")()).load(path)


@pytest.mark.parametrize(
    ("executor", "why"), [("Sequential", "'Sequential' is unknown"), ("graphed", "'graphed' replays CUDA graphs")]
)
def test_an_executor_that_is_not_here_is_refused_in_one_line(tmp_path, executor: str, why: str) -> None:
    """Of an earlier version, or of a machine with a GPU; the simulation itself says `auto`."""
    path = saved(tmp_path)
    tensors, meta = checkpoint.load(path)
    meta["settings"]["executor"] = executor
    checkpoint.save(path, tensors, meta)
    sim = simulation(find("Scaffold")(), device="cpu")
    with pytest.raises(ValueError, match=f"checkpoint .*: executor = {why}"):
        sim.load(path)
    sim.round()


def test_a_resumed_run_keeps_its_executor(tmp_path) -> None:
    path = saved(tmp_path, executor="sequential")
    sim = simulation(find("Scaffold")())
    sim.load(path)
    assert sim.choice.name == "sequential"
    assert simulation(find("Scaffold")()).choice.name == "stacked", "which it would not have chosen"


def test_more_rounds_may_be_added(tmp_path) -> None:
    longer = simulation(find("Scaffold")(), rounds=9)
    longer.load(saved(tmp_path))
    assert len(list(longer)) == 8


@pytest.mark.parametrize("size", [0, 5, 100, 2000])
def test_a_damaged_file_is_refused(tmp_path, size: int) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"state\.safetensors cannot be read"):
        checkpoint.load(path)


def test_a_bit_that_flips_in_a_number_is_noticed(tmp_path) -> None:
    """The file can be read then, and would give another model."""
    path = saved(tmp_path)
    content, at = path.read_bytes(), path.stat().st_size - 40  # in the last tensor before the checksum
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(checkpoint.DamagedError, match=r"state\.safetensors .*its SHA-256 is another one"):
        checkpoint.load(path)


def test_a_pickle_is_not_read(tmp_path) -> None:
    path = tmp_path / "evil.safetensors"
    path.write_bytes(pickle.dumps({"t": 1}))
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.load(path)
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.load(tmp_path / "missing.safetensors")


def test_another_format_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    path = saved(tmp_path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="has format 99, this version reads 3"):
        checkpoint.load(path)


def test_tensors_and_numbers_come_back_to_the_last_bit(tmp_path) -> None:
    tensors = {"a": torch.randn(3, 2, dtype=torch.float64), "b": torch.arange(3)[::2], "c": torch.zeros(0, 5)}
    checkpoint.save(tmp_path / "x.safetensors", tensors, {"number": 0.1 + 0.2, "t": 3})
    back, meta = checkpoint.load(tmp_path / "x.safetensors")
    assert all(torch.equal(tensors[name], back[name]) for name in tensors)
    assert meta["number"] == 0.1 + 0.2


def test_a_stream_is_written_and_read_in_pieces(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the file is one that anybody's safetensors reads, each tensor at a multiple of its numbers' size."""
    monkeypatch.setattr(checkpoint, "AT_ONCE", 3 * 2 * 4)
    asked, x, path = [], torch.randn(8, 2), tmp_path / "x.safetensors"

    def read(start: int, end: int) -> torch.Tensor:
        asked.append((start, end))
        return x[start:end]

    tensors = {
        "odd": torch.ones(3, dtype=torch.uint8),
        "a.b": Stream((8, 2), x.dtype, read),
        "w": torch.ones(1).double(),
    }
    checkpoint.save(path, tensors, {})
    assert asked == [(0, 3), (3, 6), (6, 8)]
    assert torch.equal(load_file(path)["a.b"], x)
    back = checkpoint.load(path, streamed=("a.",))[0]
    assert torch.equal(torch.cat(list(back["a.b"].pieces())), x)
    assert torch.equal(back["a.b"].read(2, 7), x[2:7])
    assert torch.equal(back["odd"], tensors["odd"])
    assert struct.unpack("<Q", path.read_bytes()[:8])[0] % 8 == 0


def test_a_file_that_cannot_be_written_is_named(tmp_path) -> None:
    with refused("x.safetensors", "cannot be written", "No such file"):
        checkpoint.save(tmp_path / "none" / "x.safetensors", {}, {})
