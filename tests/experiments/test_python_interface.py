"""Studies and finished runs from Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.engine.run import metrics_frame, write_json
from fedflat.experiments.run_directory import StoredRun
from fedflat.experiments.spec import StudySpec
from fedflat.experiments.studies import carry_out_study as carry_out
from fedflat.rounds.checksums import Checksums
from support.own_code import write_own_code
from support.studies import SMALL, study_spec

SETTINGS = {key: value for key, value in SMALL.items() if key not in ("client", "rounds")} | {
    "flatness": [],
    "rounds": 2,
}


@pytest.fixture(scope="module")
def run() -> ff.Run:
    """A run in memory, with a measure."""
    sim = ff.Simulation("mlp", ff.data.load("digits", clients=5), ff.methods.FedSAM(), rounds=2, seed=3)
    return sim.run(["gradient-norm"])


@pytest.mark.slow
def test_a_study_from_python_is_the_one_from_toml(tmp_path: Path) -> None:
    """Objects, dictionaries and names mean the same as their tables."""
    runs = ff.study(
        out=tmp_path / "python", methods=["fedavg", ff.methods.FedSAM(rho=0.05)], partition=ff.Dirichlet(alpha=0.5),
        client=ff.Client(lr=0.1, epochs=1, batch_size=20), seeds=[0], guard=ff.Guard(multiple=2.0),
        attack=ff.Attack(kind="noise"), **SETTINGS,
    )  # fmt: skip
    toml = StudySpec(
        **SETTINGS, methods=["fedavg", {"name": "fedsam", "rho": 0.05}], partition={"name": "dirichlet", "alpha": 0.5},
        client={"lr": 0.1, "epochs": 1, "batch_size": 20}, seeds=[0], guard={"multiple": 2.0}, attack={"kind": "noise"},
    )  # fmt: skip
    expected = carry_out(toml, tmp_path / "toml")
    assert [run.directory.path.name for run in runs] == [run.directory.path.name for run in expected]
    for ours, theirs in zip(runs, expected, strict=True):
        assert (ours.directory.path / "model.safetensors").read_bytes() == (
            theirs.directory.path / "model.safetensors"
        ).read_bytes()
    assert "FedSAM" in str(ff.compare(runs))


@pytest.mark.slow
def test_a_file_is_overridden_and_may_name_own_code(tmp_path: Path) -> None:
    file = write_own_code(tmp_path)
    runs = ff.study(file, out=tmp_path / "out", seeds=[4], client={"lr": 0.3}, rounds=1)
    assert [(run.method, run.seed, run.spec.client.lr, run.spec.client.steps) for run in runs] == [
        ("FedSAM", 4, 0.3, 4),
        ("Mine", 4, 0.3, 4),
    ]
    folder = runs[1].directory.path
    with pytest.raises(InputError, match="names code"):
        _ = ff.load_run(folder).model
    with ff.allow_code():
        assert ff.load_run(folder).model[1].out_features == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"round": 3}, "round: unknown key; did you mean rounds?"),
        ({"methods": ["nosuch"]}, "unknown name 'nosuch'"),
        ({"client": {"learning_rate": 1}}, "client.learning_rate: unknown key"),
        ({"partition": 3}, "partition"),
        ({"jobs": 0}, "jobs must be 'auto' or an integer of at least 1"),
        ({"file": "gone.toml"}, "gone.toml"),
    ],
)
def test_what_is_no_study_is_named(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        ff.study(out=tmp_path / "out", **settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_class_that_is_in_no_package_is_named_by_its_file(tmp_path: Path) -> None:
    class Mine(ff.methods.FedAvg):
        """In no file that could be loaded again."""

    with pytest.raises(
        InputError, match=r'methods.0: Mine is not in this package; name the file it is in, "my.py:Mine"'
    ):
        ff.study(out=tmp_path / "out", methods=[Mine()])


def test_a_saved_run_is_read_back(run: ff.Run, tmp_path: Path) -> None:
    run.save(tmp_path / "saved")
    stored = ff.load_run(tmp_path / "saved")
    assert (stored.method, stored.seed) == ("FedSAM", 3)
    assert stored.summary == run.summary
    assert stored.settings["partition_hash"] == run.settings["partition_hash"]
    assert stored.metrics.equals(run.metrics)
    assert dict(stored.flatness) == dict(run.flatness)
    assert (stored.counts == run.counts).all()
    fresh = ff.Simulation("mlp", ff.data.load("digits", clients=5), ff.methods.FedAvg(), seed=1).model
    for loaded, trained in zip(stored.load_into(fresh).parameters(), run.model.parameters(), strict=True):
        assert torch.equal(loaded, trained)


@pytest.mark.parametrize("model", ["MLP", "mlp", "cnn"])
def test_a_saved_run_of_a_model_by_name_has_its_model(model: str, tmp_path: Path) -> None:
    """With its options and its type; what it gives for samples is what the trained model gives."""
    data = ff.data.load("digits", clients=5)
    options = {} if model == "cnn" else {"hidden": (6, 5)}
    sim = ff.Simulation(model, data, ff.methods.FedAvg(), rounds=1, model_options=options, dtype=torch.float64)
    run = sim.run()
    run.save(tmp_path / "saved")
    loaded = ff.load_run(tmp_path / "saved").model
    x = data.to(torch.device("cpu"), torch.float64).inputs(torch.arange(7))
    assert torch.equal(loaded(x), run.model(x))


def test_an_architecture_that_cannot_be_is_one_line(run: ff.Run, tmp_path: Path) -> None:
    """The folder may come from somebody else."""
    run.save(tmp_path / "saved")
    path = tmp_path / "saved" / "summary.json"
    content = json.loads(path.read_text())
    for change, message in (
        ({"name": "os:system"}, "os:system names code"),
        ({"name": "no-such"}, "model = 'no-such' is unknown"),
        ({"options": {"hidden": [10**9, 10**9]}}, "cannot be built"),
        ({"options": {"layers": 3}}, "has no option 'layers'"),
        ({"shape": [-1]}, "architecture.shape.0"),
        ({"dtype": "save"}, "architecture.dtype"),
        ({"classes": 3}, "of another model"),
    ):
        write_json(
            Checksums(tmp_path / "saved"), path.name, content | {"architecture": content["architecture"] | change}
        )
        with pytest.raises(InputError, match=message) as caught:
            _ = ff.load_run(tmp_path / "saved").model
        assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def run_of_a_module() -> ff.Run:
    """A run of the user's own module."""
    data = ff.data.load("digits", clients=5)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    return ff.Simulation(net, data, ff.methods.FedSAM(), rounds=2, seed=3).run()


