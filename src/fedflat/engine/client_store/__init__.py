"""The store of clients' records between their rounds."""

from .store import BUDGET, ClientStore, check_records

__all__ = ["BUDGET", "ClientStore", "check_records"]
