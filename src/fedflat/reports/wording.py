"""Settings of a run in words, from the texts in which runs keep them."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf
from typing import Any

from .run_settings import fields_of

_MODEL = re.compile(r"(.*), (\d+) parameters, (?:torch\.)?(\w+)")
_SCHEME = re.compile(r"(.*, \d+ clients, )(\w+\(.*\))")


def _said(text: str, say: Callable[[dict[str, Any]], str]) -> str:
    """What `say` makes of the fields that a text spells; the text as it is where it spells none, or not ours."""
    fields = fields_of(text)
    try:
        return text if fields is None else say(fields)
    except (KeyError, TypeError, ValueError):  # anybody may have written the text
        return text


def participation_in_words(text: str) -> str:
    """Who takes part in a round: `Share(share=0.2)` is 20 % of the clients each round."""
    words = "listed cohorts" if text.startswith("Explicit(") else _said(text, _participation)
    return f"participation {text}" if words == text else words


def _participation(fields: dict[str, Any]) -> str:
    if "share" in fields:
        return f"{100 * fields['share']:g} % of the clients each round"
    if "number" in fields:
        return "1 client each round" if fields["number"] == 1 else f"{fields['number']:d} clients each round"
    return f"each client with probability {100 * fields['p' if 'p' in fields else 'rate']:g} % in each round"


def training_in_words(text: str) -> str:
    """Local training from the `repr` of a `Client`; what is off is not said."""
    return _said(text, _training)


def _training(fields: dict[str, Any]) -> str:
    decay = fields.get("lr_decay", 1.0)
    parts = [
        f"step size {fields['lr']:g}" + (f", times {decay:g} each round" if decay != 1 else ""),
        f"{_amount(fields)} {_batches(fields.get('batch_size'))}",
    ]
    if fields.get("weight_decay"):
        where = "" if fields.get("wd_scope", "outside") == "outside" else f" ({fields['wd_scope']})"
        parts.append(f"weight decay {fields['weight_decay']:g}{where}")
    if fields.get("max_norm", inf) != inf:
        where = "" if fields.get("clip_scope", "full") == "full" else f" ({fields['clip_scope']})"
        parts.append(f"clipping at norm {fields['max_norm']:g}{where}")
    if fields.get("momentum"):
        parts.append(f"momentum {fields['momentum']:g}")
    return "; ".join(parts)


def _amount(fields: dict[str, Any]) -> str:
    kind = "step" if fields.get("steps") is not None else "epoch"
    number = fields.get("steps") or fields.get("epochs") or 1
    return f"{number} {kind}" + ("" if number == 1 else "s")


def _batches(size: int | None) -> str:
    return "on all samples of a client at once" if size is None else f"in batches of {size}"


def data_in_words(text: str) -> str:
    """Data set, number of clients and partition: `Dirichlet(alpha=0.1)` is Dirichlet, alpha 0.1."""
    found = _SCHEME.fullmatch(text)
    fields = fields_of(found[2]) if found else None
    if not found or fields is None:
        return text
    settings = [f"{name} {value}" for name, value in fields.items() if name != "class" and value is not None]
    return found[1] + ", ".join([fields["class"], *settings])


def model_in_words(text: str) -> str:
    """Class, parameters and their type."""
    found = _MODEL.fullmatch(text)
    return f"{found[1]} with {int(found[2]):,} parameters, {found[3]}" if found else text


def augmentation_in_words(text: str) -> str:
    """What is done to pictures in training; nothing for none."""

    def say(fields: dict[str, Any]) -> str:
        return ", ".join(
            f"{name.replace('_', ' ')} {_word(value)}" for name, value in fields.items() if name != "class"
        )

    return "" if text == "None" else _said(text, say)


def weights_in_words(text: str) -> str:
    """How clients are weighted in the mean."""
    return {"uniform": "equal", "samples": "by their number of samples"}.get(text, text)


def screening_in_words(text: object) -> str:
    """A guard or an attack: the fields that are set; nothing for none."""

    def say(fields: dict[str, Any]) -> str:
        return hyper_in_words({name: value for name, value in fields.items() if name != "class"})

    return "" if text is None else _said(str(text), say)


def hyper_in_words(hyper: dict[str, Any]) -> str:
    """The fields of a method; those that are not set are not said."""
    return ", ".join(f"{name} = {_word(value)}" for name, value in hyper.items() if value is not None)


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
