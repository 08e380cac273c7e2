"""Compression of clients' messages after local training, and the settings that do not go with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..core.compressed import Compressed
from ..core.compression import Compression
from ..core.errors import InputError
from ..core.local import LocalResult
from ..core.method import Method
from ..core.partial_model import sent_width
from ..core.wrapper import Alternation, label_of, wrapper_in
from ..data.types import Index
from .randomness import Purpose, generator


def with_compression(method: Method, options: Compression | None, d: int) -> Method:
    """Return `method`, wrapped if clients, which train `d` parameters, compress what they send.

    Raises InputError for training in which no client sends, and for adapters in turns.
    """
    if options is None:
        return method
    if not isinstance(options, Compression):
        raise InputError(f"compress must be a Compression such as Compression(share=0.1), got {options!r}")
    if method.training != "federated":
        raise InputError(f"compress: {label_of(method)} is {method.training} training, in which no client sends")
    if wrapper_in(method, Alternation) is not None:
        raise InputError("compress does not go with adapter.mode = 'alternate': what a client did not send of one "
                         "factor would be sent in a round that moves the other; use both or freeze_a")  # fmt: skip
    return Compressed.of(method, options, sent_width(method, d))


def check_compressed(method: Method, is_private: bool, is_attacked: bool) -> None:
    """Raise InputError if clients compress what they send, and the run has privacy or attackers."""
    if wrapper_in(method, Compressed) is None:
        return
    if is_private:
        raise InputError("compress does not go with privacy, whose noise is on every number of the mean; leave one out")
    if is_attacked:
        raise InputError("compress does not go with attack, whose messages are not compressed; leave one out")


def compress(result: LocalResult, method: Method, seed: int, t: int, clients: Index) -> LocalResult:
    """Return the result of `clients` (c,) in round `t` with the messages that they send, compressed if the run says so.

    The random numbers depend on `seed`, `t` and the client, so they are the same wherever the client is trained.
    """
    found = wrapper_in(method, Compressed)
    if found is None:
        return result
    draws = [generator(seed, Purpose.COMPRESSION, t, int(client)) for client in clients]

    def uniform(like: Tensor) -> Tensor:
        drawn = torch.from_numpy(np.stack([draw.random(like.shape[-1]) for draw in draws]))
        return drawn.to(like.dtype).to(like.device)  # some devices have no float64

    up, kept = found.compress(result.up, result.client, uniform)
    return replace(result, up=up, client=kept)
