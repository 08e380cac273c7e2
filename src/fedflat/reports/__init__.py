"""Tables, figures and pages made from finished runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparison import Comparison, compare

__all__ = ["Comparison", "compare"]


def __getattr__(name: str) -> Any:
    """Import `comparison` when it is used: the command line needs other modules of this package to start."""
    if name in __all__:
        from . import comparison

        return getattr(comparison, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
