"""A folder of parquet files as a data set; apart from the others, because it imports pyarrow and Pillow."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import InputError
from ..core.progress import Progress
from .cache import Writer
from .conversion import write_pictures, write_texts
from .folder_dataset import VOCABULARY, FolderDataset
from .readers.layout import Part, Shape
from .readers.parquet import Parquet, first_picture, parquet_columns, parquet_files
from .sample_format import SampleFormat


class ParquetFolder(FolderDataset):
    """`train*.parquet` and `test*.parquet` with pictures or texts."""

    @property
    def where(self) -> str:
        """Names of files and arrays or columns."""
        return "train-*.parquet (and test-*.parquet) with columns image or text, label, and perhaps domain, user"

    def files(self, folder: Path) -> list[Path]:
        """All parts, if there is one for training."""
        found = parquet_files(folder)
        return found if any(path.name.startswith("train") for path in found) else []

    def convert(self, folder: Path, form: SampleFormat, writer: Writer, progress: Progress) -> dict[str, Part]:
        """Write pictures as pixels, texts as token numbers. Raises InputError if there is neither."""
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
        name, (channels, width, height) = first_picture(path)
        if image_size is None and width != height:
            raise InputError(f"data file {path}: its first picture has {width} x {height} pixels; set data.image_size, "
                             "to which all are resized")  # fmt: skip
        return Shape(channels, image_size or width, resize=image_size is not None, first=name)
