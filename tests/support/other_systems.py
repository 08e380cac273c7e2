"""Processes in which Python lacks what it lacks on macOS and on Windows; all processes that they start lack it, too.

What cannot be found in this way: what these systems do otherwise, such as refusing to replace an open file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.fresh_process import COMMANDS, SOURCE, Command

MAC = """
MODULES = []
NAMES = ["waitid", "memfd_create", "posix_fallocate", "fdatasync", "sched_getaffinity"]
FURTHER = {"select": ["poll"]}
"""
WINDOWS = """
MODULES = ["fcntl", "resource", "pwd", "grp", "termios"]
NAMES = ["fork", "waitid", "killpg", "getpgid", "setpgid", "geteuid", "getuid", "sysconf", "sysconf_names", "mkfifo",
         "pread", "pwrite", "preadv", "pwritev", "memfd_create", "posix_fallocate", "fdatasync", "sched_getaffinity",
         "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"]
FURTHER = {"select": ["poll"], "signal": ["SIGHUP", "SIGQUIT", "SIGPIPE"]}
"""
# Windows has `msvcrt`. Here its lock of a byte is Linux's lock of a byte, which like Windows' belongs to the handle.
REMOVE = """
import errno, fcntl, importlib, os, struct, sys, types
import platformdirs.unix, subprocess  # which look at other things on Windows

def locking(handle, mode, length):
    writes = fcntl.fcntl(handle, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR)
    kind = fcntl.F_WRLCK if writes else fcntl.F_RDLCK
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack("hhlli", kind, os.SEEK_CUR, 0, length, 0))
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "Permission denied")

if MODULES:
    sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
for name in MODULES:
    sys.modules[name] = None
for module, names in {"os": NAMES, **FURTHER}.items():
    for name in names:
        if hasattr(importlib.import_module(module), name):
            delattr(importlib.import_module(module), name)
"""
# Only fedflat's own modules see the other system's name: torch would look for the libraries of that system. Texts
# must be read and written in a stated encoding, because Windows has another one.
BEGIN = """
import gc, importlib, sys, warnings

gc.disable()  # imports take a sixth less time, and these programs end soon

class System:
    platform = {platform!r}

    def __getattr__(self, name):
        return getattr(sys, name)

for name in {modules!r}:
    importlib.import_module("fedflat." + name).sys = System()
warnings.filterwarnings("ignore", category=EncodingWarning)
warnings.filterwarnings("error", category=EncodingWarning, module="fedflat")
"""
LOOKING = ("operating_system", "parent_process")  # at the system's name, in a file that imports little
SYSTEMS = {"darwin": MAC, "win32": WINDOWS}


def start_on(
    system: str, code: str, folder: Path, looking: tuple[str, ...] = LOOKING, **streams: int
) -> subprocess.Popen[str]:
    """Start Python with `code` in `folder` as on "darwin" or "win32"; files that it needs are in a folder beside."""
    site = folder.parent / f"{folder.name}-{system}"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(SYSTEMS[system] + REMOVE)
    begin = BEGIN.format(platform=system, modules=looking)
    program = [sys.executable, "-X", "warn_default_encoding", "-c", begin + code]
    variables = {"PYTHONPATH": f"{site}{os.pathsep}{SOURCE}", "COLUMNS": "200", "TERM": "dumb"}
    return subprocess.Popen(program, cwd=folder, env={**os.environ, **variables}, text=True, **streams)


def commands_on(system: str, *lines: str, folder: Path) -> dict[str, Command]:
    """Run command lines one after another in one process in `folder` as on "darwin" or "win32"."""
    looking = (*LOOKING, "experiments.budget")
    process = start_on(system, COMMANDS.format(lines=lines), folder, looking, stdout=subprocess.PIPE)
    out, _ = process.communicate()
    assert process.returncode == 0
    return {ended.line: ended for ended in (Command(*json.loads(line)) for line in out.splitlines())}
