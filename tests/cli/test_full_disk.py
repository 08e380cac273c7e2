"""A full disk ends every command in one line, whichever of its files comes too late; no half file has a name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedflat.experiments import studies
from fedflat.experiments.budget import speed_of
from fedflat.files import TEMPORARY
from support.effort import chosen, effort
from support.small_disk import files_up_to
from support.studies import study_spec

pytestmark = pytest.mark.slow

READERS: dict[str, Callable[[Path], object]] = {
    ".json": lambda path: json.loads(path.read_text()), ".parquet": pq.read_table,
    ".npz": lambda path: dict(np.load(path)), ".svg": lambda path: path.read_text().rindex("</svg>"),
    ".pdf": lambda path: path.read_bytes().rindex(b"%%EOF"),
    ".tex": lambda path: path.read_text().rindex("\\end{tabular}"),
    ".html": lambda path: path.read_text().rindex("</html>"), ".txt": Path.read_text,
}  # fmt: skip
REPORT = ["report.html", "comparison.parquet", "comparison.json"]
SURFACES = ["surfaces/*.npz", "landscape.json", "landscape.html", "contours.svg", "profiles.svg"]
SPLITS = ["facts.txt", "partition.svg"]
COMMANDS = {  # a command, and the files that it writes
    "report": ("report study --out out", REPORT),
    "figures": ("report study --out out --figures out/paper", ["paper/*.pdf", "paper/*.svg", "paper/table.tex"]),
    "compare": ("compare study.toml --out study", [f"../study/{name}" for name in REPORT]),
    "landscape": ("landscape study --points 5 --max-samples 50 --out out", SURFACES),
    # The figures of a landscape are written alike, these one command later.
    "features": ("landscape study --one-dimensional --points 3 --features --out out", ["features.svg"]),
    "split": ("data partition --data.clients 10 --figure out.svg", ["../out.svg"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    spec = study_spec(seeds=[0], methods=["fedavg", "fedsam"], flatness=[])
    studies.carry_out_study(spec, folder / "study")
    (folder / "study.toml").write_text(spec.to_toml())
    return folder


def sizes(folder: Path) -> list[int]:
    return sorted({path.stat().st_size for path in folder.rglob("*") if path.is_file()})


def are_whole(folder: Path) -> None:
    """Every file below can be read to its end, and nothing temporary is left."""
    for path in folder.rglob("*"):
        assert not TEMPORARY.fullmatch(path.name), path
        if path.is_file() and path.suffix in READERS:
            READERS[path.suffix](path)


def trials(written: list[int], usual: int = 3) -> list[int]:
    """Limits at which each of the written files is the first that fails, a byte of it or half of it, and none."""
    limits = [0, 1, *(each - 1 for each in written if each), *(each // 2 for each in written)]
    chosen = sorted(set(limits))
    return chosen[:: -(-len(chosen) // effort(usual, 100))]


@pytest.mark.parametrize("name", chosen([name for name in COMMANDS if name != "features"], list(COMMANDS)))
def test_every_writer_ends_in_one_line(fedflat, finished: Path, tmp_path: Path, name: str) -> None:
    line, files = COMMANDS[name]
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    before = set(tmp_path.rglob("*"))
    assert fedflat(line)[0] == 0
    (tmp_path / "out").mkdir(exist_ok=True)
    for pattern in files:
        assert list((tmp_path / "out" / Path(pattern).parent).glob(Path(pattern).name)), pattern
    made = [path for path in tmp_path.rglob("*") if path not in before and path.is_file()]
    refused = 0
    for limit in trials([path.stat().st_size for path in made], 2 if name == "features" else 3):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        for path in made:
            path.unlink(missing_ok=True)
        with files_up_to(limit):
            code, _, err = fedflat(line)
        assert code == 2, (limit, code, err)
        assert err.startswith("fedflat: "), (limit, err)
        assert "File too large" in err, (limit, err)
        assert err.count("\n") == 1
        are_whole(tmp_path)
        refused += 1
    assert refused >= 2, "there were limits to try"


def test_a_recipe(fedflat, tmp_path: Path) -> None:
    """What a recipe writes beside its runs: the facts and the figures of splits."""
    line = "recipes run fedsmoo/figure2 --cell dirichlet-0.1,10-of-100,cifar10 --data.name digits --out out"
    code, _, err = fedflat(line)
    assert code == 0, err
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.name for path in files} == set(SPLITS)
    for limit in trials(sizes(tmp_path / "out")):
        shutil.rmtree(tmp_path / "out")
        with files_up_to(limit):
            code, _, err = fedflat(line)
        assert code == 2, (limit, code, err)
        assert "File too large" in err
        assert err.count("\n") == 1
        are_whole(tmp_path)


def test_speeds_that_cannot_be_kept_or_read_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "cache"))
    spec = study_spec().runs()[0]
    with files_up_to(0):
        assert speed_of(spec).gradient > 0
    assert speed_of(spec, measure=False) is None
    measured = speed_of(spec)
    assert speed_of(spec, measure=False) == measured
    file = tmp_path / "cache" / "speed.json"
    kept = file.read_text()
    key = next(iter(json.loads(kept)))
    for damaged in ("", "[]", "null", "[" * 100_000, '{"x": 1}', kept[: len(kept) // 2], "\ud800",
                    json.dumps({key: {"gradient": "1", "evaluation": None}}), json.dumps({key: {}}),
                    json.dumps({key: {"gradient": float("nan"), "evaluation": -1}})):  # fmt: skip
        file.write_bytes(damaged.encode(errors="surrogatepass"))
        assert speed_of(spec, measure=False) is None
    file.unlink()
    file.mkdir()
    assert speed_of(spec).gradient > 0
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("no folder")
    assert speed_of(spec).gradient > 0
