"""Files of runs and configurations with random damage or content: reading works, or fails with one printable line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings

from fedflat.core.errors import InputError
from fedflat.experiments import runner
from fedflat.experiments.run_directory import RunDirectory, StoredRun
from fedflat.experiments.spec import RunSpec, StudySpec
from fedflat.experiments.verification import verify_run
from fedflat.rounds import checkpoint
from support.effort import effort
from support.studies import run_spec

pytestmark = pytest.mark.slow

FUZZ = settings(
    max_examples=effort(100, 10_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run without SHA256SUMS, because whoever does harm could write it anew."""
    folder = tmp_path_factory.mktemp("fuzzed")
    runner.run(run_spec(flatness=["eigenvalues"]), folder)
    (folder / "SHA256SUMS").unlink()
    return folder


READERS: dict[str, Callable[[RunDirectory], Any]] = {
    "summary.json": lambda directory: StoredRun(directory).settings,
    "flatness.json": lambda directory: StoredRun(directory).flatness,
    "metrics.parquet": lambda directory: StoredRun(directory).metrics.to_pylist(),
    "partition.parquet": lambda directory: StoredRun(directory).counts,
    "config.toml": lambda directory: directory.spec(),
    "checkpoint/round-000006.safetensors": lambda directory: checkpoint.load(directory.checkpoints[-1]),
}
places = st.floats(0, 1, exclude_max=True)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), places, st.integers(0, 7)),
        st.tuples(st.just("cut"), places, places),
        st.tuples(st.just("insert"), places, st.binary(min_size=1, max_size=40)),
        st.tuples(st.just("repeat"), places, places),
    ),
    min_size=1,
    max_size=4,
)


def changed(content: bytes, changes: list[tuple[str, float, Any]]) -> bytes:
    """`content` with bits flipped, and parts of it cut out, put in and repeated."""
    for kind, place, what in changes:
        at = int(place * len(content))
        end = at + int(what * (len(content) - at)) if isinstance(what, float) else at
        if kind == "flip" and content:
            content = content[:at] + bytes([content[at] ^ 1 << what]) + content[at + 1 :]
        elif kind == "cut":
            content = content[:at] + content[end:]
        elif kind == "insert":
            content = content[:at] + what + content[at:]
        elif kind == "repeat":
            content = content[:end] + content[at:end] + content[end:]
    return content


def check_reader(read: Callable[[], object]) -> None:
    """Check that `read` works, or raises InputError with one printable line."""
    try:
        read()
    except InputError as error:
        line = str(error)
    else:
        return
    assert line.isprintable()
    assert len(line) < 3000


@pytest.mark.parametrize("name", READERS)
@FUZZ
@given(changes=changes)
def test_a_damaged_file_of_a_run(finished: Path, name: str, changes: list[tuple[str, float, Any]]) -> None:
    path = finished / name
    whole = path.read_bytes()
    path.write_bytes(changed(whole, changes))
    try:
        check_reader(lambda: READERS[name](RunDirectory(finished)))
        check_reader(lambda: list(verify_run(finished)))
    finally:
        path.write_bytes(whole)


scalars = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=20), st.dates(), st.just("fedsam")
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["name", "x", "lr", "alpha", ""]), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", [RunSpec, StudySpec])
@FUZZ
@given(data=st.data())
def test_a_configuration_of_any_values(tmp_path: Path, kind: type[RunSpec], data: st.DataObject) -> None:
    keys = st.sampled_from([*kind.model_fields, "unknown"])
    path = tmp_path / "file.toml"
    path.write_text(tomli_w.dumps(data.draw(st.dictionaries(keys, values, min_size=1, max_size=3))))
    check_reader(lambda: kind.load(path))


@FUZZ
@given(changes=changes)
def test_a_configuration_that_is_damaged(tmp_path: Path, changes: list[tuple[str, float, Any]]) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(changed(run_spec().to_toml().encode(), changes))
    check_reader(lambda: RunSpec.load(path))
