"""The loss on a line or a plane through parameter space."""

from __future__ import annotations

import io
import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...core.errors import InputError
from ...core.objective import Objective
from ...core.progress import Steps, no_progress
from ...core.torch_module import Space
from ...files import read_bytes, write_atomically

Loss = Callable[[Tensor], float]  # model (d,) -> loss
Numbers = NDArray[np.float64]

NORMALISATIONS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)
MAX_BYTES = 2**28  # of the arrays in a file, packed and unpacked; files of this package have some megabytes
MAX_POINTS = 2001  # points on an axis; 4 million losses, each over all samples, would take too long
PARSING_ERRORS = (
    EOFError, KeyError, ValueError, TypeError, NotImplementedError, RuntimeError, MemoryError, SyntaxError,
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
)  # fmt: skip  # that zipfile, numpy and json raise for hostile content
MARGIN = 0.25  # around the models on each side of the shown part of a plane, relative to their extent


@dataclass(frozen=True)
class Plane:
    """The models w(x, y) = origin + x directions[0] + y directions[1]; with one direction, a line."""

    origin: Tensor  # (d,) in the dtype of the model
    directions: tuple[Tensor, ...]  # one or two, (d,) each

    def at(self, x: float, y: float = 0.0) -> Tensor:
        """Return the model w(x, y), (d,); y does not matter on a line."""
        point = torch.add(self.origin, self.directions[0], alpha=x)
        for direction in self.directions[1:]:
            point.add_(direction, alpha=y)
        return point.to(self.origin.dtype)

    def place(self, w: Tensor) -> tuple[float, float, float]:
        """Return the coordinates x and y of the model w(x, y) nearest to `w` (d,), and its distance from `w`."""
        basis = [direction.double() for direction in self.directions]
        away = w.double() - self.origin.double()
        gram = torch.stack([torch.stack([one @ other for other in basis]) for one in basis])
        coordinates = torch.linalg.solve(gram, torch.stack([one @ away for one in basis])).tolist()
        for coordinate, direction in zip(coordinates, basis, strict=True):
            away.sub_(direction, alpha=coordinate)
        x, y = (*coordinates, 0.0)[:2]
        return x, y, float(away.norm())


@dataclass(frozen=True)
class Mark:
    """The place of a model on a surface."""

    label: str
    x: float
    y: float
    loss: float  # the model's own, on the same samples
    distance: float = 0.0  # from the model to the plane, in parameters


