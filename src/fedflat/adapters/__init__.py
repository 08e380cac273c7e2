"""Adapters, made by `peft`: a few trained parameters beside the frozen parameters of a model."""

from .adapted import (
    Factors,
    adapted,
    adapted_network,
    base_shapes,
    by_turns,
    factors,
    kept_parameters,
    merged,
    network_of,
    with_bfloat16_base,
)
from .lora import LoRA

__all__ = [
    "Factors", "LoRA", "adapted", "adapted_network", "base_shapes", "by_turns", "factors", "kept_parameters",
    "merged", "network_of", "with_bfloat16_base",
]  # fmt: skip
