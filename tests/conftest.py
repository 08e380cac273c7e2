from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from ctypes import CDLL
from itertools import count
from pathlib import Path

import hypothesis
import pytest
import torch

from fedflat.core.matrix_products import fix_product_rounding
from fedflat.core.method import Method
from fedflat.engine.executors import compiled
from fedflat.methods import all_methods
from support.effort import covering_methods, for_few_rounds

# No example is timed: machines are busy. CI always draws the same examples, so that it does not fail by chance.
hypothesis.settings.register_profile("fedflat", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("fedflat")

fix_product_rounding()  # before any test computes, as the command line does
# Programs that tests start have one thread, too: while all cores are busy, those of torch spend time on waiting.
os.environ["OMP_NUM_THREADS"] = "1"


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


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled steps are traced for any number of rows and run as torch would; the compiler's own time is left out."""
    monkeypatch.setattr(compiled, "compile_graph", lambda graph, _: graph)


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
