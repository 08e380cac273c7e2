"""The command line as a user meets it, in this process; `main` is what the installed command calls."""

from __future__ import annotations

import csv
import json
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click import Command
from rich.text import Text
from typer.main import get_command

from fedflat.cli.app import app
from fedflat.engine import trials
from fedflat.methods import all_methods
from support.effort import effort

SMALL = "--data.clients 10 --client.epochs 1 --client.batch_size 20 --rounds 4 --checkpoint_every 2 --participation 0.5"


@pytest.mark.slow
def test_run_then_again_then_report(fedflat, tmp_path: Path) -> None:
    code, out, err = fedflat(f"run {SMALL} --method.name fed-sam --method.rho 0.05 --out one")
    assert (code, err) == (0, "")
    assert "test accuracy" in out
    assert "about" in out, "a line for progress says how long it will take"
    assert 'name = "FedSAM"' in Path("one/config.toml").read_text()
    assert fedflat(f"run {SMALL} --method.name fed-sam --method.rho 0.05 --out one")[0] == 0
    fedflat(f"run {SMALL} --out other")
    code, out, _ = fedflat("report one other --target 0.1")
    assert code == 0
    assert re.search(r"rounds to 10\.0.%", out)
    assert not Path("report.html").exists(), "nothing is written into the folder that one happens to be in"
    [page] = Path("runs").glob("report-*/report.html")
    assert f"report: {page}" in out
    assert f"report: {page}" in fedflat("report other one --target 0.2")[1], "the same runs in another order"
    assert str(page) not in fedflat("report one")[1]


@pytest.mark.slow
def test_a_short_run_says_how_its_accuracy_was_taken(fedflat, tmp_path: Path) -> None:
    """Four evaluations, of which `last = 10` takes all."""
    out = fedflat(f"run {SMALL} --flatness [] --out one")[1]
    assert "last = 10: the score is the mean of the last 4 of 4 evaluations" in out
    assert re.search(r"FedAvg-seed0 +test accuracy [\d.]+ % \(mean of the last 4 evaluations\)  in ", out)
    assert "last =" not in fedflat(f"run {SMALL} --flatness [] --last 1 --out two")[1]
    study = "compare --methods fedavg --seeds 0 --data.validation 0.2 --protocol best-validation"
    out = fedflat(f"{study} {SMALL} --flatness [] --out three")[1]
    assert "last =" not in out
    assert "% (of the round that did best on the clients' validation samples)" in out


def test_default_folder_names_the_run(fedflat, tmp_path: Path) -> None:
    fedflat(f"run {SMALL} --seed 3")
    assert [path.name.rpartition("-")[0] for path in Path("runs").iterdir()] == ["FedAvg-seed3"]


@pytest.mark.slow
def test_compare_a_file_with_flags_on_top(fedflat, tmp_path: Path) -> None:
    Path("study.toml").write_text('methods = ["fedavg", "feddyn"]\nseeds = [0, 1]\nrounds = 50\n[client]\nlr = 0.05\n')
    code, out, _ = fedflat(f"compare study.toml {SMALL}")
    assert code == 0
    assert out.count("in 0.") + out.count("in 1.") == 4, "each of the four runs ends with a line"
    assert "FedDyn" in out
    folder = Path("runs/study")
    assert {"report.html", "comparison.json", "comparison.parquet", "study.toml"} <= {p.name for p in folder.iterdir()}
    assert "lr = 0.05" in (folder / "study.toml").read_text()
    assert "rounds = 4" in (folder / "study.toml").read_text()
    code, out, _ = fedflat("report runs/study")
    assert code == 0
    assert "FedDyn" in out


@pytest.mark.slow
def test_compare_with_methods_as_flags(fedflat, tmp_path: Path) -> None:
    code, out, _ = fedflat(
        f"""compare --methods fedavg --methods '{{"name": "fedsam", "rho": 0.2}}' --seeds 0 {SMALL} --out two"""
    )
    assert code == 0
    assert "FedSAM" in out
    assert "rho = 0.2" in Path("two/study.toml").read_text()


