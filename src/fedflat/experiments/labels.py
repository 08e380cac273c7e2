"""Labels of runs: the method, and whatever differs among the runs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..rounds.settings import flattened

LONGEST = 40  # characters of a value in a label


def labels(methods: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label for each run, such as `FedSAM(rho=0.1, lr=0.05)`, from its method and its settings by name.

    Runs of one method have the same label if they have the same settings, and no two that differ share one. A setting
    of the method (`method.rho`) is told where runs of that method differ in it; one of local training (`client.lr`) in
    all labels, if runs of one method differ in it; any other one in all labels, if any two runs differ in it. What is
    None, or not set, is left out.
    """
    told = values_told(methods, settings)
    return [f"{method}({values})" if values else method for method, values in zip(methods, told, strict=True)]


def variants(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what distinguishes each configuration of one method, such as `rho=0.1, lr=0.05`; empty if nothing does."""
    return values_told([""] * len(tables), [flattened(table) for table in tables])


def values_told(methods: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what stands in the brackets of `labels`."""
    names = list(dict.fromkeys(name for one in settings for name in one))
    names.sort(key=lambda name: not name.startswith("method."))  # the method's own come first
    texts = _texts_by_name(settings)
    told = {name: _told_for(name, methods, texts[name]) for name in names}
    short = _short([name for name in names if told[name]], names)
    made = []
    for place, method in enumerate(methods):
        own = [name for name in short if method in told[name] and texts[name][place] is not None]
        made.append(", ".join(f"{short[name]}={_cut(str(texts[name][place]))}" for name in own))
    return made


def identities(methods: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[frozenset[tuple[str, str]]]:
    """What is equal for runs of one method with the same settings, and for no others; labels cut long values."""
    found = [{("", method)} for method in methods]
    for name, texts in _texts_by_name(settings).items():
        for one, text in zip(found, texts, strict=True):
            one.update(() if text is None else {(name, text)})
    return list(map(frozenset, found))


def _texts_by_name(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    """The values of each setting as text, in the order of the runs."""
    names = dict.fromkeys(name for one in settings for name in one)
    return {name: _texts([one.get(name) for one in settings]) for name in names}


def _told_for(name: str, methods: Sequence[str], texts: Sequence[str | None]) -> set[str]:
    """The methods in whose labels a setting is told."""
    seen: dict[str, set[str | None]] = {}
    for method, text in zip(methods, texts, strict=True):
        seen.setdefault(method, set()).add(text)
    within = {method for method, some in seen.items() if len(some) > 1}
    if name.startswith("method."):
        return within
    differs = bool(within) if name.startswith("client.") else len(set(texts)) > 1
    return set(methods) if differs else set()


def _texts(values: Sequence[Any]) -> list[str | None]:
    """Values as text, equal numbers as equal texts."""
    is_float = any(isinstance(value, float) for value in values)
    return [None if value is None else str(float(value) if is_float and _is_whole(value) else value)
            for value in values]  # fmt: skip


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _cut(text: str) -> str:
    """A value's text; what is long is cut, and has a digest that tells readers that it is another one."""
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]}… {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _short(told: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Names without `client.` and the like; a name that two settings would share then keeps it, except the method's."""
    shared = Counter(name.rpartition(".")[2] for name in names)
    return {
        name: last if shared[last := name.rpartition(".")[2]] == 1 or name.startswith("method.") else name
        for name in told
    }
