"""Worker processes, and the training of a round's clients in several of them."""

from .training_pool import Workers
from .worker_pool import WorkerError

__all__ = ["WorkerError", "Workers"]
