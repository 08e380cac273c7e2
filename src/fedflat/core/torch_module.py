"""A user's module: its parameters as one flat vector; copies, modes and restoring; the scores in its output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from .errors import InputError, printable, shortened, with_type
from .hidden_state import HiddenState

# Types of devices on which only scores, losses and their gradients are computed. Vectors of parameters are then on the
# CPU, and with them the arithmetic of methods and every sum in float64.
WITHOUT_FLOAT64 = {"mps"}
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of parameters that are trained


class Space:
    """The flat parameter space of a module: d numbers, parameter after parameter in `parameters()` order.

    Weights of two-dimensional convolutions are stored in it as (out, height, width, in), so that their views have the
    channels-last memory format, in which convolutions are faster and their gradients need no copy; all other parameters
    are row-major. `row_major` converts to the order of `torch.nn.utils.parameters_to_vector`.
    The views of a vector come from one `split`, so that the gradient of the vector is one concatenation.
    """

    def __init__(self, module: nn.Module) -> None:
        """Take names and shapes from `module`. Raises ValueError if it has no trainable parameter."""
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if any(isinstance(p, nn.UninitializedParameter) for _, p in trainable):
            raise InputError(f"model {type(module).__name__} has lazy layers; pass one batch through it first")
        if not trainable:
            raise InputError(f"model {type(module).__name__} has no trainable parameter")
        _check_types({p.dtype: name for name, p in trainable})
        self.shapes = {name: p.shape for name, p in trainable}
        self.sizes = [p.numel() for _, p in trainable]
        self.d = sum(self.sizes)

    def flatten(self, module: nn.Module) -> Tensor:
        """Return the parameters of `module` as one detached vector, (d,), on the device of its parameters.

        On a device without float64 they are on the CPU.
        """
        named = dict(module.named_parameters())
        parameters = [named[name].detach() for name in self.shapes]
        w = torch.cat([(p.permute(0, 2, 3, 1) if p.ndim == 4 else p).reshape(-1) for p in parameters])
        return w.cpu() if w.device.type in WITHOUT_FLOAT64 else w

    def write(self, module: nn.Module, w: Tensor) -> None:
        """Copy `w` (d,) into the parameters of `module`."""
        named = dict(module.named_parameters())
        with torch.no_grad():
            for name, view in self.views(w).items():
                named[name].copy_(view)

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """Return the parameters inside `w` (*clients, d), each (*clients, *shape), without a copy."""
        return dict(zip(self.shapes, self.view_list(w), strict=True))

    def view_list(self, w: Tensor) -> list[Tensor]:
        """Return the values of `views` as a list."""
        pieces = torch.split(w, self.sizes, dim=-1)
        return [_view(piece, shape) for piece, shape in zip(pieces, self.shapes.values(), strict=True)]

    def joined(self, parts: Sequence[Tensor], axes: int) -> Tensor:
        """Join tensors like the views of a vector, each (*clients, *shape), to that vector (*clients, d).

        axes: the number of axes of clients.
        """
        flat = (x.movedim(-3, -1) if x.ndim - axes == 4 else x for x in parts)
        return torch.cat([x.reshape(*x.shape[:axes], -1) for x in flat], dim=-1)

    def row_major(self, w: Tensor) -> Tensor:
        """Return `w` (*clients, d) row-major, in the order of `torch.nn.utils.parameters_to_vector`."""
        return torch.cat([view.flatten(w.ndim - 1) for view in self.views(w).values()], dim=-1)

    def layers(self) -> Iterator[tuple[str, slice]]:
        """Yield every parameter's name and its slice of the last axis."""
        start = 0
        for name, size in zip(self.shapes, self.sizes, strict=True):
            yield name, slice(start, start + size)
            start += size

    def is_weight(self, device: torch.device | str = "cpu") -> Tensor:
        """Return a mask (d,) bool: True where the parameter's name has "weight" in it (Caldarola et al., 2022)."""
        marks = [torch.full((size,), "weight" in name) for name, size in zip(self.shapes, self.sizes, strict=True)]
        return torch.cat(marks).to(device)


