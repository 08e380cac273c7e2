from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import CDLL
from functools import cache as cached
from itertools import count
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
import typer.main

from fedflat.core.method import Method
from fedflat.core.native_libraries import fix_product_rounding
from fedflat.engine import choice, problem, stacked
from fedflat.federation import client
from fedflat.methods import all_methods
from fedflat.rounds.executor import Executor
from support.effort import covering_methods, for_few_rounds
from support.fork_server import ForkServer, fork_server, forking
from support.models_tried_once import tried_once

# No example is timed: machines are busy. CI always draws the same examples, so that it does not fail by chance.
hypothesis.settings.register_profile("fedflat", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("fedflat")

fix_product_rounding()  # before any test computes, as the command line does
# Programs that tests start have one thread, too: while all cores are busy, those of torch spend time on waiting.
os.environ["OMP_NUM_THREADS"] = "1"
os.fsync = os.fstat  # no power failure comes after a test; those of durability watch and undo what is not flushed
typer.main.get_command = cached(typer.main.get_command)  # hundreds of command lines run in this process
problem.randomness_of = client.randomness_of = tried_once()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that at the end no process is left alone with one of them.

    Those are the files of the whole package, beside this one, and then those with the most tests that are marked slow.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (item.path.parent != Path(__file__).parent, -slow[item.path]))


def pytest_collection_finish() -> None:
    """Modules and tests stay: they are not looked through for garbage again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tests run side by side; threads inside them only get in each other's way. A test may have set another number."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def _freed_memory_is_returned() -> Iterator[None]:
    """The command line, which some tests run in this process, has glibc keep it."""
    yield
    gc.collect()
    gc.freeze()  # what is left are modules and tests, mostly: half a second to look through after every file otherwise
    with suppress(OSError, TypeError, AttributeError):  # no glibc
        CDLL(None).malloc_trim(0)


def _tried_out(executors: Sequence[Executor], cohort: np.ndarray, *_: float) -> dict[str, float]:
    """The trials of a choice without its clock: each executor takes a step, and none is faster."""
    for executor in executors:
        choice.Trial(executor, cohort, 1).run()
    return {executor.name: 0.0 for executor in executors}


@pytest.fixture(autouse=True)
def choice_by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """`executor = "auto"` follows the model: two runs of a test must not find two, and a thousand trials take long."""
    monkeypatch.setattr(choice, "_step_times", _tried_out)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled steps are traced for any number of rows and run as torch would; the compiler's own time is left out."""
    monkeypatch.setattr(stacked, "compile_graph", lambda graph, _: graph)


FEDERATED = {name: cls for name, cls in all_methods().items() if cls.training == "federated"}


@pytest.fixture(params=FEDERATED.values(), ids=FEDERATED)
def method(request: pytest.FixtureRequest) -> Method:
    """Every method of a federation, with its defaults; the two that are none have tests of their own."""
    return for_few_rounds(request.param)


@pytest.fixture(params=covering_methods().values(), ids=covering_methods())
def covering_method(request: pytest.FixtureRequest) -> Method:
    """A method for each thing that engines must be able to do; in `make test-all` every method."""
    return for_few_rounds(request.param)


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names of folders, which do not exist: most tests have no cache, and need no folder."""
    parent = tmp_path_factory.mktemp("caches")
    return (parent / str(number) for number in count())


@pytest.fixture(autouse=True)
def cache(caches: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own, and no data folder but what it names."""
    folder = next(caches)
    monkeypatch.setenv("FEDFLAT_CACHE", str(folder))
    monkeypatch.delenv("FEDFLAT_DATA", raising=False)
    return folder


@pytest.fixture(scope="session")
def server_of_forks() -> Iterator[ForkServer]:
    with fork_server() as server:
        yield server


@pytest.fixture
def forked_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the Python programs that the test or the package starts: their imports would take seconds each."""
    if sys.platform == "linux":
        server = request.getfixturevalue("server_of_forks")
        monkeypatch.setattr(subprocess.Popen, "_execute_child", forking(server))
