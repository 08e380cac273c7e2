"""Sites with files of their own, in the formats of the simulator: what the study states makes them alike."""

from __future__ import annotations

import json
import re
import stat
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.data.loading import labelled, prepare
from fedflat.data.schema import Schema
from fedflat.data.stated_schema import stated_settings
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower.client_reports import STATES, check_places, client_reports, read_reports, write_reports
from fedflat.federation.flower.directory import CLIENTS, FederationDirectory
from fedflat.federation.flower.study import files_of
from fedflat.federation.flower.transport import GatheringError
from fedflat.reports.federation import FederationData, write_federation_page
from support.files import refused
from support.flower_fixtures import GridFederation, simulated, study_of

SITES = ("north", "south", "west")
CLASSES = ("cold", "flu", "sepsis")


def write_tables(folder: Path) -> Path:
    """Write a table of each site; the last has no case of the rarest class, and its columns have another order."""
    for seed, site in enumerate(SITES):
        rng, rows = np.random.default_rng(seed), []
        for i in range(9):
            y = i % (2 if site == "west" else 3)
            age, sex = ("" if i == 4 else f"{rng.normal(50 + y, 3):.2f}"), "fm"[i % 2]
            rows.append([sex, CLASSES[y], "note", age] if site == "west" else [age, sex, CLASSES[y]])
        header = ["sex", "outcome", "remark", "age"] if site == "west" else ["age", "sex", "outcome"]
        (folder / site).mkdir(parents=True)
        (folder / site / "train.csv").write_text("\n".join(map(",".join, [header, *rows])) + "\n")
        (folder / site / "test.csv").write_text("\n".join(map(",".join, [header, *rows[:3]])) + "\n")
    return folder


def tables(folder: Path, **changes: object) -> RunSpec:
    """Return a study of these tables, whose settings state everything that its sites must know."""
    chosen = {"label_columns": "outcome", "numeric_columns": "age", "categorical_columns": "sex", "missing": "fill"}
    loaded = prepare("csv", str(folder), **chosen)
    found = stated_settings(labelled(loaded, "classification", "csv"), words=10)
    data = {"name": "csv", "clients": 3, **chosen, **found, **changes}
    return study_of(model={"name": "mlp", "options": {"hidden": [5]}}, method="scaffold", participation=2, data=data,
                    data_dir=str(folder), partition="natural")  # fmt: skip


def federation(spec: RunSpec, folder: Path, places: dict[str, Path], **settings: object) -> GridFederation:
    some = {"data_dir": None, "participation": min(2, len(places))}
    made = GridFederation(spec.model_copy(update=some), folder, clients=len(places), **settings)
    made.nodes = {i: made.own_node(name, data=str(place)) for i, (name, place) in enumerate(places.items(), start=1)}
    return made


def test_three_tables_are_a_federation_with_the_bits_of_the_simulation(tmp_path: Path) -> None:
    """One site lacks a class, one has other columns in another order; values are missing everywhere."""
    spec = tables(write_tables(tmp_path / "sites"))
    places = {site: tmp_path / "sites" / site / ("train.csv" if site == "south" else "") for site in SITES}
    federated = federation(spec, tmp_path / "federation", places, test=str(tmp_path / "sites" / "north" / "test.csv"))
    assert federated.study.shape == (3,)
    assert federated.study.classes == 3
    assert federated.serve() == simulated(spec, tmp_path / "simulation")
    assert "test_accuracy" in federated.events("round")[-1]