def _check_types(kinds: dict[torch.dtype, str]) -> None:
    """Raise InputError unless all trainable parameters have one dtype, and torch can train parameters of this dtype.

    kinds: for each dtype that parameters have, the name of such a parameter.
    """
    for dtype, name in kinds.items():
        if dtype not in TYPES:
            raise InputError(f"model: parameter {name!r} is {dtype}; trainable types are {', '.join(map(str, TYPES))}; "
                             "a complex number is two real ones, see torch.view_as_complex")  # fmt: skip
    if len(kinds) > 1:
        listed = " and ".join(f"{name!r} {dtype}" for dtype, name in kinds.items())
        raise InputError(f"model: its trainable parameters have several types, {listed}; make them one, such as by "
                         "model.float(), or give dtype=torch.float32")  # fmt: skip


def _view(piece: Tensor, shape: torch.Size) -> Tensor:
    """Return the parameter of `shape` as a view of its part (*clients, size) of a vector."""
    if len(shape) != 4:
        return piece.reshape(*piece.shape[:-1], *shape) if shape else piece[..., 0]
    outputs, inputs, height, width = shape
    return piece.reshape(*piece.shape[:-1], outputs, height, width, inputs).movedim(-1, -3)


def copied(module: nn.Module, with_parameters: bool = True) -> nn.Module:
    """Copy `module`; if `with_parameters` is false, the copy shares the parameters of `module`, which saves memory.

    Some layers compute a tensor from their parameters before each pass, as torch's old hooks for weight normalisation
    and pruning do; in the copy, this tensor is a constant until the first pass. Raises InputError if a copy cannot be
    made or still uses the original, or if a copy would lose hooks on gradients of parameters or the sharing of memory
    between tensors.
    """
    if isinstance(module, torch.jit.ScriptModule | nn.DataParallel):
        raise InputError(f"model: a {type(module).__name__} cannot be trained here; give the module it was made from")
    _refuse_gradient_hooks(module)
    _refuse_shared_memory(module)
    kept = chain.from_iterable((*vars(layer).values(), *layer._buffers.values()) for layer in module.modules())
    memo: dict[int, object] = {id(x): x.detach().clone() for x in kept if isinstance(x, Tensor) and not x.is_leaf}
    memo |= {} if with_parameters else {id(p): p for p in module.parameters()}
    try:
        made = deepcopy(module, memo)
    except Exception as error:
        raise InputError(f"model: cannot be copied, which training needs ({with_type(error, 120)})") from error
    originals = {id(part) for part in (*module.modules(), *(module.parameters() if with_parameters else ()))}
    for reached, place in HiddenState(made).references.items():
        if reached in originals:
            raise InputError(
                f"model: a copy of it still uses the original through {shortened(place, 80)!r}, which would not be "
                "trained; take layers from `self` in forward or a method, not from a lambda, closure or hook"
            )
    return made


def _refuse_gradient_hooks(module: nn.Module) -> None:
    """Raise InputError if a parameter has a hook: training takes gradients of a vector, which has no hooks."""
    for name, p in module.named_parameters():
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            raise InputError(f"model: parameter {name!r} has a hook on its gradient, which training would not call; "
                             "remove it; client.max_norm bounds the direction of a step")  # fmt: skip


def _refuse_shared_memory(module: nn.Module) -> None:
    """Raise InputError if a trained parameter shares memory with another tensor, or among its own elements."""
    last, end = ("", False), 0
    for start, length, name, trained, least in sorted(_places(module)):
        if trained and length < least:
            raise InputError(f"model: numbers of parameter {name!r} share memory, as after expand; add .clone()")
        if start < end and (trained or last[1]):
            raise InputError(f"model: {last[0]!r} and {name!r} share memory, so that training one would change the "
                             "other; make them one nn.Parameter, or clone one of them")  # fmt: skip
        if start + length > end:
            last, end = (name, trained), start + length


def _places(module: nn.Module) -> Iterator[tuple[int, int, str, bool, int]]:
    """Yield for each tensor: address, extent in bytes, name, whether it is trained, bytes of its numbers."""
    seen = set[int]()
    for prefix, layer in module.named_modules():
        for name, x in chain(layer._parameters.items(), layer._buffers.items(), vars(layer).items()):
            if isinstance(x, Tensor) and id(x) not in seen and x.is_leaf and _has_memory(x):
                seen.add(id(x))
                length = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
                size = x.element_size()
                yield x.data_ptr(), length * size, f"{prefix}.{name}".lstrip("."), x.requires_grad, x.numel() * size


def _has_memory(x: Tensor) -> bool:
    is_lazy = isinstance(x, nn.UninitializedParameter | nn.UninitializedBuffer)
    return not is_lazy and x.layout is torch.strided and not x.is_meta and x.numel() > 0


