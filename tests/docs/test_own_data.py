"""The example of datasets in docs/own_data.md runs; its cells are run with those of all notebooks."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import fedflat as ff

PAGE = Path(__file__).parents[2] / "docs" / "own_data.md"


def test_the_example_runs() -> None:
    [datasets] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    dataset = torch.utils.data.TensorDataset(torch.rand(40, 3), torch.arange(40) % 4)
    given = {"ff": ff, "torchvision_dataset": dataset, "torchvision_test_set": dataset}
    assert eval(datasets.splitlines()[0], given).clients == 10
