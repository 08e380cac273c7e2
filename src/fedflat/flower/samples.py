"""A client's stored samples, as exported apps import them."""

from ..federation.flower.samples import stored

__all__ = ["stored"]
