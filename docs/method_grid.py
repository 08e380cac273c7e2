"""What goes with what: methods and settings that are not their own, and where they can be carried out.

`docs/generate.py` writes the grid into docs/methods.md, by what refuses a combination before it trains;
`tests/docs/test_method_grid.py` trains what is not refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock

from benchmarks.tables import Table
from docs.method_pages import link
from fedflat.core.errors import InputError
from fedflat.engine import problem
from fedflat.engine.problem import check_ranks
from fedflat.experiments.config_errors import validated
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.flower.study import Study
from fedflat.methods import all_methods
from fedflat.rounds.local_training import reason_of_experiment
from tests.support.models_tried_once import tried_once

CLIENTS = 5
RUN: dict[str, Any] = {  # three rounds of three of five uneven clients
    "data": {"name": "digits", "clients": CLIENTS},
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "model": {"name": "mlp", "options": {"hidden": [4]}},
    "client": {"lr": 0.1, "epochs": 1, "batch_size": 64},
    "participation": 0.6,
    "rounds": 3,
    "dtype": "float64",
    "executor": "sequential",
    "flatness": [],
}
FIELDS = {  # of methods whose defaults are for more rounds, or for a larger model
    "SWA": {"begin": 0.0, "cycle": 1},
    "FedSOL": {"rho": 0.3},
    "FedFSA": {"top_c": 1},
}
ADAMW = {"optimizer": "adamw", "optimizer_state": "kept", "lr": 0.02}
QUANTISED = {"kind": "quantise", "bits": 4}
BATCH_NORM: dict[str, Any] = {"name": "mlp", "options": {"hidden": [4], "batch_norm": True}}


@dataclass(frozen=True, eq=False)  # a key of `refusals`' cache
class Setting:
    """A column of the grid."""

    title: str
    meaning: str
    changes: dict[str, Any] = field(default_factory=dict)  # of the run
    client: dict[str, Any] = field(default_factory=dict)  # of its section `client`
    around: str | None = None  # the name of a wrapper, which gets the method as its base


SETTINGS = (
    Setting("plain", "as it is"),
    Setting("SWA", "`SWA` around it", around="SWA"),
    Setting("momentum", "`client.momentum`", client={"momentum": 0.5}),
    Setting("clipping", "`client.max_norm`", client={"max_norm": 0.01}),
    Setting("bf16", '`precision = "bf16"`', changes={"precision": "bf16", "dtype": "float32"}),
    Setting("weights", '`weights = "samples"`', changes={"weights": "samples"}),
    Setting("guard", "`guard = {bound = 0.1, multiple = 1.0}`", changes={"guard": {"bound": 0.1, "multiple": 1.0}}),
    Setting("compress", '`compress = {kind = "quantise", bits = 4}`', changes={"compress": QUANTISED}),
    Setting("Bernoulli", "`participation = {bernoulli = 0.6}`", changes={"participation": {"bernoulli": 0.6}}),
    Setting("AdamW", '`client.optimizer = "adamw"`, its state kept', client=ADAMW),
    Setting("cosine", '`client.schedule = "cosine"` with a warm-up', client={"schedule": "cosine", "warmup": 1}),
    Setting("accumulate", "`client.accumulate`", client={"batch_size": 16, "accumulate": 2}),
    Setting("frozen", '`model.buffers = "frozen"`, BatchNorm', changes={"model": BATCH_NORM | {"buffers": "frozen"}}),
    Setting("averaged", '`model.buffers = "averaged"`', changes={"model": BATCH_NORM | {"buffers": "averaged"}}),
    Setting("local", '`model.buffers = "local"`', changes={"model": BATCH_NORM | {"buffers": "local"}}),
    Setting("keep", "`model.keep`: the head stays", changes={"model": RUN["model"] | {"keep": ["3"]}}),
)


def run_of(name: str, setting: Setting, **changes: Any) -> RunSpec:
    """Return a small run of the method with this setting. Raises InputError if they do not go together."""
    method: dict[str, Any] = {"name": name} | FIELDS.get(name, {})
    if setting.around:
        method = {"name": setting.around, "base": method} | FIELDS.get(setting.around, {})
    client = {"client": RUN["client"] | setting.client}
    return validated(RunSpec, RUN | client | setting.changes | {"method": method} | changes)


def in_one_process(run: RunSpec) -> None:
    """Raise InputError if the run cannot be simulated, by any executor."""
    logging.disable(logging.WARNING)  # of experiments, which the grid names
    try:
        run.build()
    finally:
        logging.disable(logging.NOTSET)


def by_ranks(run: RunSpec) -> None:
    """Raise InputError if several ranks cannot carry out the run."""
    check_ranks(2, 1, run.probes, run.method.object)


def in_a_federation(run: RunSpec) -> None:
    """Raise InputError if a real federation cannot carry out the run."""
    Study(run, RunSettings(clients=CLIENTS, out="out"))


WAYS: dict[str, Callable[[RunSpec], None]] = {
    "in one process": in_one_process,
    "by ranks": by_ranks,
    "in a federation": in_a_federation,
}


@cache
def refusals(name: str, setting: Setting) -> dict[str, str]:
    """Return the ways in which the method is not carried out with this setting, each with the reason."""
    try:
        run = run_of(name, setting)
    except InputError as error:
        return dict.fromkeys(WAYS, str(error))
    return {way: reason for way, check in WAYS.items() if (reason := _refusal(check, run))}


def _refusal(check: Callable[[RunSpec], None], run: RunSpec) -> str | None:
    try:
        check(run)
    except InputError as error:
        return str(error)
    return None


def grid() -> str:
    """Return the grid as a Markdown table, with the reasons below it."""
    reasons: dict[str, int] = {}
    # All runs of a setting have the same model, whose trial takes half of a cell's time.
    with mock.patch.object(problem, "randomness_of", tried_once()):
        rows = [(link(name), *(_cell(name, setting, reasons) for setting in SETTINGS)) for name in all_methods()]
    table = Table(("method", *(setting.title for setting in SETTINGS)), rows)
    columns = "; ".join(f"{setting.title}: {setting.meaning}" for setting in SETTINGS[1:])
    below = [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join([table.markdown(), "", *below, "", f"{columns}."])


def _cell(name: str, setting: Setting, reasons: dict[str, int]) -> str:
    """Return "yes", or "no", "partly" or "experiment" with the numbers of the reasons, which are added to `reasons`."""
    found = refusals(name, setting)
    if "in one process" in found:
        return f"no ({_number(found['in one process'], name, reasons)})"
    run = run_of(name, setting)
    if why := reason_of_experiment(run.method.object, run.client):
        return f"experiment ({_number(why, name, reasons)})"
    numbers = [_number(f"not {way}: {reason}", name, reasons) for way, reason in found.items()]
    return f"partly ({', '.join(map(str, numbers))})" if numbers else "yes"


def _number(reason: str, method: str, reasons: dict[str, int]) -> int:
    """Return the number of a reason, which is that of the first method that has it."""
    return reasons.setdefault(without_names(reason, method), len(reasons) + 1)


def without_names(reason: str, method: str) -> str:
    """Return a reason that is the same for all methods that have it."""
    return re.sub(rf"method\.name = '\w+'|\b{method}\b", "the method", reason.splitlines()[-1].strip())
