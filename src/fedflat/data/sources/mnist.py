"""MNIST (LeCun et al., 1998): 28x28 grey handwritten digits, 10 classes, 60,000 for training and 10,000 for test."""

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
    preparation=Preparation(mean=(0.1307,), std=(0.3081,)),
    hub=HubRepository("ylecun/mnist", "mnist"),
    folders=("MNIST",),
)
