"""The client's app, as exported apps import it."""

from ..federation.flower.client_app import client_app

__all__ = ["client_app"]
