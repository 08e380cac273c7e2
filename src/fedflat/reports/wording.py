"""Settings of a run in words."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from ..rounds.settings import CLASS, fields_by_name, text_of_table


def participation_in_words(rule: Mapping[str, Any]) -> str:
    """Say who takes part in a round: `Share(share=0.2)` is 20 % of the clients each round."""
    if "cohorts" in rule:
        return "listed cohorts"
    if "rule" in rule:
        return f"participation {text_of_table(rule)}"
    if "share" in rule:
        return f"{100 * rule['share']:g} % of the clients each round"
    if "number" in rule:
        return "1 client each round" if rule["number"] == 1 else f"{rule['number']:d} clients each round"
    chance = rule.get("p", rule.get("rate"))
    if chance is None:  # a rule of somebody's own
        return f"participation {text_of_table(rule)}"
    return f"each client with probability {100 * chance:g} % in each round"


def training_in_words(client: Mapping[str, Any]) -> str:
    """Say how clients train; what is off is not said."""
    decay = client["lr_decay"]
    parts = [
        f"step size {client['lr']:g}" + (f", times {decay:g} each round" if decay != 1 else ""),
        f"{_amount(client)} {_batches(client['batch_size'])}",
    ]
    if client["weight_decay"]:
        where = "" if client["wd_scope"] == "outside" else f" ({client['wd_scope']})"
        parts.append(f"weight decay {client['weight_decay']:g}{where}")
    if client["max_norm"] != inf:
        where = "" if client["clip_scope"] == "full" else f" ({client['clip_scope']})"
        parts.append(f"clipping at norm {client['max_norm']:g}{where}")
    if client["momentum"]:
        parts.append(f"momentum {client['momentum']:g}")
    return "; ".join(parts)


def _amount(client: Mapping[str, Any]) -> str:
    kind = "step" if client["steps"] is not None else "epoch"
    number = client["steps"] or client["epochs"] or 1
    return f"{number} {kind}" + ("" if number == 1 else "s")


def _batches(size: int | None) -> str:
    return "on all samples of a client at once" if size is None else f"in batches of {size}"


def data_in_words(data: Mapping[str, Any]) -> str:
    """Say data set, number of clients and partition: `Dirichlet(alpha=0.1)` is Dirichlet, alpha 0.1."""
    scheme, first = data["partition"], f"{data['name']}, {data['clients']} clients, "
    if not isinstance(scheme, Mapping):
        return f"{first}{scheme}"
    settings = [f"{name} {value}" for name, value in fields_by_name(scheme).items() if value is not None]
    return first + ", ".join([scheme[CLASS], *settings])


def model_in_words(model: Mapping[str, Any]) -> str:
    """Say class, parameters and their type."""
    return f"{model[CLASS]} with {model['parameters']:,} parameters, {model['dtype']}"


def augmentation_in_words(augmentation: Mapping[str, Any] | None) -> str:
    """Say what is done to pictures in training; nothing for none."""
    fields = {} if augmentation is None else fields_by_name(augmentation)
    return ", ".join(f"{name.replace('_', ' ')} {_word(value)}" for name, value in fields.items())


def weights_in_words(weights: str) -> str:
    """Say how clients are weighted in the mean."""
    return {"uniform": "equal", "samples": "by their number of samples"}.get(weights, weights)


def fields_in_words(table: Mapping[str, Any] | None) -> str:
    """Say the fields of a method, a guard or an attack; those that are not set are not said."""
    fields = {} if table is None else fields_by_name(table)
    return ", ".join(f"{name} = {_word(value)}" for name, value in fields.items() if value is not None)


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
