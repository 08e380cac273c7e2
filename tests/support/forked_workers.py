"""Worker processes that are forked from one that has imported what they need: most of a worker's start is imports.

Nothing else about them differs: each is a child of the test's process, has its own group, files and environment, and is
waited for, suspended and killed as usual. `tests/engine/test_workers.py` has some that are started as users' are.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import fedflat.experiments.parallel  # noqa: F401 (what workers of a study import)
from fedflat.engine.workers import process, start

PROGRAM = ["-P", start.__file__]  # and the number of the worker's socket, and its parent's
NAME = b"forked worker"  # of the process, by which tests find it
SUBREAPER = 36  # of prctl: orphans among the descendants of a process become its children
REQUEST = 1 << 20  # bytes, at most
BEYOND = 1000  # numbers of files from here on are free


class Forks:
    """A process that forks workers, as the test's process sees it. It ends with the test's process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            search_path = os.pathsep.join(path or os.getcwd() for path in sys.path)
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": search_path, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def end(self) -> None:
        """Close the connection and wait until the process has ended."""
        self._socket.close()
        self._process.wait()

    def fork(self, argv: Sequence[str], files: Sequence[int], env: Mapping[str, str]) -> int:
        """A new worker, which is a child of this process; returns its number."""
        request = json.dumps([list(argv), list(files), dict(env), os.getcwd()]).encode()
        libc = ctypes.CDLL(None)
        libc.prctl(SUBREAPER, 1)
        try:
            socket.send_fds(self._socket, [request], list(files))
            return int(self._socket.recv(REQUEST))
        finally:
            libc.prctl(SUBREAPER, 0)


class ForkedProcess(subprocess.Popen[bytes]):
    """`subprocess.Popen` whose worker processes with one thread are forked; others are started as usual."""

    forks: Forks

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
                       env: Any, *others: Any) -> None:  # fmt: skip
        program, number = args[:-2], args[-2]
        if program == [sys.executable, *PROGRAM] and env["OMP_NUM_THREADS"] == "1":
            self.pid, self._child_created = self.forks.fork([PROGRAM[-1], number], pass_fds, env), True
        else:
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others)


def forks_of(control: socket.socket) -> None:
    """Within the process that forks: answer every request, until the test's process closes the connection."""
    while True:
        request, files, _, _ = socket.recv_fds(control, REQUEST, 64)
        if not request:
            return
        ours, theirs = os.pipe()
        between = os.fork()
        if not between:  # it ends at once, so that the worker becomes a child of the test's process
            Path("/proc/self/comm").write_bytes(NAME)  # the worker's, too
            number = os.fork()
            if not number:
                become_worker(*json.loads(request), files)
            os.write(theirs, str(number).encode())
            os._exit(0)
        os.waitpid(between, 0)
        control.send(os.read(ours, 100))
        for file in (ours, theirs, *files):
            os.close(file)


def become_worker(
    argv: list[str], numbers: list[int], env: dict[str, str], folder: str, files: Sequence[int]
) -> NoReturn:
    """Within the new process: run a worker's program with its files under the numbers that it was told."""
    import fcntl  # which not every system has that can run other tests

    code = 1
    try:
        beyond = [fcntl.fcntl(file, fcntl.F_DUPFD, BEYOND) for file in files]
        os.closerange(3, BEYOND)
        for file, number in zip(beyond, numbers, strict=True):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(env)
        os.setpgid(0, 0)
        os.chdir(folder)
        sys.path[:], sys.argv = env["PYTHONPATH"].split(os.pathsep), argv
        process.main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    forks_of(socket.socket(fileno=int(sys.argv[1])))
