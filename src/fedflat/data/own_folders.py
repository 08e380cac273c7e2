"""A user's own data set in a folder: the files decide classes, sizes and shapes, unless the settings state them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ..core.errors import InputError
from ..core.progress import Progress
from .cache import SourceFiles, Writer
from .conversion import SampleFormat, write_groups, write_own_labels, write_pictures, write_texts
from .dataset import FoundDataset, LoadedDataset, data_root, load_converted, printable_errors
from .numbers import NumberKind, alike
from .preparation import Preparation
from .readers.array_files import npz_files, read_npz
from .readers.encoded_files import Parquet, parquet_parts
from .readers.layouts import Part, Shape
from .readers.untrusted_files import expect
from .schema import Schema

VOCABULARY = 30_000  # size of the vocabulary of texts, as for the sets that are known by name


class FolderDataset(ABC):
    """A user's own data set in files of one format."""

    summary: str  # one line
    where: str  # files to look for, in words
    sizes: Mapping[str, int] = {}  # empty: any number of samples is accepted

    @abstractmethod
    def files(self, folder: Path) -> list[Path]:
        """Return the files of this format in `folder`."""

    @abstractmethod
    def convert(self, folder: Path, form: SampleFormat, writer: Writer, progress: Progress) -> dict[str, Part]:
        """Write the samples of every part; return the parts, so that `load` writes labels, domains and users."""

    @abstractmethod
    def stated_samples(self, form: SampleFormat) -> tuple[tuple[int, ...], NumberKind]:
        """Return the shape of a sample and the kind of its numbers, without reading a file.

        Raises InputError, naming the setting, if the settings do not state everything that decides them.
        """

    @printable_errors()
    def load(
        self, name: str, data_dir: str | None, partial: bool, form: SampleFormat, progress: Progress
    ) -> LoadedDataset:
        """Load the files in `data_dir` or $FEDFLAT_DATA; they are converted once and then kept in the cache.

        Raises InputError, naming folder, file or field, if the files are missing or damaged.
        """
        place = self._place(name, data_dir)
        files = self.files(place)
        if not files:
            raise InputError(f"data_dir = {str(place)!r} has no files of {name}; it should hold {self.where}")
        how = (name, "labels as they are", form.image_size, form.length, VOCABULARY, *form.text_key)
        how += (str(place), form.schema.stated)

        def build(writer: Writer) -> None:
            parts = self.convert(place, form, writer, progress)
            write_own_labels(writer, parts)
            write_groups(writer, parts)

        folder = place.parent if place.is_file() else place
        loaded = load_converted(name, SourceFiles(folder, files), how, build)
        pixels = loaded.train.x.dtype == torch.uint8
        return replace(loaded, preparation=self._preparation(loaded, form.schema)) if pixels else loaded

    def _preparation(self, loaded: LoadedDataset, schema: Schema) -> Preparation:
        """Return how pictures are scaled. Raises InputError unless a mean is stated for each colour, or none."""
        channels = loaded.train.x.shape[1]
        if schema.means and len(schema.means) != channels:
            raise InputError(f"data.means has {len(schema.means)} numbers, and the pictures {channels} colour(s)")
        return Preparation(schema.means, schema.deviations)

    def _place(self, name: str, data_dir: str | None) -> Path:
        """Return the folder or the file that `data_dir` or $FEDFLAT_DATA names, or the folder `name` in that folder."""
        if data_dir is not None and (file := Path(data_dir).expanduser()).is_file():
            return file
        root = data_root(data_dir, name)
        inside = (root / name).is_dir() and not self.files(root)  # as for sets that are known by name
        return root / name if inside else root

    def described(self, loaded: LoadedDataset) -> FoundDataset:
        """Return a description of the data set that was loaded from the files."""
        x = loaded.train.x
        tokens = 0 if x.is_floating_point() or x.dtype.itemsize == 1 else max(len(loaded.vocabulary), int(x.max()) + 1)
        return FoundDataset(
            classes=loaded.classes, shape=tuple(x.shape[1:]), sizes=loaded.sizes, domains=loaded.domains,
            vocabulary_size=tokens,
        )  # fmt: skip


