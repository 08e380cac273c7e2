"""Pictures in folders: one folder a domain, in it one folder a class."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from .bounded import content
from .bounds import ENCODED
from .found import plain_files
from .part import Part, Shape, expect
from .pictures import decoded

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


@dataclass(frozen=True)
class ImageFolders:
    """`DOMAIN/CLASS/picture.jpg`, perhaps below one more folder; classes are numbered by name."""

    domains: tuple[str, ...]  # names of the folders

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        files = [path for path in plain_files(folder) if path.suffix.lower() in ENDINGS]
        placed = [path for path in files if path.parent.parent.name in self.domains]
        if not placed or shape is None:
            return None
        classes = sorted({path.parent.name for path in placed})
        domain = [path.parent.parent.name for path in placed]
        missing = sorted(set(self.domains) - set(domain))
        expect(not missing, str(folder), f"has no pictures of domain {', '.join(missing)}")
        labels = np.array([classes.index(path.parent.name) for path in placed])
        pictures = ((str(path), partial(content, path, ENCODED)) for path in placed)
        return {"train": Part(labels, decoded(pictures, shape), domain)}

    def __str__(self) -> str:
        return f"folders {self.domains[0]}/CLASS/*.jpg, ..."
