"""Evaluation and prediction by the server's model or, if clients train alone, by every client's own model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.errors import InputError, printable, shortened
from ..core.model_check import check_tokens
from ..core.objective import Objective
from ..core.torch_module import evaluating, scores_of
from ..data.federated import FederatedData, Holdings
from ..data.sample_kind import Encoder, SampleKind
from ..data.types import Index, Members
from ..metrics.accuracy import (
    Evaluation,
    client_accuracies,
    own_test_accuracies,
    per_client,
    samples_at_once,
    score,
    score_samples,
    score_test_samples,
    spread,
    validation_accuracies,
)
from ..metrics.by_client import MOST_CLIENTS, ClientScores, Correct, Recognised, client_scores, with_test_samples
from ..metrics.classification import Collector
from .ranks import Ranks

OWN_TEST = "client_test_accuracy"  # of the server's model on each client's own test samples
PERSONAL_TEST = "personal_test_accuracy"  # of each client's own model on them
WITHOUT_VALIDATION = "data.validation: no client that takes part holds two different samples"
EVALUATED = (
    "test_",
    "validation_",
    "held_out_",
    "client_test_",
    "personal_",
)  # beginnings of the names of a round's scores


@dataclass(frozen=True)
class ServerModel:
    """Evaluates the server's model; if the method trains a different model, tests the trained model, too."""

    objective: Objective
    data: FederatedData
    held_out: Index  # the clients that never take part
    w: Callable[[], Tensor]  # puts the server's running statistics into the objective and returns the model (d,)
    metrics: tuple[str, ...] = ()  # further ones, on the test samples
    iterate: Callable[[], Tensor] | None = None  # returns the trained model (d,); None if `w` is the trained model

    def round_scores(self) -> dict[str, float]:
        """Return the metrics of a round: on test samples, all and by client, validation samples, held-out clients."""
        w = self.w()
        values = self._tested(w)
        if self.iterate is not None:
            last = self.iterate()
            scores = values if torch.equal(last, w) else self._tested(last)
            values |= {f"{name}_iterate": value for name, value in scores.items()}
        if self.data.validation is not None:
            values["validation_accuracy"] = float(validation_accuracies(self.objective, w, self.data).mean())
        if len(self.held_out):
            own = client_accuracies(self.objective, w, self.data, self.held_out)
            values["held_out_accuracy"] = float(own.mean())
        return values

    def final_scores(self) -> dict[str, float]:
        """Return the metrics at the end of a run: clients' accuracies on their own samples, and training loss."""
        w, values = self.w(), dict[str, float]()
        if self.data.own_test is not None and self.data.form.has_accuracy:
            found = score(self.objective, w, *tests_of(self.data), self.data.preparation)
            values |= spread_of(OWN_TEST, own_test_accuracies(found, self.data))
        if self.data.validation is not None:
            values |= spread_of("validation_accuracy", validation_accuracies(self.objective, w, self.data))
        train = score(self.objective, w, self.data.x, self.data.y, self.data.preparation)
        if self.data.form.has_accuracy:
            values |= spread_of("client_accuracy", per_client(train, self.data))
        held = torch.from_numpy(self.data.held(slice(None)))  # samples that no client holds are left out
        loss = float(train.loss.double().cpu()[held].mean())
        return values | test_samples(self.data) | {"train_loss": loss}

    def client_scores(self) -> ClientScores | None:
        """Return the final scores of each client; None if there are none, or too many clients."""
        correct = self.recognised()
        return None if correct is None else client_scores(self.data, correct, None, "recall" in self.metrics)

    def recognised(self) -> Correct | None:
        """Return which test samples the model recognises, by client; None without own test samples to report."""
        clients = with_test_samples(self.data, np.arange(self.data.clients))
        if not 0 < len(clients) <= MOST_CLIENTS or self.data.own_test is None or not self.data.form.has_accuracy:
            return None
        found = score(self.objective, self.w(), *tests_of(self.data), self.data.preparation).correct.cpu().numpy()
        parts = self.data.own_test.parts()
        return {client: found[parts[client]] for client in clients}

    def _tested(self, w: Tensor) -> dict[str, float]:
        """Return the metrics of the model `w` (d,) on the test set, all of it and as a mean over clients."""
        if self.data.test is None:
            return {}
        found = test_evaluation(self.objective, w, self.data, self.metrics)
        values = {f"test_{name}": value for name, value in found.numbers.items()}
        if self.data.own_test is not None and self.data.form.has_accuracy:
            values[OWN_TEST] = float(own_test_accuracies(found, self.data).mean())
        return values