def test_a_saved_run_has_no_configuration_and_says_so(run_of_a_module: ff.Run, tmp_path: Path) -> None:
    run = run_of_a_module
    run.save(tmp_path / "saved")
    stored = ff.load_run(tmp_path / "saved")
    with pytest.raises(InputError, match=r"was saved from Python and holds only the parameters; .*load_into\(module\)"):
        _ = stored.model
    with pytest.raises(InputError, match="keeps neither data nor configuration"):
        _ = stored.spec
    with pytest.raises(InputError, match="of another model: its tensors have other names or shapes"):
        stored.load_into(
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
        )
    with pytest.raises(InputError, match="exists already; a run needs a new folder"):
        run.save(tmp_path / "saved")


def test_a_module_is_changed_whole_or_not_at_all(run: ff.Run, tmp_path: Path) -> None:
    """The first layer fits, the last does not."""
    run.save(tmp_path / "saved")
    other = ff.models.build("mlp", classes=7, shape=(1, 8, 8))
    before = [p.clone() for p in other.parameters()]
    with pytest.raises(InputError, match="of another model: its tensors have other names or shapes"):
        ff.load_run(tmp_path / "saved").load_into(other)
    assert all(torch.equal(p, q) for p, q in zip(other.parameters(), before, strict=True))


def test_saved_runs_are_compared_with_those_of_studies(run: ff.Run, tmp_path: Path) -> None:
    run.save(tmp_path / "saved")
    other = ff.Simulation("mlp", ff.data.load("digits", clients=5), ff.methods.FedAvg(), rounds=2, seed=3).run()
    assert [row.label for row in ff.compare([ff.load_run(tmp_path / "saved"), other]).rows] == ["FedSAM", "FedAvg"]


def test_damage_is_named(run: ff.Run, tmp_path: Path) -> None:
    for name in ("metrics.parquet", "summary.json", "model.safetensors", "partition.parquet"):
        run.save(tmp_path / "saved")
        path = tmp_path / "saved" / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"{name} is missing or damaged"):
            _everything(ff.load_run(tmp_path / "saved"))
        shutil.rmtree(tmp_path / "saved")


def _everything(stored: StoredRun) -> None:
    _ = stored.summary, stored.metrics, stored.counts, stored.load_into(torch.nn.Linear(1, 1))


@pytest.mark.slow
def test_the_model_of_a_studys_run_is_made_and_filled(tmp_path: Path) -> None:
    [run] = carry_out(study_spec(methods=["fedavg"], seeds=[1], rounds=2, flatness=[]), tmp_path)
    stored = ff.load_run(run.directory.path)
    sim = stored.spec.build()
    list(sim)
    for loaded, trained in zip(stored.model.parameters(), sim.model.parameters(), strict=True):
        assert torch.equal(loaded, trained)


def test_a_run_is_short_to_look_at(run: ff.Run, tmp_path: Path) -> None:
    run.save(tmp_path / "saved")
    assert repr(run) == f"Run(FedSAM, seed 3, 2 rounds, test accuracy {100 * run.summary['test_accuracy']:.2f} %)"
    assert repr(ff.load_run(tmp_path / "saved")).endswith(f"in {tmp_path / 'saved'})")


def test_pandas_is_asked_for_by_name() -> None:
    class Table:
        """A table where pandas is missing."""

        def to_pandas(self) -> None:
            raise ModuleNotFoundError("No module named 'pandas'")

    with pytest.raises(InputError, match="to_pandas needs pandas: pip install pandas"):
        metrics_frame(Table())
