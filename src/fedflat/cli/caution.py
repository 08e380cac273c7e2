"""What a user should know before a run starts."""

from __future__ import annotations

from rich.console import Console

from ..engine.arguments import BF16
from ..experiments.spec import Experiment


def caution(console: Console, spec: Experiment) -> None:
    """Say what is doubtful about the settings."""
    if spec.precision == "bf16":
        console.print(f"[yellow]precision = 'bf16':[/] {BF16}", highlight=False)