def test_what_sites_read_is_part_of_the_studys_digest(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "sites")
    places = {site: folder / site for site in SITES}

    def digest(i: int, **changes: object) -> str:
        return federation(tables(folder, **changes), tmp_path / f"federation-{i}", places).study.digest

    changed = {"class_names": CLASSES[::-1], "categories": [["m", "f"]], "missing": "drop", "means": [1.0]}
    digests = [digest(0), *(digest(i, **{name: value}) for i, (name, value) in enumerate(changed.items(), start=1))]
    assert len(set(digests)) == 5
    assert digest(9) == digests[0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("flu", "influenza", "has the label 'influenza', which is none of class_names"),
        (",f,", ",x,", "'sex' has 'x', which is none of its categories f, m"),
        ("sex", "gender", "has no column 'sex'; it has age, gender, outcome"),
        ("outcome\n", "outcome\n,,\n", "row 1: 'outcome' has no value"),
        ("outcome\n", "outcome\nold,f,flu\n", "row 1: 'age' has 'old', which is not a number"),
    ],
)  # fmt: skip
def test_a_site_that_does_not_fit_is_refused_in_one_line_that_stays_at_the_site(
    tmp_path: Path, old: str, new: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The line has values of samples in it, so the server receives only that there is an error."""
    spec = tables(write_tables(tmp_path / "sites"))
    path = tmp_path / "sites" / "north" / "train.csv"
    path.write_text(path.read_text().replace(old, new))
    federated = federation(spec, tmp_path / "federation", {"north": path}, wait=0.2)
    with pytest.raises(
        GatheringError, match="its own samples do not fit the study; the client's log says why"
    ) as error:
        federated.serve()
    assert words in caplog.text
    assert not {"influenza", "'x'", "old", "outcome", "gender"} & set(str(error.value).replace(",", " ").split())
    with refused("client north: ", words):  # a rehearsal says so before it starts
        check_places(federated.study, {"north": path})


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("absent.csv", "does not exist"),
        ("empty", "has no files of csv"),
        ("wrong.csv", "has no column 'outcome'"),
    ],
)
def test_the_servers_test_samples_are_checked_before_a_rehearsal_starts(tmp_path: Path, test: str, words: str) -> None:
    folder = write_tables(tmp_path / "sites")
    (tmp_path / "empty").mkdir()
    table = (folder / "north" / "test.csv").read_text()
    (tmp_path / "wrong.csv").write_text(table.replace("outcome", "result"))
    places = {site: folder / site / "train.csv" for site in SITES}
    spec = tables(folder)
    federated = federation(spec, tmp_path / "federation", places, test=str(tmp_path / test))
    with refused("test: ", words):
        check_places(federated.study, places)
    right = federation(spec, tmp_path / "right", places, test=str(folder / "north" / "test.csv"))
    check_places(right.study, places)


def test_a_place_that_is_not_there_is_named_as_it_was_given(tmp_path: Path) -> None:
    """Nodes name it `data`, and another of their keys is data-dir."""
    federated = federation(tables(write_tables(tmp_path / "sites")), tmp_path / "federation", {"north": tmp_path})
    with refused("gone does not exist"):
        files_of(federated.study, "gone")


@pytest.mark.parametrize("name", ["class_names", "numeric_columns", "means", "categories"])
def test_a_study_that_leaves_the_meaning_to_its_sites_is_refused(tmp_path: Path, name: str) -> None:
    default = {one.name: one.default for one in fields(Schema)} | {"class_names": ()}
    changes = {name: default[name]} | ({"deviations": ()} if name == "means" else {})
    spec = tables(write_tables(tmp_path / "sites"), **changes)
    if name == "numeric_columns":  # then age is not used, which a study may state
        assert federation(spec, tmp_path / "federation", {"north": tmp_path}).study.shape == (2,)
        return
    with refused(f"data.{name} is needed"):
        _ = federation(spec, tmp_path / "federation", {"north": tmp_path}).study


def test_a_node_without_a_place_is_told_so(tmp_path: Path) -> None:
    federated = federation(
        tables(write_tables(tmp_path / "sites")), tmp_path / "federation", {"north": tmp_path}, wait=0.2
    )
    federated.nodes = {1: federated.own_node("north")}
    with pytest.raises((GatheringError, InputError), match="data"):
        federated.serve()


def test_class_folders_are_a_federation_with_the_bits_of_the_simulation(tmp_path: Path) -> None:
    for seed, (site, names) in enumerate({"a": ("cat", "dog", "lynx"), "b": ("dog",), "c": ("cat", "lynx")}.items()):
        for part in ("train", "test"):
            for i, name in enumerate(names):
                folder = tmp_path / "sites" / site / part / name
                folder.mkdir(parents=True)
                rng = np.random.default_rng(100 * seed + i)
                for n in range(3):
                    Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).save(folder / f"{n}.png")
    loaded = prepare("folder", str(tmp_path / "sites"), image_size=8)
    found = stated_settings(labelled(loaded, "classification", "folder"), words=1)
    assert (found["class_names"], found["channels"], found["image_size"]) == (("cat", "dog", "lynx"), 3, 8)
    spec = study_of(model={"name": "mlp", "options": {"hidden": [5]}}, participation=2, partition="natural",
                    data={"name": "folder", "clients": 3, **found}, data_dir=str(tmp_path / "sites"))  # fmt: skip
    places = {site: tmp_path / "sites" / site for site in "abc"}
    assert federation(spec, tmp_path / "federation", places).serve() == simulated(spec, tmp_path / "simulation")


def test_texts_have_the_vocabulary_of_the_study(tmp_path: Path) -> None:
    for site, word in zip("abc", ("spam", "ham", "spam"), strict=True):
        rows = [{"text": f"{word} number{i} from {site}", "label": word} for i in range(10)]
        (tmp_path / "sites").mkdir(exist_ok=True)
        (tmp_path / "sites" / f"{site}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    loaded = prepare("jsonl", str(tmp_path / "sites"), text_length=8)
    found = stated_settings(labelled(loaded, "classification", "jsonl"), words=4)
    assert found["vocabulary"] == ("from", "spam", "a", "b")
    spec = study_of(model={"name": "textcnn"}, participation=2, data={"name": "jsonl", "clients": 3, **found},
                    data_dir=str(tmp_path / "sites"), partition="natural")  # fmt: skip
    places = {site: tmp_path / "sites" / f"{site}.jsonl" for site in "abc"}
    federated = federation(spec, tmp_path / "federation", places)
    assert (federated.study.shape, federated.study.numbers) == ((8,), "tokens")
    federated.serve()  # of the simulation a tenth is the test set, so that its bits are others


@pytest.mark.parametrize(("keep", "method"), [([], "scaffold"), (["3.*"], "scaffold"), ([], "ditto")])
def test_the_reports_of_a_rehearsal_are_those_of_the_simulation(tmp_path: Path, keep: list[str], method: str) -> None:
    """The final model on each client's own test samples, and the client's own model or that with its own part."""
    folder = write_tables(tmp_path / "sites")
    spec = tables(folder)
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"keep": keep}), "metrics": ["recall"]})
    spec = spec.model_copy(update={"method": study_of(method=method).method})
    places = {site: folder / site for site in SITES}
    federated = federation(spec, tmp_path / "federation", places)
    for node in federated.nodes.values():
        node.config["state"] = str(federated.out / STATES)
    federated.serve()
    simulated(spec, tmp_path / "simulation")
    expected = ff.load_run(tmp_path / "simulation").clients
    reports = client_reports(federated.study, federated.out, places)
    assert [(report.name, report.samples, report.test_samples) for report in reports] == [
        (site, 9, 3) for site in SITES
    ]
    assert [report.classes for report in reports] == [3, 3, 2]
    assert [report.scores["accuracy"] for report in reports] == pytest.approx(expected.accuracy)
    found = [report.own_scores.get("accuracy") for report in reports]
    assert found == pytest.approx(expected.personal_accuracy) if keep or method == "ditto" else found == [None] * 3
    recalls = [(report.own_scores or report.scores).get("recall/flu") for report in reports]
    assert recalls == pytest.approx(expected.recall["flu"])
    write_reports(federated.out, reports)
    assert read_reports(federated.out) == reports
    assert stat.S_IMODE((federated.out / CLIENTS).stat().st_mode) == 0o600
    page = write_federation_page(FederationData.read(federated.out), tmp_path / "page").read_text()
    shown = re.findall(r">(north|south|west)</th><td>9</td><td>\d</td><td>3</td><td>([\d.]+)</td>", page)
    assert [(name, float(x)) for name, x in shown] == [
        (site, round(x, 3)) for site, x in zip(SITES, expected.accuracy, strict=True)
    ]
    (federated.out / CLIENTS).write_text("{}")
    data = FederationData.read(federated.out)
    assert data.reports == ()
    assert data.damaged[0].startswith(f"{CLIENTS}: ")


def test_a_client_that_was_never_asked_has_its_initial_part_in_its_own_model(tmp_path: Path) -> None:
    """Two of three are asked in the only round: the own model of the third is the server's, with the initial part."""
    folder = write_tables(tmp_path / "sites")
    spec = tables(folder)
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"keep": ["3.*"]}), "rounds": 1})
    places = {site: folder / site for site in SITES}
    federated = federation(spec, tmp_path / "federation", places)
    for node in federated.nodes.values():
        node.config["state"] = str(federated.out / STATES)
    federated.serve()
    reports = client_reports(federated.study, federated.out, places)
    [other] = [report for report in reports if report.name not in federated.events("round")[0]["counted"]]
    assert other.own_scores == other.scores


