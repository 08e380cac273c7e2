"""Without the packages of the extras: whatever lists, shows or checks works, and the rest says what to install."""

from __future__ import annotations

import re

import pytest

from fedflat.experiments import runner, studies
from support.fresh_process import Command, commands
from support.studies import study_spec

EXTRAS = (
    "transformers",
    "huggingface_hub",
    "tokenizers",
    "flwr",
    "cryptography",
    "httpx",
    "grpc",
    "onnx",
    "onnxruntime",
)
SMALL = "--data.clients 5 --rounds 1 --flatness []"
WORKS = [
    "--help", "methods", "methods fedsam", "doctor", "data list", f"data partition {SMALL}", "run --keys",
    "compare --keys", "flatness --list", "recipes list fedlesam", "recipes show fedlesam/table3 --calibrate",
    f"run {SMALL} --dry-run", "flower --help", "flower export run.toml app", "verify study", "report study",
    "flatness study --measure gradient-norm", "landscape study --points 3 --one-dimensional", "resume study",
]  # fmt: skip
REFUSED = {
    "export one out --format onnx": "--format onnx needs the extra: pip install 'fedflat[onnx]'",
    "data prepare cifar10 --hub --data-dir .": "--hub needs the extra: pip install 'fedflat[hub]'",
    "flower certs keys --host localhost": "this needs the extra flower: pip install 'fedflat[flower]'",
    f"flower run {SMALL} --out federation": "this needs the extra flower: pip install 'fedflat[flower]'",
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Command]:
    """How every command line ended, all in one process."""
    folder = tmp_path_factory.mktemp("plain")
    spec = study_spec(seeds=[0], flatness=[])
    studies.carry_out_study(spec, folder / "study")
    runner.run(spec.runs()[0], folder / "one")
    (folder / "run.toml").write_text(spec.runs()[0].to_toml())
    return {each.line: each for each in commands(*WORKS, *REFUSED, missing=EXTRAS, folder=folder)}


@pytest.mark.slow
@pytest.mark.parametrize("line", WORKS)
def test_it_works(ended: dict[str, Command], line: str) -> None:
    assert (ended[line].code, ended[line].err) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("line", REFUSED)
def test_one_line_says_what_to_install(ended: dict[str, Command], line: str) -> None:
    assert ended[line].code == 2
    assert ended[line].err.startswith(f"fedflat: {REFUSED[line]}")
    assert ended[line].err.count("\n") == 1


@pytest.mark.slow
def test_what_a_model_costs_that_cannot_be_built_here(ended: dict[str, Command]) -> None:
    """Its parameters are counted, so gradients and bytes are known; only the hours are not."""
    lines = ended["recipes show fedlesam/table3 --calibrate"].out.splitlines()
    [cell] = [line for line in lines if line.split()[:1] == ["office_home,office-art,3-of-3"]]
    assert re.search(r" \d+ +\d[\d.]* [kMG] +[\d,]+\.\d +– *$", cell), cell
