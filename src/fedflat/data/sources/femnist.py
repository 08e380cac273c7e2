"""FEMNIST (Caldas et al., 2018): 28x28 digits and letters by writer, 62 classes, some 814,000 pictures, no test set.

A fixed tenth of every writer's pictures is the test set. Pixels are scaled to [0, 1] and not normalised.
"""

from ..dataset import FileDataset, HubRepository
from ..readers.layout import Shape
from ..readers.parquet import Parquet

SOURCE = FileDataset(
    classes=62,
    sizes={},
    layouts=(Parquet(image="image", label="character", user="writer_id"),),
    picture=Shape(channels=1, size=28),
    hub=HubRepository("flwrlabs/femnist"),
)
