"""Pictures or texts of your own: `train*.parquet` and `test*.parquet` in the folder that `data_dir` names."""

from ..folder_dataset import ParquetFolder

SOURCE = ParquetFolder()
