"""The examples of docs/own_data.md run, in their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import fedflat as ff

PAGE = Path(__file__).parents[2] / "docs" / "own_data.md"


@pytest.mark.slow
def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    arrays, datasets, regression, loss = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, object] = {"ff": ff, "torch": torch, "digits": ff.data.load("digits", clients=5)}
    for example in (arrays, regression, loss):
        exec(compile(example, str(PAGE), "exec"), names)
    accuracy, r2 = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert accuracy > 0.9
    assert r2 > 0.5
    dataset = torch.utils.data.TensorDataset(torch.rand(40, 3), torch.arange(40) % 4)
    given = {"torchvision_dataset": dataset, "torchvision_test_set": dataset}
    exec(compile(datasets.splitlines()[0], str(PAGE), "exec"), names | given)
