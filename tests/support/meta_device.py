"""A stand-in for a GPU: torch's device `meta`, which has shapes and no numbers.

`with MetaDevice() as device:` lets a simulation run with `device="meta"`. Numbers that the program reads from the
device are made up, and each time that the host would wait for a GPU is recorded with its place in our code. A tensor
that was left on the CPU raises at once, as it would on a GPU. What this cannot find: wrong numbers, kernels that a GPU
lacks, and waits inside a library.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fedflat

SOURCE = Path(fedflat.__file__).parent
aten = torch.ops.aten

Kind = Literal["read", "upload"]
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# Their result, or its shape, depends on numbers: a GPU is waited for.
NEEDS_NUMBERS = {
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::repeat_interleave",
    "aten::equal",
    "aten::allclose",
}
CHECKS_A_RESULT = {"aten::_linalg_check_errors"}  # reads whether a factorisation worked


@dataclass(frozen=True)
class Wait:
    """One time that the host waits for the device."""

    kind: Kind  # read: numbers for the host; upload: a copy to the device that is not `non_blocking`
    place: str  # file:line function, the innermost in our code
    within: frozenset[str]  # all functions of our code on the stack, by qualified name


class WrongDeviceError(AssertionError):
    """An operation had tensors of the CPU and of the device."""


class MetaDevice(TorchDispatchMode):
    """Records in `waits` every time that the host would wait for a GPU, and in `sent` the copies that do not wait."""

    def __init__(self, has_float64: bool = True) -> None:
        super().__init__()
        self._has_float64 = has_float64  # else a tensor of double precision on the device raises
        self.waits: list[Wait] = []
        self.sent: list[Wait] = []
        self.equal = True  # what `torch.equal` finds
        self._from_numbers = _FromNumbers(self)

    def __enter__(self) -> Self:
        super().__enter__()
        self._from_numbers.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._from_numbers.__exit__(*error)
        super().__exit__(*error)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; by default torch imports its compiler for a mode."""
        return False

    def places(self) -> Counter[str]:
        """How many waits each place of our code has caused."""
        return Counter(wait.place for wait in self.waits)

    def within(self, function: str) -> list[Wait]:
        """The waits inside the function with this qualified name."""
        return [wait for wait in self.waits if function in wait.within]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = self._dispatched(func, args, kwargs or {})
        if not self._has_float64:
            for x in tree_leaves(made):
                if isinstance(x, Tensor) and x.is_meta and x.dtype == torch.float64:
                    raise WrongDeviceError(f"float64 of {func._schema.name} at {_place()[0]}")
        return made

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_device = [x for x in tensors if x.is_meta]
        name = func._schema.name
        if name in ("aten::_to_copy", "aten::copy_"):
            return self._copied(func, args, kwargs)
        if not on_device:
            return func(*args, **kwargs)
        if name == "aten::_local_scalar_dense":
            self._note("read")
            return self._numbers((), args[0].dtype).item()
        if name in CHECKS_A_RESULT:
            self._note("read")
        if name in NEEDS_NUMBERS:
            self._note("read")
            return self._made_up(name, args)
        if name in INDEXING:
            args = self._indexed(args)
        elif any(_is_left_behind(x, func, args) for x in tensors):
            raise WrongDeviceError(f"{name} at {_place()[0]}: {[(x.device.type, tuple(x.shape)) for x in tensors]}")
        return _result(func, args, kwargs)

    def _copied(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A copy, perhaps between host and device."""
        if func._schema.name == "aten::copy_":
            target, source = args[:2]
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            if target.is_meta == source.is_meta:
                return func(*args, **kwargs)
            if source.is_meta:
                self._note("read")
                return target.copy_(self._numbers(source.shape, source.dtype))
            self._note("upload", waits)
            return func(*args, **kwargs)
        source, device = args[0], kwargs.get("device")
        if device is None or (device.type == "meta") == source.is_meta:
            return _result(func, args, kwargs)
        if source.is_meta:
            self._note("read")
            return self._numbers(source.shape, kwargs.get("dtype") or source.dtype)
        self._note("upload", not kwargs.get("non_blocking", False))
        return func(*args, **kwargs)

    def _indexed(self, args: Any) -> Any:
        """The arguments of an operation with indices, all on the device and none a mask."""
        x, indices, *rest = args
        if any(isinstance(r, Tensor) and not r.is_meta and r.ndim for r in (x, *rest)):
            raise WrongDeviceError(f"indexing at {_place()[0]}")
        found: list[Tensor | None] = []
        for index in indices:
            if index is not None and not index.is_meta:  # torch copies it to a GPU by itself, and waits
                self._note("upload")
            if index is not None and index.dtype == torch.bool:  # torch asks how many are true
                self._note("read")
                found += [x.new_empty(index.numel(), dtype=torch.int64) for _ in range(index.ndim)]
            else:
                found.append(index if index is None else index.new_empty(index.shape, device="meta"))
        return (x, found, *rest)

    def _made_up(self, name: str, args: Any) -> Any:
        """The result of an operation that depends on numbers: nothing is close, and nothing is found."""
        if name == "aten::equal":
            return self.equal
        if name == "aten::allclose":
            return False
        x = args[0]
        if name == "aten::nonzero":
            return x.new_empty(0, x.ndim, dtype=torch.int64)
        if name == "aten::masked_select":
            return x.new_empty(x.numel())
        raise NotImplementedError(f"{name} at {_place()[0]}")

    def _numbers(self, shape: Any, dtype: torch.dtype) -> Tensor:
        """Numbers on the CPU, the same for each shape: from 0.5 to 1.5, or zero if they are whole, or true."""
        if dtype == torch.bool:
            return torch.ones(shape, dtype=dtype)
        if not dtype.is_floating_point:
            return torch.zeros(shape, dtype=dtype)
        random = torch.Generator().manual_seed(0)
        return (torch.rand(shape, generator=random, dtype=torch.float64) + 0.5).to(dtype)

    def _note(self, kind: Kind, waits: bool = True) -> None:
        place, within = _place()
        (self.waits if waits else self.sent).append(Wait(kind, place, within))


_results: dict[Any, Any] = {}  # forms of results, by operation and the forms of its arguments


def _result(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation on the device; torch finds its form in Python, which takes a millisecond, once."""
    effect = _effect(func)
    if effect is None:
        return func(*args, **kwargs)
    key = func, _form(args), *((name, _form(x)) for name, x in kwargs.items())
    if key not in _results:
        before = _form(args[0]) if effect == "in place" else None
        made = func(*args, **kwargs)
        is_known = effect == "new" or (made is args[0] and _form(made) == before)
        if is_known and all(isinstance(x, Tensor) and x.is_meta for x in tree_leaves(made)):
            _results[key] = _form(made)
        return made
    return args[0] if effect == "in place" else _made(_results[key])


@cache
def _effect(func: Any) -> Literal["new", "in place"] | None:
    """Whether an operation makes new tensors, or changes its first argument alone; None for others, as for views."""
    shared = {i: x.alias_info for i, x in enumerate(func._schema.arguments) if x.alias_info is not None}
    if not shared:
        return "new"
    return "in place" if list(shared) == [0] and shared[0].is_write else None


def _form(x: Any) -> Any:
    """What decides the form of a result: of tensors all but their numbers, of all else the type and the value."""
    if isinstance(x, Tensor):
        return x.shape, x.stride(), x.dtype, x.is_meta
    return (type(x), *map(_form, x)) if isinstance(x, tuple | list) else (type(x), x)


def _made(form: Any) -> Any:
    """New tensors of this form, (type, *forms) of several."""
    if isinstance(form[0], torch.Size):
        shape, stride, dtype, _ = form
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    return form[0](map(_made, form[1:]))


class _FromNumbers(TorchFunctionMode):
    """Sees tensors that are made of Python's numbers, which a GPU waits for and the other mode is not shown."""

    def __init__(self, device: MetaDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in (torch.tensor, Tensor.new_tensor) and made.is_meta:
            self._device._note("upload")
        return made


def _is_left_behind(x: Tensor, func: Any, args: Any) -> bool:
    """Whether a GPU would refuse this tensor of the CPU; it takes those of one number, unless they are the result."""
    if x.is_meta:
        return False
    written = [i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return x.ndim > 0 or any(i < len(args) and args[i] is x for i in written)


def _frames() -> Iterator[Any]:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(SOURCE)):
            yield frame
        frame = frame.f_back


def _place() -> tuple[str, frozenset[str]]:
    """The innermost place in our code, and the names of all functions of ours on the stack."""
    frames = list(_frames())
    if not frames:
        return "outside", frozenset()
    file = Path(frames[0].f_code.co_filename).relative_to(SOURCE).as_posix()
    names = frozenset(frame.f_code.co_qualname for frame in frames)
    return f"{file}:{frames[0].f_lineno} {frames[0].f_code.co_qualname}", names
