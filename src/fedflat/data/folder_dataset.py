"""Data sets of a user's own in a folder of npz or parquet files, which decide classes, sizes and shapes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ..core.errors import InputError
from ..core.progress import Progress
from .cache import SourceFiles, Writer
from .conversion import (
    OWN_FORMAT,
    SampleFormat,
    write_groups,
    write_own_labels,
    write_pictures,
    write_texts,
)
from .dataset import LoadedDataset, data_root, load_converted, printable_errors
from .numbers import alike
from .readers.layouts import Part, Shape
from .readers.npz import npz_files, read_npz
from .readers.parquet import Parquet, parquet_files
from .readers.untrusted_files import expect

VOCABULARY = 30_000  # size of the vocabulary of texts, as for the sets that are known by name


@dataclass(frozen=True)
class FoundDataset:
    """The facts that the files of a folder state."""

    classes: int
    shape: tuple[int, ...]  # of one sample
    sizes: Mapping[str, int]  # samples of each part
    domains: tuple[str, ...]
    vocabulary_size: int  # 0 unless samples are token numbers

    def sample_shape(self, form: SampleFormat = OWN_FORMAT) -> tuple[int, ...]:
        """Return the shape of one sample; it already has its form."""
        return self.shape


class FolderDataset(ABC):
    """A kind of files that a user's own data set may come in."""

    summary: str  # one line
    sizes: Mapping[str, int] = {}  # any numbers of samples

    @property
    @abstractmethod
    def where(self) -> str:
        """Files to look for, in words."""

    @abstractmethod
    def files(self, folder: Path) -> list[Path]:
        """Return the files of this kind in `folder`."""

    @abstractmethod
    def convert(self, folder: Path, form: SampleFormat, writer: Writer, progress: Progress) -> dict[str, Part]:
        """Write the samples of every part; return the parts, whose labels and groups are written afterwards."""

    @printable_errors()
    def load(
        self, name: str, data_dir: str | None, partial: bool, form: SampleFormat, progress: Progress
    ) -> LoadedDataset:
        """Load the files in `data_dir` or $FEDFLAT_DATA; they are converted once and then kept in the cache.

        Raises InputError, naming folder, file or field, if the files are missing or damaged.
        """
        root = data_root(data_dir, name)
        inside = (root / name).is_dir() and not self.files(root)  # as for sets that are known by name
        folder = root / name if inside else root
        how = (name, "labels as they are", form.image_size, form.length, VOCABULARY, *form.text_key)
        files = self.files(folder)
        if not files:
            raise InputError(f"data_dir = {str(folder)!r} has no files of {name}; it should hold {self.where}")

        def build(writer: Writer) -> None:
            parts = self.convert(folder, form, writer, progress)
            write_own_labels(writer, parts)
            write_groups(writer, parts)

        return load_converted(name, SourceFiles(folder, files), how, build)

    def described(self, loaded: LoadedDataset) -> FoundDataset:
        """Return what the files hold, once they are loaded."""
        x = loaded.train.x
        tokens = 0 if x.is_floating_point() or x.dtype.itemsize == 1 else max(len(loaded.vocabulary), int(x.max()) + 1)
        return FoundDataset(loaded.classes, tuple(x.shape[1:]), loaded.sizes, loaded.domains, tokens)


class NpzFolder(FolderDataset):
    """`train.npz` and `test.npz`."""

    summary = "Arrays of your own: `train.npz` and `test.npz` in the folder that `data_dir` names."

    @property
    def where(self) -> str:
        """Names of files and arrays or columns."""
        return "train.npz (and test.npz) with arrays x (n, ...), y (n,), and perhaps domain, user (n,)"

    def files(self, folder: Path) -> list[Path]:
        """Return the files of all parts, if there is one for training."""
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


class ParquetFolder(FolderDataset):
    """`train*.parquet` and `test*.parquet` with pictures or texts."""

    summary = "Pictures or texts of your own: `train*.parquet` and `test*.parquet` in the folder that `data_dir` names."

    @property
    def where(self) -> str:
        """Names of files and arrays or columns."""
        return "train-*.parquet (and test-*.parquet) with columns image or text, label, and perhaps domain, user"

    def files(self, folder: Path) -> list[Path]:
        """Return the files of all parts, if there is one for training."""
        found = parquet_files(folder)
        return found if any(path.name.startswith("train") for path in found) else []

    def convert(self, folder: Path, form: SampleFormat, writer: Writer, progress: Progress) -> dict[str, Part]:
        """Write pictures as pixels, texts as token numbers. Raises InputError if there is neither."""
        from .readers.parquet_columns import parquet_columns  # here, because it imports pyarrow

        train = next(path for path in self.files(folder) if path.name.startswith("train"))
        columns = parquet_columns(train)
        domain, user = (group if group in columns else None for group in ("domain", "user"))
        if "image" in columns:
            form.refuse_text_options()
            shape = self._shape(train, form.image_size)
            parts = Parquet(image="image", domain=domain, user=user, own=True).parts(folder, shape) or {}
            for part, content in parts.items():
                write_pictures(writer, part, content, shape, progress)
        elif "text" in columns:
            form.refuse_image_size(", and these are texts")
            parts = Parquet(text=("text",), domain=domain, user=user, own=True).parts(folder, None) or {}
            write_texts(writer, parts, VOCABULARY, form)
        else:
            raise InputError(f"data file {train}: has no column 'image' or 'text' (for numbers use npz)")
        return parts

    def _shape(self, path: Path, image_size: int | None) -> Shape:
        """Return the shape of all pictures: that of the first, or `image_size` to which they are resized."""
        from .readers.parquet_columns import first_picture  # here, because it imports pyarrow

        name, (channels, width, height) = first_picture(path)
        if image_size is None and width != height:
            raise InputError(f"data file {path}: its first picture has {width} x {height} pixels; set data.image_size, "
                             "to which all are resized")  # fmt: skip
        return Shape(channels, image_size or width, resize=image_size is not None, first=name)
