"""Adapters: a few trained numbers beside the frozen parameters of a model, made by `peft`."""

from .adapted import adapted, adapted_network, kept_parameters, network_of
from .lora import LoRA
from .turns import by_turns

__all__ = ["LoRA", "adapted", "adapted_network", "by_turns", "kept_parameters", "network_of"]
