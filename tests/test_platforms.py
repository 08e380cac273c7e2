"""macOS and Windows, as far as Linux can show: what Python lacks there is taken away before anything is imported.

And early releases of Python 3.11, such as Debian 12's.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedflat.cli import main
from fedflat.operating_system import not_offered
from support.fresh_process import SOURCE, Command
from support.other_systems import SYSTEMS, commands_on, start_on

DATA = "--data.name npz --data-dir data --data.clients 4 --executor sequential"  # `auto` is found by a clock
RUN = f"run {DATA} --method.name scaffold --participation 0.5 --client.batch_size 4 --flatness [] --checkpoint_every 1"
STUDY = (
    "compare --data.name digits --data.clients 5 --methods fedavg --methods fedsam --rounds 2 --flatness [] "
    "--client.epochs 1 --client.batch_size 50 --executor sequential --jobs"
)
WORKS = [
    "doctor", f"{RUN} --rounds 2 --out run", "resume run --rounds 4", "verify run", "report run", "methods FedSMOO",
    f"{RUN} --rounds 2 --dry-run", f"{STUDY} auto --out study",
]  # fmt: skip
NOT_ON_WINDOWS = {
    f"{STUDY} 2 --out two": "--jobs 2: worker processes are not offered on Windows; leave out --jobs",
    f"{RUN} --rounds 2 --workers 2 --out two": "workers = 2: worker processes are not offered on Windows; "
    "set workers = 1",
    f"{RUN} --rounds 2 --ranks 2 --out two": "--ranks 2: ranks are not offered on Windows; leave out --ranks",
    f"{RUN} --rounds 2 --store_megabytes 0 --out two": "client records in a file are not offered on Windows; "
    "set a larger store_megabytes",
    f"flower run {DATA} --method.name fedavg --rounds 2": "flower: federations are not offered on Windows; "
    "`fedflat run` simulates one",
}
There = tuple[str, Path, dict[str, Command]]
HOLD = """
from pathlib import Path
from fedflat.files import locked

with locked(Path("lock"), "busy"):
    print("held", flush=True)
    input()
"""
TRY = """
from pathlib import Path
from fedflat.core.errors import InputError
from fedflat.files import locked

for name in ("lock", "link"):
    try:
        with locked(Path(name), "busy"):
            print("free")
    except InputError as error:
        print(error)
print(Path("lock").read_text(), Path("target").read_text())
"""
# The package `fedflat.data` imports torch, which its module `cache` does not need; its own imports are left out.
WAIT = """
import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path
import fedflat

sys.modules["fedflat.data"] = module_from_spec(find_spec("fedflat.data"))
from fedflat.data.cache import _locked

print("begun", flush=True)
with _locked(Path("entry").absolute()) as is_held:
    print(is_held, Path("released").exists(), flush=True)
    input()
    Path("released").touch()
"""


def new_folder(path: Path) -> Path:
    """A folder with samples in files, which a run converts into the cache."""
    (path / "data").mkdir(parents=True)
    random = np.random.default_rng(0)
    for part, number in (("train", 40), ("test", 20)):
        x, y = random.integers(256, size=(number, 1, 8, 8), dtype=np.uint8), np.arange(number) % 3
        np.savez(path / "data" / f"{part}.npz", x=x, y=y)
    return path


def results(folder: Path) -> dict[str, bytes]:
    """The models of all runs."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("model.safetensors")}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of this system, of the commands that leave some."""
    folder = new_folder(tmp_path_factory.mktemp("here") / "work")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("FEDFLAT_CACHE", str(folder / "cache"))
        for line in (line for line in WORKS if "--out" in line or "resume" in line):
            patch.setattr(sys, "argv", ["fedflat", *shlex.split(line)])
            with suppress(SystemExit):
                main()
    assert sorted(results(folder))
    return folder


@pytest.fixture(scope="module", params=SYSTEMS)
def there(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, dict[str, Command]]:
    """The name of another system, a folder with its results, and how every command ended."""
    folder = new_folder(tmp_path_factory.mktemp(request.param) / "work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFLAT_CACHE", str(folder / "cache"))
        refused = [line for line in NOT_ON_WINDOWS if request.param == "win32" or "--jobs 2" in line]
        return request.param, folder, commands_on(request.param, *WORKS, *refused, folder=folder)


