"""The data sets that are known by name, as a table: an entry added here is found everywhere by its key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from ..core.errors import InputError, shortened
from ..core.object_references import ExtensionPoint, find_outside, installed, is_outside, is_reference, resolved
from ..core.registry import known_names, matching
from .character_dataset import CLASS_NAMES, TOKEN_NAMES, TOKENS, CharacterDataset
from .class_folders import ClassFolders
from .dataset import BundledDataset, FileDataset, HubRepository, LoadedDataset, SampleArrays
from .drawn_shapes import NAMES as SHAPE_NAMES
from .drawn_shapes import SIZE, TEST, TRAIN, USERS, drawn_shapes
from .medical_sets import MEDICAL_SETS
from .own_data import own_dataset
from .own_folders import FolderDataset, NpzFolder, ParquetFolder
from .own_leaf import LeafFolder
from .own_tables import CSV, JSONL
from .preparation import IMAGENET, Preparation
from .readers.array_files import BinaryBatches, PythonBatches
from .readers.encoded_files import Parquet
from .readers.layouts import Csv, Idx, Shape
from .readers.matlab_files import MatlabDigits
from .readers.picture_folders import ImageFolders, PartFolders
from .readers.plays import LETTERS, LeafPlays, RoleText

Source = FileDataset | BundledDataset | FolderDataset
SOURCES = ExtensionPoint(
    "data", "a function without arguments that returns (x, y), ((x, y), test) or a LoadedDataset", callable
)
# Read from a file, because importing scikit-learn would take each new process as long as starting a run.
DIGITS = Path(__file__).with_name("digits.npz")
WHITE = 16  # the largest value of a pixel in that file


def _read_digits() -> LoadedDataset:
    """Read all 1,797 images, x (n, 1, 8, 8) float32 in [0, 1].

    They are scikit-learn's copy of the UCI set "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998;
    CC BY 4.0). The test set is a fixed stratified quarter, the same for every seed.
    """
    with np.load(DIGITS, allow_pickle=False) as stored:
        # In memory of torch: full-batch products round by the address, and that of numpy's memory differs by process.
        train, test = (
            SampleArrays(
                torch.from_numpy(stored[f"{part}_x"])[:, None].float() / WHITE,
                torch.from_numpy(stored[f"{part}_y"]).long(),
            )
            for part in ("train", "test")
        )
    return LoadedDataset(train, test, classes=10)


def _photographs_in_domains(
    summary: str,
    classes: int,
    sizes: Mapping[str, int],
    domains: tuple[str, ...],
    repository: str,
    folders: tuple[str, ...],
) -> FileDataset:
    """Describe a set of photographs in several domains; all are resized to 224 x 224 pixels, or to data.image_size."""
    return FileDataset(
        summary,
        classes=classes,
        sizes=sizes,
        layouts=(Parquet(image="image", domain="domain"), ImageFolders(domains)),
        picture=Shape(channels=3, size=224, resize=True),
        preparation=IMAGENET,
        domains=domains,
        hub=HubRepository(repository),
        folders=folders,
    )


# The key is the name of the data set; the first argument is what `fedflat data list` shows.
TABLE: dict[str, Source] = {
    "ag_news": FileDataset(
        "AG News (Zhang et al., 2015): news in four topics, 120,000 for training and 7,600 for test.",
        classes=4,
        sizes={"train": 120_000, "test": 7_600},
        layouts=(Parquet(text=("text",)), Csv(columns=2)),
        vocabulary_size=30_000,
        hub=HubRepository("fancyzhx/ag_news"),
        folders=("ag_news_csv",),
    ),
    "cifar10": FileDataset(
        "CIFAR-10 (Krizhevsky, 2009): 32x32 colour photographs, 10 classes, 50,000 for training, 10,000 for test.",
        classes=10,
        sizes={"train": 50_000, "test": 10_000},
        layouts=(
            Parquet(image="img"),
            PythonBatches(train=tuple(f"data_batch_{i}" for i in range(1, 6)), test=("test_batch",)),
            BinaryBatches(train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)), test=("test_batch.bin",)),
        ),
        picture=Shape(channels=3, size=32),
        preparation=Preparation(mean=(0.491, 0.482, 0.446), std=(0.247, 0.243, 0.261)),  # FedGF's constants
        hub=HubRepository("uoft-cs/cifar10", "plain_text"),
        folders=("cifar-10", "cifar-10-batches-py", "cifar-10-batches-bin"),
    ),
    "cifar100": FileDataset(
        "CIFAR-100 (Krizhevsky, 2009): 32x32 colour photographs, 100 classes, 50,000 for training, 10,000 for test.",
        classes=100,
        sizes={"train": 50_000, "test": 10_000},
        layouts=(
            Parquet(image="img", label="fine_label"),
            PythonBatches(train=("train",), test=("test",), label="fine_labels"),
            BinaryBatches(train=("train.bin",), test=("test.bin",), label_bytes=2),
        ),
        picture=Shape(channels=3, size=32),
        preparation=Preparation(mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761)),  # FedGF's constants
        hub=HubRepository("uoft-cs/cifar100", "cifar100"),
        folders=("cifar-100", "cifar-100-python", "cifar-100-binary"),
    ),
    # Its validation part is left out: a run takes validation samples from those that clients train on.
    "cinic10": FileDataset(
        "CINIC-10 (Darlow et al., 2018): 32x32 photographs, 10 classes, 90,000 for training and 90,000 for test.",
        classes=10,
        sizes={"train": 90_000, "test": 90_000},
        layouts=(Parquet(image="image"), PartFolders(10)),
        picture=Shape(channels=3, size=32),
        preparation=Preparation(
            mean=(0.47889522, 0.47227842, 0.43047404), std=(0.24205776, 0.23828046, 0.25874835)
        ),  # its authors' constants
        hub=HubRepository("flwrlabs/cinic10"),
        folders=("CINIC-10",),
    ),
    "csv": CSV,
    "dbpedia_14": FileDataset(
        "DBpedia-14 (Zhang et al., 2015): titles and abstracts in 14 classes, 560,000 for training, 70,000 for test.",
        classes=14,
        sizes={"train": 560_000, "test": 70_000},
        layouts=(Parquet(text=("title", "content")), Csv(columns=2)),
        vocabulary_size=30_000,
        hub=HubRepository("fancyzhx/dbpedia_14", "dbpedia_14"),
        folders=("dbpedia_csv",),
    ),
    "digits": BundledDataset(
        summary="Handwritten digits, 8x8 grey, 10 classes, 1,347 for training and 450 for test; comes with fedflat.",
        read=_read_digits,
        classes=10,
        shape=(1, 8, 8),
        sizes={"train": 1347, "test": 450},
        where="nothing needed: comes with fedflat",
    ),
    # At the papers' size of 224x224 the converted set takes 88 GB of disk; `data.image_size` makes it smaller.
    "domainnet": _photographs_in_domains(
        "DomainNet (Peng et al., 2019): 345 classes, 409,832 pictures for training and 176,743 for test in 6 domains.",
        classes=345,
        sizes={"train": 409_832, "test": 176_743},
        domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        repository="wltjr1007/DomainNet",
        folders=("DomainNet",),
    ),
    # Pixels are scaled to [0, 1] and not normalised. The original files keep pictures transposed; they are turned here.
    "emnist": FileDataset(
        "EMNIST ByClass (Cohen et al., 2017): digits and letters, 62 classes, 697,932 for training, 116,323 for test.",
        classes=62,
        sizes={"train": 697_932, "test": 116_323},
        layouts=(Idx(prefix="emnist-byclass-", test="test", transposed=True), Parquet(image="image")),
        picture=Shape(channels=1, size=28),
        folders=("EMNIST",),
    ),
    "fashion_mnist": FileDataset(
        "Fashion-MNIST (Xiao et al., 2017): 28x28 grey pictures of clothes, 10 classes, 60,000 for training.",
        classes=10,
        sizes={"train": 60_000, "test": 10_000},
        layouts=(Parquet(image="image"), Idx()),
        picture=Shape(channels=1, size=28),
        preparation=Preparation(mean=(0.2860,), std=(0.3530,)),
        hub=HubRepository("zalando-datasets/fashion_mnist", "fashion_mnist"),
        folders=("FashionMNIST",),
    ),
    # A fixed tenth of every writer's pictures is the test set. Pixels are scaled to [0, 1] and not normalised.
    "femnist": FileDataset(
        "FEMNIST (Caldas et al., 2018): 28x28 digits and letters by writer, 62 classes, some 814,000, no test set.",
        classes=62,
        sizes={},
        layouts=(Parquet(image="image", label="character", user="writer_id"),),
        picture=Shape(channels=1, size=28),
        hub=HubRepository("flwrlabs/femnist"),
    ),
    "folder": ClassFolders(),
    "jsonl": JSONL,
    "leaf": LeafFolder(),
    "mnist": FileDataset(
        "MNIST (LeCun et al., 1998): 28x28 grey handwritten digits, 10 classes, 60,000 for training, 10,000 for test.",
        classes=10,
        sizes={"train": 60_000, "test": 10_000},
        layouts=(Parquet(image="image"), Idx()),
        picture=Shape(channels=1, size=28),
        preparation=Preparation(mean=(0.1307,), std=(0.3081,)),
        hub=HubRepository("ylecun/mnist", "mnist"),
        folders=("MNIST",),
    ),
    "npz": NpzFolder(),
    "office_home": _photographs_in_domains(
        "OfficeHome (Venkateswara et al., 2017): office and home objects, 65 classes, 15,588 pictures in 4 domains.",
        classes=65,
        sizes={"train": 15_588},
        domains=("Art", "Clipart", "Product", "Real World"),
        repository="flwrlabs/office-home",
        folders=("OfficeHome", "OfficeHomeDataset_10072016"),
    ),
    "pacs": _photographs_in_domains(
        "PACS (Li et al., 2017): photographs, paintings, cartoons and sketches of 7 classes, 9,991 in 4 domains.",
        classes=7,
        sizes={"train": 9_991},
        domains=("art_painting", "cartoon", "photo", "sketch"),
        repository="flwrlabs/pacs",
        folders=("PACS",),
    ),
    "parquet": ParquetFolder(),
    # By role; the classes are LEAF's 80 characters. Its released splits are by sample, and differ by seed and share.
    "shakespeare": CharacterDataset(
        "Shakespeare by role (Caldas et al., 2018): the next of 80 characters, from LEAF's files or from one text.",
        classes=len(LETTERS),
        sizes={},
        layouts=(LeafPlays(), RoleText()),
        vocabulary_size=TOKENS,
        folders=("tiny_shakespeare",),
        class_names=CLASS_NAMES,
    ),
    "shakespeare_roles": CharacterDataset(
        "Shakespeare's 25 largest roles, in pieces of 80 characters: the next of 82 tokens at each, from one text.",
        classes=TOKENS,
        sizes={},
        layouts=(RoleText(in_pieces=True, most=25),),
        vocabulary_size=TOKENS,
        folders=("tiny_shakespeare",),
        class_names=TOKEN_NAMES,
        task="next-token",
    ),
    "shapes": BundledDataset(
        summary="Shapes drawn from a seed, 24x24 grey, 4 classes of pixels, 20 users, 600 for training, 200 for test.",
        read=drawn_shapes,
        classes=len(SHAPE_NAMES),
        shape=(1, SIZE, SIZE),
        sizes={"train": USERS * TRAIN, "test": USERS * TEST},
        where="nothing needed: fedflat draws it",
        task="segmentation",
    ),
    "svhn": FileDataset(
        "SVHN (Netzer et al., 2011): 32x32 house numbers, 10 digits, 73,257 for training and 26,032 for test.",
        classes=10,
        sizes={"train": 73_257, "test": 26_032},
        layouts=(Parquet(image="image"), MatlabDigits()),
        picture=Shape(channels=3, size=32),
        preparation=Preparation(mean=(0.4377, 0.4438, 0.4728), std=(0.1980, 0.2010, 0.1970)),
        hub=HubRepository("ufldl-stanford/svhn", "cropped_digits"),
    ),
    # FL-Simulator's constants, with which FedSAM's relatives are compared on this set.
    "tiny_imagenet": FileDataset(
        "Tiny-ImageNet (Le and Yang, 2015): 64x64 photographs, 200 classes, 100,000 for training, 10,000 for test.",
        classes=200,
        sizes={"train": 100_000, "test": 10_000},
        layouts=(Parquet(image="image"), PartFolders(200, test="val", annotations="val_annotations.txt")),
        picture=Shape(channels=3, size=64),
        preparation=Preparation(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        hub=HubRepository("zh-plus/tiny-imagenet"),
        folders=("tiny-imagenet", "tiny-imagenet-200"),
    ),
    **MEDICAL_SETS,
}
TABLE = dict(sorted(TABLE.items()))


def source_names() -> list[str]:
    """Return the names of all data sets in the table."""
    return list(TABLE)


def known_source(name: str) -> str:
    """Return the full name of the data set called `name`: a key of the table, or a function outside this package.

    Case, `-` and `_` do not matter; the file of an object reference gets its full path. Raises InputError for an
    unknown name.
    """
    if not isinstance(name, str):
        kind = type(name).__name__
        raise InputError(f"data.name must be the name of a data set, got a {kind}; for samples of your own use "
                         "FederatedData.split(x, y, clients=...)")  # fmt: skip
    known = matching(name, TABLE)
    if known is None and is_outside(name, SOURCES):
        return resolved(name) if is_reference(name) else name
    if known is None:
        raise InputError(
            f"data.name = {shortened(name)!r} is unknown; {known_names(name, [*TABLE, *installed(SOURCES)])}"
        )
    return known


def source(name: str) -> Source:
    """Return the description of the data set `name`; if it is a function outside this package, call the function.

    Raises InputError for an unknown name, and for a function that returns no data set.
    """
    known = known_source(name)
    return TABLE[known] if known in TABLE else own_dataset(known, find_outside(known, SOURCES))


def is_folder(name: str) -> bool:
    """Return whether `name` (npz or parquet) means the user's own folder, whose files decide classes and shapes."""
    return isinstance(TABLE.get(name), FolderDataset)