@dataclass(frozen=True, eq=False)
class Surface:
    """The loss on a grid, the places of models on it, and the protocol; with a single y it is a profile."""

    label: str  # of the method or the models
    part: str  # the models: "global model", "client 7", ...
    axes: tuple[str, str]  # meaning and unit of x and y
    x: Numbers  # (n,)
    y: Numbers  # (m,)
    loss: Numbers  # (m, n), at w(x, y); infinite or NaN if the model's scores are
    marks: tuple[Mark, ...]
    protocol: str

    @property
    def title(self) -> str:
        """A name that distinguishes this surface from others."""
        return f"{self.label}, {self.part}"

    @property
    def profile(self) -> Numbers:
        """The loss along x in the middle row, (n,); with random directions this is y = 0."""
        middle: Numbers = self.loss[len(self.y) // 2]
        return middle

    def about(self) -> dict[str, Any]:
        """Return everything except the arrays, for JSON."""
        marks = [asdict(mark) for mark in self.marks]
        texts = {"label": self.label, "part": self.part, "axes": list(self.axes), "protocol": self.protocol}
        return texts | {"marks": marks}

    def save(self, path: Path) -> None:
        """Write to `path` (.npz), atomically: x, y and loss as arrays, the rest as a JSON text in `about`."""
        write_arrays(path, self.about(), x=self.x, y=self.y, loss=self.loss)

    @classmethod
    def load(cls, path: Path) -> Surface:
        """Read what `save` wrote. Raises InputError, naming the file, if it is missing or damaged."""
        content = read_arrays(path, "x", "y", "loss")
        about, (x, y, loss) = content["about"], (content[name].astype(float) for name in ("x", "y", "loss"))
        try:
            marks = tuple(Mark(**mark) for mark in about["marks"])
            first, second = about["axes"]
            return cls(about["label"], about["part"], (first, second), x, y, loss, marks, about["protocol"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is no surface: {error}") from error


def write_arrays(path: Path, about: dict[str, Any], **arrays: Any) -> None:
    """Write arrays to `path` (.npz), atomically, with `about` as a JSON text. Raises InputError if that fails."""
    text = np.array(json.dumps(about))
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays, about=text))


def read_arrays(path: Path, *names: str) -> dict[str, Any]:
    """Read the arrays of these names in an .npz file, and under `about` its JSON text; unpickle nothing.

    Raises InputError, naming the file, if it is missing or damaged.
    """
    try:
        content = io.BytesIO(read_bytes(path, MAX_BYTES))
        unpacked = sum(member.file_size for member in zipfile.ZipFile(content).infolist())
        if unpacked > MAX_BYTES:
            raise ValueError(f"it unpacks to {unpacked:,} bytes")
        with np.load(content, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names} | {"about": json.loads(str(arrays["about"]))}
    except PARSING_ERRORS as error:
        raise InputError(f"{path} is missing or damaged: {error}") from error


def grid(points: int, reach: float) -> Numbers:
    """Return `points` coordinates from -reach to reach, (points,); an odd number, so that 0 is one of them."""
    if points < 3 or points % 2 == 0:
        raise InputError(f"points = {points} must be an odd number of at least 3, so that the model is on the grid")
    if points > MAX_POINTS:
        raise InputError(f"points = {points} must be at most {MAX_POINTS}")
    if not 0 < reach < float("inf"):
        raise InputError(f"range = {reach} must be a number above 0")
    half = points // 2
    return np.arange(-half, half + 1) / half * reach  # 0 is exact


def random_plane(objective: Objective, w: Tensor, axes: int = 2, seed: int = 0) -> Plane:
    """Draw the plane through `w` (d,) along filter-normalised random directions (Li et al., 2018, section 4).

    With one seed, models of the same architecture have the same directions before normalisation.
    """
    raw = random_directions(objective, axes, seed)
    return Plane(w, tuple(filter_normalised(objective.space, d.to(w), w) for d in raw))


def random_directions(objective: Objective, count: int, seed: int) -> list[Tensor]:
    """Draw `count` Gaussian directions (d,), orthogonal to each other, zero on parameters that are not filters.

    They are orthogonalised (Gram-Schmidt in float64) before filter normalisation, which does not preserve angles.
    """
    rng = torch.Generator().manual_seed(seed)
    moved = _is_filter(objective)
    found: list[Tensor] = []
    for _ in range(count):
        direction = torch.randn(objective.space.d, generator=rng, dtype=torch.float32).double() * moved
        for earlier in found:
            direction.sub_(earlier, alpha=float(direction @ earlier / (earlier @ earlier)))
        found.append(direction)
    return found


def filter_normalised(space: Space, direction: Tensor, w: Tensor) -> Tensor:
    """Scale every filter d_f of `direction` (d,) to the norm of the model's filter, d_f ||w_f|| / ||d_f||; (d,).

    A filter is an entry of a parameter's first axis.
    """
    scaled = torch.zeros_like(direction)
    for out, d, weight in zip(*(space.views(v).values() for v in (scaled, direction, w)), strict=True):
        if d.ndim >= 2:
            lengths, wanted = (parameter.flatten(1).norm(dim=1) for parameter in (d, weight))
            factor = torch.where(lengths > 0, wanted / lengths, 0.0)
            out.copy_(d * factor.reshape(-1, *[1] * (d.ndim - 1)))
    return scaled


def _is_filter(objective: Objective) -> Tensor:
    """Return (d,) bool: True on weights with at least two axes, False on biases and normalisation parameters."""
    modules = dict(objective.module.named_modules())
    marks = []
    for name, shape in objective.space.shapes.items():
        owner, _, own = name.rpartition(".")
        fixed = len(shape) < 2 or "bias" in own or isinstance(modules.get(owner), NORMALISATIONS)
        marks.append(torch.full((shape.numel(),), not fixed))
    moved = torch.cat(marks)
    if int(moved.sum()) < 2:
        raise InputError("a random surface needs a model with weights of at least two axes")
    return moved


def plane_through(models: Mapping[str, Tensor], axes: int = 2) -> Plane:
    """Return the plane through the first three of `models`, each (d,); with `axes` = 1 the line through two.

    The first is the origin; the directions have length one and are orthogonal (Garipov et al., 2018, appendix), so
    that x and y are distances in parameters. Raises InputError if the models do not define such a plane.
    """
    if len(models) < axes + 1:
        raise InputError(f"a plane needs {axes + 1} models, got {len(models)}: {', '.join(models) or 'none'}")
    labels = list(models)[: axes + 1]
    origin = models[labels[0]]
    directions: list[Tensor] = []
    for label in labels[1:]:
        away = models[label].double() - origin.double()
        length = float(away.norm())
        for earlier in directions:
            away.sub_(earlier, alpha=float(away @ earlier))
        rest = float(away.norm())
        if not rest > 1e-6 * length:
            raise InputError(f"no plane goes through {', '.join(labels)}: {label} is on the line of those before it")
        directions.append(away / rest)
    return Plane(origin, tuple(directions))


def spanned(plane: Plane, models: Mapping[str, Tensor], points: int) -> tuple[Numbers, Numbers]:
    """Return `points` coordinates on each axis, (points,), for a square around all `models`; for a line, y is [0]."""
    if points < 3:
        raise InputError(f"points = {points} must be at least 3")
    places = np.array([plane.place(w)[:2] for w in models.values()])
    low, high = places.min(axis=0), places.max(axis=0)
    half = (0.5 + MARGIN) * float((high - low).max())  # the same on both axes, so that distances look right
    x, y = (np.linspace(center - half, center + half, points) for center in (low + high) / 2)
    return x, y if len(plane.directions) > 1 else np.zeros(1)


def losses_on(loss: Loss, plane: Plane, x: Numbers, y: Numbers, progress: Steps = no_progress) -> Numbers:
    """Compute `loss` at every w(x, y), (m, n) for x (n,) and y (m,), one model in memory at a time."""
    losses = np.empty((len(y), len(x)))
    for j, i in np.ndindex(losses.shape):
        losses[j, i] = loss(plane.at(float(x[i]), float(y[j])))
        progress(j * len(x) + i + 1, losses.size)
    return losses


def marks_on(loss: Loss, plane: Plane, models: Mapping[str, Tensor]) -> tuple[Mark, ...]:
    """Return the mark of each of `models`: its place on the plane, or the nearest place, and the model's own loss."""
    places = {label: plane.place(w) for label, w in models.items()}
    return tuple(Mark(label, x, y, loss(models[label]), away) for label, (x, y, away) in places.items())
