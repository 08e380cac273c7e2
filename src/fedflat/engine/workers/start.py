"""The program of a worker process: `python -P THIS_FILE SOCKET PARENT`, the number of an inherited file and a process.

It is run by its path: as a part of its package it would import torch first, for seconds in which a parent may end.
PARENT is 0 for a worker that a thread started which may end before its process.
"""

from __future__ import annotations

import sys

from fedflat.parent_process import end_with  # not relative: this file is a program of its own

if __name__ == "__main__":
    if parent := int(sys.argv[2]):
        end_with(parent)

    from fedflat.engine.workers.worker import main

    main()
