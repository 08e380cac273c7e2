"""Adapters: a few trained numbers beside the frozen parameters of a model, made by `peft`."""

from .adapted import adapted, adapted_network, kept_parameters, network_of
from .lora import LoRA
from .merging import Factors, base_parameters, factors, merged
from .training import by_turns, with_bfloat16_base

__all__ = [
    "Factors", "LoRA", "adapted", "adapted_network", "base_parameters", "by_turns", "factors", "kept_parameters",
    "merged", "network_of", "with_bfloat16_base",
]  # fmt: skip
