"""Makes the data of this study from Fashion-MNIST: a pool for clients, images to choose by, and a test.

    python studies/gap-and-flatness/sets.py --data-dir DATA --out sets

Writes four folders of npz files. The test part of `choose-few` and `choose-many` are the images set aside, that of
`compare-few` and `compare-many` the real test images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fedflat.cli.console import in_one_line
from fedflat.data import prepare
from fedflat.files import make_folder

FEW, MANY = 2_000, 20_000  # images of the clients
CHOOSING = 10_000  # images that choose hyper-parameters
ORDER = 20_261_125  # the seed of the permutation of the training images


def write_sets(data_dir: str, out: Path) -> None:
    """Write the folders below `out`. Raises InputError if the data set is missing."""
    data = prepare("fashion-mnist", data_dir)
    x, y = data.train.x.numpy(), data.train.y.numpy()
    order = np.random.default_rng(ORDER).permutation(len(y))
    chosen = order[-CHOOSING:]
    parts = {"choose": (x[chosen], y[chosen]), "compare": (data.test.x.numpy(), data.test.y.numpy())}
    for gap, number in (("few", FEW), ("many", MANY)):
        for purpose, test in parts.items():
            folder = out / f"{purpose}-{gap}"
            make_folder(folder)
            for name, (images, labels) in (("train", (x[order[:number]], y[order[:number]])), ("test", test)):
                np.savez(folder / f"{name}.npz", x=images, y=labels)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="the folder with fashion_mnist")
    parser.add_argument("--out", type=Path, default=Path("sets"), help="default %(default)s")
    arguments = parser.parse_args()
    with in_one_line():
        write_sets(arguments.data_dir, arguments.out)
