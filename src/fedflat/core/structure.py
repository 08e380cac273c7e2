"""Texts that describe functions and modules: the same in every process, different for code that computes differently.

Classes and functions of installed packages are described by their names, constructor arguments and bound values. All
others are described by their code, with the constants, closures, class attributes and globals that the code reads. No
text contains a memory address or depends on the order of a set. Three things are not described: attributes of objects
of installed classes that are not constructor arguments, the content of files that code reads, and native code.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from inspect import Parameter, signature
from itertools import chain
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .hidden_state import OF_EVERY_MODULE
from .user_code import closure_of, codes_of, global_names, is_installed

LONGEST = 400  # characters of a text before its digest
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
TORCH_KINDS = (torch.dtype, torch.memory_format, torch.layout)
# Keys of a configuration that do not change results.
NOT_COMPUTED = ("dtype", "torch_dtype", "id2label", "label2id", "transformers_version")


def text_of(thing: Any) -> str:
    """Describe a function or a callable object: its name, its bound arguments, and a digest of its code."""
    words = _Words(values=True)
    return _cut(words.of(thing), words.hidden)


def layers_of(module: nn.Module) -> str:
    """Describe the layers of a module, equal ones once, such as `Linear(4, 2); GELU()`, with a digest of all."""
    words = _Words(values=False)
    parts = [_Words(values=False).options(one) for one in module.modules()]
    return _cut("; ".join(dict.fromkeys(parts)), [words.of(module), *words.hidden])


def telling_apart(texts: Sequence[str]) -> list[str]:
    """Shorten texts from `layers_of` to the layers that differ; keep the digests if texts would otherwise be equal."""
    split = [text.rpartition(" #")[::2] for text in texts]
    parts = [names.split("; ") for names, _ in split]
    common = set(parts[0]).intersection(*parts[1:])
    shown = ["; ".join(part for part in some if part not in common) for some in parts]
    if len(set(shown)) == len(set(texts)) and all(shown):
        return shown
    return [f"{part} #{digest}".strip() for part, (_, digest) in zip(shown, split, strict=True)]


def _cut(text: str, hidden: Iterable[str]) -> str:
    """Return the beginning of a text; a digest replaces the rest and the `hidden` values."""
    digest = hashlib.sha256("\n".join([text, *hidden]).encode("utf-8", "backslashreplace")).hexdigest()
    return f"{text[:LONGEST]} #{digest[:12]}" if hidden or len(text) > LONGEST else text


class _Words:
    """The description of one object; the parts in `hidden` are not shown and only enter its digest."""

    def __init__(self, values: bool) -> None:
        """Begin an empty description. values: whether parameters enter with their values, or only with their shapes."""
        self.hidden: list[str] = []
        self._values = values
        self._seen: dict[int, tuple[int, Any]] = {}  # by id; the object is kept, so that no other gets its id

    def of(self, thing: Any) -> str:
        """Describe any object."""
        if type(thing) in PLAIN:
            return repr(thing)
        if isinstance(thing, Enum):
            return f"{type(thing).__qualname__}.{thing.name}"
        if isinstance(thing, TORCH_KINDS):
            return str(thing)
        if isinstance(thing, Tensor) or hasattr(thing, "__array_interface__"):
            return _numbers(thing)
        return self._once(thing)

    def _once(self, thing: Any) -> str:
        """Describe an object that may contain others, or itself; an object met again is described by its number."""
        if id(thing) in self._seen:
            return f"again {self._seen[id(thing)][0]}"
        self._seen[id(thing)] = len(self._seen), thing
        if not isinstance(thing, Mapping | set | frozenset | list | tuple):
            return self._object(thing)
        text = self._container(thing)
        del self._seen[id(thing)]  # whether two equal containers are one object does not matter
        return text

    def _container(self, thing: Any) -> str:
        if isinstance(thing, Mapping):
            return "{" + ", ".join(sorted(f"{self.of(key)}: {self.of(value)}" for key, value in thing.items())) + "}"
        texts = [self.of(one) for one in thing]
        return f"({', '.join(sorted(texts) if isinstance(thing, set | frozenset) else texts)})"

    def _object(self, thing: Any) -> str:
        """Describe a function, class, module or object."""
        if isinstance(thing, functools.partial):
            names = _argument_names(thing.func)
            bound = [*zip(names, thing.args, strict=False), *sorted(thing.keywords.items())]
            return f"{self.of(thing.func)}({self._fields(bound)})"
        if isinstance(thing, MethodType):
            return f"{self.of(thing.__func__)} of {self.of(thing.__self__)}"
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, ModuleType | type | BuiltinFunctionType):
            self._class(thing)
            return _name(thing)
        if isinstance(thing, nn.Module):
            return self._module(thing)
        self._class(type(thing))
        self.hidden += [self.of(inner) for name in ("__wrapped__", "code") if (inner := getattr(thing, name, None))]
        return f"{_name(type(thing))}({self._fields(_attributes(thing).items())})"

    def _fields(self, values: Iterable[tuple[str, Any]]) -> str:
        return ", ".join(f"{name}={self.of(value)}" for name, value in values)

    def _function(self, function: FunctionType) -> str:
        """Describe a function by its name and closure; if not installed, also by its code, defaults and globals."""
        cells = closure_of(function)
        used = {**cells, "defaults": function.__defaults__, **(function.__kwdefaults__ or {})}
        if not is_installed(function):
            self.hidden.append(_source(function))
            used |= dict(_globals(function))
        elif not cells:
            return _name(function)
        shown = {name: value for name, value in cells.items() if type(value) in PLAIN and value is not None}
        self.hidden += [f"{name} = {self.of(used[name])}" for name in sorted(used.keys() - shown)]
        return _name(function) + (f"({self._fields(sorted(shown.items()))})" if shown else "")

    def _module(self, module: nn.Module) -> str:
        """Describe a module: its options, buffers, hooks and parameters, and the modules in it."""
        text, mode = self.options(module), "" if module.training else "eval"
        weights = [(name, p if self._values else tuple(p.shape)) for name, p in module._parameters.items()
                   if p is not None]  # fmt: skip
        kinds = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
        hooks = [hook for kind in kinds for hook in kind.values()]
        parts = self._fields([*weights, *module._buffers.items(), *module._modules.items(), ("hooks", hooks)])
        self.hidden.append(f"{text} {mode} {parts}")
        return text

    def options(self, module: nn.Module) -> str:
        """Describe a module's class with its non-default arguments or, if it is a user's class, with all attributes."""
        self._class(type(module))
        values = {k: x for k, x in {**vars(module), **module._buffers}.items() if k not in OF_EVERY_MODULE}
        if not is_installed(type(module)):
            return f"{_name(type(module))}({self._fields(values.items())})"
        options = _options(type(module))  # type: ignore[arg-type]  # a class is hashable
        given = [(name, values[name]) for name, usual in options.items() if name in values
                 and not _is_usual(values[name], usual)]  # fmt: skip
        texts = [self.of(x) if options[name] is Parameter.empty else self._fields([(name, x)]) for name, x in given]
        return f"{type(module).__qualname__}({', '.join(texts)})"

    def _class(self, cls: Any) -> None:
        """Add the code and the attributes of a class and its bases to `hidden`, except those of installed classes."""
        for base in cls.__mro__ if isinstance(cls, type) else ():
            if is_installed(base) or id(base) in self._seen:
                continue
            self._seen[id(base)] = len(self._seen), base
            for name, value in sorted(vars(base).items()):
                if name == "__call__" or not name.startswith("__"):
                    inner = (getattr(value, kind, None) for kind in ("__func__", "fget", "func"))
                    self.hidden.append(f"{name}: {self.of(next(filter(None, inner), value))}")


def _attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object; for a configuration of transformers, those that are not defaults."""
    if hasattr(thing, "to_diff_dict"):
        return {k: x for k, x in thing.to_diff_dict().items() if k[0] != "_" and k not in NOT_COMPUTED}
    if is_installed(type(thing)):
        return {}
    try:
        state: Any = object.__getstate__(thing)  # a dictionary; with slots, two of them
    except TypeError:  # its base is a class written in C
        state = getattr(thing, "__dict__", None)
    return dict(chain.from_iterable((part or {}).items() for part in (state if isinstance(state, tuple) else [state])))


