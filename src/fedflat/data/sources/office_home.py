"""OfficeHome (Venkateswara et al., 2017): office and home objects, 65 classes, 15,588 pictures in 4 domains."""

from __future__ import annotations

from ..preparation import IMAGENET
from ..readers.folders import ImageFolders
from ..readers.parquet import Parquet
from ..readers.part import Shape
from ..source import FileSet, Hub

DOMAINS = ("Art", "Clipart", "Product", "Real World")

SOURCE = FileSet(
    classes=65,
    sizes={"train": 15_588},
    layouts=(
        Parquet(image="image", domain="domain"),
        ImageFolders(DOMAINS),
    ),
    picture=Shape(channels=3, size=224, resize=True),
    preparation=IMAGENET,
    domains=DOMAINS,
    hub=Hub("flwrlabs/office-home"),
    folders=("OfficeHome", "OfficeHomeDataset_10072016"),
)
