"""CIFAR-10 (Krizhevsky, 2009): 32x32 colour photographs, 10 classes, 50,000 for training and 10,000 for test."""

from ..dataset import FileDataset, HubRepository
from ..preparation import Preparation
from ..readers.cifar import BinaryBatches, PythonBatches
from ..readers.layout import Shape
from ..readers.parquet import Parquet

SOURCE = FileDataset(
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
)
