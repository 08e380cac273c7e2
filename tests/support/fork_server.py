"""Processes of Python that are forked from one that has imported what they need: most of a start is imports.

While `forking` is in use, `subprocess` forks programs of this interpreter that have one thread: `python -m MODULE`,
`python -c CODE` and `python FILE`. Nothing else about them differs: each is a child of the process that starts it, has
its own arguments, files, folder, group and environment, and is waited for, suspended and killed as usual; and the
processes that it starts are forked, too. A test about imports, flags of the interpreter or limits starts real ones, as
does at least one test of each kind of program.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

IMPORTED = (
    "fedflat.cli.execution", "fedflat.experiments.parallel", "fedflat.experiments.tuning", "torch.distributed.run",
)  # fmt: skip
FLAGS = ("-P", "-u")  # of the interpreter
SUBREAPER = 36  # of prctl: orphans among the descendants of a process become its children
REQUEST = 1 << 17  # bytes, at most
BEYOND = 1000  # numbers of files from here on are free
ROOM = {"arguments": 1 << 13, "environment": 1 << 15}  # bytes of a process's memory that the system shows to others
INTERRUPT = signal.getsignal(signal.SIGINT)  # SIG_IGN in the background of a shell, where programs inherit it
START = subprocess.Popen._execute_child  # of a process that is not forked
SIGNATURE = inspect.signature(START)

Program = Callable[[], object]


class ForkServer:
    """The connection to a process that forks others, which become children of the process that has the connection."""

    def __init__(self, control: socket.socket) -> None:
        self._control, self._lock = control, threading.Lock()

    def fork(self, asked: dict[str, Any], files: Sequence[int]) -> int:
        """Fork a child of this process and return its number; `files` become its 0, 1, 2 and `asked["files"]`."""
        libc = ctypes.CDLL(None)
        with self._lock:
            libc.prctl(SUBREAPER, 1)
            try:
                socket.send_fds(self._control, [json.dumps(asked).encode()], files)
                number, error = json.loads(self._control.recv(REQUEST))
            finally:
                libc.prctl(SUBREAPER, 0)
        if error:
            os.waitpid(number, 0)
            raise OSError(*error)
        return int(number)


@contextlib.contextmanager
def fork_server(*modules: str, **environment: str) -> Iterator[ForkServer]:
    """Start a server that imports these modules, too, with these variables; it ends with the block or this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    search_path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    room = "-" * ROOM["environment"]
    command = [sys.executable, "-m", __name__, str(theirs.fileno()), *IMPORTED, *modules, "-" * ROOM["arguments"]]
    with theirs:
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": search_path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "", "ROOM": room}
            | environment,
        )  # fmt: skip
    with ours:
        yield ForkServer(ours)
    process.wait()


