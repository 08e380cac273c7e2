"""PACS (Li et al., 2017): photographs, paintings, cartoons and sketches of 7 classes, 9,991 pictures in 4 domains."""

from ..dataset import FileDataset, HubRepository
from ..preparation import IMAGENET
from ..readers.image_folders import ImageFolders
from ..readers.layout import Shape
from ..readers.parquet import Parquet

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")

SOURCE = FileDataset(
    classes=7,
    sizes={"train": 9_991},
    layouts=(Parquet(image="image", domain="domain"), ImageFolders(DOMAINS)),
    picture=Shape(channels=3, size=224, resize=True),
    preparation=IMAGENET,
    domains=DOMAINS,
    hub=HubRepository("flwrlabs/pacs"),
    folders=("PACS",),
)
