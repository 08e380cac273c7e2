"""Adapters and models of finished runs in files that other programs read, and start from."""

from __future__ import annotations

import runpy
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.experiments import runner
from fedflat.experiments.export import export
from fedflat.experiments.run_directory import StoredRun
from support.studies import run_spec
from support.transformers import news_folder, text_folder

ADAPTER = {"targets": ["1"], "r": 3, "alpha": 6}


def finished(folder: Path, **changes: Any) -> StoredRun:
    run = runner.run(run_spec(**({"rounds": 2, "flatness": []} | changes)), folder)
    assert run is not None
    return run


def news(tmp_path: Path) -> dict[str, Any]:
    """A study of texts with a small BERT."""
    bert, texts = text_folder(tmp_path / "bert"), news_folder(tmp_path / "news")
    return {
        "data": {"name": "parquet", "clients": 3},
        "data_dir": str(texts),
        "partition": "iid",
        "model": {"name": "transformer", "options": {"path": str(bert)}},
        "adapter": {"targets": ["query", "value"], "r": 2},
        "client": {"lr": 0.5, "epochs": 2, "batch_size": 4},
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers for it
def test_peft_gives_an_exported_transformer_the_same_scores(tmp_path: Path) -> None:
    """peft and transformers alone, without this package, to 1e-6."""
    import peft  # takes seconds, also of every process that only collects the tests

    settings = news(tmp_path)
    run = finished(tmp_path / "run", **settings)
    assert export(run, tmp_path / "out") == ["adapter_config.json", "adapter_model.safetensors", "load.py", "README.md"]
    base = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "bert", num_labels=2, ignore_mismatched_sizes=True
    )
    loaded = peft.PeftModel.from_pretrained(base, str(tmp_path / "out")).eval()
    data = ff.data.load("parquet", 3, data_dir=settings["data_dir"], tokenizer=str(tmp_path / "bert"))
    x = data.test[0].long()
    with pytest.raises(
        SystemExit, match=r"^load\.py: there is no .*out/bert; put it there, or change PATH in load\.py"
    ):
        runpy.run_path(str(tmp_path / "out" / "load.py"))
    shutil.copytree(tmp_path / "bert", tmp_path / "out" / "bert")
    with torch.no_grad():
        scores, trained = loaded(input_ids=x, attention_mask=(x != 0).long()).logits, run.model.eval()(x)
        from_snippet = runpy.run_path(str(tmp_path / "out" / "load.py"))["model"]
        again = from_snippet(input_ids=x, attention_mask=(x != 0).long()).logits
    torch.testing.assert_close(scores, trained, rtol=0, atol=1e-6)
    torch.testing.assert_close(again, trained, rtol=0, atol=1e-6)
    assert (trained - run.spec.module().eval()(x)).abs().max() > 1e-3, "training moved the scores"


@pytest.mark.parametrize("mode", ["both", "freeze_a", "alternate"])
def test_the_adapter_of_a_fresh_model_has_its_base_beside_it(mode: str, tmp_path: Path) -> None:
    run = finished(tmp_path / "run", adapter=ADAPTER | {"mode": mode})
    names = export(run, tmp_path / "out")
    assert names == ["adapter_config.json", "adapter_model.safetensors", "base.safetensors", "load.py", "README.md"]
    x = torch.rand(5, 1, 8, 8)
    loaded = runpy.run_path(str(tmp_path / "out" / "load.py"))["model"]
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), run.model.eval()(x), rtol=0, atol=1e-6)


