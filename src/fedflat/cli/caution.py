"""What a user should know before a run starts."""

from __future__ import annotations

from ..engine.arguments import BF16
from ..experiments.spec import Experiment
from .console import Console


def caution(console: Console, spec: Experiment) -> None:
    """Say what is doubtful about the settings."""
    if spec.precision == "bf16":
        console.caution("precision = 'bf16':", BF16)
