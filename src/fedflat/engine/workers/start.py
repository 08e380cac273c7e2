"""The program of a worker process: `python -P THIS_FILE SOCKET PARENT`, an inherited file descriptor and a process id.

It is run by its path: as a module of its package it would first import torch, which takes seconds, and the parent may
end meanwhile. The worker ends with the process PARENT. PARENT is 0 if another thread than the main one started the
worker, because the system would end the worker with that thread.
"""

from __future__ import annotations

import gc
import sys

from fedflat.parent_process import end_with  # not relative: this file is a program of its own

if __name__ == "__main__":
    if parent := int(sys.argv[2]):
        end_with(parent)

    gc.disable()  # importing torch with it takes a sixth longer
    from fedflat.engine.workers.process import main

    gc.freeze()
    gc.enable()
    main()