def _numbers(x: Any) -> str:
    """Describe a tensor or array: up to 8 numbers are written out, more are replaced by their digest."""
    kind = f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"
    try:
        x = torch.as_tensor(x).detach().cpu().contiguous().resolve_conj()
        raw = x.view(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError, NotImplementedError):  # no numbers, or none in memory
        return kind
    return (
        f"{x.tolist()} {kind.rpartition(' ')[2]}"
        if x.numel() <= 8
        else f"{kind} {hashlib.sha256(raw).hexdigest()[:12]}"
    )


def _argument_names(function: Any) -> Iterator[str]:
    """Yield the names of the positional arguments of a function."""
    try:
        return iter([*signature(function).parameters, *map(str, range(99))])
    except (TypeError, ValueError):  # a function written in C
        return map(str, range(99))


@functools.cache
def _options(cls: type[nn.Module]) -> dict[str, Any]:
    """Return the constructor arguments of a module's class, and of bases that get its **kwargs, with their defaults."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base):
            given = signature(base.__init__).parameters.values()  # type: ignore[misc]
            found = {one.name: one.default for one in given} | found
            if not any(one.kind is Parameter.VAR_KEYWORD for one in given):
                break
    return found


def _is_usual(value: Any, usual: Any) -> bool:
    """Tell whether a value is the default, or a tuple with the default for each axis."""
    parts = value if isinstance(value, tuple) and value else (value,)
    return all(type(one) in PLAIN for one in parts) and (value == usual or all(one == usual for one in parts))


def _name(thing: Any) -> str:
    """Return the name of a function, class or module; with its package, for an installed function."""
    name = str(getattr(thing, "__qualname__", getattr(thing, "__name__", "")))
    if isinstance(thing, type) or (isinstance(thing, FunctionType) and not is_installed(thing)):
        return name
    return f"{thing.__module__ or 'builtins'}.{thing.__name__}" if not isinstance(thing, ModuleType) else thing.__name__


def _globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function reads; for a module that is not installed, the attributes that it reads."""
    known = function.__globals__
    attributes = {name for code in codes_of(function.__code__) for name in code.co_names}
    for name in sorted(global_names(function, "LOAD_GLOBAL") & known.keys()):
        value = known[name]
        if not isinstance(value, ModuleType):
            yield name, value
        elif not is_installed(value):
            used = sorted(attribute for attribute in attributes if hasattr(value, attribute))
            yield from ((f"{name}.{attribute}", getattr(value, attribute)) for attribute in used)


def _source(function: FunctionType) -> str:
    """Return the source of a function without comments, docstrings and layout; its bytecode if there is no source."""
    code = function.__code__
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename, function.__globals__)))
    except (SyntaxError, ValueError, RecursionError):
        tree = ast.Module([], [])
    found = [node for node in ast.walk(tree) if _made(node, code)]
    if len(found) != 1:
        return repr([(one.co_code.hex(), [x for x in one.co_consts if type(x) in PLAIN], one.co_names)
                     for one in codes_of(code)])  # fmt: skip
    for node in ast.walk(found[0]):
        if ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None:
            node.body = node.body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(found[0])


def _made(node: ast.AST, code: CodeType) -> bool:
    """Tell whether a code object was compiled from this node of a source."""
    if isinstance(node, ast.FunctionDef):
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        return (node.name, first) == (code.co_name, code.co_firstlineno)
    return isinstance(node, ast.Lambda) and (code.co_name, code.co_firstlineno) == ("<lambda>", node.lineno)
