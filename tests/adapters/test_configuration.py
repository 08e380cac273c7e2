"""Adapters in files, flags and Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedflat as ff
from fedflat.cli.flags import resolve
from fedflat.core.errors import InputError
from fedflat.experiments.spec import RunSpec
from support.studies import run_spec

TARGETS = '["query", "value"]'


def test_files_flags_and_python_mean_the_same(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'adapter = {{ name = "lora", r = 4, alpha = 8, targets = {TARGETS}, mode = "freeze_a" }}')
    expected = ff.LoRA(targets=("query", "value"), r=4, alpha=8, mode="freeze_a")
    flags = ["--adapter", "lora", "--adapter.targets", TARGETS, "--adapter.r", "4", "--adapter.alpha", "8"]
    assert resolve(RunSpec, [str(file)]).adapter.object == expected
    assert resolve(RunSpec, [*flags, "--adapter.mode", "freeze_a"]).adapter.object == expected
    changed = resolve(RunSpec, [str(file), "--adapter.r", "2"]).adapter
    assert changed.object == ff.LoRA(targets=("query", "value"), r=2, alpha=8, mode="freeze_a")


def test_a_specs_text_says_the_same_adapter(tmp_path: Path) -> None:
    spec = run_spec(adapter={"targets": ["1"], "r": 2, "mode": "alternate"})
    (tmp_path / "config.toml").write_text(spec.to_toml())
    again = RunSpec.load(tmp_path / "config.toml")
    assert (again.adapter, again.digest()) == (spec.adapter, spec.digest())
    assert spec.digest() != run_spec().digest()


@pytest.mark.parametrize(
    ("adapter", "line"),
    [
        ({}, r"^adapter\.targets names no layer; give the names of linear layers"),
        ({"targets": ["1"], "r": 0}, r"^adapter\.r: must be a whole number in \[1, inf\), got 0$"),
        ({"targets": ["1"], "mode": "a"}, r"^adapter\.mode: must be one of 'both', 'freeze_a', 'alternate', got 'a'$"),
        ({"targets": ["1"], "rank": 3}, r"^adapter.rank: "),
        ({"targets": ["1"], "name": "dora"}, r"^adapter: unknown name 'dora'; known are lora"),
    ],
)
def test_mistakes_are_one_line_that_names_the_field(adapter: dict[str, Any], line: str, tmp_path: Path) -> None:
    import tomli_w

    (tmp_path / "run.toml").write_text(tomli_w.dumps({"adapter": adapter}))
    with pytest.raises(InputError, match=line):
        resolve(RunSpec, [str(tmp_path / "run.toml")])


@pytest.mark.slow
def test_a_study_in_python_takes_an_adapter(tmp_path: Path) -> None:
    runs = ff.study(
        out=tmp_path / "study", methods=["fedavg"], seeds=[0], rounds=1, flatness=[],
        data={"name": "digits", "clients": 3}, adapter=ff.LoRA(targets=("1",), r=2),
    )  # fmt: skip
    assert runs[0].spec.adapter.object == ff.LoRA(targets=("1",), r=2)
    assert runs[0].summary["parameters"] == 2 * (64 + 64) + 64 * 10 + 10
