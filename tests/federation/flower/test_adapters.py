"""A federation on adapters has the bits of the simulation, with a text model and its tokenizer, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.effort import in_turns
from support.flower_fixtures import GridFederation, simulated, study_of
from support.transformers import news_folder, text_folder


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "method"), in_turns(["both", "freeze_a", "alternate"], ["scaffold", "fedsam"]))
def test_same_bits_as_the_simulation(mode: str, method: str, tmp_path: Path) -> None:
    spec = study_of(method=method, adapter={"targets": ["1"], "r": 3, "mode": mode})
    assert GridFederation(spec, tmp_path / "app").serve() == simulated(spec, tmp_path / "run")


@pytest.mark.slow
def test_same_bits_with_a_transformer(tmp_path: Path) -> None:
    bert, texts = text_folder(tmp_path / "bert"), news_folder(tmp_path / "news")
    settings: dict[str, Any] = {
        "data": {"name": "ag-news", "clients": 3, "partial": True},
        "data_dir": str(news_as_ag_news(texts, tmp_path / "ag_news")),
        "model": {"name": "transformer", "options": {"path": str(bert)}},
        "adapter": {"targets": ["query", "value"], "r": 2, "mode": "alternate"},
        "partition": "iid",
        "client": {"lr": 0.5, "epochs": 1, "batch_size": 4},
        "rounds": 2,
    }
    spec = study_of(**settings)
    assert GridFederation(spec, tmp_path / "app").serve() == simulated(spec, tmp_path / "run")


def news_as_ag_news(texts: Path, folder: Path) -> Path:
    """The same parquet files under the name of a known set."""
    texts.rename(folder)
    return folder
