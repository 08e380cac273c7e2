"""The settings of finished runs: by name, for labels and pairing, and in words, for pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import inf
from typing import Any

from ..core.structure import telling_apart
from ..rounds.local_training import Client
from ..rounds.settings import CLASS, fields_by_name, text_of_table
from .comparison_data import FinishedRun

HASHES = ("partition_hash", "data_hash", "model_hash", "base_hash", "buffers_hash")  # settings that depend on the seed


def settings_by_name(run: FinishedRun) -> dict[str, Any]:
    """Return all settings that the results of a run depend on except its seed, as numbers and words.

    A setting of the method has a name such as `method.rho`, one of local training `client.lr`, of the partition scheme
    `partition.alpha`, of an adapter `adapter.r`, of a perturbation `perturbation.schedule`, of the guard `guard.bound`,
    of the attack `attack.kind`, of compression `compress.share`. The value None means that a setting is not used, such
    as clipping.
    """
    settings = run.settings
    values = _prefixed("method", settings["method"])
    values |= {} if settings["method_code"] is None else {"method.code": settings["method_code"]}
    later = {f.name: f.default for f in fields(Client) if f.metadata["later"]}  # left out while they have these
    model, client = settings["model"], _prefixed("client", later | settings["client"])
    if client["client.epochs"] is None and client["client.steps"] is None:
        client["client.epochs"] = 1  # the default of a client without epochs and steps
    values |= _data(settings["data"]) | {name: None if value == inf else value for name, value in client.items()}
    values |= {"model": model[CLASS], "parameters": model["parameters"], "dtype": model["dtype"]}
    if settings.get("buffers") is not None:
        values["buffers"] = settings["buffers"]
    if settings.get("keep"):
        values["keep"] = "+".join(settings["keep"])
    if settings["adapter"] is not None:
        values |= {name: "+".join(x) if isinstance(x, list) else x
                   for name, x in _prefixed("adapter", settings["adapter"]).items()}  # fmt: skip
        values.pop("parameters", None)  # they follow from the adapter
    for name in ("attack", "compress", "guard", "perturbation", "privacy"):
        table = _prefixed(name, settings.get(name) or {})
        values |= {key: "+".join(x) if isinstance(x, list) else x for key, x in table.items() if x is not None}
    values["participation"] = _participation(settings["participation"])
    values |= {"weights": settings["weights"], "augmentation": text_of_table(settings["augmentation"])}
    return values | {name: settings[name] for name in ("loss", "precision")} | {"rounds": int(run.summary["rounds"])}


def settings_of_all(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Return the settings of each run by name, with only the names that are needed to distinguish the runs.

    The number of parameters is left out if the class of the model determines it. The layers of the model are included
    if nothing else distinguishes two runs, and then only those that differ. A hash is included only if nothing else
    distinguishes two runs of one seed, as for a partition, model or data set that was made by hand. In other cases
    hashes are left out, because they depend on the seed and would separate the runs of one row.
    """
    tables = [settings_by_name(run) for run in runs]
    sizes = {(table["model"], table.get("parameters")) for table in tables}
    if len(sizes) == len({model for model, _ in sizes}):  # the name determines the model
        for table in tables:
            table.pop("parameters", None)
    layers = [str(run.settings["layers"]) for run in runs]
    without_layers = [(run.method, str(sorted(table.items()))) for run, table in zip(runs, tables, strict=True)]
    if len(set(zip(without_layers, layers, strict=True))) > len(set(without_layers)):
        for table, text in zip(tables, telling_apart(layers), strict=True):
            table["layers"] = text
    keys = [(run.method, run.seed, str(sorted(table.items()))) for run, table in zip(runs, tables, strict=True)]
    for name in HASHES:
        hashes: dict[Any, set[str]] = {}
        for key, run in zip(keys, runs, strict=True):
            hashes.setdefault(key, set()).add(str(run.settings.get(name)))
        if any(len(different) > 1 for different in hashes.values()):
            for run, table in zip(runs, tables, strict=True):
                table[name] = run.settings.get(name)
    return tables


