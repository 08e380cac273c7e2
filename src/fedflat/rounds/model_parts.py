"""Parts of a model by name: parameters and buffers that clients do not send, and layers that are perturbed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise

import torch
from torch import nn

from ..adapters import LoRA, by_turns
from ..core.ascent import Perturbed
from ..core.compression import Compression
from ..core.errors import InputError
from ..core.method import Context, Method
from ..core.objective import Objective
from ..core.own_model import OwnStart, own_field
from ..core.partial_model import Division, ModelDivision, PartialModel, partial_model
from ..core.perturbation import Perturbation
from ..core.registry import suggestion
from ..core.running_statistics import Buffers
from ..core.wrapper import Alternation, label_of
from .compression import check_compressed, with_compression
from .guard import Guard
from .local_training import Client, check_perturbation, with_kept_state

log = logging.getLogger(__name__)


def as_patterns(keep: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns of a setting `keep`. Raises InputError unless it is a list of texts."""
    if isinstance(keep, str) or not all(isinstance(one, str) and one for one in keep):
        raise InputError(f"keep must be a list of patterns of names such as ['head.*'], got {keep!r}")
    return tuple(keep)


def method_of_run(
    method: Method,
    objective: Objective,
    client: Client,
    adapter: LoRA | None = None,
    buffers: Buffers | None = None,
    keep: Sequence[str] = (),
    perturbation: Perturbation | None = None,
    compression: Compression | None = None,
) -> Method:
    """Return `method` in the wrappers of a run.

    They are, from the inside: options of its perturbation, training in turns or in parts, own models that start,
    compressed messages, and a kept optimiser.

    Raises InputError, naming the setting, for one that does not go with the method or the model.
    """
    w = objective.space.flatten(objective.module)
    keep = with_head(method, keep, objective)
    _check_own_models(method, client, buffers, keep)
    _check_head(method, client)
    method = with_perturbation(method, objective, client, keep, perturbation)
    method = by_turns(method, adapter, objective.space, w.device)
    method = OwnStart.of(with_parts(method, objective, buffers, keep), w)
    method = with_compression(method, compression, len(w))
    method = with_kept_state(method, client, len(w))
    method = method.on_model(tuple(tuple(shape) for shape in objective.space.shapes.values()))
    method.check_model()
    return method


def with_perturbation(
    method: Method, objective: Objective, client: Client, keep: Sequence[str], options: Perturbation | None
) -> Method:
    """Return `method`, wrapped if its perturbation has options.

    keep: patterns of the parameters that stay with the clients, which a method does not perturb. Raises InputError,
    naming the field, for an option that does not go with the method, and for a pattern of layers without a match.
    """
    check_perturbation(method, client, options)
    if options is None or not options.changed:
        return method
    sizes = dict(zip(objective.space.shapes, objective.space.sizes, strict=True))
    sent = {name: size for name, size in sizes.items() if not _matches(name, keep)}
    _check_patterns("perturbation.layers", options.layers, list(sent), "parameter that is trained and sent")
    w = objective.space.flatten(objective.module)
    marks = [w.new_full((size,), _matches(name, options.layers), dtype=torch.bool) for name, size in sent.items()]
    return Perturbed.of(method, options, client.lr, torch.cat(marks) if options.layers else None)


def with_head(method: Method, keep: Sequence[str], objective: Objective) -> tuple[str, ...]:
    """Return `keep`; if it is empty and clients of `method` keep a head, the name of the model's last layer.

    Raises InputError if the model has no other layer.
    """
    if keep or not method.keeps_head:
        return tuple(keep)
    names = list(objective.space.shapes)
    layers = [name.rpartition(".")[0] for name in names]
    if len(set(layers)) == 1:
        raise InputError(f"{label_of(method)}: the model has one layer, which would be the head, and no body that "
                         "clients could send; take another model, or name the head in keep")  # fmt: skip
    head = layers[-1] or names[-1]
    log.info(
        "%s: keep is empty, and the head that stays with the clients is the last layer, %s", label_of(method), head
    )
    return (head,)


def with_parts(method: Method, objective: Objective, buffers: Buffers | None, keep: Sequence[str]) -> Method:
    """Return `method`, wrapped if parts of the model stay with the clients or running statistics are averaged.

    keep: patterns of the names of parameters and buffers that stay, such as "head.*"; a pattern that names a layer
    stands for everything in it. Raises InputError, naming the setting, for a pattern without a match, if nothing would
    be sent, and for a method that does not go with the setting.
    """
    if not keep and not objective.statistics.width:
        return method
    _check_training(method, buffers, keep)
    shapes = objective.space.shapes
    _check_patterns("keep", keep, _names_in(objective.module), "trainable parameter and no buffer")
    stays = [_matches(name, keep) for name in shapes]
    if all(stays):
        raise InputError(f"keep = {list(keep)} names every trainable parameter, so that nothing would be sent")
    parameters = Division.of(objective.space.sizes, stays)
    sizes = objective.statistics.sizes
    own = [buffers == "local" or _matches(name, keep) for name in sizes]
    w = objective.space.flatten(objective.module)
    initial = objective.statistics.flatten()
    sent = [size for size, stay in zip(objective.space.sizes, stays, strict=True) if not stay]
    layers = tuple(slice(*ends) for ends in pairwise(accumulate(sent, initial=0)))
    parts = ModelDivision(parameters, Division.of(list(sizes.values()), own), parameters.split(w)[1],
                          w.new_empty(0) if initial is None else initial, layers, tuple(stays))  # fmt: skip
    return PartialModel.of(method, parts)