@pytest.mark.slow
def test_resume_goes_on_where_a_run_or_a_study_was(fedflat, tmp_path: Path) -> None:
    fedflat(f"run {SMALL} --out one")
    Path("one/summary.json").unlink()
    code, out, _ = fedflat("resume one")
    assert code == 0
    assert "results in one" in out
    fedflat(f"compare --methods fedavg --seeds 0 {SMALL} --out two")
    code, out, _ = fedflat("resume two")
    assert code == 0
    assert "report: two/report.html" in out


@pytest.mark.slow
def test_resume_of_what_is_finished_says_so_and_more_rounds_extend_it(fedflat, tmp_path: Path) -> None:
    fedflat(f"run {SMALL} --out one")
    code, out, err = fedflat("resume one")
    assert (code, out, err) == (
        0, "already finished: 4 of 4 rounds; --rounds N extends it\nresults in one\n", ""
    )  # fmt: skip
    code, out, err = fedflat(f"run {SMALL.replace('--rounds 4', '--rounds 6')} --out one")
    assert code == 2
    assert "`fedflat resume one --rounds 6` extends it" in err
    code, out, _ = fedflat("resume one --rounds 6")
    assert code == 0
    assert "results in one" in out
    assert "rounds = 6" in Path("one/config.toml").read_text()
    assert "already finished: 6 of 6 rounds" in fedflat("resume one")[1]
    code, _, err = fedflat("resume one --rounds 5")
    assert (code, err) == (2, "fedflat: --rounds 5: one already has 6 rounds; give a larger number\n")


@pytest.mark.slow
def test_studies_as_flags_have_folders_of_their_own_and_can_be_extended(fedflat, tmp_path: Path) -> None:
    line = f"compare --methods fedavg --seeds 0 {SMALL}"
    fedflat(line)
    fedflat(f"{line} --client.lr 0.2")
    one, other = sorted(Path("runs").iterdir(), key=lambda path: path.stat().st_ctime)
    code, out, _ = fedflat(f"resume {one} --rounds 6")
    assert code == 0
    code, out, _ = fedflat(f"resume {one}")
    assert "already finished: 1 runs of 6 rounds; --rounds N extends them" in out
    assert "rounds = 4" in (other / "study.toml").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
