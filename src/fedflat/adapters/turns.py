"""Which factor of an adapter is trained in which round."""

from __future__ import annotations

import torch

from ..core.method import Method
from ..core.space import Space
from ..core.wrapper import ALWAYS, EVEN, ODD, Alternation
from .adapted import is_factor
from .lora import LoRA


def by_turns(method: Method, adapter: LoRA | None, space: Space, device: torch.device) -> Method:
    """`method`, or with the mode `alternate` the method that trains B in even rounds, A in odd ones, the head in all.

    B comes first, because A has no gradient while B is zero. `device` is that of the model. Raises InputError for a
    method that cannot alternate.
    """
    if adapter is None or adapter.mode != "alternate":
        return method
    when = torch.full((space.d,), ALWAYS, dtype=torch.int8, device=device)
    for name, where in space.layers():
        if is_factor(name, "A") or is_factor(name, "B"):
            when[where] = ODD if is_factor(name, "A") else EVEN
    return Alternation.of(method, when)