def check_parts(method: Method, guard: Guard | None, is_private: bool, is_attacked: bool = False) -> None:
    """Raise InputError if a guard, privacy or an attack does not go with what clients send.

    That is, if running statistics are sent and a guard bounds norms or the run has privacy, or if messages are
    compressed and the run has privacy or attackers.
    """
    check_compressed(method, is_private, is_attacked)
    part = partial_model(method)
    if part is None or not part.averaged_width:
        return
    instead = "set buffers = 'local' or 'frozen'"
    if guard is not None and guard.bounds_norms:
        raise InputError("guard: a norm in parameter units does not bound running statistics, which buffers = "
                         f"'averaged' sends; {instead}, or bound max_weight alone")  # fmt: skip
    if is_private:
        raise InputError("privacy: noise on running statistics, which buffers = 'averaged' sends, would make variances "
                         f"negative; {instead}")  # fmt: skip


def _check_own_models(method: Method, client: Client, buffers: Buffers | None, keep: Sequence[str]) -> None:
    """Raise InputError, naming the setting, for one that does not go with own models beside the received one."""
    if own_field(method) is None:
        return
    label = label_of(method)
    if keep:
        raise InputError(f"keep does not go with {label}, whose clients keep a whole model of their own")
    if buffers in ("averaged", "local"):
        raise InputError(f"buffers = {buffers!r} does not go with {label}: a client's own model would need running "
                         "statistics of its own; use 'frozen', or a model without them")  # fmt: skip
    if client.optimizer_state == "kept":
        raise InputError(f"client.optimizer_state = 'kept' does not go with {label}, whose clients train two models; "
                         "use 'zero'")  # fmt: skip


def _check_head(method: Method, client: Client) -> None:
    """Raise InputError for AdamW, which counts the updates of all parameters as one, where parts move in turns.

    Warn if neither the first nor the last local step of any client moves what is sent.
    """
    if not method.keeps_head:
        return
    if client.optimizer == "adamw":
        raise InputError(f"client.optimizer = 'adamw' does not go with {label_of(method)}, whose clients move head and "
                         "body in turns, each with its own number of updates; use 'sgd'")  # fmt: skip
    steps = client.epochs or 1 if client.batch_size is None else None  # of clients with any number of samples
    steps = steps if client.steps is None else client.steps
    if steps is not None and not any(_moves_sent_part(method, k) for k in (0, steps - 1)):
        log.warning("%s: with %d local steps in a round, none moves the body, so that nothing is learned together; "
                    "raise client.steps or client.epochs", label_of(method), steps)  # fmt: skip


def _moves_sent_part(method: Method, k: int) -> bool:
    """Tell whether local step `k` moves the parameters that are sent."""
    parts = method.moving_parts(Context(0, 1.0, 1.0, steps=k))
    return parts is None or bool(parts[0])


def _check_training(method: Method, buffers: Buffers | None, keep: Sequence[str]) -> None:
    """Raise InputError for parts that stay in training that is not federated."""
    label, training = label_of(method), method.training
    if keep and isinstance(method, Alternation):
        raise InputError(
            "keep does not go with adapter.mode = 'alternate', which sends all factors; use both or freeze_a"
        )
    if keep and training != "federated":
        raise InputError(f"keep does not go with {label}: in {training} training no client sends a part of its model")
    if training == "local" and buffers == "averaged":
        raise InputError(f"buffers = 'averaged' does not go with {label}, whose clients send nothing; use 'local'")
    if training == "centralised" and buffers == "local":
        raise InputError(f"buffers = 'local' does not go with {label}, which trains one model; use 'averaged'")


def _names_in(module: nn.Module) -> list[str]:
    """Return the names of the trainable parameters and of the buffers."""
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    return names + [name for name, _ in module.named_buffers()]


def _check_patterns(setting: str, patterns: Sequence[str], names: Sequence[str], kind: str) -> None:
    """Raise InputError for a pattern of a `setting` that matches none of the `names`, each of which names a `kind`."""
    for pattern in patterns:
        if not any(_matches(name, [pattern]) for name in names):
            raise InputError(f"{setting} = {pattern!r} matches no {kind}; "
                             f"some are {', '.join(names[:3])}{suggestion(pattern, names)}")  # fmt: skip


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a pattern matches the name, or the name of a layer that it is in."""
    return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for pattern in patterns)