@dataclass(frozen=True)
class OwnModels:
    """Evaluates a model for each client on the test set and on the client's own samples.

    The test metrics of a round are means over the clients. A client that never takes part has no model.
    """

    objective: Objective
    data: FederatedData
    clients: Index  # those that may take part
    w: Callable[[int], Tensor]  # returns the model (d,) of a client
    metrics: tuple[str, ...] = ()  # further ones, on the test samples

    def round_scores(self) -> dict[str, float]:
        """Return the same metrics as `ServerModel` does."""
        rows = [tested(self.objective, self.w(client), self.data, self.metrics) for client in self.clients]
        values = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        if correct := self._recognised():
            values[PERSONAL_TEST] = float(_shares(correct).mean())
        if self.data.validation is not None:
            values["validation_accuracy"] = float(self._accuracies(self.data.validation).mean())
        return values

    def final_scores(self) -> dict[str, float]:
        """Return the same metrics as `ServerModel` does."""
        values: dict[str, float] = {}
        if correct := self._recognised():
            values |= spread_of(PERSONAL_TEST, _shares(correct))
        if self.data.validation is not None:
            values |= spread_of("validation_accuracy", self._accuracies(self.data.validation))
        train = self._evaluations(Holdings(self.data.members, self.data.offsets))
        if self.data.form.has_accuracy:
            values |= spread_of("client_accuracy", np.array([score.accuracy for score in train]))
        loss = float(torch.cat([score.loss.double() for score in train]).mean())
        return values | test_samples(self.data) | {"train_loss": loss}

    def client_scores(self) -> ClientScores | None:
        """Return the final scores of each client; None if there are none, or too many clients."""
        correct = self._recognised()
        if not 0 < len(correct) <= MOST_CLIENTS:
            return None
        return client_scores(self.data, None, correct, "recall" in self.metrics)

    def _recognised(self) -> Correct:
        """Return which of its test samples each client's model recognises, for clients with some."""
        if self.data.own_test is None or not self.data.form.has_accuracy:
            return {}
        parts, clients = self.data.own_test.parts(), with_test_samples(self.data, self.clients)
        return {client: recognised_by(self.objective, self.w(client), self.data, parts[client]) for client in clients}

    def _accuracies(self, holdings: Holdings) -> NDArray[np.float64]:
        return np.array([score.accuracy for score in self._evaluations(holdings)])

    def _evaluations(self, holdings: Holdings) -> list[Evaluation]:
        """Evaluate each client's model on the client's samples in `holdings`; clients without samples are left out."""
        parts = holdings.parts()
        with_samples = [i for i in self.clients if len(parts[i])]
        if not with_samples:
            raise InputError(WITHOUT_VALIDATION)
        return [score_samples(self.objective, self.w(i), self.data, parts[i]) for i in with_samples]


@dataclass(frozen=True)
class PersonalModels:
    """Evaluates the server's model, and beside it each client's own model, of which a part stays with the client.

    A client's own model is the part that the server sends, with what stays with the client; a client that has not
    trained yet has the initial values of that part. Validation samples are for the clients' own models.
    """

    server: ServerModel
    clients: Index  # those that may take part
    w: Callable[[int], Tensor]  # puts a client's running statistics into the objective and returns its model (d,)
    ranks: Ranks

    def round_scores(self) -> dict[str, float]:
        """Return the metrics of `ServerModel`, and the mean of the clients' scores. All ranks must call this."""
        data, name = self.server.data, self._score
        values = {} if self.ranks.index else self.server.round_scores()
        values[f"personal_{name}"] = float(self._scores(Holdings(data.members, data.offsets)).mean())
        if correct := self._recognised():
            values[PERSONAL_TEST] = float(_shares(correct).mean())
        if data.validation is not None:
            values["validation_accuracy"] = float(self._scores(data.validation).mean())
        return values

    def final_scores(self) -> dict[str, float]:
        """Return the metrics of `ServerModel`, and the spread of the clients' scores. All ranks must call this."""
        data, name = self.server.data, self._score
        values = self.server.final_scores()
        values |= spread_of(f"personal_{name}", self._scores(Holdings(data.members, data.offsets)))
        if correct := self._recognised():
            values |= spread_of(PERSONAL_TEST, _shares(correct))
        if data.validation is not None:
            values |= spread_of("validation_accuracy", self._scores(data.validation))
        return values

    def client_scores(self) -> ClientScores | None:
        """Return the final scores of each client; None if there are none, or too many. All ranks must call this."""
        own, of_server = self._recognised(), self.server.recognised()
        if not own or of_server is None:
            return None
        of_server = {client: of_server[client] for client in own}
        return client_scores(self.server.data, of_server, own, "recall" in self.server.metrics)

    def _recognised(self) -> Correct:
        """Return which of its test samples each client's own model recognises, for clients with some."""
        data, objective = self.server.data, self.server.objective
        if data.own_test is None or not data.form.has_accuracy:
            return {}
        parts, those = data.own_test.parts(), np.array(with_test_samples(data, self.clients), dtype=np.int64)
        found = torch.zeros(sum(len(parts[client]) for client in those), dtype=torch.float64)
        ends = np.cumsum([0, *(len(parts[client]) for client in those)])
        for place in np.flatnonzero(self.ranks.owned(those)):
            client = int(those[place])
            correct = recognised_by(objective, self.w(client), data, parts[client])
            found[ends[place] : ends[place + 1]] = torch.from_numpy(correct)
        whole = self.ranks.summed(found).numpy()
        return {int(client): whole[ends[i] : ends[i + 1]] for i, client in enumerate(those)}

    @property
    def _score(self) -> str:
        """The name of a client's score."""
        return "accuracy" if self.server.data.form.has_accuracy else "rmse"

    def _scores(self, holdings: Holdings) -> NDArray[np.float64]:
        """Return the score of each client's own model on its samples in `holdings`, for clients with some."""
        objective, data, parts = self.server.objective, self.server.data, holdings.parts()
        those = np.array([i for i in self.clients if len(parts[i])], dtype=np.int64)
        if not len(those):
            raise InputError(WITHOUT_VALIDATION)
        found = torch.zeros(len(those), dtype=torch.float64)
        for place in np.flatnonzero(self.ranks.owned(those)):
            client = those[place]
            scores = score_samples(objective, self.w(int(client)), data, parts[client])
            found[place] = scores.numbers[self._score]
        return self.ranks.summed(found).numpy()


