"""Models with adapters: which parameters are trained, in which rounds and in which precision; merged weights."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError, MissingPackageError, first_line, shortened
from ..core.method import Method
from ..core.torch_module import Space
from ..core.wrapper import ALWAYS, EVEN, ODD, Alternation
from .lora import AUTO, FROZEN, LoRA

SHOWN = 6  # layers in a message


def adapted(module: nn.Module, adapter: LoRA) -> nn.Module:
    """Add adapters, drawn from torch's random state, to `module` in place; freeze all other parameters but the head.

    Raises InputError, naming the field, for a target or a head that the module does not have.
    """
    if adapted_network(module) is not None:
        raise InputError("adapter: the model has adapters already; leave adapter out, or give the model without them")
    network = network_of(module)
    _check_targets(network, adapter)
    _check_weights(network, adapter)
    config = _peft().LoraConfig(
        r=adapter.r, lora_alpha=adapter.alpha, target_modules=list(adapter.targets), lora_dropout=adapter.dropout,
        modules_to_save=_head(network, adapter) or None,
    )  # fmt: skip
    with _quiet():
        try:
            made: nn.Module = _peft().get_peft_model(network, config)
        except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
            raise InputError(f"adapter: {shortened(first_line(error), 200)}") from error
    _draw_embeddings(made)
    if adapter.start is not None:
        from .peft_files import load_start  # here, because it imports safetensors

        load_start(made, adapter, adapter.start)
    if adapter.mode == "freeze_a":
        for name, p in made.named_parameters():
            if is_factor(name, "A"):
                p.requires_grad_(False)
    if network is module:
        return made.train()
    module.network = made
    return module.train()


def adapted_network(module: nn.Module) -> Any | None:
    """Return `module`, or its attribute `network`, whichever is a `PeftModel`; None if there are no adapters."""
    return next((one for one in (module, getattr(module, "network", None)) if hasattr(one, "peft_config")), None)


def kept_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a model file stores, by name.

    With adapters, these are the parameters of the head and all factors, including fixed factors.
    """
    every = dict(module.named_parameters())
    if adapted_network(module) is None:
        return every
    return {name: p for name, p in every.items() if p.requires_grad or is_factor(name, "A")}


def is_factor(name: str, factor: str) -> bool:
    """Tell whether the parameter called `name` belongs to the factor A or B, as `factor` says, of an adapter."""
    return f".lora_{factor}." in name or f".lora_embedding_{factor}." in name


def network_of(module: nn.Module) -> nn.Module:
    """Return the network of `transformers` inside a model of this package; return any other module unchanged.

    An exported adapter then has the layer names of the network that `transformers` loads.
    """
    inside = getattr(module, "network", None)
    return inside if isinstance(inside, nn.Module) and hasattr(inside, "base_model_prefix") else module


def _check_targets(network: nn.Module, adapter: LoRA) -> None:
    """Raise InputError for a target that no layer has; `peft` raises only if no target is found at all."""
    names = [name for name, _ in network.named_modules()]
    for target in adapter.targets:
        if not any(_means(target, name) for name in names):
            layers = dict.fromkeys(name for name, one in network.named_modules() if isinstance(one, nn.Linear))
            ends = list(dict.fromkeys(name.rpartition(".")[2] for name in layers))
            more = ", ..." if len(ends) > SHOWN else ""
            raise InputError(
                f"adapter.targets: no layer is called {shortened(target)!r}; the linear layers are called "
                f"{', '.join(ends[:SHOWN])}{more}"
            )


def _check_weights(network: nn.Module, adapter: LoRA) -> None:
    """Raise InputError for a target layer that shares its weight with another layer, or has max_norm or sparse set."""
    holders: dict[int, list[str]] = {}
    for name, p in network.named_parameters(remove_duplicate=False):
        holders.setdefault(id(p), []).append(name.rpartition(".")[0])
    for name, layer in network.named_modules():
        if not any(_means(target, name) for target in adapter.targets):
            continue
        for other in holders.get(id(getattr(layer, "weight", None)), ()):
            if other != name:
                raise InputError(f"adapter.targets: {name} has one weight with {other}, and an adapter would part "
                                 "them; leave it out, or give both layers weights of their own")  # fmt: skip
        for option in ("max_norm", "sparse"):
            if getattr(layer, option, None):
                raise InputError(f"adapter.targets: {name} has {option}, which no adapter goes with; leave {option} "
                                 "out of the layer, or the layer out of the targets")  # fmt: skip


def _draw_embeddings(network: Any) -> None:
    """Draw A and set B to zero in adapters of embeddings, as in those of linear layers; `peft` does the opposite.

    So a fixed A is not zero, and B can be trained before A. The column of the padding token, whose embedding is not
    trained, is zero in A.
    """
    for layer in network.modules():
        for name, A in getattr(layer, "lora_embedding_A", {}).items():
            with torch.no_grad():
                A.normal_()
                layer.lora_embedding_B[name].zero_()
                if layer.base_layer.padding_idx is not None:
                    A[:, layer.base_layer.padding_idx] = 0


def _means(target: str, name: str) -> bool:
    """Tell whether `target` matches the layer called `name`, by the rule of `peft`."""
    return name == target or name.endswith(f".{target}")


