"""Group normalisation in place of batch normalisation."""

from __future__ import annotations

from torch import nn

from ...core.errors import InputError
from ...core.torch_module import copied

KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def to_group_norm(module: nn.Module, groups: int = 32) -> nn.Module:
    """Return a copy of `module` with a GroupNorm in place of every BatchNorm, with the same affine parameters.

    Each GroupNorm has the largest number of groups, at most `groups`, that divides its channels; the running statistics
    are dropped. Raises InputError, naming the layer, for a layer of another class derived from torch's BatchNorm, for a
    module without BatchNorm, and for `groups` below 1.
    """
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise InputError(f"groups must be a whole number of at least 1, got {groups!r}")
    made = copied(module)
    replaced: dict[int, nn.GroupNorm] = {}  # by the id of the layer, which may be registered twice
    for name, layer in made.named_modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and type(layer) in KINDS:
            replaced[id(layer)] = _group_norm(layer, groups)
        elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise InputError(f"model: layer {name or 'itself'!s} is {type(layer).__name__}, not a plain BatchNorm of "
                             "torch; replace it by hand")  # fmt: skip
    if not replaced:
        raise InputError(f"model: {type(module).__name__} has no BatchNorm to replace")
    for parent in list(made.modules()):
        for key, layer in parent._modules.items():
            if id(layer) in replaced:
                parent._modules[key] = replaced[id(layer)]
    return replaced.get(id(made), made)


def _group_norm(layer: nn.modules.batchnorm._NormBase, groups: int) -> nn.GroupNorm:
    """Return a GroupNorm of the channels, epsilon, affine parameters and mode of `layer`."""
    channels = layer.num_features
    number = next(n for n in range(min(groups, channels), 0, -1) if channels % n == 0)
    made = nn.GroupNorm(number, channels, layer.eps, affine=False).train(layer.training)
    if layer.affine:
        made.affine, made.weight, made.bias = True, layer.weight, layer.bias
    return made
