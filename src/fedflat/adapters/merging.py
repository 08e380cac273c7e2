"""Adapters and the network under them: their factors, the merged weights, and the number of base parameters."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..core.space import Space
from .adapted import adapted_network, is_factor

PREFIX = "base_model.model."  # `peft` puts it before the names of the network's layers


@dataclass(frozen=True)
class Factors:
    """The parameters of one adapted layer, by name."""

    layer: str  # its name in the network without adapters
    A: str  # (r, inputs)
    B: str  # (outputs, r)


def factors(module: nn.Module) -> list[Factors]:
    """Return the adapted layers of `module`, in its order, with fixed factors; none without adapters."""
    names = [name for name, _ in module.named_parameters() if is_factor(name, "A")]
    return [Factors(_layer(A), A, re.sub(r"(\.lora_(?:embedding_)?)A\.", r"\1B.", A)) for A in names]


def merged(module: nn.Module, space: Space, w: Tensor) -> nn.Module:
    """Return a copy of `module` at `w` (d,) without adapters: each adapted layer has the weights W + alpha / r B A.

    Only these weights are trainable. All parameters get the precision of `w`, so that a base of lower precision does
    not round the product away.
    """
    made = deepcopy(module).to(w.dtype)
    space.write(made, w)
    network, layers = adapted_network(made), [one.layer for one in factors(made)]
    plain: Any = network.merge_and_unload()  # type: ignore[union-attr]  # callers have checked that there are adapters
    for p in (*made.parameters(), *plain.parameters()):
        p.requires_grad_(False)
    for layer in layers:
        plain.get_submodule(layer).weight.requires_grad_()
    if network is made:
        return plain  # type: ignore[no-any-return]
    made.network = plain
    return made


def base_parameters(module: nn.Module) -> int | None:
    """Count the parameters that full fine-tuning of the base network would train; return None without adapters."""
    if adapted_network(module) is None:
        return None
    added = (".lora_", ".modules_to_save.")  # of a head the original is still there, too
    return sum(p.numel() for name, p in module.named_parameters() if not any(part in name for part in added))


def _layer(name: str) -> str:
    """Return the layer of the factor called `name`."""
    return name.partition(".lora_")[0].partition(PREFIX)[2]
