"""The features of the test samples before the last layer, and a map of them (t-SNE)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.objective import Objective
from ..data.federated import FederatedData
from ..data.preparation import to_device
from .accuracy import samples_at_once
from .flatness.surface import read_arrays, write_arrays

SAMPLES = 3000
PERPLEXITY = 30


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Test samples as points of a plane: samples with similar features of the model are near each other."""

    label: str  # of the method
    points: NDArray[np.float64]  # (n, 2); the axes, and distances between far points, have no meaning
    classes: NDArray[np.int64]  # (n,) the true class of each
    protocol: str

    @property
    def title(self) -> str:
        """A name that distinguishes this map from others."""
        return self.label

    def about(self) -> dict[str, Any]:
        """Return the label and the protocol, for JSON."""
        return {"label": self.label, "protocol": self.protocol}

    def save(self, path: Path) -> None:
        """Write to `path` (.npz), atomically: points and classes as arrays, the rest as a JSON text in `about`."""
        write_arrays(path, self.about(), points=self.points, classes=self.classes)

    @classmethod
    def load(cls, path: Path) -> FeatureMap:
        """Read what `save` wrote. Raises InputError, naming the file, if it is missing or damaged."""
        content = read_arrays(path, "points", "classes")
        about = content["about"]
        try:
            return cls(about["label"], content["points"], content["classes"], about["protocol"])
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is no map of features: {error}") from error


def feature_map(
    objective: Objective, w: Tensor, data: FederatedData, label: str = "model", samples: int = SAMPLES, seed: int = 0
) -> FeatureMap:
    """Compute the t-SNE map (van der Maaten and Hinton, 2008) of the penultimate features of the model `w` (d,).

    The map has at most `samples` test samples, evenly spaced. Perplexity is 30, and the points start from principal
    components. Raises InputError without a test set or a linear last layer.
    """
    from sklearn.manifold import TSNE  # here, because the import takes a second

    x, y = _test_samples(data, samples)
    features = penultimate_features(objective, w, data.preparation, x, data.classes).cpu().double().numpy()
    if not np.isfinite(features).all() or not features.std(axis=0).any():
        raise InputError("features cannot be mapped: they are not finite, or the same for every test sample")
    points = TSNE(perplexity=PERPLEXITY, init="pca", random_state=seed).fit_transform(features)
    protocol = (
        f"t-SNE, perplexity {PERPLEXITY}, from principal components, seed {seed}, of the {features.shape[1]} inputs "
        f"of the last linear layer, evaluation mode, for {len(y):,} evenly spaced test samples"
    )
    return FeatureMap(label, points.astype(float), y.cpu().numpy(), protocol)


def penultimate_features(
    objective: Objective, w: Tensor, prepare: Callable[[Tensor], Tensor], x: Tensor, classes: int
) -> Tensor:
    """Compute the input (n, features) of the last linear layer of the model `w` (d,) for stored samples `x`.

    x: (n, *shape). The model is in evaluation mode; `prepare` turns stored samples into the model's input. Raises
    InputError if the outputs of the last linear layer are not the scores of the classes.
    """
    features: list[Tensor] = []
    layers = [layer for layer in objective.module.modules() if isinstance(layer, nn.Linear)]
    if not layers or layers[-1].out_features != classes:
        raise InputError(f"features need a model whose last layer is nn.Linear with {classes} outputs, "
                         f"which {type(objective.module).__name__} has not")  # fmt: skip
    hook = layers[-1].register_forward_pre_hook(lambda _, x: features.append(x[0]))
    try:
        with torch.inference_mode(), objective.evaluating():
            for some in torch.split(x, samples_at_once(x)):
                objective.logits(w, prepare(to_device(some, w.device)))
    finally:
        hook.remove()
    return torch.cat(features).flatten(1)


def _test_samples(data: FederatedData, samples: int) -> tuple[Tensor, Tensor]:
    """Take at most `samples` test samples, evenly spaced: x (n, *shape), y (n,)."""
    if data.task != "classification":
        raise InputError(f"features are coloured by class, and the labels are those of {data.task}")
    if data.test is None:
        raise InputError("features are those of test samples, and the data have no test set")
    x, y = data.test
    number = min(samples, len(y))
    if number <= PERPLEXITY:
        raise InputError(f"features need more than {PERPLEXITY} test samples, got {number}")
    some = torch.arange(number, device=y.device) * len(y) // number
    return x[some], y[some]
