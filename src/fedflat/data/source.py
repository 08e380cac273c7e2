"""What a set is, and reading it from the files it comes in."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import InputError, printable
from .cache import Entry, SourceFiles, Writer, entry, key
from .conversion import Progress, write_groups, write_labels, write_pictures, write_texts
from .federated import Index
from .preparation import Preparation
from .readers.found import plain_files
from .readers.part import Layout, Shape
from .text import LENGTH

PIN = "hub.json"  # in a set's folder: which commit of which repository it was fetched from


@dataclass(frozen=True)
class Arrays:
    """One part of a set in memory."""

    x: Tensor  # (n, *shape)
    y: Tensor  # (n,) int64
    domain: Index | None = None  # (n,) numbers of domains
    user: Index | None = None  # (n,) numbers of users


@dataclass(frozen=True)
class Loaded:
    """A labelled set before it is split over clients."""

    train: Arrays
    test: Arrays | None
    classes: int
    preparation: Preparation = Preparation()
    domains: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    contents: str | None = None  # a digest of all samples


@dataclass(frozen=True)
class Hub:
    """Where the Hugging Face hub has the set."""

    repository: str
    folder: str = ""  # inside the repository; empty: all parquet files
    revision: str = "main"  # a branch or a commit; the commit is looked up and kept when the set is fetched


@dataclass(frozen=True)
class Reading:
    """How files are read."""

    data_dir: str | None = None  # None: $FEDFLAT_DATA
    partial: bool = False  # fewer samples than the whole set are accepted
    image_size: int | None = None  # of photographs, None: the set's own
    progress: Progress = field(default=lambda part, done, total: None, compare=False)


@dataclass(frozen=True)
class Bundled:
    """A set that a dependency brings along."""

    read: Callable[[], Loaded]
    classes: int
    shape: tuple[int, ...]
    sizes: Mapping[str, int]
    where: str  # it comes from
    domains: tuple[str, ...] = ()
    vocabulary_size: int = 0

    def sample_shape(self, image_size: int | None = None) -> tuple[int, ...]:
        """Shape of one sample. Raises InputError for an `image_size`, which no bundled set can have."""
        if image_size is not None:
            raise _not_resized(image_size)
        return self.shape

    def load(self, name: str, reading: Reading) -> Loaded:
        """The set; of `reading` only the picture's size matters, which cannot be chosen."""
        self.sample_shape(reading.image_size)
        return self.read()


