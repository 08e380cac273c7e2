"""`fedflat best` in a shell: its tables, and the files that it writes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import fedflat as ff

SWEEP = """
methods = ["FedAvg"]
seeds = [0]
rounds = 1
last = 1
flatness = []
data = { clients = 5, validation = 0.2 }

[grid]
"client.lr" = [0.05, 0.1]
"""


@pytest.mark.slow
def test_several_problems_have_a_numbered_study_each_and_the_output_says_which(fedflat, tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(f'{SWEEP}"partition.alpha" = [0.1, 1.0]\n')
    assert fedflat("compare sweep.toml --out sweep")[0] == 0
    code, out, _ = fedflat("best sweep --out chosen.toml")
    assert code == 0
    for number, alpha in ((1, 0.1), (2, 1.0)):
        assert f"study of the best settings for alpha={alpha}: chosen-{number}.toml" in out
        study = tomllib.loads((tmp_path / f"chosen-{number}.toml").read_text())
        assert study["partition"]["alpha"] == alpha
    assert "chosen.toml itself is not written: the grid has 2 problems" in out
    assert not (tmp_path / "chosen.toml").exists()


@pytest.mark.slow
def test_one_problem_has_the_file_that_was_asked_for(fedflat, tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    assert fedflat("compare sweep.toml --out sweep")[0] == 0
    _, out, _ = fedflat("best sweep --out chosen.toml")
    assert out.splitlines()[-1] == "study of the best settings: chosen.toml"
    runs = [ff.load_run(path.parent) for path in sorted(tmp_path.glob("sweep/**/summary.json"))]
    tenths = [100 * run.summary["validation_accuracy_worst_tenth"] for run in runs]
    assert "worst tenth" in out
    assert any(f" {tenth:.2f} " in out for tenth in tenths)
    assert fedflat("compare chosen.toml --rounds 1 --out chosen")[0] == 0
