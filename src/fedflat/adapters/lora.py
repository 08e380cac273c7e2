"""Settings of a LoRA adapter; nothing here needs torch or `peft`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..core.errors import InputError
from ..core.hyper import by_name, check, hyper

Mode = Literal["both", "freeze_a", "alternate"]
AUTO, FROZEN = "auto", "frozen"  # values of `LoRA.head` that are no layer's name


@by_name
@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Low-rank adapters (Hu et al., 2022): a target's frozen weight W becomes W + alpha / r B A.

    A (r, inputs) is random and B (outputs, r) zero at the start. The mean over clients of the products B A is the
    product of the means if all clients have the same A or the same B, as with `freeze_a` and `alternate`.
    """

    r: int = hyper(8, "rank: rows of A", low=1)
    alpha: float = hyper(16.0, "scale: adapters are multiplied by alpha / r", low=0, open_low=True)
    targets: tuple[str, ...] = hyper((), "layers that get an adapter: their names, or the ends of these after a point")
    mode: Mode = hyper(
        "both", "factors that are trained: both; B alone, with A fixed (FFA-LoRA); or B and A by turns, round by round"
    )
    head: str = hyper(
        AUTO,
        "layers that are trained without an adapter: auto (all outside a transformer's encoder; else the last linear "
        "layer, if it is no target), frozen (nothing), or the name of a layer",
    )
    dropout: float = hyper(0.0, "share of an adapter's inputs that is dropped in training", low=0, high=0.99)
    base_dtype: Literal["same", "bfloat16"] = hyper(
        "same", "precision of the frozen parameters: the run's, or bfloat16, half as large; adapters keep the run's"
    )
    start: str | None = hyper(
        None, "folder with an adapter in the format of peft, such as `fedflat export` writes, to start from"
    )

    def __post_init__(self) -> None:
        """Raise InputError, naming the field, for a value that no adapter can have."""
        targets: Any = self.targets
        if isinstance(targets, list | str):
            object.__setattr__(self, "targets", (targets,) if isinstance(targets, str) else tuple(targets))
        check(self, "adapter")
        if not self.targets or not all(self.targets):
            raise InputError('adapter.targets names no layer; give the names of linear layers, e.g. ["query", "value"]')