@dataclass(frozen=True)
class FileSet:
    """A set that the user has as files."""

    classes: int
    sizes: Mapping[str, int]  # samples of each part; empty where the number is not certain
    layouts: tuple[Layout, ...]
    picture: Shape | None = None  # None: texts
    preparation: Preparation = Preparation()
    vocabulary_size: int = 0  # of texts
    hub: Hub | None = None
    domains: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # names, beside the set's own, that its folder may have

    def sample_shape(self, image_size: int | None = None) -> tuple[int, ...]:
        """Shape of one sample, of photographs resized to `image_size` pixels if that is given."""
        picture = self._sized(image_size)
        return (LENGTH,) if picture is None else (picture.channels, picture.size, picture.size)

    @property
    def where(self) -> str:
        """What to look for."""
        return "; ".join(map(str, self.layouts))

    def load(self, name: str, reading: Reading) -> Loaded:
        """The set from the files in the data folder, converted once and then kept.

        Raises InputError, naming folder, file or field, if it cannot be found or is not what it should be.
        """
        folder = self._folder(name, reading.data_dir)
        picture = self._sized(reading.image_size)
        how = (name, picture, self.layouts, self.classes, self.vocabulary_size, LENGTH)

        def build(writer: Writer) -> None:
            self._convert(name, folder, picture, writer, reading.progress)

        try:
            files = [path for path in plain_files(folder) if path != folder / PIN]
            kept = entry(f"{name}-{key(folder, how=how)}", SourceFiles(folder, files), build)
        except InputError as error:  # it may have names of files and columns in it
            raise InputError(printable(str(error))) from error
        self._check_sizes(name, kept, reading.partial)
        return self._loaded(kept)

    def _folder(self, name: str, data_dir: str | None) -> Path:
        """The folder with the set's files: DATA/NAME, or one of its other names, or DATA itself if it is no more."""
        root = data_root(data_dir, name)
        for candidate in (root / name, *(root / other for other in self.folders)):
            if candidate.is_dir():
                return candidate
        if root.name in (name, *self.folders) or self._nothing_else(root):
            return root
        raise InputError(f"data_dir = {str(root)!r} has no folder {name!r}; it should hold {self.where}")

    def _nothing_else(self, root: Path) -> bool:
        """True if `root` holds files and no folders but those that the hub's copy of the set has."""
        there = [path for path in root.iterdir() if not path.name.startswith(".")]
        own = {"data", self.hub.folder if self.hub else "data"}
        return len(there) > 0 and all(path.is_file() or path.name in own for path in there)

    def _sized(self, size: int | None) -> Shape | None:
        if size is None:
            return self.picture
        if self.picture is None or not self.picture.resize:
            raise _not_resized(size)
        return Shape(self.picture.channels, size, resize=True)

    def _convert(self, name: str, folder: Path, picture: Shape | None, writer: Writer, progress: Progress) -> None:
        parts = next((p for p in (layout.parts(folder, picture) for layout in self.layouts) if p), None)
        if parts is None or "train" not in parts:
            raise InputError(f"data folder {folder} has no files of {name}; expected {self.where}")
        for part, content in parts.items():
            write_labels(writer, f"{name} {part}", part, content, self.classes)
            if picture is not None:
                write_pictures(writer, part, content, picture, progress)
        if picture is None:
            write_texts(writer, parts, self.vocabulary_size)
        write_groups(writer, parts)

    def _check_sizes(self, name: str, kept: Entry, partial: bool) -> None:
        if not self.sizes:
            return
        there = {part: len(kept.array(f"{part}-y")) for part in ("train", "test") if kept.has(f"{part}-y")}
        if there.keys() != self.sizes.keys() and sum(there.values()) == sum(self.sizes.values()):
            return  # all of it, not split into the same parts
        for part, expected in self.sizes.items():
            found = there.get(part, 0)
            if found != expected and not partial:
                raise InputError(
                    f"data.name = {name!r}: {part} has {found:,} samples, the set has {expected:,}; "
                    "to use a part of a set give --data.partial true (data prepare: --partial)"
                )

    def _loaded(self, kept: Entry) -> Loaded:
        parts = {part: _samples(kept, part) for part in ("train", "test") if kept.has(f"{part}-y")}
        return Loaded(
            train=parts["train"],
            test=parts.get("test"),
            classes=self.classes,
            preparation=self.preparation,
            domains=tuple(kept.facts.get("domains", ())),
            vocabulary=tuple(kept.facts.get("vocabulary", ())),
            contents=kept.digest,
        )


def data_root(data_dir: str | None, name: str) -> Path:
    """The folder that holds the sets' folders: `data_dir`, else $FEDFLAT_DATA. Raises InputError if there is none."""
    given = data_dir or os.environ.get("FEDFLAT_DATA")
    if not given:
        raise InputError(f"data.name = {name!r} needs files: give --data-dir or set FEDFLAT_DATA")
    root = Path(given).expanduser()
    if not root.is_dir():
        raise InputError(f"data_dir = {given!r} is not a folder")
    return root


def _samples(kept: Entry, part: str) -> Arrays:
    groups = {name: kept.array(f"{part}-{name}") for name in ("domain", "user") if kept.has(f"{part}-{name}")}
    x, y = (torch.from_numpy(kept.array(f"{part}-{name}")) for name in "xy")
    return Arrays(x, y, **groups)


def _not_resized(size: int) -> InputError:
    return InputError(f"data.image_size = {size} goes with photographs; the samples of this set have one size")