def test_tracking_of_runs_studies_and_ranks(fedflat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fedflat(f"run {SMALL} --out one --track csv --track csv")[0] == 0
    assert len(Path("one/metrics.csv").read_text().splitlines()) == 5
    before, temporary = signal.getsignal(signal.SIGINT), tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert fedflat(f"run {SMALL} --out two --ranks 2 --track csv")[0] == 0
    assert signal.getsignal(signal.SIGINT) is before, "torchrun's own handler is taken away again"
    assert not list(temporary.iterdir()), "nor is its folder of logs left"
    tables = []
    for name in ("one", "two"):
        with Path(name, "metrics.csv").open(newline="") as file:
            tables.append([row | {"seconds": ""} for row in csv.DictReader(file)])
    assert tables[0] == tables[1]
    assert fedflat(f"compare --methods fedavg --seeds 0 {SMALL} --out study --track csv")[0] == 0
    [path] = Path("study/runs").glob("*/metrics.csv")
    assert len(path.read_text().splitlines()) == 5
    path.unlink()
    assert fedflat("resume study --rounds 6 --track csv")[0] == 0
    [path] = Path("study/runs").glob("*/metrics.csv")
    assert len(path.read_text().splitlines()) == 7
    for line in (f"run {SMALL}", "compare", "resume one"):
        code, _, err = fedflat(f"{line} --track excel")
        assert (code, err) == (2, "fedflat: --track excel: known are csv, tensorboard, wandb, mlflow\n")


def test_dry_run_prints_configuration_and_cost_and_computes_nothing(fedflat, tmp_path: Path) -> None:
    code, out, _ = fedflat(f"run {SMALL} --method.name fedsmoo --dry-run")
    assert code == 0
    assert 'name = "FedSMOO"' in out
    assert re.search(r"model parameters +4,810", out)
    assert re.search(r"^time +about [\d.]+ (s|min), without measures", out, re.MULTILINE)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_dry_run_of_a_study_says_what_is_left_and_writes_nothing(fedflat, tmp_path: Path) -> None:
    values = json.dumps([round(0.001 * i, 3) for i in range(1, effort(26, 2501))])
    line = f"compare {SMALL} --methods fedavg --methods fedsam --seeds 0 --seeds 1 --grid"
    code, out, err = fedflat(f"""{line} '{{"client.lr": {values}}}' --jobs 4 --dry-run""")
    runs = f"{effort(100, 10_000):,}"
    assert (code, err) == (0, "")
    assert re.search(rf"^ all +{runs} +0 ", out, re.MULTILINE)
    assert f"runs    {runs}: 0 finished, 0 begun; seeds 0, 1\nfolder  runs/compare-" in out
    assert f" for the {runs} that are left, 4 runs at a time, " in out
    assert "tried   FedAvg(lr=0.001)-seed0, FedSAM(lr=0.001)-seed0; the other runs are extrapolated" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_names_and_keys_mix_in_any_spelling(fedflat, tmp_path: Path) -> None:
    Path("file.toml").write_text(
        'rounds = 3\npartition = "iid"\n[method]\nname = "fedsam"\nrho = 0.3\n[client]\nlr = 0.5\n'
    )
    for line, there in [
        ("--method fedsam --method.rho 0.3", ['name = "FedSAM"', "rho = 0.3"]),
        ("--method.rho 0.3 --method=fed-sam", ['name = "FedSAM"', "rho = 0.3"]),
        ("--partition.alpha 0.7", ['name = "dirichlet"', "alpha = 0.7"]),
        ("--client.batch-size 7", ["batch_size = 7"]),
    ]:
        out = fedflat(f"run {line} --dry-run")[1]
        assert all(text in out for text in there), line
    out = fedflat("run file.toml --dry-run --method.server_lr 0.7")[1]
    assert all(text in out for text in ["rho = 0.3", "server_lr = 0.7", 'name = "iid"', "lr = 0.5", "rounds = 3"])
    out = fedflat("run file.toml --dry-run --method fedsmoo --client.batch_size none")[1]
    assert "rho = 0.1" in out, "another method does not inherit the file's keys of the first"
    assert "batch_size" not in out


@pytest.mark.slow
def test_participation_in_all_its_forms(fedflat, tmp_path: Path) -> None:
    for rule, shown in [
        ("3", "3"),
        ("0.5", "5"),
        ("'[[0],[1],[2],[3,4]]'", "1.25"),
        ("""'{"bernoulli": 1.0}'""", "10"),
    ]:
        code, out, err = fedflat(f"run {SMALL.replace('--participation 0.5', '')} --participation {rule} --dry-run")
        assert code == 0, err
        assert re.search(rf"clients per round +{re.escape(shown)}\n", out), rule


def test_methods(fedflat) -> None:
    code, out, _ = fedflat("methods")
    assert code == 0
    for name, cls in all_methods().items():
        assert re.search(rf"^ *{name} .*{re.escape(str(cls.paper))}", out, re.MULTILINE), "one line each"
    code, out, _ = fedflat("methods fed-smoo")
    assert code == 0
    assert "s_i <- rho unit(alpha (g_i(w_i) - mu_i) - s)" in out
    assert "@inproceedings{sun2023dynamic," in out
    assert "rho = 0.1, a number in [0, inf)" in out
    assert "published: 0.1 (FedSMOO, FedLESAM, FedVSSAM)" in out
    assert "down 2, up 2, kept between rounds 2, held in a round 4" in out
    assert "FL-Simulator's server normalises mean(mu_i)" in out


def test_data(fedflat, tmp_path: Path) -> None:
    assert "digits" in fedflat("data list")[1]
    code, out, _ = fedflat("data partition --data.clients 20 --partition.name iid --figure map.svg")
    assert code == 0
    assert "samples per client  67 to 68" in out
    assert Path("map.svg").read_text().startswith("<svg")


def test_doctor(fedflat) -> None:
    code, out, _ = fedflat("doctor")
    assert code == 0
    assert re.search(r"^torch +\d", out, re.MULTILINE)
    assert re.search(r"^device +\w", out, re.MULTILINE)
    assert "MISSING" not in out
    assert "extra dev" in out


def test_doctor_of_a_device(fedflat, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for each part, as soon as it is found; what is wrong makes the exit code 1."""
    found = [trials.DeviceCheck("device", "cpu"), trials.DeviceCheck("agreement", "stacked 1e-16")]
    monkeypatch.setattr(trials, "device_trial", lambda device: iter(found))
    code, out, _ = fedflat("doctor --device cpu")
    assert code == 0
    assert "torch" in out.splitlines()[0]
    assert out.splitlines()[1:3] == ["device: cpu", "agreement: stacked 1e-16"]
    found.append(trials.DeviceCheck("speed", "RuntimeError: no kernel", passed=False))
    code, out, _ = fedflat("doctor --device cpu")
    assert code == 1
    assert "WRONG: speed: RuntimeError: no kernel" in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_doctor_without_a_gpu_is_one_line(fedflat) -> None:
    code, out, err = fedflat("doctor --device cuda")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"fedflat: device = 'cuda' cannot be used: .*\n", err)


def test_help_teaches(fedflat) -> None:
    assert "compare" in fedflat("--help")[1]
    assert "--method.name fedsmoo" in fedflat("run --help")[1]
    keys = fedflat("run --keys")[1]
    assert "--client.weight_decay" in keys
    assert "--method.rho" in keys
    assert fedflat("--version")[1].startswith("fedflat ")


def commands(command: Command, name: str = "fedflat") -> Iterator[tuple[str, Command]]:
    yield name, command
    for one in getattr(command, "commands", {}).values():
        yield from commands(one, f"{name} {one.name}")


def test_help_loses_no_word_in_brackets() -> None:
    """Of rich's markup none is used, so that what it would take for a tag is a word: `[tune]`."""
    found = dict(commands(get_command(app)))
    assert "fedflat flower export" in found
    for name, command in found.items():
        texts = [command.help, *(getattr(parameter, "help", None) for parameter in command.params)]
        for text in filter(None, texts):
            assert Text.from_markup(text).plain == text.replace("\\[", "["), name


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run --methd.rho 1", "--methd.rho: unknown flag; did you mean --method.rho?"),
        ("run --lr 0.1", "--lr: unknown flag; did you mean --client.lr?"),
        ("run --rho 0.1", "--rho: unknown flag; did you mean --method.rho?"),
        ("run --mom.beta 0.3", "--mom.beta: unknown flag; did you mean --method.beta?"),
        (
            "compare --methods fedavg --mom.beta 0.3",
            "--mom.beta: unknown flag; a field of an entry of methods is written as --methods NAME, or --methods "
            '\'{"name": "NAME", "beta": VALUE}\'',
        ),
        ("compare --metods fedavg", "--metods: unknown flag; did you mean --methods?"),
        (
            "run --participation.held-out 0.5",
            "--participation.held_out: participation takes a table as one text; write --participation "
            "'{\"held_out\": VALUE}'",
        ),
        (
            "compare --grid.client.lr [0.5]",
            '--grid.client.lr: grid takes a table as one text; write --grid \'{"client": {"lr": VALUE}}\'',
        ),
        (
            "run --method.name fedsam --method.rho -1",
            "method.rho: must be a number in [0, inf), got -1",
        ),
        ("run --method.name fedsam --method.rho lots", "method.rho: must be a number in [0, inf), got 'lots'"),
        ("run --method.name sam", "method: unknown name 'sam'; known are Centralised,"),
        ("run --data.name cifar", "data.name = 'cifar' is unknown; known are ag_news, "),
        ("run --data.clients 5000", "data.clients = 5000 is more than the 1347 training samples"),
        ("run --data.clients 10 --participation 11", "participation = 11 clients per round is not in 1..10"),
        ("run --client.epochs 2 --client.steps 3", "client.epochs and client.steps exclude each other"),
        ("run --model.name lenet", "model 'lenet' takes images (channels, 32, 32), got shape (1, 8, 8)"),
        ("run --device tpu9", "device = 'tpu9' cannot be used"),
        ("run missing.toml", "configuration missing.toml cannot be read"),
        ("run --rounds", "--rounds: a value is missing"),
        ("run --rounds 3 extra.toml", "extra.toml: unexpected word"),
        ("run --out file/run", "--out file/run cannot be written: Not a directory"),
        ("run --method fedvssam --method.server_lr_mode foo", "method.server_lr_mode: must be one of 'relative', "),
        ("run --participation [0,1]", "participation: participation must be a share, "),
        ("""run --model.options '{"hidden": 64}'""", "model 'mlp' cannot be built with {'hidden': 64"),
        ("""run --model.options '{"classes": 4}'""", "model option 'classes' follows from the data"),
        ("compare --methods fedavg --methods fedavg", "methods: number 1 is the same as number 0"),
        ("compare --methods fedavg --methods fedfoo", "methods.1: unknown name 'fedfoo'"),
        ("compare --weights samples --methods scaffold", "weights = 'samples' does not fit Scaffold"),
        ("resume .", ". holds neither a run (config.toml) nor a study (study.toml)"),
        ("report .", ". holds no finished run"),
        ("report missing", "missing holds no finished run"),
        ("methods fedfoo", "unknown method 'fedfoo'; known are Centralised,"),
        (
            "data partition --partition.name zipf",
            "partition: unknown name 'zipf'; known are balanced-dirichlet, dirichlet,",
        ),
        (
            "data partition --partition.name pathological --partition.classes_per_client 11",
            "is more than the 10 classes",
        ),
        ("data partition --figure file/map.svg", "file/map.svg cannot be written: Not a directory"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(fedflat, tmp_path: Path, line: str, message: str) -> None:
    Path("file").write_text("not a folder")
    code, _, err = fedflat(line)
    assert code == 2
    assert err.startswith("fedflat: ")
    assert message in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is left behind"


def test_divergence_is_one_clear_line_and_exit_code_1(fedflat, tmp_path: Path) -> None:
    code, _, err = fedflat(f"run {SMALL} --client.lr 1e30 --out one")
    assert code == 1
    assert re.fullmatch(r"fedflat: training diverged: client \d+ sent NaN or infinity in round \d+; .*\n", err)


def test_the_environment_changes_nothing(fedflat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDS", "77")
    monkeypatch.setenv("SEED", "9")
    out = fedflat(f"run {SMALL} --dry-run")[1]
    assert "rounds = 4" in out
    assert "seed = 0" in out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run --rounds 1 --rounds 2", "--rounds is given twice"),
        ("run --method.rho 0.1 --method fedsam --method.rho=0.2", "--method.rho is given twice"),
        ("run --participation 0.5 --participation 0.2", "--participation is given twice"),
        ("run --workers 1 --workers 2", "--workers is given twice"),
        ("compare --methods.name fedsam", "--methods.name: methods is a list; write --methods NAME, or --methods '{"),
        ("compare --method.name fedsam", "--method.name: methods is a list; write --methods NAME"),
    ],
)
def test_flags_that_would_be_lost_are_refused(fedflat, line: str, message: str) -> None:
    code, _, err = fedflat(line)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("key", ["participation.share", "grid.client.lr", "client_of.FedSAM.lr"])
def test_the_table_that_is_advised_is_accepted(fedflat, key: str) -> None:
    """The advice with a value in the place of VALUE, up to the next mistake."""
    _, _, err = fedflat(f"compare --{key} 0.25")
    advised = err.partition("; write ")[2].strip().replace("VALUE", "[0.25]" if key.startswith("grid") else "0.25")
    assert advised
    _, _, err = fedflat(f"compare {advised} --methods fedsam --rounds 0")
    assert err.startswith("fedflat: rounds: ")
    assert "more)" not in err
