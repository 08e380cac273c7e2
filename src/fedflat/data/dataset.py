"""What a data set is, and loading it from the files it comes in."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import InputError, printable
from ..core.progress import Progress
from ..core.task import Kind
from ..hub import PIN
from .cache import Entry, SourceFiles, Writer, entry, key
from .conversion import write_groups, write_labels, write_pictures, write_texts
from .preparation import Preparation
from .readers.file_search import plain_files
from .readers.layout import Layout, Shape
from .sample_format import OWN_FORMAT, SampleFormat
from .types import Index

FIXED = "; the samples of this set have one size"  # ends a message


@dataclass(frozen=True)
class SampleArrays:
    """The train or test part of a data set in memory."""

    x: Tensor  # (n, *shape)
    y: Tensor  # (n,) int64, or (n, k) floats if the task is not classification
    domain: Index | None = None  # (n,) numbers of domains
    user: Index | None = None  # (n,) numbers of users


@dataclass(frozen=True)
class LoadedDataset:
    """A labelled data set before it is split over clients."""

    train: SampleArrays
    test: SampleArrays | None
    classes: int  # 0: the labels are those of the files, and task and options say what they mean
    preparation: Preparation = Preparation()
    domains: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    contents: str | None = None  # a digest of all samples
    task: Kind = "classification"
    class_names: tuple[str, ...] = ()  # of the class indices; with 0 classes the texts that labels are the numbers of


@dataclass(frozen=True)
class HubRepository:
    """The repository of a data set on the Hugging Face hub."""

    repository: str
    folder: str = ""  # inside the repository; empty: all parquet files


@dataclass(frozen=True)
class BundledDataset:
    """A data set that a dependency contains."""

    read: Callable[[], LoadedDataset]
    classes: int
    shape: tuple[int, ...]
    sizes: Mapping[str, int]  # samples of each part
    where: str  # the dependency, in words
    domains: tuple[str, ...] = ()
    vocabulary_size: int = 0

    def sample_shape(self, form: SampleFormat = OWN_FORMAT) -> tuple[int, ...]:
        """The shape of one sample. Raises InputError for a chosen size or length, which a bundled set cannot have."""
        form.refuse_image_size(FIXED)
        form.refuse_text_options()
        return self.shape

    def load(
        self, name: str, data_dir: str | None, partial: bool, form: SampleFormat, progress: Progress
    ) -> LoadedDataset:
        """The data set; there is nothing to choose. Raises InputError for a size, a length or a tokenizer."""
        self.sample_shape(form)
        return self.read()


@dataclass(frozen=True)
class FileDataset:
    """A data set that the user has as files."""

    classes: int
    sizes: Mapping[str, int]  # samples of each part; empty where the number is not certain
    layouts: tuple[Layout, ...]
    picture: Shape | None = None  # None: texts
    preparation: Preparation = Preparation()
    vocabulary_size: int = 0  # of texts
    hub: HubRepository | None = None
    domains: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # other names that its folder may have

    def sample_shape(self, form: SampleFormat = OWN_FORMAT) -> tuple[int, ...]:
        """The shape of one sample in that form. Raises InputError for a form that the samples cannot have."""
        picture = self._picture_shape(form)
        return (form.length,) if picture is None else (picture.channels, picture.size, picture.size)

    @property
    def where(self) -> str:
        """The files to look for, in words."""
        return "; ".join(map(str, self.layouts))

    def load(
        self, name: str, data_dir: str | None, partial: bool, form: SampleFormat, progress: Progress
    ) -> LoadedDataset:
        """The data set from the files in `data_dir` or $FEDFLAT_DATA, converted once and then kept in the cache.

        `partial` accepts fewer samples than the whole set has.
        Raises InputError, naming folder, file or field, if the files are missing, damaged or not those of `name`.
        """
        folder = self._folder(name, data_dir)
        picture = self._picture_shape(form)
        how = (name, picture, self.layouts, self.classes, self.vocabulary_size, form.length, *form.text_key)

        def build(writer: Writer) -> None:
            self._convert(name, folder, picture, form, writer, progress)

        try:
            files = [path for path in plain_files(folder) if path != folder / PIN]
            converted = entry(f"{name}-{key(folder, how=how)}", SourceFiles(folder, files), build)
        except InputError as error:  # the message may contain names of files and columns
            raise InputError(printable(str(error))) from error
        parts = {part: samples_of(converted, part) for part in ("train", "test") if f"{part}-y" in converted.arrays}
        if not partial:
            self._check_sizes(name, {part: len(samples.y) for part, samples in parts.items()})
        facts = converted.description["facts"]
        return LoadedDataset(
            train=parts["train"],
            test=parts.get("test"),
            classes=self.classes,
            preparation=self.preparation,
            domains=tuple(facts.get("domains", ())),
            vocabulary=tuple(facts.get("vocabulary", ())),
            contents=converted.digest,
        )

    def _folder(self, name: str, data_dir: str | None) -> Path:
        """The folder with the data set's files: DATA/NAME, DATA with one of its other names, or DATA itself."""
        root = data_root(data_dir, name)
        for candidate in (root / name, *(root / other for other in self.folders)):
            if candidate.is_dir():
                return candidate
        if root.name in (name, *self.folders) or self._holds_one_set(root):
            return root
        raise InputError(f"data_dir = {str(root)!r} has no folder {name!r}; it should hold {self.where}")

    def _holds_one_set(self, root: Path) -> bool:
        """True if `root` holds files, and no folders except those of the hub's copy of this data set."""
        content = [path for path in root.iterdir() if not path.name.startswith(".")]
        own = {"data", self.hub.folder if self.hub else "data"}
        return len(content) > 0 and all(path.is_file() or path.name in own for path in content)

    def _picture_shape(self, form: SampleFormat) -> Shape | None:
        """The shape of the pictures, resized if the form says so; None for texts."""
        if self.picture is not None:
            form.refuse_text_options()
        if self.picture is None or not self.picture.resize:
            form.refuse_image_size(FIXED)
        if self.picture is None or form.image_size is None:
            return self.picture
        return Shape(self.picture.channels, form.image_size, resize=True)

    def _convert(
        self, name: str, folder: Path, picture: Shape | None, form: SampleFormat, writer: Writer, progress: Progress
    ) -> None:
        """Write the arrays of the first layout that fits the files."""
        parts = next(filter(None, (layout.parts(folder, picture) for layout in self.layouts)), None)
        if parts is None or "train" not in parts:
            raise InputError(f"data folder {folder} has no files of {name}; expected {self.where}")
        for part, content in parts.items():
            write_labels(writer, f"{name} {part}", part, content, self.classes)
            if picture is not None:
                write_pictures(writer, part, content, picture, progress)
        if picture is None:
            write_texts(writer, parts, self.vocabulary_size, form)
        write_groups(writer, parts)

    def _check_sizes(self, name: str, found: Mapping[str, int]) -> None:
        """Raise InputError if parts have other numbers of samples than the data set; parts may be split otherwise."""
        if found.keys() != self.sizes.keys() and sum(found.values()) == sum(self.sizes.values()):
            return
        for part, expected in self.sizes.items():
            if found.get(part, 0) != expected:
                raise InputError(
                    f"data.name = {name!r}: {part} has {found.get(part, 0):,} samples, the set has {expected:,}; "
                    "to use a part of a set give partial=True (--data.partial true; data prepare, pretrain: --partial)"
                )


def data_root(data_dir: str | None, name: str) -> Path:
    """The folder of all data sets: `data_dir`, else $FEDFLAT_DATA. Raises InputError if there is none."""
    given = data_dir or os.environ.get("FEDFLAT_DATA")
    if not given:
        raise InputError(
            f"data.name = {name!r} needs files: give their folder as data_dir (--data-dir), or set FEDFLAT_DATA"
        )
    root = Path(given).expanduser()
    if not root.is_dir():
        raise InputError(f"data_dir = {given!r} is not a folder")
    return root


def samples_of(converted: Entry, part: str) -> SampleArrays:
    """The samples of a part of a converted data set, mapped into memory."""
    arrays = converted.arrays
    x, y = (torch.from_numpy(arrays[f"{part}-{name}"]) for name in "xy")
    return SampleArrays(x, y, arrays.get(f"{part}-domain"), arrays.get(f"{part}-user"))