class OtherParameters:
    """Calls a module with other tensors in place of some of its parameters.

    It does what `torch.func.functional_call` does, in a tenth of the time, and leaves every layer with its own
    parameters, also one that is registered twice.
    """

    def __init__(self, module: nn.Module, names: Iterable[str]) -> None:
        """Prepare calls with other values of the parameters `names`; parameters that are tied change together."""
        named = dict(module.named_parameters())
        index = {id(named[name]): i for i, name in enumerate(names)}
        self._module = module
        self._places = [(layer._parameters, key, index[id(p)], p) for layer in module.modules()
                        for key, p in layer._parameters.items() if id(p) in index]  # fmt: skip
        self._computed = [(vars(layer), name, x) for layer in module.modules() for name, x in vars(layer).items()
                          if isinstance(x, Tensor)]  # fmt: skip

    def call(self, values: Sequence[Tensor], x: Tensor) -> Any:
        """Return the output of the module for `x` with `values` in place of the parameters."""
        try:
            for parameters, key, i, _ in self._places:
                parameters[key] = values[i]  # type: ignore[assignment]
            return self._module(x)
        finally:
            for parameters, key, _, own in self._places:
                parameters[key] = own

    def restore(self) -> None:
        """Put back tensors in plain attributes, such as a weight that a hook computed in a call."""
        for attributes, name, x in self._computed:
            attributes[name] = x


def recompute_weights(module: nn.Module) -> None:
    """Call torch's old hooks, which compute tensors such as a normalised weight from parameters."""
    with torch.no_grad():
        for layer in module.modules():
            for hook in layer._forward_pre_hooks.values():
                if type(hook).__module__.startswith("torch.nn.utils"):
                    hook(layer, ())


def start_training(module: nn.Module) -> None:
    """Put `module` into training mode; call `train()` of layers that override it.

    Layers that are in evaluation mode inside a module in training mode stay so. Raises InputError for a function
    assigned to `train` or `eval` of an object: such a function does not act on the copy that is trained.
    """
    for name, layer in module.named_modules():
        for method in {"train", "eval"} & set(vars(layer)):
            if isinstance(vars(layer)[method], FunctionType):
                raise InputError(f"model: {method}() of {name or 'the module'} is a function set on the object, which "
                                 "does not know the copy that is trained; override it in a class")  # fmt: skip
    if not module.training:
        module.train()
        return
    evaluated = [layer for layer in module.modules() if not layer.training]
    for layer in own_modes(module):
        if layer.training:
            layer.train()
    for layer in evaluated:
        layer.training = False


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put every layer into evaluation mode inside the block, and restore its mode afterwards.

    Raises InputError if a layer stays in training mode.
    """
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        for name, layer in module.named_modules():
            if layer.training:
                raise InputError(
                    f"model: {name or 'the module'} ({type(layer).__name__}) stays in training mode after eval(), so "
                    "that no two evaluations need agree; let its train() obey the mode"
                )
        yield
    finally:
        for layer, training in modes:
            layer.training = training
        if modes[0][1]:
            start_training(module)  # an overridden `train()` may change more than the mode


def own_modes(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost layers of `module` that override `train()`."""
    if "train" in vars(module) or type(module).train is not nn.Module.train:
        yield module
        return
    for child in module.children():
        yield from own_modes(child)


def scores_of(output: Any) -> Tensor:
    """Return the scores (b, outputs) in a model's `output`. Raises InputError if it has no scores."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif hasattr(output, "logits"):  # before tuples, because an output of Hugging Face may be both
        found = output.logits
    else:
        found = output[0] if isinstance(output, tuple | list) and output else None
    if not isinstance(found, Tensor):
        raise InputError(
            f"model: returns {_described(output)}; it has to return a tensor of scores, a tuple that begins with it, "
            "or an output with `logits`"
        )
    return found


def _described(output: Any) -> str:
    """Describe the type of an output and its parts."""
    name = f"{type(output).__name__}"
    if isinstance(output, Mapping):
        return shortened(printable(f"a {name} with {', '.join(map(repr, output)) or 'nothing in it'}"))
    if isinstance(output, tuple | list):
        return shortened(f"a {name} of {', '.join(type(part).__name__ for part in output) or 'nothing'}")
    return shortened(printable(f"a value of type {name}"))
