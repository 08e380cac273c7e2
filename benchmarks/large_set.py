"""Memory that a set of pictures takes which is larger than what a small machine has free: conversion and training.

    python -m benchmarks.large_set --folder /tmp/tiny        # 110,000 pictures in Tiny-ImageNet's layout: some minutes

The pictures are made up, and are written only if the folder has none. Both parts of the measurement are processes of
their own; the peak is of resident memory above what imports take, pages of the mapped set among it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console

from .peak_memory import Peak
from .tables import Table

CLASSES, TRAIN, TEST, SIZE = 200, 500, 50, 64  # classes, pictures of each, pixels


def write_pictures(folder: Path, share: float) -> None:
    """Write pictures as Tiny-ImageNet has them, `share` of the published number of each class."""
    rng, root = np.random.default_rng(0), folder / "tiny-imagenet-200"
    rows = []
    for c in range(CLASSES):
        name = f"n{c:08}"
        for part, number in (("train", TRAIN), ("val", TEST)):
            place = root / part / (f"{name}/images" if part == "train" else "images")
            place.mkdir(parents=True, exist_ok=True)
            for i in range(max(1, round(share * number))):
                coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                content = BytesIO()
                Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.BICUBIC).save(content, "JPEG")
                (place / f"{name}_{i}.JPEG").write_bytes(content.getvalue())
                rows += [f"{name}_{i}.JPEG\t{name}\t0\t0\t63\t63\n"] if part == "val" else []
    (root / "val" / "val_annotations.txt").write_text("".join(rows))


def converted(folder: str) -> dict[str, Any]:
    """Convert the set; return its size and the peak of memory in bytes."""
    import pyarrow.parquet  # noqa: F401  # what the conversion imports

    from fedflat.data import prepare

    prepare("digits")
    peak = Peak()
    loaded = prepare("tiny-imagenet", folder, partial=True)
    test = 0 if loaded.test is None else loaded.test.x.nbytes
    return {"bytes": loaded.train.x.nbytes + test, "peak": peak.bytes()}


def trained(folder: str) -> dict[str, Any]:
    """Train two rounds of two clients with a small network, and evaluate; return the peak of memory in bytes."""
    import fedflat as ff

    few = ff.data.load("digits", 2)
    ff.Simulation("cnn", few, ff.methods.FedSAM(), rounds=1, workers=1).run()
    peak = Peak()
    data = ff.data.load("tiny-imagenet", 100, ff.Dirichlet(alpha=0.3), data_dir=folder, partial=True)
    client = ff.Client(batch_size=50, epochs=1)
    run = ff.Simulation("cnn", data, ff.methods.FedSAM(), client, rounds=2, participation=2, workers=1,
                        executor="stacked").run()  # fmt: skip
    return {"peak": peak.bytes(), "accuracy": run.summary["test_accuracy_last"]}


def main() -> None:
    """Print the size of the set, and both peaks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the pictures")
    parser.add_argument("--share", type=float, default=1.0, help="share of the published number of pictures")
    given = parser.parse_args()
    if not (given.folder / "tiny-imagenet-200" / "val").is_dir():
        write_pictures(given.folder, given.share)
    with tempfile.TemporaryDirectory() as cache:
        found = {task.__name__: _apart(task, str(given.folder), cache) for task in (converted, trained)}
    rows = [("the set as pixels", found["converted"]["bytes"]), ("converted", found["converted"]["peak"]),
            ("two rounds and the evaluation", found["trained"]["peak"])]  # fmt: skip
    cells = [(name, "?" if size is None else f"{size / 2**20:,.0f}") for name, size in rows]
    Console().print(Table(("what", "MiB"), cells).for_console())


def _apart(task: Any, folder: str, cache: str) -> dict[str, Any]:
    """Return the result of `task` in a new process, with a cache folder of its own."""
    with multiprocessing.get_context("spawn").Pool(1, _set_cache, (cache,)) as pool:
        result: dict[str, Any] = pool.apply(task, (folder,))
        return result


def _set_cache(folder: str) -> None:
    import os

    os.environ["FEDFLAT_CACHE"] = folder


if __name__ == "__main__":
    main()
