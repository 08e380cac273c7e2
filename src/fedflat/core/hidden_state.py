"""The state of a model or loss outside its parameters: attributes, closures, default arguments, classes, globals."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from .errors import shortened
from .user_code import closure_of, global_names, keeps_nothing

OF_EVERY_MODULE = frozenset(vars(nn.Module()))
DEEPEST = 8  # levels of objects inside objects that are visited
LONGEST = 1000  # elements of a container that are looked at
_EXACT = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, count)


class HiddenState:
    """The current state of `thing` without its parameters: tensors, numbers, texts and lengths of containers, by place.

    A place is a path of names inside `thing`. `references` has the places of all modules that were found, and of the
    parameters that are not registered in a module.
    """

    def __init__(self, thing: object) -> None:
        self.values: dict[str, object] = {}
        self.references: dict[int, str] = {}  # the place of each module or parameter, by its id
        self._seen: dict[int, object] = {}  # kept alive, so that no other object gets its id
        self._visit(getattr(thing, "__name__", "") if callable(thing) else "", thing, 0)

    def first_difference(self, other: HiddenState) -> str | None:
        """Return the first place where this state and the `other` one differ; None if they are equal."""
        for place in {**self.values, **other.values}:
            a, b = self.values.get(place, Ellipsis), other.values.get(place, Ellipsis)
            if not same(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else type(a) is not type(b) or a != b:
                return shortened(place, 80)
        return None

    def _visit(self, place: str, value: Any, depth: int) -> None:
        if isinstance(value, _EXACT):
            self.values[place] = repr(value)
        elif id(value) not in self._seen and depth < DEEPEST:
            self._seen[id(value)] = value
            if isinstance(value, nn.Module | nn.Parameter):
                self.references.setdefault(id(value), place)
            kept = _kept(value)
            if kept is not None:
                self.values[place] = kept
            for name, part in _parts(value):
                self._visit(f"{place}.{name}" if place else name, part, depth + (not isinstance(value, nn.Module)))


def same(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors are equal; on a GPU up to rounding, because GPU kernels add in no fixed order."""
    return close(a, b, 1e-5 if a.is_cuda and a.is_floating_point() else 0.0)


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Tell whether `a` and `b` agree up to `tolerance` times the largest finite number of `b`.

    Tensors of different shapes or dtypes never agree; otherwise, tensors on the meta device always agree.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_meta or torch.equal(a, b):  # without NaN; several times as fast
        return True
    scale = float(b.nan_to_num(0.0, 0.0, 0.0).abs().max()) if tolerance and b.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def leaves_of(result: Tensor) -> Iterator[Tensor]:
    """Yield the leaf tensors of the graph of `result`, for which a backward pass would collect gradients."""
    waiting, seen = [result.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if hasattr(node, "variable"):
                yield node.variable
            waiting += [following for following, _ in node.next_functions]


def _kept(value: Any) -> object | None:
    """Return the state of `value` itself, without its parts; None if it has none.

    NumPy is not imported here: its objects are recognised by their attributes.
    """
    if isinstance(value, Tensor):
        return None if isinstance(value, nn.Parameter) or value.layout is not torch.strided else value.detach().clone()
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, list | tuple | set | frozenset | deque | Mapping):
        return len(value)
    return _state_of_generator(value)


def _state_of_generator(value: Any) -> object | None:
    """Return the state of a random number generator; None for a generator without a state, and for other objects."""
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if type(value).__name__ == "RandomState":
        return plain_state(value.get_state(legacy=False))
    return plain_state(value.bit_generator.state) if type(value).__name__ == "Generator" else None


def plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a NumPy generator with arrays as bytes, so that two states can be compared by ==."""
    return {name: plain_state(value) if isinstance(value, Mapping) else
            value.tobytes() if hasattr(value, "tobytes") else value for name, value in state.items()}  # fmt: skip


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each part of `value`, such as attributes, elements and bound arguments."""
    if isinstance(value, nn.Module):
        own = ((name, part) for name, part in vars(value).items() if name not in OF_EVERY_MODULE)
        hooks = (hook for kind in (value._forward_hooks, value._forward_pre_hooks) for hook in kind.values())
        yield from (*own, *value._buffers.items(), *value._modules.items(), *(("hook", hook) for hook in hooks))
        yield from _of_class(type(value))
    elif isinstance(value, Mapping):
        yield from ((str(key), part) for key, part in list(value.items())[:LONGEST])
    elif isinstance(value, list | tuple | deque):
        yield from ((str(i), part) for i, part in enumerate(list(value)[:LONGEST]))
    elif isinstance(value, partial):
        yield from (("function", value.func), ("arguments", value.args), ("keywords", value.keywords))
    elif isinstance(value, MethodType):
        yield from (("function", value.__func__), ("object", value.__self__))
    elif isinstance(value, FunctionType):
        yield from _of_function(value) if not keeps_nothing(value.__module__) else ()
    elif not isinstance(value, type | Tensor) and not keeps_nothing(type(value).__module__):
        yield from (*getattr(value, "__dict__", {}).items(), *_of_class(type(value)))


def _of_class(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class and of its bases; classes of libraries are left out."""
    for one in cls.__mro__:
        if not keeps_nothing(one.__module__):
            yield from ((name, part) for name, part in vars(one).items() if not name.startswith("__"))


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the default arguments and closure variables of a function, and the globals that it reads or writes."""
    yield from ((f"argument {i}", part) for i, part in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()
    yield from closure_of(function).items()
    known = function.__globals__
    names = global_names(function, "LOAD_GLOBAL", "STORE_GLOBAL")
    yield from ((name, known[name]) for name in sorted(names & known.keys()))