def _prefixed(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a table under the names `name.field`."""
    return {f"{name}.{key}": value for key, value in fields_by_name(table).items()}


def _data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return data set, number of clients, partition scheme and its fields."""
    values, scheme = {"data": data["name"], "clients": data["clients"]}, data["partition"]
    if not isinstance(scheme, Mapping):
        return values | {"partition": scheme}
    return values | {"partition": scheme[CLASS]} | _prefixed("partition", scheme)


def _participation(rule: Mapping[str, Any]) -> Any:
    """Return a share as a number, a number of clients with its unit, and any other rule as text."""
    if "rule" in rule:
        return text_of_table(rule)
    return f"{rule['number']} clients" if "number" in rule else rule.get("share", text_of_table(rule))


def participation_in_words(rule: Mapping[str, Any]) -> str:
    """Describe a participation rule: `Share(share=0.2)` is "20 % of the clients each round"."""
    if "cohorts" in rule:
        return "listed cohorts"
    if "rule" in rule:
        return f"participation {text_of_table(rule)}"
    if "share" in rule:
        return f"{100 * rule['share']:g} % of the clients each round"
    if "number" in rule:
        return "1 client each round" if rule["number"] == 1 else f"{rule['number']:d} clients each round"
    chance = rule.get("p", rule.get("rate"))
    if chance is None:  # a rule of the user's own
        return f"participation {text_of_table(rule)}"
    return f"each client with probability {100 * chance:g} % in each round"


def training_in_words(client: Mapping[str, Any]) -> str:
    """Describe local training; settings that are off are left out."""
    size, number = client["batch_size"], client["steps"] or client["epochs"] or 1
    kind = ("epoch" if client["steps"] is None else "step") + ("" if number == 1 else "s")
    parts = [
        f"step size {client['lr']:g}{_schedule(client)}",
        f"{number} {kind} " + ("on all samples of a client at once" if size is None else f"in batches of {size}"),
    ]
    if client.get("accumulate", 1) > 1:
        parts[-1] += f", {client['accumulate']} batches to a step"
    if client.get("optimizer", "sgd") != "sgd":
        parts.append(f"AdamW ({client.get('beta1', 0.9):g}, {client.get('beta2', 0.999):g})")
    if client["weight_decay"]:
        where = "" if client["wd_scope"] == "outside" else f" ({client['wd_scope']})"
        parts.append(f"weight decay {client['weight_decay']:g}{where}")
    if client["max_norm"] != inf:
        where = "" if client["clip_scope"] == "full" else f" ({client['clip_scope']})"
        parts.append(f"clipping at norm {client['max_norm']:g}{where}")
    if client["momentum"]:
        parts.append(f"momentum {client['momentum']:g}")
    if client.get("optimizer_state") == "kept":
        parts.append("with the optimiser's state kept between rounds")
    return "; ".join(parts)


def _schedule(client: Mapping[str, Any]) -> str:
    """Describe how the step size changes over the rounds; empty if it does not."""
    decay, kind = client["lr_decay"], client.get("schedule", "exponential")
    told = {
        "exponential": f", times {decay:g} each round" if decay != 1 else "",
        "step": f", times {decay:g} every {client.get('step_rounds')} rounds",
        "cosine": f", to {client.get('lr_end', 0):g} as a cosine over the rounds",
        "linear": f", linearly to {client.get('lr_end', 0):g} over the rounds",
    }
    warmup = client.get("warmup", 0)
    return told.get(kind, "") + (f", after {warmup} rounds of warm-up" if warmup else "")


def data_in_words(data: Mapping[str, Any]) -> str:
    """Describe data set, number of clients and partition: `Dirichlet(alpha=0.1)` is "Dirichlet, alpha 0.1"."""
    scheme, first = data["partition"], f"{data['name']}, {data['clients']} clients, "
    if not isinstance(scheme, Mapping):
        return f"{first}{scheme}"
    settings = [f"{name} {value}" for name, value in fields_by_name(scheme).items() if value is not None]
    return first + ", ".join([scheme[CLASS], *settings])


def model_in_words(model: Mapping[str, Any]) -> str:
    """Describe a model by its class, number of parameters and dtype."""
    return f"{model[CLASS]} with {model['parameters']:,} parameters, {model['dtype']}"


def augmentation_in_words(augmentation: Mapping[str, Any] | None) -> str:
    """Describe the augmentation of pictures in training; an empty text for none."""
    fields = {} if augmentation is None else fields_by_name(augmentation)
    return ", ".join(f"{name.replace('_', ' ')} {_word(value)}" for name, value in fields.items())


def fields_in_words(table: Mapping[str, Any] | None) -> str:
    """Describe the fields of a method, a guard or an attack; fields that are not set are left out."""
    fields = {} if table is None else fields_by_name(table)
    return ", ".join(f"{name} = {_word(value)}" for name, value in fields.items() if value is not None)


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
