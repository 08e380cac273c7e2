"""Executors of the local training of a cohort.

All use the local loop of the core; they differ in the number of clients in a tensor, and in how a step is computed.
"""

from .choice import Choice, agreed, check_name, choose
from .stacked import Compiled, Stacked

__all__ = ["Choice", "Compiled", "Stacked", "agreed", "check_name", "choose"]
