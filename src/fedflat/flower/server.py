"""The server's app, as exported apps import it."""

from ..federation.flower.server_app import server_app

__all__ = ["server_app"]
