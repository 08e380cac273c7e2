"""The settings of finished runs by name, as labels, pairs and tables use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from ..core.structure import telling_apart
from ..rounds.settings import CLASS, fields_by_name, text_of_table
from .comparison_data import FinishedRun

HASHES = ("partition_hash", "data_hash", "model_hash", "base_hash")  # they depend on the seed


def settings_by_name(run: FinishedRun) -> dict[str, Any]:
    """Return all settings that the results of a run depend on except its seed, as numbers and words.

    Those of the method are called `method.rho`, those of local training `client.lr`, those of the partition scheme
    `partition.alpha`, those of an adapter `adapter.r`, those of guard and attack `guard.bound` and `attack.kind`. None
    stands for a value that is not used, such as no clipping.
    """
    settings = run.settings
    values = _prefixed("method", settings["method"])
    values |= {} if settings["method_code"] is None else {"method.code": settings["method_code"]}
    values |= _data(settings["data"]) | _model(settings["model"]) | client_settings(settings["client"])
    if settings["adapter"] is not None:
        values |= {name: "+".join(x) if isinstance(x, list) else x
                   for name, x in _prefixed("adapter", settings["adapter"]).items()}  # fmt: skip
        values.pop("parameters", None)  # they follow from the adapter
    for name in ("attack", "guard", "privacy"):
        values |= {key: x for key, x in _prefixed(name, settings[name] or {}).items() if x is not None}
    values["participation"] = _participation(settings["participation"])
    values |= {"weights": settings["weights"], "augmentation": text_of_table(settings["augmentation"])}
    return values | {name: settings[name] for name in ("loss", "precision")} | {"rounds": int(run.summary["rounds"])}


def settings_of_all(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """The settings of each run; a hash is one of them only where nothing else tells two runs of one seed apart.

    The layers of the model are settings where nothing else tells two runs apart, and then those that not all have.
    Hashes depend on the seed, so they differ between runs that belong together. Only a partition, model or data set
    that was made by hand has no other name.
    """
    found = [settings_by_name(run) for run in runs]
    sizes = {(one["model"], one.get("parameters")) for one in found}
    if len(sizes) == len({model for model, _ in sizes}):  # the name of a model says which one it is
        for one in found:
            one.pop("parameters", None)
    layers = [str(run.settings["layers"]) for run in runs]
    others = {(run.method, str(sorted(one.items()))) for run, one in zip(runs, found, strict=True)}
    whole = {(run.method, str(sorted(one.items())), x) for run, one, x in zip(runs, found, layers, strict=True)}
    if len(whole) > len(others):
        for one, text in zip(found, telling_apart(layers), strict=True):
            one["layers"] = text
    keys = [(run.method, run.seed, str(sorted(one.items()))) for run, one in zip(runs, found, strict=True)]
    for name in HASHES:
        hashes: dict[Any, set[str]] = {}
        for key, run in zip(keys, runs, strict=True):
            hashes.setdefault(key, set()).add(str(run.settings[name]))
        if any(len(some) > 1 for some in hashes.values()):
            for run, one in zip(runs, found, strict=True):
                one[name] = run.settings[name]
    return found


def client_settings(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Client`, called `client.lr` and so on."""
    values = {name: None if value == inf else value for name, value in _prefixed("client", client).items()}
    if values["client.epochs"] is None and values["client.steps"] is None:
        values["client.epochs"] = 1  # what it then is
    return values


def batches_of(client: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what the batches of a client follow from, apart from its samples and the seed."""
    return client["steps"] or (client["epochs"] or 1, "epochs"), client["batch_size"]


def _prefixed(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in a table, each called `name.field`."""
    return {f"{name}.{key}": value for key, value in fields_by_name(table).items()}


def _data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return data set, number of clients, partition scheme and its fields."""
    values, scheme = {"data": data["name"], "clients": data["clients"]}, data["partition"]
    if not isinstance(scheme, Mapping):
        return values | {"partition": scheme}
    return values | {"partition": scheme[CLASS]} | _prefixed("partition", scheme)


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return class, number of parameters and their type."""
    return {"model": model[CLASS], "parameters": model["parameters"], "dtype": model["dtype"]}


def _participation(rule: Mapping[str, Any]) -> Any:
    """Return a share as it is, a number of clients with its unit; any other rule, such as listed cohorts, as text."""
    if "rule" in rule:
        return text_of_table(rule)
    return f"{rule['number']} clients" if "number" in rule else rule.get("share", text_of_table(rule))
