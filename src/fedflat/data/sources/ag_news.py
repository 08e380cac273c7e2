"""AG News (Zhang et al., 2015): news in four topics, 120,000 for training and 7,600 for test."""

from ..dataset import FileDataset, HubRepository
from ..readers.csv_files import Csv
from ..readers.parquet import Parquet

SOURCE = FileDataset(
    classes=4,
    sizes={"train": 120_000, "test": 7_600},
    layouts=(Parquet(text=("text",)), Csv(columns=2)),
    vocabulary_size=30_000,
    hub=HubRepository("fancyzhx/ag_news"),
    folders=("ag_news_csv",),
)
