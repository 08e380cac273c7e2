"""PACS (Li et al., 2017): photographs, paintings, cartoons and sketches of 7 classes, 9,991 pictures in 4 domains."""

from __future__ import annotations

from ..preparation import IMAGENET
from ..readers.folders import ImageFolders
from ..readers.parquet import Parquet
from ..readers.part import Shape
from ..source import FileSet, Hub

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")

SOURCE = FileSet(
    classes=7,
    sizes={"train": 9_991},
    layouts=(
        Parquet(image="image", domain="domain"),
        ImageFolders(DOMAINS),
    ),
    picture=Shape(channels=3, size=224, resize=True),
    preparation=IMAGENET,
    domains=DOMAINS,
    hub=Hub("flwrlabs/pacs"),
    folders=("PACS",),
)