def test_a_model_without_adapter_is_a_state_dict(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    assert export(run, tmp_path / "out") == ["model.safetensors", "load.py", "README.md"]
    state = load_file(tmp_path / "out" / "model.safetensors")
    assert state.keys() == run.model.state_dict().keys()
    loaded = runpy.run_path(str(tmp_path / "out" / "load.py"))["model"]
    x = torch.rand(5, 1, 8, 8)
    assert torch.equal(loaded(x), run.model.eval()(x))


def test_a_further_run_starts_from_an_exported_adapter(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", adapter=ADAPTER)
    export(run, tmp_path / "out")
    further = run_spec(adapter=ADAPTER | {"start": str(tmp_path / "out")}).module()
    trained = {name: p for name, p in run.model.named_parameters() if p.requires_grad}
    started = dict(further.named_parameters())
    assert trained
    assert all(torch.equal(p, started[name]) for name, p in trained.items())


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"r": 2}, r"^adapter.r is 2, and the adapter in .* has 3$"),
        ({"alpha": 5}, r"^adapter.alpha is 5.*, and the adapter in .* has 6.*$"),
        ({"head": "frozen"}, r"is an adapter of another model, or of other targets, r or head$"),
        (
            {"start": "missing"},
            r"^adapter.start: missing has no adapter_model.safetensors; `fedflat export RUN missing`",
        ),
    ],
)
def test_an_adapter_that_does_not_fit_is_one_line(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    export(finished(tmp_path / "run", adapter=ADAPTER), tmp_path / "out")
    with pytest.raises(InputError, match=line):
        run_spec(adapter=ADAPTER | {"start": str(tmp_path / "out")} | changes).module()


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is there already; give a new folder$"):
        export(finished(tmp_path / "run"), tmp_path)


@pytest.mark.slow
def test_a_run_knows_its_base_by_hash(tmp_path: Path) -> None:
    """Adapters alone are in the run's folder; files of the base that have changed since are found out."""
    run = finished(tmp_path / "run", **news(tmp_path))
    kept = load_file(tmp_path / "run" / "model.safetensors")
    assert all("lora_" in name or "classifier" in name for name in kept)
    run.model  # noqa: B018
    weights = tmp_path / "bert" / "model.safetensors"
    network = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "bert")
    network.bert.pooler.dense.bias.data += 1
    weights.unlink()
    network.save_pretrained(tmp_path / "bert")
    with pytest.raises(InputError, match="its adapter was trained on a model with the hash"):
        StoredRun.open(tmp_path / "run").model  # noqa: B018


def test_a_run_saved_from_python_comes_back(tmp_path: Path) -> None:
    data = ff.data.load("digits", 3)
    sim = ff.Simulation(
        "mlp", data, ff.methods.FedAvg(), rounds=1, seed=5, adapter=ff.LoRA(targets=("1",), r=2, mode="freeze_a")
    )
    run = sim.run()
    run.save(tmp_path / "run")
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(ff.load_run(tmp_path / "run").model(x), run.model(x))


@pytest.mark.parametrize("mode", ["both", "freeze_a"])
def test_adapters_on_a_module_of_ones_own_come_back_into_another_one(mode: str, tmp_path: Path) -> None:
    """Its A, fixed or not, is in the file; only the module itself is not."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 9), torch.nn.ReLU(), torch.nn.Linear(9, 10))
    adapter = ff.LoRA(targets=("1",), r=2, mode=mode)
    run = ff.Simulation(module, ff.data.load("digits", 3), ff.methods.FedAvg(), rounds=1, adapter=adapter).run()
    run.save(tmp_path / "run")
    other = ff.adapters.adapted(deepcopy(module), adapter)
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(ff.load_run(tmp_path / "run").load_into(other)(x), run.model(x))


def test_a_run_with_an_adapter_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", adapter={"targets": ["1"], "r": 2})
    with pytest.raises(InputError, match=r"^--format onnx: the run has an adapter"):
        export(run, tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


def test_a_model_with_heads_of_the_clients_own_is_refused(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", method={"name": "FedRep"})
    with pytest.raises(InputError, match=r"a part of the model stayed with the clients .* use client_model\(i\)$"):
        export(run, tmp_path / "out", "onnx")


def test_another_format_is_one_line(fedflat, tmp_path: Path) -> None:
    finished(tmp_path / "run")
    code, _, err = fedflat("export run out --format pickle")
    assert (code, err) == (2, "fedflat: --format must be safetensors or onnx, got 'pickle'\n")


def own_model(folder: Path) -> str:
    """Write a file with a model; return its reference."""
    folder.mkdir()
    (folder / "net.py").write_text(
        "from torch import nn\n\n\ndef small(classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    return f"{folder / 'net.py'}:small"


def test_a_model_of_ones_own_is_loaded_with_the_readers_permission(tmp_path: Path) -> None:
    """On another machine, where the exporter's folder is not there: no file names it."""
    with ff.allow_code():
        run = finished(tmp_path / "run", model={"name": own_model(tmp_path / "mine")})
        model = run.model
        assert export(run, tmp_path / "out") == ["model.safetensors", "net.py", "load.py", "README.md"]
    (tmp_path / "mine").rename(tmp_path / "elsewhere")
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    assert [path.name for path in moved.iterdir() if str(tmp_path).encode() in path.read_bytes()] == []
    script = moved / "load.py"
    with pytest.raises(SystemExit, match=r"^load\.py: the model is code, net\.py:small; read it, then set ALLOW_CODE"):
        runpy.run_path(str(script))
    script.write_text(script.read_text().replace("ALLOW_CODE = False", "ALLOW_CODE = True"))
    x = torch.rand(5, 1, 8, 8)
    assert torch.equal(runpy.run_path(str(script))["model"](x), model(x))
