"""A user's own data in LEAF's format: samples by user, numbers or texts, in `train/*.json` and `test/*.json`."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError, printable
from ..core.progress import Progress
from .cache import Writer
from .conversion import SampleFormat, write_texts
from .labels import values_of
from .numbers import NumberKind
from .own_folders import VOCABULARY, FolderDataset, stated_texts
from .readers.layouts import CHANNELS, Part
from .readers.leaf_files import is_text, leaf_users
from .readers.site_files import of_parts, site_files
from .readers.untrusted_files import MAX_SAMPLES, MAX_TEXT, expect, listed, parsing


class LeafFolder(FolderDataset):
    """Samples by user as LEAF's programs write them (Caldas et al., 2018)."""

    summary = "Data in LEAF's format, by user: train/*.json and test/*.json in the folder that `data_dir` names."
    where = "train/*.json (and test/*.json) with users and user_data; samples are lists of numbers, or texts"

    def files(self, folder: Path) -> list[Path]:
        """Return the files of all parts."""
        return [file.path for file in site_files(folder, (".json",))]

    def stated_samples(self, form: SampleFormat) -> tuple[tuple[int, ...], NumberKind]:
        """Return shape and kind of texts; numbers have no setting that states their shape."""
        if form.tokenizer is None and not form.schema.vocabulary:
            raise InputError("data.name = 'leaf' with numbers needs --shape and --classes, with texts data.vocabulary")
        return stated_texts(form)

    def convert(self, folder: Path, form: SampleFormat, writer: Writer, progress: Progress) -> dict[str, Part]:
        """Write numbers (n, d), with an image size (n, channels, size, size), or token numbers (n, length).

        Raises InputError, naming file and user, for samples of several kinds or shapes.
        """
        form.schema.refuse(("vocabulary",), "LEAF's files")
        found: dict[str, Part] = {}
        shape: tuple[int, ...] | None = None
        for part, files in of_parts(site_files(folder, (".json",), of_clients=False), folder).items():
            paths = [file.path for file in files]
            first = next((x for path in paths for _, x, _ in leaf_users(path) if x), None)
            expect(first is not None, str(paths[0]), "and other files of its part have no samples")
            assert first is not None  # noqa: S101 (for the type checker)
            if is_text(first):
                found[part] = _texts(paths)
                continue
            shape = shape or _shape(paths[0], first[0], form.image_size)
            found[part] = _numbers(writer, part, paths, shape, progress)
        with_texts = {part for part, one in found.items() if list(one.samples)}
        if with_texts:
            form.refuse_image_size(", and these are texts")
            expect(with_texts == found.keys(), str(folder), "has texts in one part and numbers in the other")
            write_texts(writer, found, VOCABULARY, form)
        else:
            form.refuse_text_options()
        return found


def _texts(paths: list[Path]) -> Part:
    """Read the texts of a part."""
    texts: list[str] = []
    labels: list[Any] = []
    users: list[str] = []
    for path in paths:
        for user, x, y in leaf_users(path):
            expect(is_text(x), str(path), f"user {listed([user])!r} has samples that are no texts")
            longest = max(map(len, x), default=0)
            expect(longest <= MAX_TEXT, str(path), f"has a text of {longest:,} characters; {MAX_TEXT:,} are the most")
            texts += x
            labels += y
            users += [user] * len(x)
    _check(paths[0], len(texts))
    return Part(values_of(labels, f"data: label in {printable(str(paths[0].parent))}"), texts, user=users)


def _numbers(writer: Writer, part: str, paths: list[Path], shape: tuple[int, ...], progress: Progress) -> Part:
    """Write the numbers of a part, user by user, and return labels and users."""
    labels: list[Any] = []
    users: list[str] = []
    with writer.rows(f"{part}-x", shape, np.float32) as rows:
        for path in paths:
            for user, x, y in leaf_users(path):
                if x:
                    rows.add(_array(path, user, x, shape))
                labels += y
                users += [user] * len(x)
                progress(part, rows.number, rows.number)
    _check(paths[0], len(users))
    return Part(values_of(labels, f"data: label in {printable(str(paths[0].parent))}"), (), user=users)


def _array(path: Path, user: str, samples: list[Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return samples as numbers, (n, *shape). Raises InputError, naming file and user, for anything else."""
    with parsing(f"{path}, user {user!r}", "has samples that are no numbers of one shape"):
        found = np.array(samples, dtype=np.float64)
    fits = found.size == len(samples) * prod(shape) and bool(np.isfinite(found).all())
    expect(fits, str(path), f"user {listed([user])!r} has samples of another shape than {shape}, NaN or infinity")
    return found.reshape(-1, *shape).astype(np.float32)


def _shape(path: Path, sample: Any, image_size: int | None) -> tuple[int, ...]:
    """Return the shape of samples: that of the first one, or with an image size that of pictures."""
    with parsing(str(path), "its first sample is neither a text nor numbers"):
        found = np.array(sample, dtype=np.float64).shape
    expect(found != () and 0 not in found, str(path), "its first sample is one number; expected a list")
    if image_size is None:
        return found
    for channels in CHANNELS:
        if prod(found) == channels * image_size**2:
            return channels, image_size, image_size
    raise InputError(f"data.image_size = {image_size} does not fit samples of {prod(found)} numbers")


def _check(path: Path, number: int) -> None:
    expect(0 < number <= MAX_SAMPLES, str(path), f"its part has {number:,} samples; 1 to {MAX_SAMPLES:,} are read")
