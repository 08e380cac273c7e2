"""Folders of pictures: by domain and class, or by part and class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from .file_search import plain_files
from .layouts import Part, Shape
from .table_files import text_lines
from .untrusted_files import MAX_ENCODED_BYTES, MAX_SAMPLES, expect, open_regular, read_regular

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


@dataclass(frozen=True)
class ImageFolders:
    """`DOMAIN/CLASS/picture.jpg`, perhaps below one more folder; classes are numbered in the order of their names."""

    domains: tuple[str, ...]  # names of the domains and of their folders

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        pictures = [path for path in plain_files(folder) if path.suffix.lower() in SUFFIXES]
        pictures = [path for path in pictures if path.parent.parent.name in self.domains]
        if not pictures or shape is None:
            return None
        from .pictures import decode_pictures

        classes = sorted({path.parent.name for path in pictures})
        domain = [path.parent.parent.name for path in pictures]
        missing = sorted(set(self.domains) - set(domain))
        expect(not missing, str(folder), f"has no pictures of domain {', '.join(missing)}")
        labels = np.array([classes.index(path.parent.name) for path in pictures])
        return {"train": Part(labels, decode_pictures(_encoded(iter(pictures)), shape), domain)}

    def __str__(self) -> str:
        return f"folders {self.domains[0]}/CLASS/*.jpg, ..."


@dataclass(frozen=True)
class PartFolders:
    """`train/CLASS/picture.png` and `test/CLASS/picture.png`, as CINIC-10 and Tiny-ImageNet are published.

    Classes are numbered in the order of their names. There may be one more folder inside that of a class, and above
    the parts. Pictures of the test part may instead be in one folder, beside a file of annotations.
    """

    classes: int
    test: str = "test"  # the folder of the test part
    annotations: str = ""  # file in that folder: in each line the name of a picture and of its class

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        pictures = [path for path in plain_files(folder) if path.suffix.lower() in SUFFIXES]
        train = _below(pictures, "train", folder)
        if not train or shape is None:
            return None
        classes = sorted({words[0] for words, _ in train if len(words) > 1})
        expect(len(classes) == self.classes, str(folder), f"train has {len(classes)} class folders, the set has "
               f"{self.classes}")  # fmt: skip
        found = {"train": self._part(train, classes, {}, shape)}
        if test := _below(pictures, self.test, folder):
            found["test"] = self._part(test, classes, self._annotated(test[0][1]), shape)
        return found

    def _part(self, pictures: _Pictures, classes: list[str], annotated: dict[str, str], shape: Shape) -> Part:
        from .pictures import decode_pictures  # here, because it imports Pillow

        number, labels = {name: i for i, name in enumerate(classes)}, []
        for words, path in pictures:
            name = annotated.get(path.name, words[0])
            expect(name in number, str(path), "is in no class folder, and no annotation names its class")
            labels.append(number[name])
        return Part(np.array(labels), decode_pictures(_encoded(path for _, path in pictures), shape))

    def _annotated(self, picture: Path) -> dict[str, str]:
        """Return the class of each picture that the file of annotations names; empty without such a file."""
        if not self.annotations:
            return {}
        place = next(one for one in picture.parents if one.name == self.test) / self.annotations
        if not place.is_file():
            return {}
        with open_regular(place) as file:
            rows = [line.split() for line in text_lines(str(place), file)]
        expect(len(rows) <= MAX_SAMPLES and all(len(row) >= 2 for row in rows), str(place),
               "has a line without the name of a picture and of its class")  # fmt: skip
        return {row[0]: row[1] for row in rows}

    def __str__(self) -> str:
        return f"train/CLASS/*.png and {self.test}/CLASS/*.png"


_Pictures = Sequence[tuple[tuple[str, ...], Path]]  # the path of each picture, as words from its part on


def _below(pictures: Sequence[Path], part: str, folder: Path) -> list[tuple[tuple[str, ...], Path]]:
    """Return the pictures below a folder named `part`, with the words of their paths after it."""
    found = []
    for path in pictures:
        words = path.relative_to(folder).parts
        if part in words[:-1]:
            found.append((words[words.index(part) + 1 :], path))
    return found


def _encoded(paths: Iterator[Path]) -> Iterator[tuple[str, partial[bytes]]]:
    """Yield the name of each picture, and a function that reads its bytes."""
    return ((str(path), partial(read_regular, path, MAX_ENCODED_BYTES)) for path in paths)
