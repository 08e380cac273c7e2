"""Ways to run the local training of a cohort.

All call the one local loop of the core; they differ in how many clients a tensor holds, and in who takes the step.
"""

from .choice import Choice, agreed, check_name, choose
from .stacked import Compiled, Stacked

__all__ = ["Choice", "Compiled", "Stacked", "agreed", "check_name", "choose"]