Evaluated = ServerModel | OwnModels | PersonalModels  # evaluates the current state of a simulation


def tested(objective: Objective, w: Tensor, data: FederatedData, metrics: Sequence[str]) -> dict[str, float]:
    """Return the metrics of the model `w` (d,) on the test set, by name; empty without a test set.

    metrics: names of further ones, see `metrics.classification`.
    """
    if data.test is None:
        return {}
    numbers = test_evaluation(objective, w, data, metrics).numbers
    return {f"test_{name}": value for name, value in numbers.items()}


def test_evaluation(objective: Objective, w: Tensor, data: FederatedData, metrics: Sequence[str]) -> Evaluation:
    """Evaluate the model `w` (d,) on all test samples. Raises InputError without a test set."""
    collector = Collector(metrics, data.class_names or list(map(str, range(data.classes))))
    return score(objective, w, *tests_of(data), data.preparation, collector)


def tests_of(data: FederatedData) -> tuple[Tensor, Tensor]:
    """Return the test samples. Raises InputError without a test set."""
    if data.test is None:
        raise InputError("data has no test set")
    return data.test


def recognised_by(objective: Objective, w: Tensor, data: FederatedData, samples: Members) -> Recognised:
    """Return which of the test samples with the indices `samples` (n,) the model `w` (d,) recognises, (n,)."""
    found: Recognised = score_test_samples(objective, w, data, samples).correct.cpu().numpy()
    return found


def _shares(correct: Correct) -> NDArray[np.float64]:
    """Return the share of its test samples that is recognised at each client, (clients,)."""
    return np.array([some.mean() for some in correct.values()])


def test_samples(data: FederatedData) -> dict[str, float]:
    """Return the number of test samples under the key `test_samples`; empty without a test set."""
    return {} if data.test is None else {"test_samples": len(data.test[1])}


def spread_of(name: str, accuracies: NDArray[np.float64]) -> dict[str, float]:
    """Return `NAME_mean`, `NAME_std`, `NAME_worst` and `NAME_best` of the clients' accuracies (clients,)."""
    return {f"{name}_{which}": value for which, value in spread(accuracies).items()}


def predict(
    module: nn.Module, kind: SampleKind, x: Any, classes: bool = False, encoder: Encoder | None = None
) -> Tensor:
    """Compute the scores (n, ...) of samples `x`, or with `classes` their classes by `classes_of`, on the CPU.

    The scores are computed in batches, on the module's device, in evaluation mode and without gradients. Raises
    InputError for samples of another kind than in training, see `SampleKind.stored`, and for scores that are NaN or
    infinite.
    """
    stored = kind.stored(x, encoder)
    check_tokens(module, *([] if stored.is_floating_point() else [stored]))
    parameters = list(module.parameters())
    first = next((p for p in parameters if p.requires_grad), parameters[0])
    shape = kind.score_shape
    parts = [torch.empty(0, *shape, dtype=first.dtype)] if not len(stored) else []
    with torch.inference_mode(), evaluating(module):
        for batch in torch.split(stored, samples_at_once(stored, prod(shape))) if len(stored) else ():
            parts.append(_scores(module, kind.prepared(batch.to(first.device), first.dtype), shape).cpu())
    scores = torch.cat(parts).clone()
    return classes_of(scores, kind) if classes else scores


def classes_of(scores: Tensor, kind: SampleKind) -> Tensor:
    """Return the class with the largest score, int64 (n,), or (n, *positions) if each position has one.

    In a multi-label task it is 0 or 1 for each label, int64 (n, k). Raises InputError in regression.
    """
    if kind.task == "regression":
        raise InputError("predict: a regression has no classes; its scores are the numbers that it predicts")
    return scores.argmax(kind.form.class_axis) if kind.form.are_classes else (scores > 0).long()


def _scores(module: nn.Module, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    try:
        scores = scores_of(module(x))
    except (RuntimeError, LookupError) as error:
        reason = shortened(printable((str(error).splitlines() or [type(error).__name__])[0]))
        raise InputError(f"predict: the model cannot take these samples: {reason}") from error
    if scores.shape != (len(x), *shape) or not torch.isfinite(scores).all():
        raise InputError("predict: the model gives scores that are NaN or infinite, or not one row for each sample")
    return scores