def test_a_client_that_is_no_member_of_a_finished_federation_is_refused_and_gets_no_report(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "sites")
    places = {site: folder / site for site in SITES}
    federated = federation(tables(folder), tmp_path / "federation", places)
    federated.serve()
    directory = FederationDirectory(federated.out)
    directory.refuse_strangers(federated.study, SITES)
    with refused("client east: out ", "holds a federation of north, south, west, which no other client can join"):
        directory.refuse_strangers(federated.study, ["north", "south", "east"])
    others = {"north": folder / "north", "east": folder / "west"}
    assert [report.name for report in client_reports(federated.study, federated.out, others)] == ["north"]


@pytest.mark.parametrize(("loss", "labels"), [("regression", "dose"), ("regression", ["dose", "time"]),
                                              ("multi-label", ["nausea", "pain"])])  # fmt: skip
def test_numbers_and_several_labels_have_the_bits_of_the_simulation(tmp_path: Path, loss: str, labels: object) -> None:
    for seed, site in enumerate(SITES):
        rng, rows = np.random.default_rng(seed), ["age,sex,dose,time,nausea,pain"]
        for i in range(12):
            age = rng.normal(50, 9)
            rows.append(f"{age:.2f},{'fm'[i % 2]},{age / 30:.3f},{i % 5},{int(age > 50)},{i % 2}")
        for part in ("train", "test"):
            (tmp_path / "sites" / site).mkdir(parents=True, exist_ok=True)
            (tmp_path / "sites" / site / f"{part}.csv").write_text("\n".join(rows) + "\n")
    chosen = {"label_columns": labels, "numeric_columns": "age", "categorical_columns": "sex"}
    found = stated_settings(labelled(prepare("csv", str(tmp_path / "sites"), **chosen), loss, "csv"), words=1)
    assert "class_names" not in found
    spec = study_of(model={"name": "mlp", "options": {"hidden": [5]}}, participation=2, partition="natural", loss=loss,
                    data={"name": "csv", "clients": 3, **found}, data_dir=str(tmp_path / "sites"))  # fmt: skip
    places = {site: tmp_path / "sites" / site for site in SITES}
    federated = federation(spec, tmp_path / "federation", places, test=str(places["north"]))
    assert federated.study.classes == (1 if isinstance(labels, str) else 2)
    assert federated.serve() == simulated(spec, tmp_path / "simulation")
    assert ("test_rmse" if loss == "regression" else "test_label_accuracy") in federated.events("round")[-1]


def test_a_site_with_classes_does_not_take_part_in_a_regression(tmp_path: Path) -> None:
    spec = tables(write_tables(tmp_path / "sites"), class_names=(), labels="numbers", label_columns="age",
                  numeric_columns=(), means=(), deviations=(), missing="drop")  # fmt: skip
    spec = spec.model_copy(update={"loss": "regression"})
    path = tmp_path / "sites" / "north" / "train.csv"
    path.write_text("age,sex\nyoung,f\nold,m\n")
    federated = federation(spec, tmp_path / "federation", {"north": path}, wait=0.2)
    with refused("client north: ", "names of classes go with classification; for regression labels are numbers"):
        check_places(federated.study, {"north": path})
