"""Several processes that train the clients of a round side by side."""

from .crew import WorkerError
from .training import Workers

__all__ = ["WorkerError", "Workers"]
