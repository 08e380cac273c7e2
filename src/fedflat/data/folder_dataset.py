"""A data set of a user's own in a folder. How many classes and samples there are, and of what shape, its files tell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ..core.errors import InputError, printable
from ..core.progress import Progress
from .cache import Entry, SourceFiles, Writer, entry, key
from .conversion import write_groups, write_own_labels
from .dataset import LoadedDataset, data_root, samples_of
from .numbers import alike
from .readers.layout import Part
from .readers.npz import npz_files, read_npz
from .readers.untrusted_files import expect
from .sample_format import OWN_FORMAT, SampleFormat

VOCABULARY = 30_000  # words of texts that have a number of their own, as for the sets that are known by name


@dataclass(frozen=True)
class FoundDataset:
    """What the files of a folder turned out to hold."""

    classes: int
    shape: tuple[int, ...]  # of one sample
    sizes: Mapping[str, int]  # samples of each part
    domains: tuple[str, ...]
    vocabulary_size: int  # 0 unless samples are token numbers

    def sample_shape(self, form: SampleFormat = OWN_FORMAT) -> tuple[int, ...]:
        """The shape of one sample; the samples have their form already."""
        return self.shape


class FolderDataset(ABC):
    """A kind of files that a user's own data set may come in."""

    sizes: Mapping[str, int] = {}  # as many samples as the files have

    @property
    @abstractmethod
    def where(self) -> str:
        """The files to look for, in words."""

    @abstractmethod
    def files(self, folder: Path) -> list[Path]:
        """The files in `folder`; none if it has none of this kind."""

    @abstractmethod
    def convert(self, folder: Path, form: SampleFormat, writer: Writer, progress: Progress) -> dict[str, Part]:
        """Write the samples of every part, and give the parts, whose labels and groups are written afterwards."""

    def load(
        self, name: str, data_dir: str | None, partial: bool, form: SampleFormat, progress: Progress
    ) -> LoadedDataset:
        """The data set in `data_dir` or $FEDFLAT_DATA, converted once and then kept in the cache.

        Raises InputError, naming folder, file or field, if the files are missing or damaged.
        """
        root = data_root(data_dir, name)
        inside = (root / name).is_dir() and not self.files(root)  # as for sets that are known by name
        converted = self._entry(name, root / name if inside else root, form, progress)
        facts = converted.description["facts"]
        return LoadedDataset(
            train=samples_of(converted, "train"),
            test=samples_of(converted, "test") if "test-y" in converted.arrays else None,
            classes=facts["classes"],
            domains=tuple(facts.get("domains", ())),
            vocabulary=tuple(facts.get("vocabulary", ())),
            contents=converted.digest,
            class_names=tuple(facts["class_names"]),
        )

    def described(self, loaded: LoadedDataset) -> FoundDataset:
        """What the files hold, once they are loaded."""
        sizes = {"train": len(loaded.train.y)} | ({} if loaded.test is None else {"test": len(loaded.test.y)})
        x = loaded.train.x
        tokens = 0 if x.is_floating_point() or x.dtype.itemsize == 1 else max(len(loaded.vocabulary), int(x.max()) + 1)
        return FoundDataset(loaded.classes, tuple(x.shape[1:]), sizes, loaded.domains, tokens)

    def _entry(self, name: str, folder: Path, form: SampleFormat, progress: Progress) -> Entry:
        """The converted files."""

        def build(writer: Writer) -> None:
            parts = self.convert(folder, form, writer, progress)
            write_own_labels(writer, parts)
            write_groups(writer, parts)

        how = (name, "labels as they are", form.image_size, form.length, VOCABULARY, *form.text_key)
        try:
            files = self.files(folder)
            if not files:
                raise InputError(f"data_dir = {str(folder)!r} has no files of {name}; it should hold {self.where}")
            entry_name = f"{name}-{key(folder, how=how)}"
            return entry(entry_name, SourceFiles(folder, files), build)
        except InputError as error:  # the message may contain names of files and columns
            raise InputError(printable(str(error))) from error


class NpzFolder(FolderDataset):
    """`train.npz` and `test.npz`."""

    @property
    def where(self) -> str:
        """Names of files and arrays or columns."""
        return "train.npz (and test.npz) with arrays x (n, ...), y (n,), and perhaps domain, user (n,)"

    def files(self, folder: Path) -> list[Path]:
        """All parts, if there is one for training."""
        found = npz_files(folder)
        return sorted(found.values()) if "train" in found else []

    def convert(self, folder: Path, form: SampleFormat, writer: Writer, progress: Progress) -> dict[str, Part]:
        """Write the arrays as they are. Raises InputError if the parts' samples differ in shape or type."""
        form.refuse_text_options()
        form.refuse_image_size("; arrays have one size")
        parts = {part: read_npz(path) for part, path in npz_files(folder).items()}
        arrays = {f"{folder / part}.npz": torch.from_numpy(content.samples) for part, content in parts.items()}
        for part, x in zip(parts, alike(arrays), strict=True):
            expect(x.shape[1:] == arrays[f"{folder / 'train'}.npz"].shape[1:], str(folder),
                   f"{part} has x of shape {tuple(x.shape)}, and train samples of another shape")  # fmt: skip
            writer.add(f"{part}-x", x.numpy())
            progress(part, len(x), len(x))
        return parts
