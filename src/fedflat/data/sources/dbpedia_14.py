"""DBpedia-14 (Zhang et al., 2015): titles and abstracts in 14 classes, 560,000 for training and 70,000 for test."""

from ..dataset import FileDataset, HubRepository
from ..readers.csv_files import Csv
from ..readers.parquet import Parquet

SOURCE = FileDataset(
    classes=14,
    sizes={"train": 560_000, "test": 70_000},
    layouts=(Parquet(text=("title", "content")), Csv(columns=2)),
    vocabulary_size=30_000,
    hub=HubRepository("fancyzhx/dbpedia_14", "dbpedia_14"),
    folders=("dbpedia_csv",),
)
