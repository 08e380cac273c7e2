"""How a command ends when it cannot go on."""

from __future__ import annotations

import signal
import warnings

import pyarrow as pa
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError

from fedflat.cli import app
from fedflat.cli.console import LONGEST, in_one_line
from fedflat.core.errors import ChangedWarning, InputError, NonFiniteError, changes_in_one_line
from fedflat.engine.ranks import RankError
from fedflat.engine.workers import WorkerError
from fedflat.experiments.interrupt import Interrupted
from fedflat.federation.membership import FederationError


def invalid() -> ValidationError:
    with pytest.raises(ValidationError) as error:
        TypeAdapter(int).validate_python("x\n")
    return error.value


def no_memory() -> Exception:
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**62, dtype=torch.uint8)
    return error.value


ENDS = {
    "input": (InputError("rounds = 0"), 2, "rounds = 0"),
    "file": (FileNotFoundError(2, "No such file or directory", "x\x1b"), 2, "x\\x1b: No such file or directory"),
    "disk": (OSError(28, "No space left on device"), 2, "No space left on device"),
    "unnamed": (OSError("odd\nthing"), 2, "odd thing"),
    "tensors": (SafetensorError("I/O error\nagain"), 2, "I/O error again"),
    "arrow": (pa.ArrowInvalid("Parquet magic bytes not found"), 2, "Parquet magic bytes not found"),
    "memory": (MemoryError(), 2, "memory is short: use smaller batches"),
    "torch's memory": (no_memory(), 2, "memory is short: use smaller batches"),
    "GPU": (torch.OutOfMemoryError("CUDA out of memory"), 2, "memory is short: use smaller batches"),
    "depth": (RecursionError(), 2, "nested too deep"),
    "schema": (invalid(), 2, "Input should be a valid integer"),
    "NaN": (NonFiniteError("training diverged"), 1, "training diverged"),
    "worker": (WorkerError("a worker died"), 1, "a worker died"),
    "rank": (RankError("lost the others"), 1, "lost the others"),
    "federation": (FederationError("nobody answered"), 1, "nobody answered"),
    "signal": (Interrupted(signal.SIGTERM, "round 1 is saved"), 143, "round 1 is saved"),
    "Ctrl-C": (KeyboardInterrupt(), 130, "stopped at once"),
    "long": (InputError("x" * 10 * LONGEST), 2, "x [...] x"),
}


@pytest.mark.parametrize(("error", "code", "said"), ENDS.values(), ids=ENDS)
def test_one_line_and_a_code(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, in_one_line():
        raise error
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (code, "")
    assert err.startswith("fedflat: ")
    assert said in err
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    assert len(err) < LONGEST + 100


def test_a_mistake_of_our_own_is_not_hidden() -> None:
    for error in (RuntimeError("shapes differ"), KeyError("x"), TypeError(), ValueError()):
        with pytest.raises(type(error)), in_one_line():
            raise error


def test_every_command_runs_inside(fedflat, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(standalone_mode: bool) -> None:
        raise MemoryError

    monkeypatch.setattr(app, "app", broken)
    code, _, err = fedflat("methods")
    assert code == 2
    assert err.startswith("fedflat: memory is short")


def test_what_changed_is_one_line_and_other_warnings_are_pythons(fedflat, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(standalone_mode: bool) -> None:
        warnings.warn(ChangedWarning("torch was 2.0\n\x1b[2J"), stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)

    monkeypatch.setattr(app, "app", changed)
    with pytest.warns(UserWarning, match="something else") as others:
        code, _, err = fedflat("methods")
    assert code == 0
    assert err == "fedflat: warning: torch was 2.0\\x0a\\x1b[2J\n"
    assert len(others) == 1


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_one_of_several_ranks_tells_of_an_error(
    rank: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit) as ended, in_one_line():
        raise InputError("the folder holds another run")
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == lines


def test_one_of_several_ranks_tells_of_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with changes_in_one_line():
            warnings.warn(ChangedWarning("torch was 2.0"), stacklevel=1)
    assert capsys.readouterr().err == ""
    assert warnings.showwarning is before


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("predict x", "Missing option '--input'; see `fedflat predict --help`"),
        ("report --nope", "No such option '--nope'; see `fedflat report --help`"),
        ("nosuch", "No such command 'nosuch'; see `fedflat --help`"),
        ("flower nod", "No such command 'nod'. Did you mean 'node'?; see `fedflat flower --help`"),
        ("flower run --classes zero", "Invalid value for '--classes': 'zero' is not a valid integer; see"),
    ],
)
def test_words_that_no_command_takes_are_one_line(fedflat, words: str, problem: str) -> None:
    code, out, err = fedflat(words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"fedflat: {problem}")


@pytest.mark.parametrize("words", ["", "flower"])
def test_without_a_command_there_is_help(fedflat, words: str) -> None:
    code, out, err = fedflat(words)
    assert (code, err) == (2, "")
    assert "Usage" in out
