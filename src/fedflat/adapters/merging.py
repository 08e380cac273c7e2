"""What an adapter does to the network under it: its factors, the weights with it merged in, and their number."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..core.space import Space
from .adapted import adapted_network, is_factor

PREFIX = "base_model.model."  # that `peft` puts before the names of the network's layers


@dataclass(frozen=True)
class Factors:
    """The parameters of one adapted layer, by name."""

    layer: str  # as the network without adapters calls it
    A: str  # (r, inputs)
    B: str  # (outputs, r)


def factors(module: nn.Module) -> list[Factors]:
    """The adapted layers of `module`, in its order; none without adapters. Factors that are fixed are named, too."""
    names = [name for name, _ in module.named_parameters() if is_factor(name, "A")]
    return [Factors(_layer(A), A, re.sub(r"(\.lora_(?:embedding_)?)A\.", r"\1B.", A)) for A in names]


def merged(module: nn.Module, space: Space, w: Tensor) -> nn.Module:
    """A copy of `module` at `w` (d,) without adapters: each adapted layer has the weights W + alpha / r B A.

    These weights alone are trainable. All parameters get the precision of `w`, so that a base of lower precision does
    not round the product away.
    """
    made = deepcopy(module).to(w.dtype)
    space.write(made, w)
    network, layers = adapted_network(made), [one.layer for one in factors(made)]
    plain: Any = network.merge_and_unload()  # type: ignore[union-attr]  # whoever asks has looked
    for p in (*made.parameters(), *plain.parameters()):
        p.requires_grad_(False)
    for layer in layers:
        plain.get_submodule(layer).weight.requires_grad_()
    if network is made:
        return plain  # type: ignore[no-any-return]
    made.network = plain
    return made


def base_parameters(module: nn.Module) -> int | None:
    """How many parameters full fine-tuning of the network under the adapters would train; None without adapters."""
    if adapted_network(module) is None:
        return None
    added = (".lora_", ".modules_to_save.")  # of a head the original is still there, too
    return sum(p.numel() for name, p in module.named_parameters() if not any(part in name for part in added))


def _layer(name: str) -> str:
    """The layer of the factor called `name`."""
    return name.partition(".lora_")[0].partition(PREFIX)[2]
