"""The program of a worker process: `python -m fedflat.engine.workers SOCKET`, the number of an inherited file."""

from .worker import main

main()
