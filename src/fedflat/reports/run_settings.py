"""The settings of finished runs by name, taken apart from the texts in which runs keep them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from ..core.structure import telling_apart
from ..core.task import CROSS_ENTROPY
from ..rounds.settings import parsed
from .comparison_data import FinishedRun

HASHES = ("partition_hash", "data_hash", "model_hash", "base_hash")  # they depend on the seed
LONGEST = 1000  # characters of a text that is taken apart; listed cohorts may have millions
_DATA = re.compile(r"(?P<data>.*), (?P<clients>\d+) clients, (?P<partition>.*)")
_MODEL = re.compile(r"(?P<model>.*), (?P<parameters>\d+) parameters, (?:torch\.)?(?P<dtype>\w+)")


def settings_by_name(run: FinishedRun) -> dict[str, Any]:
    """All settings that the results of a run depend on except its seed, as numbers and words.

    Those of the method are called `method.rho`, those of local training `client.lr`, those of the partition scheme
    `partition.alpha`, those of an adapter `adapter.r`, those of guard and attack `guard.bound` and `attack.kind`. None
    stands for a value that is not used, such as no clipping. A text that cannot be taken apart, because a later version
    or somebody else has written it, stays one value under the name that it has.
    """
    settings = run.settings
    values: dict[str, Any] = {f"method.{name}": value for name, value in settings["hyper"].items()}
    values |= {"method.code": settings["method_code"]} if "method_code" in settings else {}
    values |= _data(settings["data"]) | _model(settings["model"]) | client_settings(settings["client"])
    if "adapter" in settings:
        values |= _adapter(settings["adapter"])
        values.pop("parameters", None)  # they follow from the adapter
    for name in ("attack", "guard", "privacy"):
        values |= _prefixed(name, str(settings[name])) if name in settings else {}
    values["participation"] = _participation(settings["participation"])
    values |= {name: settings[name] for name in ("weights", "augmentation")}
    values["loss"] = settings.get("loss", CROSS_ENTROPY.loss)
    return values | {"precision": settings.get("precision", "fp32"), "rounds": int(run.summary["rounds"])}


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
    layers = [str(run.settings.get("layers", "")) for run in runs]
    others = {(run.method, str(sorted(one.items()))) for run, one in zip(runs, found, strict=True)}
    whole = {(run.method, str(sorted(one.items())), x) for run, one, x in zip(runs, found, layers, strict=True)}
    if len(whole) > len(others):
        for one, text in zip(found, telling_apart(layers), strict=True):
            one["layers"] = text
    keys = [(run.method, run.seed, str(sorted(one.items()))) for run, one in zip(runs, found, strict=True)]
    for name in HASHES:
        hashes: dict[Any, set[str]] = {}
        for key, run in zip(keys, runs, strict=True):
            hashes.setdefault(key, set()).add(str(run.settings.get(name)))
        if any(len(some) > 1 for some in hashes.values()):
            for run, one in zip(runs, found, strict=True):
                one[name] = run.settings.get(name)
    return found


def client_settings(text: str) -> dict[str, Any]:
    """The fields of a `Client` from its `repr`, called `client.lr` and so on."""
    fields = fields_of(text)
    if fields is None:
        return {"client": text}
    if fields.get("epochs") is None and fields.get("steps") is None:
        fields["epochs"] = 1  # what it then is
    return {f"client.{name}": None if value == inf else value for name, value in fields.items() if name != "class"}


def fields_of(text: str) -> dict[str, Any] | None:
    """The class, under the name `class`, and the fields that a `repr` spells.

    None if it spells none, or one inside another.
    """
    found = parsed(text) if len(text) <= LONGEST else text
    has_inner = isinstance(found, Mapping) and any(isinstance(value, Mapping) for value in found.values())
    return dict(found) if isinstance(found, Mapping) and not has_inner else None


def _data(text: str) -> dict[str, Any]:
    """Data set, number of clients, partition scheme and its fields."""
    found = _DATA.fullmatch(text)
    if not found:
        return {"data": text}
    values: dict[str, Any] = {"data": found["data"], "clients": int(found["clients"]), "partition": found["partition"]}
    fields = fields_of(found["partition"])
    if fields is not None:
        values["partition"] = fields.pop("class")
        values |= {f"partition.{name}": value for name, value in fields.items()}
    return values


def _model(text: str) -> dict[str, Any]:
    """Class, number of parameters and their type."""
    found = _MODEL.fullmatch(text)
    return {**found.groupdict(), "parameters": int(found["parameters"])} if found else {"model": text}


def _adapter(text: str) -> dict[str, Any]:
    """The fields of an adapter, called `adapter.r` and so on; targets as one text."""
    fields = fields_of(text)
    if fields is None:
        return {"adapter": text}
    found = {f"adapter.{name}": value for name, value in fields.items() if name != "class"}
    targets = found.get("adapter.targets")
    return found | ({"adapter.targets": "+".join(map(str, targets))} if isinstance(targets, tuple) else {})


def _prefixed(name: str, text: str) -> dict[str, Any]:
    """The fields that a `repr` spells and that are not None, each called `name.field`."""
    fields = fields_of(text)
    if fields is None:
        return {name: text}
    return {f"{name}.{key}": value for key, value in fields.items() if key != "class" and value is not None}


def _participation(text: str) -> Any:
    """A share as it is, a number of clients with its unit; any other rule, such as listed cohorts, as its text."""
    fields = fields_of(text) or {}
    return f"{fields['number']} clients" if "number" in fields else fields.get("share", text)