def forking(server: ForkServer) -> Callable[..., None]:
    """Return a substitute for `subprocess.Popen._execute_child` that forks processes where that is possible."""

    def execute_child(popen: subprocess.Popen[Any], *arguments: Any) -> None:
        wanted = SIGNATURE.bind(popen, *arguments).arguments
        words, env = words_of(wanted), dict(os.environ if wanted["env"] is None else wanted["env"])
        call = c_call(wanted["preexec_fn"])
        if not words or env.get("OMP_NUM_THREADS") != "1" or call is None:
            return START(popen, *arguments)
        streams = [wanted[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        files = [number if given == -1 else given for number, given in enumerate(streams)]
        asked = {
            "words": words, "env": {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()},
            "folder": os.path.abspath(os.fsdecode(wanted["cwd"] or ".")), "files": list(wanted["pass_fds"]),
            "umask": wanted["umask"], "session": wanted["start_new_session"], "group": wanted["process_group"],
            "call": call,
        }  # fmt: skip
        popen.pid = server.fork(asked, [*files, *wanted["pass_fds"]])
        popen._child_created = True
        popen._close_pipe_fds(*(wanted[name] for name in (
            "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))  # fmt: skip

    return execute_child


def words_of(wanted: dict[str, Any]) -> list[str] | None:
    """Return the words of a command that can be forked, and None for any other."""
    if isinstance(wanted["args"], (str, bytes, os.PathLike)) or wanted["executable"]:
        return None
    words = [os.fsdecode(word) for word in wanted["args"]]
    folder = Path(sys.executable).parent
    if Path(words[0]).parent == folder and Path(words[0]).read_bytes().startswith(f"#!{folder}/python".encode()):
        words.insert(0, sys.executable)  # a script of an installed package
    program = [word for word in words[1:] if word not in FLAGS][:1]
    forked = words[0] == sys.executable and program and (program[0] in ("-m", "-c") or program[0][0] != "-")
    return words if forked else None


def c_call(function: Callable[[], object] | None) -> list[Any] | None:
    """Return name and arguments of a call of the C library before a program begins; None for another function."""
    if function is None:
        return []
    name = getattr(getattr(function, "func", None), "__name__", "")
    return [name, *function.args] if isinstance(function, partial) and hasattr(ctypes.CDLL(None), name) else None


# --- within the process that forks ------------------------------------------------------------------------------------


def serve(control: socket.socket, path: list[str]) -> Program:
    """Answer every request, until the other process closes the connection. Only a forked process returns."""
    while True:
        request, files, _, _ = socket.recv_fds(control, REQUEST, 64)
        if not request:
            os._exit(0)
        ours, theirs = os.pipe()
        between = os.fork()
        if not between:  # it ends at once, so that the new process becomes a child of the one that asks
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.0005)
            control.detach()  # the file is closed, and its number is another one's
            return become_program(json.loads(request), files, theirs, path)
        os.close(theirs)
        os.waitpid(between, 0)
        control.send(os.read(ours, REQUEST))
        for file in (ours, *files):
            os.close(file)


def become_program(asked: dict[str, Any], files: Sequence[int], answer: int, path: list[str]) -> Program:
    """Prepare the new process as `asked`, with a server of its own, and return what it is to run."""
    import fcntl  # which not every system has that can run other tests

    error, answer = None, fcntl.fcntl(answer, fcntl.F_DUPFD, BEYOND)
    try:
        place(files, [0, 1, 2, *asked["files"]], [answer])
        if asked["session"]:
            os.setsid()
        if asked["group"] >= 0:
            os.setpgid(0, asked["group"])
        if asked["umask"] >= 0:
            os.umask(asked["umask"])
        os.chdir(asked["folder"])
        if asked["call"]:
            getattr(ctypes.CDLL(None), asked["call"][0])(*asked["call"][1:])
    except OSError as found:
        error = [found.errno, found.strerror, found.filename]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not error and not os.fork():
        ours.close()
        return become_server(theirs.detach(), path)
    theirs.close()
    os.write(answer, json.dumps([os.getpid(), error]).encode())
    os.close(answer)
    if error:
        os._exit(255)
    subprocess.Popen._execute_child = forking(ForkServer(ours))
    return program(asked["words"], asked["env"], path)


def place(files: Sequence[int], numbers: Sequence[int], kept: Sequence[int]) -> None:
    """Have these files under these numbers, and no others below `BEYOND`."""
    import fcntl

    beyond = [fcntl.fcntl(file, fcntl.F_DUPFD, BEYOND) for file in files]
    os.closerange(0, BEYOND)
    for file, number in zip(beyond, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def become_server(control: int, path: list[str]) -> Program:
    """Serve a new process until it has ended; signals to its group are not for its server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.closerange(BEYOND, BEYOND + 64)
    nothing = os.open(os.devnull, os.O_RDWR)
    place([nothing] * 3 + [control], [0, 1, 2, 3], [])
    return serve(socket.socket(fileno=3), path)


def program(words: list[str], env: dict[str, str], path: list[str]) -> Program:
    """Return what the interpreter would run, given these words; set all that a program sees of itself."""
    os.environ.clear()
    os.environ.update(env)
    show(words, env)
    signal.signal(signal.SIGINT, INTERRUPT)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.orig_argv = words
    first = next(number for number, word in enumerate(words) if number and word not in FLAGS)
    flags, kind = words[1:first], words[first]
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    if "-u" in flags or env.get("PYTHONUNBUFFERED"):
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__builtins__, given, own = sys.modules["builtins"], env.get("PYTHONPATH", "").split(os.pathsep), ""
    if kind == "-m":
        sys.argv, own = ["-m", *words[first + 2 :]], os.getcwd()
    elif kind == "-c":
        sys.argv = ["-c", *words[first + 2 :]]
    else:
        sys.argv, own = words[first:], str(Path(kind).resolve().parent)
    unsafe = [] if "-P" in flags else [own]
    sys.path[:] = [*unsafe, *dict.fromkeys([*map(os.path.abspath, filter(None, given)), *path])]
    importlib.invalidate_caches()
    if kind == "-m":
        sys.modules.pop(words[first + 1], None)  # a server may have imported what a process runs
        return lambda: runpy._run_module_as_main(words[first + 1])
    if kind == "-c":
        return lambda: exec(compiled(words[first + 1], "<string>"), vars(main))
    main.__file__ = kind
    return lambda: exec(compiled(Path(kind).read_text(), kind), vars(main))


def carry_out(run: Program) -> NoReturn:
    """Run a program to its end, and end this process as the interpreter would, but for what takes a third of a second:
    no object is deleted."""
    code: Any = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        code = None  # by the signal
    except BaseException:
        sys.excepthook(*sys.exc_info())
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:
        print(error, file=sys.stderr)
        code = 120
    if code is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def compiled(text: str, name: str) -> CodeType:
    return compile(text, name, "exec", dont_inherit=True)


def show(words: Sequence[str], env: dict[str, str]) -> None:
    """Write these words and this environment where `/proc` shows them, in the room that the server was given."""
    addresses = list(map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]))
    shown = (words, [f"{name}={value}" for name, value in env.items()])
    for lines, start, end in zip(shown, addresses[::2], addresses[1::2], strict=True):
        text = b"".join(os.fsencode(line) + b"\0" for line in lines)[: end - start - 1]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))


if __name__ == "__main__":
    number, *modules, _ = sys.argv[1:]
    show(sys.orig_argv, {})  # who looks for the processes of an environment finds no server
    # What every process of this interpreter has, whatever its environment.
    path = subprocess.check_output([sys.executable, "-I", "-c", "import sys; print(*sys.path, sep='\\n')"], text=True)
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    carry_out(serve(socket.socket(fileno=int(number)), path.splitlines()))
