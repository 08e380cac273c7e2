"""Permissions that are lost: they bind root, too, inside a block, and a folder is without some for a while."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

VERSION = 0x20080522  # of the system calls
OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: root's way around the permissions of files

linux = pytest.mark.skipif(sys.platform != "linux", reason="root's capabilities are Linux's")


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def binding_root() -> Iterator[None]:
    """Within the block this thread, and the threads that it starts, are bound by permissions as other users' are."""
    libc, header, data = ctypes.CDLL(None, use_errno=True), _Header(VERSION, 0), (_Data * 2)()
    assert libc.capget(ctypes.byref(header), data) == 0
    before = data[0].effective
    data[0].effective &= ~OVERRIDES
    assert libc.capset(ctypes.byref(header), data) == 0
    try:
        yield
    finally:
        data[0].effective = before
        assert libc.capset(ctypes.byref(header), data) == 0


def is_refused(folder: Path) -> bool:
    """Whether this process may not make a file in `folder`."""
    try:
        (folder / "probe").touch()
    except PermissionError:
        return True
    (folder / "probe").unlink()
    return False
