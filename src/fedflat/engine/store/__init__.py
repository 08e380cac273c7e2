"""Where clients' records stay between their rounds."""

from .client_store import BUDGET, ClientStore

__all__ = ["BUDGET", "ClientStore"]
