"""Descriptions of data sets, and the loading of a data set from its files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import InputError, printable
from ..core.progress import Progress
from ..core.task import FORMS, Kind
from ..hub import PIN
from .cache import SourceFiles, Writer, entry, key
from .conversion import OWN_FORMAT, SampleFormat, write_groups, write_labels, write_pictures, write_texts
from .preparation import Preparation
from .readers.file_search import plain_files
from .readers.layouts import Layout, Part, Shape
from .schema import Schema
from .types import Index

FIXED = "; the samples of this set have one size"  # end of a message


@dataclass(frozen=True)
class SampleArrays:
    """The train or test part of a data set in memory."""

    x: Tensor  # (n, *shape)
    y: Tensor  # (n,) or (n, *positions) class indices, int64; for other tasks (n, k) floats
    domain: Index | None = None  # (n,) numbers of domains
    user: Index | None = None  # (n,) numbers of users


@dataclass(frozen=True)
class LoadedDataset:
    """A labelled data set before it is split over clients."""

    train: SampleArrays
    test: SampleArrays | None
    classes: int  # number of classes; 0: labels are unchanged, and the task and options decide their meaning later
    preparation: Preparation = Preparation()
    domains: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    contents: str | None = None  # a digest of all samples
    task: Kind = "classification"
    class_names: tuple[str, ...] = ()  # by class index; if `classes` is 0, the texts that labels are indices into
    users: tuple[str, ...] = ()  # names of users, by number
    schema: Schema = Schema()  # of a user's own files, with what was found in them
    notes: tuple[str, ...] = ()  # what happened to the samples, in words

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples of each part."""
        parts = {"train": self.train} | ({} if self.test is None else {"test": self.test})
        return {part: len(samples.y) for part, samples in parts.items()}


@contextmanager
def printable_errors() -> Iterator[None]:
    """Make messages of InputError printable: they may contain names of files and columns."""
    try:
        yield
    except InputError as error:
        raise InputError(printable(str(error))) from error


@dataclass(frozen=True)
class HubRepository:
    """The repository of a data set on the Hugging Face hub."""

    repository: str
    folder: str = ""  # inside the repository; empty: all parquet files


@dataclass(frozen=True, kw_only=True)
class FoundDataset:
    """A description of a data set, taken from its samples."""

    classes: int
    shape: tuple[int, ...]  # of one sample
    sizes: Mapping[str, int]  # samples of each part
    domains: tuple[str, ...] = ()
    vocabulary_size: int = 0  # 0 unless samples are token numbers
    task: Kind = "classification"

    def sample_shape(self, form: SampleFormat = OWN_FORMAT) -> tuple[int, ...]:
        """Return the shape of one sample; `form` is ignored, because the samples are already in their stored form."""
        return self.shape


@dataclass(frozen=True, kw_only=True)
class BundledDataset(FoundDataset):
    """A data set that needs no files of the user: it comes with this package, or a function returns it."""

    summary: str  # one line, with the source
    read: Callable[[], LoadedDataset]
    where: str  # the origin of the data, in words

    def sample_shape(self, form: SampleFormat = OWN_FORMAT) -> tuple[int, ...]:
        """Return the shape of one sample.

        Raises InputError if `form`, the form that the user asks for, has an image size, a text length or a tokenizer:
        the samples of this set are never converted.
        """
        form.refuse_image_size(FIXED)
        form.refuse_text_options()
        form.schema.refuse((), "this set")
        return self.shape

    def load(
        self, name: str, data_dir: str | None, partial: bool, form: SampleFormat, progress: Progress
    ) -> LoadedDataset:
        """Return the data set. Raises InputError if `form` has an image size, a text length or a tokenizer."""
        self.sample_shape(form)
        return self.read()


