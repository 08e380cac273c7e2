"""A process that is forked cannot be told from one that is started; each claim is held against both."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.processes import children, has_ended, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all processes are started")

SHOWN = """
import os, signal, sys, threading
found = [sys.argv, sys.orig_argv, sys.path, __name__, globals().get("__file__"), os.getcwd(), dict(os.environ)]
found += [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), os.getppid() == int(os.environ["PARENT"])]
found += [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)]
found += [sys.modules["__main__"].__dict__ is globals(), threading.main_thread() is threading.current_thread()]
found += [open(f"/proc/self/{name}").read().rstrip(chr(0)).split(chr(0)) for name in ("cmdline", "environ")]
print(found, sys.stdin.read(), os.umask(0))
"""
TERMINATED = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
ATEXIT = "import atexit; atexit.register(print, 'after', end=''); print('first', end=' ')"
LATE = "import threading; threading.Timer(0.1, print, ['late'], {'end': ''}).start()"
CRASH = "import os; print('written', end=''); os._exit(4)"
ENDS = {
    ("-c", ""): (0, "", ""), ("-c", "raise SystemExit(259)"): (3, "", ""),
    ("-c", "raise SystemExit('no')"): (1, "", "no"),
    ("-c", "1 / 0"): (1, "", "ZeroDivisionError: division by zero"),
    ("-c", "raise KeyboardInterrupt"): (-2, "", "KeyboardInterrupt"), ("-c", TERMINATED): (-15, "", ""),
    ("-c", ATEXIT): (0, "first after", ""), ("-c", LATE): (0, "late", ""),
    ("-c", CRASH): (4, "", ""), ("-u", "-c", CRASH): (4, "written", ""),
}  # fmt: skip


@pytest.fixture
def both(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], list[Any]]:
    """What a function gives while processes are started, and then while they are forked."""

    def found(function: Callable[[], Any]) -> list[Any]:
        started = function()
        request.getfixturevalue("forked_processes")
        return [started, function()]

    return found


@pytest.mark.parametrize("form", ["-m", "-c", "file"])
def test_a_program_sees_the_same(form: str, tmp_path: Path, both: Callable[[Callable[[], Any]], list[Any]]) -> None:
    (tmp_path / "shown.py").write_text(SHOWN)
    words = {"-m": ["-P", "-m", "shown"], "-c": ["-c", SHOWN], "file": [str(tmp_path / "shown.py")]}[form]
    env = {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "PARENT": str(os.getpid()), "LC_CTYPE": "C.UTF-8"}

    def shown() -> list[str]:
        kinds: list[dict[str, Any]] = [{"cwd": tmp_path, "umask": 0o27}, {"process_group": 0}, {"start_new_session": 1}]
        return [
            subprocess.run([sys.executable, *words, "x"], input="given", capture_output=True, text=True, env=env,
                           check=True, **kind).stdout
            for kind in kinds
        ]  # fmt: skip

    started, forked = both(shown)
    assert started == forked


def test_it_ends_the_same(both: Callable[[Callable[[], Any]], list[Any]]) -> None:
    env = os.environ | {"PYTHONUNBUFFERED": ""}

    def ended() -> dict[str, tuple[int, str, str]]:
        found = {}
        for code in ENDS:
            done = subprocess.run([sys.executable, *code], capture_output=True, text=True, env=env, check=False)
            found[code] = done.returncode, done.stdout, done.stderr.strip().rpartition("\n")[2]
        return found

    assert both(ended) == [ENDS, ENDS]


def test_it_has_the_files_that_it_is_given(tmp_path: Path, both: Callable[[Callable[[], Any]], list[Any]]) -> None:
    code = "import os, sys; os.write(int(sys.argv[1]), b'1'); print(2, flush=True); print(3, file=sys.stderr)"

    def written() -> bytes:
        with open(tmp_path / "file", "w+b", buffering=0) as file, open(tmp_path / "other", "w+b") as other:
            command = [sys.executable, "-c", code, str(other.fileno())]
            subprocess.run(command, pass_fds=[other.fileno()], stdout=file, stderr=file, check=True)
            return b"".join((tmp_path / name).read_bytes() for name in ("other", "file"))

    assert both(written) == [b"12\n3\n"] * 2


def test_a_script_of_a_package_and_a_call_of_the_c_library(both: Callable[[Callable[[], Any]], list[Any]]) -> None:
    library = ctypes.CDLL(None)
    code = "import ctypes; found = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(found)); print(found.value)"

    def printed() -> list[str]:
        """The version, and the signal that a process gets at the end of its parent."""
        calls: list[Any] = [
            {"args": [Path(sys.executable).parent / "fedflat", "--version"]},
            {"args": [sys.executable, "-c", code], "preexec_fn": partial(library.prctl, 1, signal.SIGTERM)},
        ]
        return [subprocess.run(**call, capture_output=True, text=True, check=True).stdout for call in calls]

    started, forked = both(printed)
    assert started == forked == [started[0], "15\n"]


def test_a_folder_that_is_not_there_is_the_same_error(both: Callable[[Callable[[], Any]], list[Any]]) -> None:
    def refused() -> Any:
        with pytest.raises(FileNotFoundError) as error:
            subprocess.run([sys.executable, "-c", ""], cwd="/nowhere", check=False)
        return error.value.args

    started, forked = both(refused)
    assert started == forked


@pytest.mark.usefixtures("forked_processes")
def test_what_it_starts_is_forked_and_is_its_own_child() -> None:
    """A start would take as long as an import of torch, which this process then has not done itself."""
    inner = "import sys, os; print('torch' in sys.modules, os.getppid(), flush=True); sys.stdin.read()"
    outer = (
        f"import subprocess, sys, os; print(os.getpid(), flush=True); subprocess.run([sys.executable, '-c', {inner!r}])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdin
        assert [process.stdout.readline() for _ in range(2)] == [f"{process.pid}\n", f"True {process.pid}\n"]
        (child,) = children(process.pid)
        assert process.pid in children(os.getpid())
        process.stdin.close()
        assert process.wait() == 0
    wait_until(lambda: has_ended(child), "the end of the process")


@pytest.mark.usefixtures("forked_processes")
def test_a_server_ends_with_its_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    (server,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until(lambda: has_ended(server), "the end of the server")
