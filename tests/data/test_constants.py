"""The constants of the data sets against what their publishers state, and that they are really applied.

Sources: the papers named below, the data sets' own pages, and their cards on the Hugging Face hub; not
`fedflat.data.sources`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import fedflat as ff
from fedflat.data.conversion import LENGTH
from fedflat.data.dataset import BundledDataset
from fedflat.data.preparation import AUGMENTATIONS, Preparation
from fedflat.data.sources import is_folder, source, source_names
from support.files import picture_column, refused, write_parquet

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Stated:
    """What is published of a set."""

    classes: int
    train: int | None
    test: int | None
    shape: tuple[int, ...]
    mean: Numbers = ()  # of pixels in [0, 1], by channel; empty where the recipes do not normalise
    std: Numbers = ()
    measured: tuple[Numbers, Numbers] = ((), ())  # mean and standard deviation of all training pixels, if published
    columns: dict[str, str] = field(default_factory=dict)  # of the hub's parquet files
    hub: tuple[str, str] | None = None  # repository, and the folder in it
    domains: tuple[str, ...] = ()
    vocabulary: int = 0


# torchvision's constants of ImageNet, with which photographs are normalised.
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def medical(classes: int, channels: int, total: int, validation: int, test: int) -> Stated:
    """One of MedMNIST's sets (Yang et al., 2023, Table 1, in the numbers of version 3), normalised by one half."""
    half = (0.5,) * channels
    return Stated(classes, total - validation - test, test, (channels, 28, 28), half, half)


MEDICAL = {
    "pathmnist": medical(9, 3, 107_180, 10_004, 7_180),
    "chestmnist": medical(14, 1, 112_120, 11_219, 22_433),
    "dermamnist": medical(7, 3, 10_015, 1_003, 2_005),
    "octmnist": medical(4, 1, 109_309, 10_832, 1_000),
    "pneumoniamnist": medical(2, 1, 5_856, 524, 624),
    "retinamnist": medical(5, 3, 1_600, 120, 400),
    "breastmnist": medical(2, 1, 780, 78, 156),
    "bloodmnist": medical(8, 3, 17_092, 1_712, 3_421),
    "tissuemnist": medical(8, 1, 236_386, 23_640, 47_280),
    "organamnist": medical(11, 1, 58_830, 6_491, 17_778),
    "organcmnist": medical(11, 1, 23_583, 2_392, 8_216),
    "organsmnist": medical(11, 1, 25_211, 2_452, 8_827),
}

