"""`fedflat report` has every finished run of a folder, whichever commands carried them out, and counts the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

SMALL = "--methods fedavg --data.clients 4 --client.epochs 1 --client.batch_size 50 --rounds 1 --flatness []"


def seeds_shown(path: str) -> int:
    return sum(row["seeds"] for row in json.loads(Path(path).read_text()))


@pytest.mark.slow
def test_seeds_that_several_commands_put_into_one_folder(fedflat) -> None:
    for seed in (0, 1):
        assert fedflat(f"compare {SMALL} --seeds {seed} --out S")[0] == 0
    assert seeds_shown("S/comparison.json") == 2, "the command's own report"
    for run in sorted(Path("S/runs").iterdir()):  # of the first command, which the study's file does not name any more
        (run / "summary.json").unlink()
        break
    code, out, err = fedflat("report S")
    assert (code, err) == (0, "")
    assert "1 of 2 runs are not finished and not shown" in out
    assert seeds_shown("S/comparison.json") == 1


@pytest.mark.slow
def test_studies_of_several_processes_are_reported_together(fedflat) -> None:
    fedflat(f"compare {SMALL} --seeds 0 --out a")
    fedflat(f"compare {SMALL} --seeds 1 --out b")
    assert fedflat("report a b --out both")[0] == 0
    assert seeds_shown("both/comparison.json") == 2
    shutil.rmtree("b/runs")
    code, _, err = fedflat("report a b")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "b holds no finished run" in err


@pytest.mark.slow
def test_figures_for_a_paper_and_what_of_them_is_refused(fedflat) -> None:
    fedflat(f"compare {SMALL} --seeds 0 --out S")
    before = Path("S/report.html").stat().st_mtime_ns
    refused = {
        "report S --figures F --column loss": "columns: 'loss' is not in the table; it has 'test accuracy %'",
        "report S --column loss": "--column needs --figures DIR",
        "report S --figures S/study.toml": "S/study.toml",
        "report S --figures /proc/figures": "/proc/figures",
    }
    for line, message in refused.items():
        code, _, err = fedflat(line)
        assert (code, len(err.splitlines())) == (2, 1), err
        assert message in err
    assert Path("S/report.html").stat().st_mtime_ns == before
    assert not Path("F").exists()
    code, out, err = fedflat("report S --figures F --column 'test accuracy %' --column 'MB sent'")
    assert (code, err) == (0, "")
    assert f"for papers: {len(list(Path('F').iterdir()))} files in F" in out
    assert r"method & test accuracy~\% & MB sent \\" in Path("F/table.tex").read_text()
    assert Path("F/accuracy-column.pdf").read_bytes().startswith(b"%PDF-")
