"""OfficeHome (Venkateswara et al., 2017): office and home objects, 65 classes, 15,588 pictures in 4 domains."""

from ..dataset import FileDataset, HubRepository
from ..preparation import IMAGENET
from ..readers.image_folders import ImageFolders
from ..readers.layout import Shape
from ..readers.parquet import Parquet

DOMAINS = ("Art", "Clipart", "Product", "Real World")

SOURCE = FileDataset(
    classes=65,
    sizes={"train": 15_588},
    layouts=(Parquet(image="image", domain="domain"), ImageFolders(DOMAINS)),
    picture=Shape(channels=3, size=224, resize=True),
    preparation=IMAGENET,
    domains=DOMAINS,
    hub=HubRepository("flwrlabs/office-home"),
    folders=("OfficeHome", "OfficeHomeDataset_10072016"),
)
