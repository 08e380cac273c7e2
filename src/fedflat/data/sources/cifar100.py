"""CIFAR-100 (Krizhevsky, 2009): 32x32 colour photographs, 100 classes, 50,000 for training and 10,000 for test."""

from ..dataset import FileDataset, HubRepository
from ..preparation import Preparation
from ..readers.cifar import BinaryBatches, PythonBatches
from ..readers.layout import Shape
from ..readers.parquet import Parquet

SOURCE = FileDataset(
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
)
