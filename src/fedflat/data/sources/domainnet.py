"""DomainNet (Peng et al., 2019): 345 classes, 409,832 pictures for training and 176,743 for test in 6 domains.

At the papers' 224x224 the converted set takes 88 GB of disk; `data.image_size` makes it smaller.
"""

from ..dataset import FileDataset, HubRepository
from ..preparation import IMAGENET
from ..readers.image_folders import ImageFolders
from ..readers.layout import Shape
from ..readers.parquet import Parquet

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")

SOURCE = FileDataset(
    classes=345,
    sizes={"train": 409_832, "test": 176_743},
    layouts=(Parquet(image="image", domain="domain"), ImageFolders(DOMAINS)),
    picture=Shape(channels=3, size=224, resize=True),
    preparation=IMAGENET,
    domains=DOMAINS,
    hub=HubRepository("wltjr1007/DomainNet"),
    folders=("DomainNet",),
)
