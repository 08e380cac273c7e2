"""The model card of a run, as huggingface_hub reads it, and its upload, without a network."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.experiments import hub_upload, model_card, runner
from fedflat.experiments.export import export
from fedflat.experiments.run_directory import StoredRun
from support.studies import run_spec


def finished(folder: Path, **changes: Any) -> StoredRun:
    run = runner.run(run_spec(**({"rounds": 2, "flatness": []} | changes)), folder)
    assert run is not None
    return run


def card_of(run: StoredRun, license: str | None = None) -> huggingface_hub.ModelCard:
    return huggingface_hub.ModelCard(model_card.model_card(run, license))


def test_the_hub_reads_the_score_of_the_final_model(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    data = card_of(run).data
    [result] = data.eval_results
    stated = data.to_dict()
    assert (stated["library_name"], stated["metrics"]) == ("fedflat", ["accuracy"])
    assert (result.task_type, result.dataset_name) == ("image-classification", "digits")
    x, y = ff.data.load("digits", clients=1).test
    assert result.metric_value == pytest.approx(float((run.predict(x, classes=True) == y).float().mean()))


def test_without_a_license_none_is_stated(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    assert card_of(run).data.license is None
    assert card_of(run, "mit").data.license == "mit"
    with pytest.raises(InputError, match=r"^license must be a short name of the hub"):
        card_of(run, "mit\ntags: [x]")


def test_it_has_settings_paper_version_and_commit(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", method={"name": "FedSAM", "rho": 0.0625})
    text = card_of(run).text
    [commit] = run.directory.commits()
    assert "| `method.rho` | `0.0625` |" in text
    assert ff.methods.FedSAM.paper.bibtex in text
    assert f"fedflat {ff.__version__}, commit {commit or 'unknown'}" in text


def test_settings_have_no_names_of_classes_that_say_nothing(tmp_path: Path) -> None:
    text = card_of(finished(tmp_path / "run")).text
    assert "| `participation.share` |" in text
    assert "| `participation` |" not in text
    assert "| `client` |" not in text
    assert "| `method` | `FedAvg` |" in text


@pytest.mark.parametrize(
    ("options", "base"),
    [
        ({"path": "hub:me/bert"}, "`me/bert`"),
        ({"path": "/home/me/bert"}, "`transformer` with weights of the author's own"),
        ({}, "`transformer`"),
    ],
)
def test_an_adapter_names_its_base_and_no_path(options: dict[str, str], base: str) -> None:
    initial = SimpleNamespace(options=options, model="transformer")
    run: Any = SimpleNamespace(settings={"adapter": {"r": 4}}, initial_model=initial)
    assert model_card._kind(run) == f"An adapter of {base}"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("digits", "digits"),
        ("parquet", "data of the author's own (parquet)"),
        ("sets.py:mine", "data of the author's own"),
    ],
)
def test_files_of_ones_own_are_called_so(name: str, shown: str) -> None:
    assert model_card._data_name(SimpleNamespace(settings={"data": {"name": name}})) == shown


def test_of_a_wrapper_both_papers_are_cited(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", method={"name": "SWA", "cycle": 1, "base": {"name": "FedSAM"}})
    text = card_of(run).text
    assert all(cls.paper.bibtex in text for cls in (ff.methods.SWA, ff.methods.FedSAM))


def test_no_result_of_a_client_is_in_it(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    assert any(name.startswith("client_") for name in run.summary)
    assert "client_accuracy" not in model_card.model_card(run)


@pytest.mark.parametrize("value", ["/home/me/adapter", r"C:\me\adapter"])
def test_no_path_is_in_it(value: str) -> None:
    assert value not in model_card._shown(value)
    assert model_card._shown("hub:owner/name") == "hub:owner/name"


def test_a_text_from_elsewhere_stays_in_its_cell() -> None:
    [row] = model_card._table(("a", "b"), [("x`|\n", "<b>")]).splitlines()[2:]
    assert row == r"| `x'/\x0a` | `<b>` |"


class Hub:
    """An api of the hub that records what is asked of it."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}

    def create_repo(self, repository: str, **options: Any) -> None:
        self.made = {"repository": repository} | options

    def upload_folder(self, repo_id: str, folder_path: Path, allow_patterns: list[str], **options: Any) -> str:
        assert sorted(allow_patterns) == sorted(path.name for path in folder_path.iterdir())
        self.files = {path.name: path.read_bytes() for path in folder_path.iterdir()}
        return f"https://hub.example/{repo_id}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: found)
    return found


def test_what_is_pushed_is_what_is_exported(hub: Hub, tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    assert run.push_to_hub("me/digits") == "https://hub.example/me/digits"
    assert hub.made == {"repository": "me/digits", "repo_type": "model", "private": True, "exist_ok": True}
    names = export(run, tmp_path / "out")
    assert hub.files == {name: (tmp_path / "out" / name).read_bytes() for name in names}
    run.push_to_hub("me/digits", license="mit", private=False)
    assert not hub.made["private"]
    assert b'license: "mit"' in hub.files["README.md"]


@pytest.mark.parametrize("name", ["digits", "../digits", "a/b/c", "me/", "me/digits\n", "/me/digits", 3])
def test_another_name_is_refused_before_the_hub_is_asked(name: Any, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^push_to_hub: .* is no repository OWNER/NAME$"):
        finished(tmp_path / "run").push_to_hub(name)
    assert hub.made == {}


def test_a_refusal_of_the_hub_is_one_line(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("401 Client Error\nmore")

    monkeypatch.setattr(hub, "create_repo", refuse)
    with pytest.raises(InputError, match=r"^hub: me/digits cannot be uploaded to: 401 Client Error$"):
        finished(tmp_path / "run").push_to_hub("me/digits")


@pytest.mark.parametrize("option", ["path", "pretrained"])
def test_a_model_that_needs_a_file_of_this_machine_is_refused(option: str) -> None:
    initial = SimpleNamespace(options={option: "/home/me/bert"}, model="transformer")
    run: Any = SimpleNamespace(initial_model=initial)
    with pytest.raises(InputError, match=f"^push_to_hub: model option {option} names a file of this machine"):
        hub_upload._check_loadable_elsewhere(run)
    hub_upload._check_loadable_elsewhere(SimpleNamespace(initial_model=SimpleNamespace(options={}, model="mlp")))
    initial.options = {option: "hub:me/bert"}
    hub_upload._check_loadable_elsewhere(run)
