"""What other frameworks took, as the scripts in benchmarks/peers have written it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedflat.core.errors import InputError
from fedflat.methods import plain

from .measurement import Measurement
from .targets import BLAZEFL, FEDLAB, FLOWER, FLSIM, FLUKE, PFL

KNOWN = {plain(name): name for name in (FLSIM, PFL, FEDLAB, FLOWER, BLAZEFL, FLUKE)}
METHODS = {"fedgamma": "FedGAMMA", "scaffold": "Scaffold"}  # as we write them
FACTS = ("version", "threads", "includes", "scaled", "steps")


def read_peers(path: Path) -> list[Measurement]:
    """Return the results in the JSON file `path`. Raises InputError, naming file and field, if there are none."""
    try:
        results = json.loads(path.read_text())["results"]
        return [_measurement(one) for one in results]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"--peers {path} cannot be read: {_reason(error)}") from error


def _measurement(one: dict[str, Any]) -> Measurement:
    peer = KNOWN.get(plain(one["peer"]), one["peer"])
    method = METHODS.get(plain(one["method"]), one["method"])
    cpu, wall = ([float(seconds) for seconds in one[name]] for name in ("seconds", "wall"))
    facts = {"peer": peer, "method": method, **{name: one.get(name) for name in FACTS}}
    return Measurement(one["work"], f"{peer} {method}", cpu, wall, facts=facts, alone=True)


def _reason(error: Exception) -> str:
    return f"there is no field {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
