"""Pictures or texts of your own: `train*.parquet` and `test*.parquet` in the folder that `data_dir` names."""

from ..parquet_folder import ParquetFolder

SOURCE = ParquetFolder()
