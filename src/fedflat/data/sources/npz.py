"""Arrays of your own: `train.npz` and `test.npz` in the folder that `data_dir` names."""

from ..folder_dataset import NpzFolder

SOURCE = NpzFolder()
