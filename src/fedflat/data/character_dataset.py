"""A data set of texts whose samples are characters, not words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..core.progress import Progress
from .cache import Writer
from .conversion import SampleFormat
from .dataset import FIXED, FileDataset
from .readers.layouts import Part, Shape
from .readers.plays import FIRST, LENGTH, LETTERS


class CharacterDataset(FileDataset):
    """Samples of 80 characters, with the character that follows all of them or each of them."""

    def sample_shape(self, form: SampleFormat | None = None) -> tuple[int, ...]:
        """Return the shape of one sample. Raises InputError for a form that the samples cannot have."""
        if form is not None:
            self._picture_shape(form)
        return (LENGTH,)

    def _picture_shape(self, form: SampleFormat) -> Shape | None:
        form.schema.refuse((), "this set")
        form.refuse_image_size(FIXED)
        form.refuse_text_options()
        return None

    def _write_samples(
        self, writer: Writer, parts: Mapping[str, Part], picture: Shape | None, form: SampleFormat, progress: Progress
    ) -> None:
        for part, content in parts.items():
            with writer.rows(f"{part}-x", (LENGTH,), np.int16) as rows:
                for piece in content.samples:
                    rows.add(piece)
                    progress(part, rows.number, len(content.labels))


NAMES = {"\n": "newline", " ": "space"}  # of classes that tables cannot show
CLASS_NAMES = tuple(NAMES.get(letter, letter) for letter in LETTERS)
TOKENS = FIRST + len(LETTERS)
TOKEN_NAMES = ("padding", "other", *CLASS_NAMES)