def _head(network: nn.Module, adapter: LoRA) -> list[str]:
    """Return the names of the layers that are trained without an adapter."""
    if adapter.head == FROZEN:
        return []
    if adapter.head != AUTO:
        if not any(_means(adapter.head, name) for name, _ in network.named_modules()):
            raise InputError(f"adapter.head: no layer is called {shortened(adapter.head)!r}; see `print(model)`")
        return [adapter.head]
    encoder = getattr(network, "base_model_prefix", None)
    if encoder and isinstance(getattr(network, encoder, None), nn.Module):
        return [
            name for name, one in network.named_children() if name != encoder and any(True for _ in one.parameters())
        ]
    linear = [name for name, one in network.named_modules() if isinstance(one, nn.Linear)]
    last = linear[-1:] if linear and linear[-1] else []
    return [name for name in last if not any(_means(target, name) for target in adapter.targets)]


def _peft() -> Any:
    """Import the `peft` package, here because it is optional and takes seconds to import."""
    try:
        import peft
    except ImportError as error:
        raise MissingPackageError("adapter needs the package peft: pip install fedflat[adapters]") from error
    return peft


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings inside the block: those of `peft` are about models that generate text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


PREFIX = "base_model.model."  # `peft` puts it before the names of the network's layers


@dataclass(frozen=True)
class Factors:
    """The names of an adapted layer and of the two factors of its adapter."""

    layer: str  # name in the network without adapters
    A: str  # (r, inputs)
    B: str  # (outputs, r)


def factors(module: nn.Module) -> list[Factors]:
    """Return the factors, trained or fixed, of each adapted layer, in the order of `module`; empty without adapters."""
    names = [name for name, _ in module.named_parameters() if is_factor(name, "A")]
    layers = [A.partition(".lora_")[0].partition(PREFIX)[2] for A in names]
    return [Factors(layer, A, re.sub(r"(\.lora_(?:embedding_)?)A\.", r"\1B.", A))
            for layer, A in zip(layers, names, strict=True)]  # fmt: skip


def merged(module: nn.Module, space: Space, w: Tensor) -> nn.Module:
    """Return a copy of `module` with the trained parameters `w` (d,), and with each adapter merged into its layer.

    An adapted layer gets the weight W + alpha / r B A. Only these weights are trainable. All parameters get
    the precision of `w`, so that a base of lower precision does not round B A away.
    """
    made = deepcopy(module).to(w.dtype)
    space.write(made, w)
    network, layers = adapted_network(made), [one.layer for one in factors(made)]
    plain: Any = network.merge_and_unload()  # type: ignore[union-attr]  # callers have checked that there are adapters
    for p in (*made.parameters(), *plain.parameters()):
        p.requires_grad_(False)
    for layer in layers:
        plain.get_submodule(layer).weight.requires_grad_()
    if network is made:
        return plain  # type: ignore[no-any-return]
    made.network = plain
    return made


def base_shapes(module: nn.Module) -> tuple[tuple[int, ...], ...] | None:
    """Return the shapes of the parameters that full fine-tuning of the base network would train.

    Return None without adapters.
    """
    if adapted_network(module) is None:
        return None
    added = (".lora_", ".modules_to_save.")  # `peft` keeps a head's original beside the trained copy
    return tuple(tuple(p.shape) for name, p in module.named_parameters() if not any(part in name for part in added))


def with_bfloat16_base(module: nn.Module) -> nn.Module:
    """Convert the frozen parameters of `module` to bfloat16, in place, except a fixed A; return `module`.

    Every layer gets its inputs in the precision of its own parameters, and the scores have the precision of the
    trained parameters.
    """
    trained = next(p.dtype for p in module.parameters() if p.requires_grad)
    for name, p in module.named_parameters():
        if not p.requires_grad and not is_factor(name, "A") and p.is_floating_point():
            p.data = p.data.bfloat16()
    for layer in module.modules():
        if any(p.is_floating_point() for p in layer.parameters(recurse=False)):
            layer.register_forward_pre_hook(_in_own_precision, with_kwargs=True)
    module.register_forward_hook(_Scores(trained))
    return module


def _in_own_precision(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Convert the arguments of a layer to the precision of its parameters."""
    dtype = next(p.dtype for p in layer.parameters(recurse=False) if p.is_floating_point())
    return tuple(_cast(x, dtype) for x in args), {name: _cast(x, dtype) for name, x in kwargs.items()}


class _Scores:
    """A hook that converts the scores of a model to the precision `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Convert the output, or the first element of a tuple or list."""
        if isinstance(output, tuple | list):
            return (_cast(output[0], self.dtype), *output[1:])
        return _cast(output, self.dtype)


def _cast(x: Any, dtype: torch.dtype) -> Any:
    """Convert `x` to another precision if it is a tensor of real numbers."""
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x


def by_turns(method: Method, adapter: LoRA | None, space: Space, device: torch.device) -> Method:
    """Return `method`; in mode `alternate`, wrapped to train B in even rounds, A in odd rounds, and the head in all.

    B comes first, because the gradient of A is zero while B is zero. `device` is the model's. Raises InputError for a
    method that cannot alternate.
    """
    if adapter is None or adapter.mode != "alternate":
        return method
    when = torch.full((space.d,), ALWAYS, dtype=torch.int8, device=device)
    for name, where in space.layers():
        if is_factor(name, "A") or is_factor(name, "B"):
            when[where] = ODD if is_factor(name, "A") else EVEN
    return Alternation.of(method, when)
