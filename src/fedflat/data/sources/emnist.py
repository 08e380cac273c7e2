"""EMNIST ByClass (Cohen et al., 2017): 28x28 digits and letters, 62 classes, 697,932 for training, 116,323 for test.

Pixels are scaled to [0, 1] and not normalised. The original files keep pictures transposed; they are turned here.
"""

from ..dataset import FileDataset
from ..readers.idx import Idx
from ..readers.layout import Shape
from ..readers.parquet import Parquet

SOURCE = FileDataset(
    classes=62,
    sizes={"train": 697_932, "test": 116_323},
    layouts=(Idx(prefix="emnist-byclass-", test="test", transposed=True), Parquet(image="image")),
    picture=Shape(channels=1, size=28),
    folders=("EMNIST",),
)