@pytest.mark.slow
def test_a_simulation_in_one_process_has_the_same_bits(here: Path, there: There) -> None:
    _, folder, ended = there
    assert {line: (ended[line].code, ended[line].err) for line in WORKS} == dict.fromkeys(WORKS, (0, ""))
    assert {name: content for name, content in results(folder).items() if not name.startswith("two")} == results(here)
    assert [path.name for path in (folder / "cache").glob("npz-*/set.json")] == ["set.json"]


@pytest.mark.slow
def test_what_is_not_offered_is_refused_in_one_line(there: There) -> None:
    system, folder, ended = there
    if system == "win32":
        for line, message in NOT_ON_WINDOWS.items():
            assert (ended[line].code, ended[line].err) == (2, f"fedflat: {message}\n")
    else:  # runs side by side have the bits of runs one after another
        found = results(folder)
        side_by_side, one_by_one = (
            {name.partition("/")[2]: content for name, content in found.items() if name.startswith(study)}
            for study in ("two/", "study/")
        )
        assert side_by_side == one_by_one != {}


def where_it_runs() -> dict[str, list[str]]:
    """The table of the documentation: what is offered on Linux, macOS and Windows, by feature."""
    page = (SOURCE.parent / "docs" / "howto" / "devices.md").read_text()
    _, _, table = page.partition("| feature | Linux | macOS | Windows |\n")
    rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()[1:]]
    return {feature: words for feature, *words in rows}


@pytest.mark.slow
def test_doctor_says_what_the_table_says(there: There) -> None:
    system, _, ended = there
    [line] = [line for line in ended["doctor"].out.splitlines() if line.startswith("not offered")]
    column = 1 if system == "darwin" else 2
    lacking = [feature for feature, words in where_it_runs().items() if words[column] == "not offered"]
    assert sorted(re.split(r", ", line.removeprefix("not offered").strip())) == sorted(lacking)


def test_linux_has_everything() -> None:
    assert not_offered() == []
    assert {words[0] for words in where_it_runs().values()} == {"tested"}
    assert {word for words in where_it_runs().values() for word in words} == {"tested", "believed", "not offered"}


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_lock_keeps_its_promises(system: str, tmp_path: Path) -> None:
    """Others are told at once, links and content are left alone, others may read, and a kill releases the lock."""
    (tmp_path / "lock").write_text("content")
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with start_on(system, HOLD, tmp_path, **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        busy, linked, contents = start_on(system, TRY, tmp_path, **pipes).communicate()[0].splitlines()
        assert busy == "busy"
        assert linked == "link cannot be locked: Too many levels of symbolic links"
        assert contents == "content precious"
        holder.kill()
        holder.wait()
        assert start_on(system, TRY, tmp_path, **pipes).communicate()[0].splitlines()[0] == "free"


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_lock_is_waited_for(system: str, tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with start_on(system, WAIT, tmp_path, **pipes) as first, start_on(system, WAIT, tmp_path, **pipes) as second:
        assert first.stdout.readline() == second.stdout.readline() == "begun\n"
        for process in (first, second):  # which of them has the lock is not known
            process.stdin.write("\n")
            process.stdin.flush()
        said = sorted([first.stdout.readline(), second.stdout.readline()])
    assert said == ["True False\n", "True True\n"]


def test_no_process_is_forked() -> None:
    """Windows cannot, on macOS it is unsafe, and with threads of torch it is so everywhere."""
    for path in (SOURCE / "fedflat").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("fork", "forkpty", "get_context", "set_start_method"), path
            if isinstance(node, ast.ImportFrom | ast.Import):
                names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
                assert not names & {"multiprocessing", "torch.multiprocessing", "concurrent.futures.process"}, path


def test_no_expression_is_possessive() -> None:
    """Python before 3.11.5 matches possessive repetitions of groups wrongly."""
    looked = 0
    for path in (SOURCE / "fedflat").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_expression = isinstance(node, ast.Call) and getattr(getattr(node.func, "value", None), "id", "") == "re"
            if is_expression and isinstance(node.args[0], ast.Constant):
                parsed = str(re._parser.parse(node.args[0].value))
                assert not re.search("POSSESSIVE|ATOMIC", parsed), (path, node.args[0].value)
                looked += 1
    assert looked >= 40
