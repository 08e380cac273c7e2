"""Makes the data of this study from Fashion-MNIST: for each seed the clients of both gaps, and two test parts.

    python studies/gap-and-flatness/sets.py --data-dir DATA --out sets

Writes a folder of npz files for each gap and seed, `few-0`, `many-0` and so on, whose column `user` is the client. The
test part of the choosing seeds are the images set aside, that of all other seeds the real test images.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from plan import CLIENTS, DATA, IMAGES, PLAN

from fedflat.cli.console import in_one_line
from fedflat.data import prepare
from fedflat.data.partition import Samples, all_partitions
from fedflat.files import make_folder

CLASSES = 10
TENTH = IMAGES["many"] // IMAGES["few"]  # at `few` a client holds a tenth of its images
SET_ASIDE = 10_000  # images to choose hyper-parameters by
ORDER = 20_261_125  # the seed of the permutation of the training images
Index = NDArray[np.int64]


def clients_of(y: Index, rng: np.random.Generator) -> list[Index]:
    """Draw the samples of each client at `many` from labels `y` (n,): equal sizes, Dirichlet shares of the classes."""
    drawn = rng.permutation(len(y))[: IMAGES["many"]]
    scheme = all_partitions()["balanced-dirichlet"](alpha=0.3)
    return [drawn[part] for part in scheme.split(Samples(y[drawn], CLASSES), CLIENTS, rng)]


def tenth_of(samples: Index, y: Index, rng: np.random.Generator) -> Index:
    """Draw a tenth of a client's `samples`, with the client's shares of the classes up to rounding."""
    counts = np.bincount(y[samples], minlength=CLASSES) / TENTH
    taken = np.floor(counts).astype(int)
    largest = np.lexsort((rng.random(CLASSES), taken - counts))  # the largest fractions are rounded up
    taken[largest[: len(samples) // TENTH - taken.sum()]] += 1
    return np.concatenate([rng.permutation(samples[y[samples] == c])[: taken[c]] for c in range(CLASSES)])


def write_sets(data_dir: str, out: Path) -> None:
    """Write the folders below `out`. Raises InputError if the data set is missing."""
    data = prepare(DATA, data_dir)
    x, y = data.train.x.numpy(), data.train.y.numpy()
    order = np.random.default_rng(ORDER).permutation(len(y))
    pool, aside = order[:-SET_ASIDE], order[-SET_ASIDE:]
    make_folder(out)
    tests = {"choose.npz": (x[aside], y[aside]), "compare.npz": (data.test.x.numpy(), data.test.y.numpy())}
    for name, (images, labels) in tests.items():
        np.savez(out / name, x=images, y=labels)
    for seed in (*PLAN.choosing_seeds, *PLAN.seeds):
        rng = np.random.default_rng([ORDER, seed])
        many = clients_of(y[pool], rng)
        for gap, parts in {"many": many, "few": [tenth_of(part, y[pool], rng) for part in many]}.items():
            samples = pool[np.concatenate(parts)]
            user = np.repeat(np.arange(CLIENTS), [len(part) for part in parts])
            folder = out / f"{gap}-{seed}"
            make_folder(folder)
            np.savez(folder / "train.npz", x=x[samples], y=y[samples], user=user)
            (folder / "test.npz").unlink(missing_ok=True)
            os.link(out / ("choose.npz" if seed in PLAN.choosing_seeds else "compare.npz"), folder / "test.npz")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="folder that contains fashion_mnist")
    parser.add_argument("--out", type=Path, default=Path("sets"), help="default %(default)s")
    arguments = parser.parse_args()
    with in_one_line():
        write_sets(arguments.data_dir, arguments.out)