@dataclass(frozen=True)
class FileDataset:
    """A data set that is read from files in the user's folder."""

    summary: str  # one line, with the source
    classes: int
    sizes: Mapping[str, int]  # samples of each part; empty where the number is not certain
    layouts: tuple[Layout, ...]
    picture: Shape | None = None  # None: texts
    preparation: Preparation = Preparation()
    vocabulary_size: int = 0  # of texts
    hub: HubRepository | None = None
    domains: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # other names that the folder of this set may have
    class_names: tuple[str, ...] = ()  # of the class indices; empty: they have none
    task: Kind = "classification"

    def sample_shape(self, form: SampleFormat = OWN_FORMAT) -> tuple[int, ...]:
        """Return the shape of one sample in `form`. Raises InputError for a form that the samples cannot have."""
        form.schema.refuse((), "this set")
        picture = self._picture_shape(form)
        return (form.length,) if picture is None else (picture.channels, picture.size, picture.size)

    @property
    def where(self) -> str:
        """Files to look for, in words."""
        return "; ".join(map(str, self.layouts))

    @printable_errors()
    def load(
        self, name: str, data_dir: str | None, partial: bool, form: SampleFormat, progress: Progress
    ) -> LoadedDataset:
        """Load the files in `data_dir` or $FEDFLAT_DATA; they are converted once and then kept in the cache.

        `partial` accepts fewer samples than the complete set has.
        Raises InputError, naming folder, file or field, if the files are missing, damaged or not those of `name`.
        """
        folder = self._folder(name, data_dir)
        form.schema.refuse((), "this set")
        picture = self._picture_shape(form)
        how = (name, picture, self.layouts, self.classes, self.vocabulary_size, form.length, *form.text_key)
        files = [path for path in plain_files(folder) if path != folder / PIN]
        loaded = load_converted(
            name, SourceFiles(folder, files), how,
            lambda writer: self._convert(name, folder, picture, form, writer, progress),
        )  # fmt: skip
        if not partial:
            self._check_sizes(name, loaded.sizes)
        classes = self.classes if FORMS[self.task].are_classes else 0  # labels that are numbers are converted later
        return replace(
            loaded, classes=classes, class_names=self.class_names, preparation=self.preparation, task=self.task
        )

    def _folder(self, name: str, data_dir: str | None) -> Path:
        """Return the folder with the files of this set.

        It is the subfolder `name` of the user's data folder, a subfolder with one of the set's other names, or the data
        folder itself.
        """
        root = data_root(data_dir, name)
        for candidate in (root / name, *(root / other for other in self.folders)):
            if candidate.is_dir():
                return candidate
        if root.name in (name, *self.folders) or self._holds_one_set(root):
            return root
        raise InputError(f"data_dir = {str(root)!r} has no folder {name!r}; it should hold {self.where}")

    def _holds_one_set(self, root: Path) -> bool:
        """Return whether `root` holds files, and no folders except those of the hub's copy of this data set."""
        content = [path for path in root.iterdir() if not path.name.startswith(".")]
        own = {"data", self.hub.folder if self.hub else "data"}
        return len(content) > 0 and all(path.is_file() or path.name in own for path in content)

    def _picture_shape(self, form: SampleFormat) -> Shape | None:
        """Return the shape of the pictures, resized if `form` has an image size; None for texts."""
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
            if self.task != "classification":
                writer.add(f"{part}-y", content.labels)
            else:
                write_labels(writer, f"{name} {part}", part, content, self.classes)
        self._write_samples(writer, parts, picture, form, progress)
        write_groups(writer, parts)

    def _write_samples(
        self, writer: Writer, parts: Mapping[str, Part], picture: Shape | None, form: SampleFormat, progress: Progress
    ) -> None:
        """Write pictures as pixels, or texts as token numbers."""
        if picture is None:
            write_texts(writer, parts, self.vocabulary_size, form)
            return
        for part, content in parts.items():
            write_pictures(writer, part, content, picture, progress)

    def _check_sizes(self, name: str, found: Mapping[str, int]) -> None:
        """Raise InputError if a part is not complete. If the files have other parts, an equal total is enough."""
        if found.keys() != self.sizes.keys() and sum(found.values()) == sum(self.sizes.values()):
            return
        for part, expected in self.sizes.items():
            if found.get(part, 0) != expected:
                raise InputError(
                    f"data.name = {name!r}: {part} has {found.get(part, 0):,} samples, the set has {expected:,}; "
                    "to use a part of a set give partial=True (--data.partial true; data prepare, pretrain: --partial)"
                )


def data_root(data_dir: str | None, name: str) -> Path:
    """Return the folder of all data sets: `data_dir`, else $FEDFLAT_DATA. Raises InputError if neither is set."""
    given = data_dir or os.environ.get("FEDFLAT_DATA")
    if not given:
        raise InputError(
            f"data.name = {name!r} needs files: give their folder as data_dir (--data-dir), or set FEDFLAT_DATA"
        )
    root = Path(given).expanduser()
    if not root.is_dir():
        raise InputError(f"data_dir = {given!r} is not a folder")
    return root


def load_converted(
    name: str, sources: SourceFiles, how: tuple[object, ...], build: Callable[[Writer], None]
) -> LoadedDataset:
    """Return the samples that `build` writes for these files, mapped into memory; an entry in the cache is reused.

    `how` lists all settings that the entry depends on. Raises InputError as `build` does.
    """
    converted = entry(f"{name}-{key(sources.folder, how=how)}", sources, build)
    arrays, facts = converted.arrays, converted.description["facts"]
    parts = {
        part: SampleArrays(
            torch.from_numpy(arrays[f"{part}-x"]),
            torch.from_numpy(arrays[f"{part}-y"]),
            arrays.get(f"{part}-domain"),
            arrays.get(f"{part}-user"),
        )
        for part in ("train", "test")
        if f"{part}-y" in arrays
    }
    return LoadedDataset(
        train=parts["train"],
        test=parts.get("test"),
        classes=facts.get("classes", 0),
        domains=tuple(facts.get("domains", ())),
        vocabulary=tuple(facts.get("vocabulary", ())),
        contents=converted.digest,
        class_names=tuple(facts.get("class_names", ())),
        users=tuple(facts.get("users", ())),
        schema=Schema(**facts.get("schema", {})),
        notes=tuple(facts.get("notes", ())),
    )