STATED = {
    # Zhang, Zhao, LeCun (2015), Table 3: 30,000 and 1,900 samples for each of World, Sports, Business, Sci/Tech.
    "ag_news": Stated(
        4, 4 * 30_000, 4 * 1_900, (128,), vocabulary=30_000, columns={"text": "text", "label": "label"},
        hub=("fancyzhx/ag_news", ""),
    ),
    # Krizhevsky (2009): 5,000 and 1,000 pictures of each class. The constants are those of FedGF's released code.
    "cifar10": Stated(
        10, 10 * 5_000, 10 * 1_000, (3, 32, 32), (0.491, 0.482, 0.446), (0.247, 0.243, 0.261),
        measured=((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)), columns={"image": "img", "label": "label"},
        hub=("uoft-cs/cifar10", "plain_text"),
    ),
    # Krizhevsky (2009): 500 and 100 pictures of each of the 100 fine classes. FedGF's constants.
    "cifar100": Stated(
        100, 100 * 500, 100 * 100, (3, 32, 32), (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761),
        measured=((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        columns={"image": "img", "label": "fine_label"}, hub=("uoft-cs/cifar100", "cifar100"),
    ),
    # Zhang, Zhao, LeCun (2015), Table 3: 40,000 and 5,000 samples for each of 14 classes.
    "dbpedia_14": Stated(
        14, 14 * 40_000, 14 * 5_000, (128,), vocabulary=30_000,
        columns={"text": "content", "more": "title", "label": "label"}, hub=("fancyzhx/dbpedia_14", "dbpedia_14"),
    ),
    # scikit-learn: 1,797 pictures of 8 x 8, the UCI set's test part; a quarter of them is ours.
    "digits": Stated(10, 1_797 - 450, 450, (1, 8, 8)),
    # Peng et al. (2019), the cleaned version, as clipart + infograph + painting + quickdraw + real + sketch.
    "domainnet": Stated(
        345, 33_525 + 36_023 + 50_416 + 120_750 + 120_906 + 48_212,
        14_604 + 15_582 + 21_850 + 51_750 + 52_041 + 20_916, (3, 224, 224), **IMAGENET,
        columns={"image": "image", "label": "label", "domain": "domain"}, hub=("wltjr1007/DomainNet", ""),
        domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    ),
    # Cohen et al. (2017), Table II: ByClass, 814,255 characters in 62 classes.
    "emnist": Stated(62, 697_932, 814_255 - 697_932, (1, 28, 28), columns={"image": "image", "label": "label"}),
    # Xiao, Rasul, Vollgraf (2017): 6,000 and 1,000 pictures of each class.
    "fashion_mnist": Stated(
        10, 10 * 6_000, 10 * 1_000, (1, 28, 28), (0.2860,), (0.3530,), measured=((0.2860,), (0.3530,)),
        columns={"image": "image", "label": "label"}, hub=("zalando-datasets/fashion_mnist", "fashion_mnist"),
    ),
    # Caldas et al. (2018): 62 classes; how many pictures there are depends on the version.
    "femnist": Stated(
        62, None, None, (1, 28, 28), columns={"image": "image", "label": "character", "user": "writer_id"},
        hub=("flwrlabs/femnist", ""),
    ),
    # LeCun et al. (1998).
    "mnist": Stated(
        10, 60_000, 10_000, (1, 28, 28), (0.1307,), (0.3081,), measured=((0.1307,), (0.3081,)),
        columns={"image": "image", "label": "label"}, hub=("ylecun/mnist", "mnist"),
    ),
    # Venkateswara et al. (2017): Art + Clipart + Product + Real World.
    "office_home": Stated(
        65, 2_427 + 4_365 + 4_439 + 4_357, None, (3, 224, 224), **IMAGENET,
        columns={"image": "image", "label": "label", "domain": "domain"}, hub=("flwrlabs/office-home", ""),
        domains=("Art", "Clipart", "Product", "Real World"),
    ),
    # Li et al. (2017): art painting + cartoon + photo + sketch.
    "pacs": Stated(
        7, 2_048 + 2_344 + 1_670 + 3_929, None, (3, 224, 224), **IMAGENET,
        columns={"image": "image", "label": "label", "domain": "domain"}, hub=("flwrlabs/pacs", ""),
        domains=("art_painting", "cartoon", "photo", "sketch"),
    ),
    # Darlow et al. (2018): 9,000 pictures of each class in each of three parts; the authors' own constants.
    "cinic10": Stated(
        10, 10 * 9_000, 10 * 9_000, (3, 32, 32), (0.47889522, 0.47227842, 0.43047404),
        (0.24205776, 0.23828046, 0.25874835), columns={"image": "image", "label": "label"},
        hub=("flwrlabs/cinic10", ""),
    ),
    # Le and Yang (2015): 500 and 50 pictures of each class. FL-Simulator's constants.
    "tiny_imagenet": Stated(
        200, 200 * 500, 200 * 50, (3, 64, 64), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5),
        columns={"image": "image", "label": "label"}, hub=("zh-plus/tiny-imagenet", ""),
    ),
    # Netzer et al. (2011): 73,257 and 26,032 of 99,289 digits.
    "svhn": Stated(
        10, 99_289 - 26_032, 26_032, (3, 32, 32), (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970),
        columns={"image": "image", "label": "label"}, hub=("ufldl-stanford/svhn", "cropped_digits"),
    ),
    # Caldas et al. (2018): 80 characters, of which a sample has 80; how many there are depends on the text.
    "shakespeare": Stated(80, None, None, (80,), vocabulary=82),
    # The same characters, and two tokens for padding and other characters.
    "shakespeare_roles": Stated(80 + 2, None, None, (80,), vocabulary=82),
    # Background and three shapes; 20 users with 40 pictures each, a quarter of them for test.
    "shapes": Stated(4, 20 * 30, 20 * 10, (1, 24, 24)),
    **MEDICAL,
}  # fmt: skip
PICTURES = [name for name, stated in STATED.items() if "image" in stated.columns]
TEXTS = [name for name, stated in STATED.items() if "text" in stated.columns]


def test_every_set_is_in_the_table() -> None:
    assert sorted(STATED) == [name for name in source_names() if not is_folder(name)]


@pytest.mark.parametrize("name", STATED)
def test_a_sets_description_is_what_is_published(name: str) -> None:
    known, stated = source(name), STATED[name]
    sizes = {part: size for part, size in (("train", stated.train), ("test", stated.test)) if size is not None}
    assert (known.classes, dict(known.sizes), known.sample_shape()) == (stated.classes, sizes, stated.shape)
    assert (known.domains, known.vocabulary_size) == (stated.domains, stated.vocabulary)
    if not isinstance(known, BundledDataset):
        assert (known.preparation.mean, known.preparation.std) == (stated.mean, stated.std)
        assert (known.hub and (known.hub.repository, known.hub.folder)) == stated.hub


@pytest.mark.parametrize("name", [name for name, stated in STATED.items() if stated.measured[0]])
def test_pixels_are_normalised_by_their_own_mean_and_deviation(name: str) -> None:
    """The constants may be rounded or cut off after the third digit, and not be another set's."""
    stated = STATED[name]
    for constants, measured in zip((stated.mean, stated.std), stated.measured, strict=True):
        assert constants == pytest.approx(measured, abs=1e-3)


# --- what is applied --------------------------------------------------------------------------------------------------

COLOURS = np.array([[0, 0, 0], [255, 255, 255], [1, 127, 254], [200, 10, 77]], dtype=np.uint8)


def pictures(name: str) -> np.ndarray:
    """One picture of each colour, (n, channels, size, size): whole, so that no resizing changes it."""
    channels, size, _ = STATED[name].shape
    return np.broadcast_to(COLOURS[:, :channels, None, None], (len(COLOURS), channels, size, size))


def labels(name: str) -> list[int]:
    last = STATED[name].classes - 1
    return [0, last, 1, last]


def written(name: str, folder: Path, **changes: object) -> Path:
    """A small copy of the set, as the hub has it."""
    stated = STATED[name]
    columns: dict[str, object] = {"label": pa.array(labels(name))}
    if "image" in stated.columns:
        columns["image"] = picture_column(list(pictures(name)))
    else:
        columns |= {"text": ["one two", "two", "three", "four"], "more": ["a"] * 4}
    columns["domain"], columns["user"] = list(np.resize(stated.domains or ["none"], 4)), ["somebody"] * 4
    columns |= changes
    named = {there: columns[what] for what, there in stated.columns.items()}
    for part in ("train", "test"):
        write_parquet(folder / name / f"{part}-00000-of-00001.parquet", named)
    return folder


@pytest.mark.parametrize("name", PICTURES)
def test_a_pixel_becomes_its_share_of_255_less_the_mean_over_the_deviation(name: str, tmp_path: Path) -> None:
    stated = STATED[name]
    data = ff.data.load(name, clients=1, data_dir=str(written(name, tmp_path)), partial=True)
    found = data.inputs(torch.arange(4)).double().numpy()
    channels = stated.shape[0]
    assert found.shape == (4, *stated.shape)
    for channel, mean, std in zip(
        range(channels), stated.mean or (0,) * channels, stated.std or (1,) * channels, strict=True
    ):
        for picture in range(4):
            value = (COLOURS[picture, channel] / 255 - mean) / std
            np.testing.assert_allclose(found[picture, channel], value, atol=2e-6)
    assert data.y.tolist() == labels(name)
    assert data.classes == stated.classes


@pytest.mark.parametrize("name", [*PICTURES, *TEXTS])
def test_a_class_beyond_the_last_one_is_refused(name: str, tmp_path: Path) -> None:
    classes = STATED[name].classes
    folder = written(name, tmp_path, label=pa.array([0, classes, 0, 0]))
    with refused(f"sample 1 has class {classes}, outside 0..{classes - 1}"):
        ff.data.load(name, clients=1, data_dir=str(folder), partial=True)


@pytest.mark.parametrize("name", [name for name in (*PICTURES, *TEXTS) if STATED[name].train is not None])
def test_a_set_of_another_size_is_refused_with_the_published_one(name: str, tmp_path: Path) -> None:
    options = {"test_domain": STATED[name].domains[0]} if STATED[name].domains else {}
    with refused(f"train has 4 samples, the set has {STATED[name].train:,}"):
        ff.data.load(name, clients=1, data_dir=str(written(name, tmp_path)), **options)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_128_of_the_30_000_most_frequent_words(name: str, tmp_path: Path) -> None:
    """30,000 with those that stand for padding (0) and for unknown words (1)."""
    chunks = [*np.array_split([f"word{i}" for i in range(31_000)], 3), ["word0"]]
    texts = [" ".join(chunk) for chunk in chunks]
    data = ff.data.load(name, clients=1, data_dir=str(written(name, tmp_path, text=texts)), partial=True)
    assert data.shape == (LENGTH,) == (128,)
    assert len(data.vocabulary) == 30_000
    numbers = {word: number for number, word in enumerate(data.vocabulary)}
    before = ["a"] if "more" in STATED[name].columns else []  # the title, in front of the content
    for row, chunk in zip(data.x.tolist(), chunks, strict=True):
        known = [numbers.get(word, 1) for word in [*before, *chunk][:128]]
        assert row == known + [0] * (128 - len(known))
    assert (data.x == 1).any()
    assert (data.x == 0).any()


# --- augmentations ----------------------------------------------------------------------------------------------------


def test_augmentations_are_those_of_the_released_codes() -> None:
    """FedGF: RandomCrop(32, padding=4), RandomHorizontalFlip(0.5), and then Normalize; so the border is black.
    FL-Simulator: Normalize, flip with 0.5, and then, with 0.5, a crop of the picture padded by 4 zeros."""
    fedgf, simulator = AUGMENTATIONS["crop-flip"], AUGMENTATIONS["fl-simulator"]
    assert (fedgf.crop, fedgf.flip, fedgf.flip_first, fedgf.border) == (1.0, 0.5, False, "black")
    assert (simulator.crop, simulator.flip, simulator.flip_first, simulator.border) == (0.5, 0.5, True, "mean")
    assert set(AUGMENTATIONS) == {"none", "crop-flip", "fl-simulator"}
    assert AUGMENTATIONS["none"] is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "crops"), [("crop-flip", 1.0), ("fl-simulator", 0.5)])
def test_pictures_move_by_up_to_four_pixels_and_every_second_one_is_flipped(name: str, crops: float) -> None:
    """Where the one pixel that is set comes to lie tells how its picture was moved."""
    n, size, row, column = 40_000, 24, 10, 4
    picture = torch.zeros(1, size, size)
    picture[0, row, column] = 1.0
    bits = np.random.default_rng(7).integers(0, 2**64, n, dtype=np.uint64)
    places = AUGMENTATIONS[name](picture.expand(n, 1, size, size), bits, Preparation()).flatten(1).argmax(1).numpy()
    down, right = places // size - row, places % size
    flipped = right >= size // 2
    right = np.where(flipped, right - (size - 1 - column), right - column)
    assert abs(flipped.mean() - 0.5) < 5 * np.sqrt(0.25 / n)
    for moves in (down, right):
        shares = np.bincount(moves + 4, minlength=9) / n
        expected = np.full(9, crops / 9) + np.where(np.arange(9) == 4, 1 - crops, 0)
        assert len(shares) == 9, "no further than four pixels"
        assert (abs(shares - expected) < 5 * np.sqrt(expected * (1 - expected) / n)).all()
