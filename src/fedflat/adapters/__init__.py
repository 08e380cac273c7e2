"""Adapters: a few trained numbers beside the frozen parameters of a model, made by `peft`."""

from .adapted import adapted, adapted_network, network_of, sent_parameters
from .lora import LoRA
from .turns import by_turns

__all__ = ["LoRA", "adapted", "adapted_network", "by_turns", "network_of", "sent_parameters"]
