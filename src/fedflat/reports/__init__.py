"""Tables, figures and pages made from finished runs."""

from __future__ import annotations

from .comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
