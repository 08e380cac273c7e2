"""Fashion-MNIST (Xiao et al., 2017): 28x28 grey pictures of clothes, 10 classes, 60,000 for training."""

from ..dataset import FileDataset, HubRepository
from ..preparation import Preparation
from ..readers.idx import Idx
from ..readers.layout import Shape
from ..readers.parquet import Parquet

SOURCE = FileDataset(
    classes=10,
    sizes={"train": 60_000, "test": 10_000},
    layouts=(Parquet(image="image"), Idx()),
    picture=Shape(channels=1, size=28),
    preparation=Preparation(mean=(0.2860,), std=(0.3530,)),
    hub=HubRepository("zalando-datasets/fashion_mnist", "fashion_mnist"),
    folders=("FashionMNIST",),
)