class NpzFolder(FolderDataset):
    """A user's own arrays in `train.npz` and `test.npz`."""

    summary = "Arrays of your own: `train.npz` and `test.npz` in the folder that `data_dir` names."
    where = "train.npz (and test.npz) with arrays x (n, ...), y (n,), and perhaps domain, user (n,)"

    def files(self, folder: Path) -> list[Path]:
        """Return the files of all parts; an empty list if there is no training file."""
        found = npz_files(folder)
        return sorted(found.values()) if "train" in found else []

    def stated_samples(self, form: SampleFormat) -> tuple[tuple[int, ...], NumberKind]:
        """Raise InputError: sites of a federation have one array in each file."""
        raise InputError("data.name = 'npz' is for simulations; a site has x.npy and y.npy: give --shape and --classes")

    def convert(self, folder: Path, form: SampleFormat, writer: Writer, progress: Progress) -> dict[str, Part]:
        """Write the arrays unchanged. Raises InputError if the parts' samples differ in shape or type."""
        form.refuse_text_options()
        form.refuse_image_size("; arrays have one size")
        form.schema.refuse((), "arrays")
        parts = {part: read_npz(path) for part, path in npz_files(folder).items()}
        arrays = {f"{folder / part}.npz": torch.from_numpy(content.samples) for part, content in parts.items()}
        for part, x in zip(parts, alike(arrays), strict=True):
            expect(x.shape[1:] == arrays[f"{folder / 'train'}.npz"].shape[1:], str(folder),
                   f"{part} has x of shape {tuple(x.shape)}, and train samples of another shape")  # fmt: skip
            writer.add(f"{part}-x", x.numpy())
            progress(part, len(x), len(x))
        return parts


class ParquetFolder(FolderDataset):
    """A user's own pictures or texts in `train*.parquet` and `test*.parquet`."""

    summary = "Pictures or texts of your own: `train*.parquet` and `test*.parquet` in the folder that `data_dir` names."
    where = "train-*.parquet (and test-*.parquet) with columns image or text, label, and perhaps domain, user"

    def files(self, folder: Path) -> list[Path]:
        """Return the files of all parts; an empty list if there is no training file."""
        found = parquet_parts(folder)
        return [path for paths in found.values() for path in paths] if "train" in found else []

    def stated_samples(self, form: SampleFormat) -> tuple[tuple[int, ...], NumberKind]:
        """Return shape and kind: those of pictures if `channels` is stated, else those of texts."""
        return stated_texts(form) if form.schema.channels is None else stated_pictures(form)

    def convert(self, folder: Path, form: SampleFormat, writer: Writer, progress: Progress) -> dict[str, Part]:
        """Write pictures as pixels, or texts as token numbers. Raises InputError for files with neither."""
        from .readers.parquet_columns import first_picture, parquet_columns  # here, because it imports pyarrow

        train = parquet_parts(folder)["train"][0]
        columns = parquet_columns(train)
        domain, user = (group if group in columns else None for group in ("domain", "user"))
        if "image" in columns:
            form.refuse_text_options()
            form.schema.refuse(("channels", "means", "deviations"), "pictures in parquet")
            name, size = first_picture(train)
            shape = picture_form(name, lambda: size, form)
            parts = Parquet(image="image", domain=domain, user=user, own=True).parts(folder, shape) or {}
            for part, content in parts.items():
                write_pictures(writer, part, content, shape, progress)
        elif "text" in columns:
            form.refuse_image_size(", and these are texts")
            form.schema.refuse(("vocabulary",), "texts in parquet")
            parts = Parquet(text=("text",), domain=domain, user=user, own=True).parts(folder, None) or {}
            write_texts(writer, parts, VOCABULARY, form)
        else:
            raise InputError(f"data file {train}: has no column 'image' or 'text' (for numbers use npz)")
        return parts


def picture_form(name: str, first: Callable[[], tuple[int, int, int]], form: SampleFormat) -> Shape:
    """Return the form of all pictures: what the settings state, else that of the first picture.

    name: of the first picture. first: returns its channels, width and height. Raises InputError if the pictures are not
    square and no image size is stated.
    """
    stated = form.schema.channels
    if stated is not None and form.image_size is not None:
        return Shape(stated, form.image_size, resize=True, first="what data.channels states")
    channels, width, height = first()
    if form.image_size is None and width != height:
        raise InputError(f"data file {name}: it has {width} x {height} pixels; set data.image_size, to which all are "
                         "resized")  # fmt: skip
    origin = name if stated is None else "what data.channels states"
    return Shape(stated or channels, form.image_size or width, resize=form.image_size is not None, first=origin)


def stated_pictures(form: SampleFormat) -> tuple[tuple[int, ...], NumberKind]:
    """Return the shape of pictures, and that they are pixels. Raises InputError if a setting is not stated."""
    form.schema.need(("channels",), "pictures")
    if form.image_size is None or form.schema.channels is None:
        raise InputError("data.image_size is needed for sites with pictures of their own")
    return (form.schema.channels, form.image_size, form.image_size), "pixels"


def stated_texts(form: SampleFormat) -> tuple[tuple[int, ...], NumberKind]:
    """Return the shape of texts, and that they are tokens. Raises InputError if no vocabulary is stated."""
    if form.tokenizer is None:
        form.schema.need(("vocabulary",), "texts")
    return (form.length,), "tokens"
