"""Tables of the results of `benchmarks/federation.py`, and of the settings of federations."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from .measurement import Spread
from .tables import Table, seconds


def settings_table(section: type[BaseModel]) -> Table:
    """The keys of a section of Flower's configuration, in its spelling."""
    rows = []
    for name, info in section.model_fields.items():
        default = "" if info.default in (None, "") or info.is_required() else f"`{info.default}`"
        rows.append((f"`{info.alias or name}`", default, info.description or ""))
    return Table(("key", "default", "meaning"), rows)


def cost_table(content: dict[str, Any]) -> Table:
    """Seconds of a round for models of several sizes in `benchmarks/federation.py`."""
    rows = [
        (size, f"{case['parameters']:,}", seconds(Spread.of(case["seconds"])))
        for size, case in content["rounds"].items()
    ]  # fmt: skip
    return Table(("model", "parameters", "a round"), rows)


def kills_table(content: dict[str, Any]) -> Table:
    """Runs in whose third round a program was killed."""
    return Table(
        ("killed in round 2", "rounds lost", "longest round, beside usual", "missing", "final model"),
        [_kill(name, case) for name, case in content["kills"].items()],
    )


def _kill(name: str, case: dict[str, Any]) -> tuple[str, ...]:
    missing = "; ".join(
        f"round {t}: {client} ({why})" for t, who in case["missing"].items() for client, why in who.items()
    )
    times = f"{case['longest_seconds']:.0f} s, {case['usual_seconds']:.0f} s"
    model = "as without" if case["equal"] else "another, as one answer less"
    return name, str(case["asked"] - case["rounds"]), times, missing or "nobody", model
