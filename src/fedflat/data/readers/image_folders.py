"""Pictures in folders: one folder for each domain, in it one folder for each class."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from .file_search import plain_files
from .layouts import Part, Shape
from .untrusted_files import MAX_ENCODED_BYTES, expect, read_regular

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


@dataclass(frozen=True)
class ImageFolders:
    """`DOMAIN/CLASS/picture.jpg`, perhaps below one more folder; classes are numbered in the order of their names."""

    domains: tuple[str, ...]  # names of the folders

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        pictures = [path for path in plain_files(folder) if path.suffix.lower() in SUFFIXES]
        pictures = [path for path in pictures if path.parent.parent.name in self.domains]
        if not pictures or shape is None:
            return None
        from .pictures import decode_pictures  # here, because it imports Pillow

        classes = sorted({path.parent.name for path in pictures})
        domain = [path.parent.parent.name for path in pictures]
        missing = sorted(set(self.domains) - set(domain))
        expect(not missing, str(folder), f"has no pictures of domain {', '.join(missing)}")
        labels = np.array([classes.index(path.parent.name) for path in pictures])
        encoded = ((str(path), partial(read_regular, path, MAX_ENCODED_BYTES)) for path in pictures)
        return {"train": Part(labels, decode_pictures(encoded, shape), domain)}

    def __str__(self) -> str:
        return f"folders {self.domains[0]}/CLASS/*.jpg, ..."
