"""A user's own pictures in class folders: `train/CLASS/*.png`, `CLASS/*.png` or `CLIENT/train/CLASS/*.png`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ..core.progress import Progress
from .cache import Writer
from .conversion import SampleFormat, write_pictures
from .numbers import NumberKind
from .own_folders import FolderDataset, picture_form, stated_pictures
from .readers.layouts import Part
from .readers.picture_folders import SUFFIXES
from .readers.site_files import PARTS, SiteFile, of_parts, site_files, users_of
from .readers.untrusted_files import MAX_ENCODED_BYTES, expect, read_regular


class ClassFolders(FolderDataset):
    """Pictures whose class is the name of their folder."""

    summary = "Pictures of your own in class folders, train/CLASS/*.png, in the folder that `data_dir` names."
    where = "train/CLASS/*.png (and test/CLASS/*.png), or CLIENT/train/CLASS/*.png; also jpg, jpeg, bmp and webp"

    def files(self, folder: Path) -> list[Path]:
        """Return the pictures of all parts."""
        return [] if folder.is_file() else [file.path for file in site_files(folder, SUFFIXES, inside=1)]

    def stated_samples(self, form: SampleFormat) -> tuple[tuple[int, ...], NumberKind]:
        """Return shape and kind of the pictures."""
        return stated_pictures(form)

    def convert(self, folder: Path, form: SampleFormat, writer: Writer, progress: Progress) -> dict[str, Part]:
        """Write pictures as pixels. Raises InputError for pictures of different sizes, or grey beside coloured ones."""
        from .readers.pictures import decode_pictures, picture_shape  # here, because it imports Pillow

        form.refuse_text_options()
        form.schema.refuse(("channels", "means", "deviations"), "pictures in class folders")
        files = of_parts(site_files(folder, SUFFIXES, inside=1), folder)
        first = files["train"][0].path
        shape = picture_form(str(first), lambda: picture_shape(str(first), partial(read_regular, first)), form)
        users = users_of({part: [file.client for file in some] for part, some in files.items()})
        parts = {}
        for part, some in files.items():
            encoded = ((str(file.path), partial(read_regular, file.path, MAX_ENCODED_BYTES)) for file in some)
            parts[part] = Part(_classes(folder, some), decode_pictures(encoded, shape), user=users[part])
            write_pictures(writer, part, parts[part], shape, progress)
        writer.metadata["schema"] = form.schema.stated | {"channels": shape.channels}
        return parts


def _classes(folder: Path, files: Sequence[SiteFile]) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    """Return the name of the class of each picture. Raises InputError for a picture outside a class folder."""
    for file in files:
        inside = file.path.parent != folder and file.path.parent.name not in PARTS
        expect(inside, str(file.path), "is in no class folder; expected train/CLASS/picture.png")
    return np.array([file.path.parent.name for file in files], dtype=np.str_)
