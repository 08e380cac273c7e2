"""Scores of each client, beside their mean: accuracy on its own test samples, and recall of each class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..data.federated import FederatedData
from ..data.types import Index

MOST_CLIENTS = 1000  # with test samples of their own; a run with more has only their mean and spread

Recognised = NDArray[np.bool_] | NDArray[np.float64]  # (n,) whether samples are, or which share of their positions is
Correct = Mapping[int, Recognised]  # by client, of its test samples


@dataclass(frozen=True)
class ClientScores:
    """The final scores of the clients that have test samples of their own; lists have one entry for each of them."""

    client: list[int]  # the client's number
    name: list[str]  # empty if clients have no names
    samples: list[int]  # test samples
    accuracy: list[float] = field(default_factory=list)  # of the server's model; empty if clients train alone
    personal_accuracy: list[float] = field(default_factory=list)  # of the client's own model; empty without own models
    # By the name of a class, of the client's own model or else of the server's; None for a class without test samples.
    recall: dict[str, list[float | None]] = field(default_factory=dict)

    def worst_tenth(self) -> list[str]:
        """Return the worst tenth of the clients, rounded up, the worst one first: their names, or else their numbers.

        They are the worst by the accuracy of their own models if they have some.
        """
        scores = self.personal_accuracy or self.accuracy
        order = np.argsort(scores, kind="stable")[: -(-len(scores) // 10)]
        return [self.name[i] if self.name else str(self.client[i]) for i in order]


def client_scores(data: FederatedData, server: Correct | None, own: Correct | None, with_recall: bool) -> ClientScores:
    """Return the scores of clients from what the server's model and their own models recognise; one may be None."""
    shown = own if own is not None else server
    assert data.own_test is not None  # noqa: S101 (for the type checker: without it nothing is recognised)
    assert data.test is not None  # noqa: S101
    assert shown is not None  # noqa: S101
    clients, parts, y = list(shown), data.own_test.parts(), data.test[1].cpu().numpy()
    labels = {client: y[parts[client]] for client in clients}
    return ClientScores(
        client=[int(client) for client in clients],
        name=[data.client_names[client] for client in clients] if data.client_names else [],
        samples=[len(parts[client]) for client in clients],
        accuracy=[] if server is None else [float(server[client].mean()) for client in clients],
        personal_accuracy=[] if own is None else [float(own[client].mean()) for client in clients],
        recall=_recall(data, labels, shown) if with_recall else {},
    )


def with_test_samples(data: FederatedData, clients: Index) -> list[int]:
    """Return those of `clients` that have test samples of their own."""
    if data.own_test is None:
        return []
    sizes = data.own_test.sizes
    return [int(client) for client in clients if sizes[client]]


def _recall(data: FederatedData, labels: Mapping[int, Index], correct: Correct) -> dict[str, list[float | None]]:
    """Return for each class the share of its test samples that are recognised at each client."""
    names = data.class_names or tuple(map(str, range(data.classes)))
    return {
        name: [float(correct[client][own == c].mean()) if (own == c).any() else None for client, own in labels.items()]
        for c, name in enumerate(names)
    }
