"""Any content of a configuration works or is refused in one line, quickly."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import fedflat.cli
from fedflat.cli import main
from fedflat.cli.flags import resolve
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.core.toml import parse_toml
from fedflat.data import Partition
from fedflat.experiments.spec import Experiment, RunSpec, StudySpec, from_flag, participation_of
from fedflat.metrics.flatness import Measure
from fedflat.rounds.local_training import Client
from fedflat.rounds.run_model import InitialModel
from support.effort import chosen, effort
from support.hostile_toml import mutations

KINDS: dict[str, type[Experiment]] = {"run": RunSpec, "study": StudySpec}
SECONDS = 10.0  # of the processor, for each; tomllib alone takes 1.5 for a megabyte, and machines are busy
GROWTH = 2**30  # bytes of memory at most, for all


def build(spec: RunSpec) -> None:
    """Build everything of a run that needs no data."""
    assert isinstance(spec.method.object, Method)
    assert isinstance(spec.partition.object, Partition)
    assert isinstance(spec.client, Client)
    rule = participation_of(spec.participation)
    rule.check(spec.data.clients, spec.rounds)
    for measure in (*spec.flatness, *spec.probes):
        assert isinstance(measure.object, Measure)
    InitialModel(spec.model.name, 10, (1, 8, 8), spec.seed, spec.model.options).module()
    spec.to_toml()
    spec.digest()


def load(kind: type[Experiment], path: Path) -> None:
    spec = kind.load(path)
    runs = spec.runs() if isinstance(spec, StudySpec) else [spec]
    build(runs[0])


def peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.slow
def test_every_mutation_works_or_is_one_line(tmp_path: Path, record_property) -> None:
    path, before = tmp_path / "file.toml", peak()
    refused, wrong = 0, []
    record_property("tried", number := effort(100, 6000))
    for name, content in mutations(number):
        path.write_bytes(content)
        began = time.process_time()
        try:
            load(KINDS[name.split()[0]], path)
        except InputError as error:
            refused += 1
            if not (str(error).isprintable() and len(str(error)) < 2500):
                wrong.append((name, str(error)[:300]))
        except Exception as error:
            wrong.append((name, repr(error)[:300]))
        seconds = time.process_time() - began
        if seconds > SECONDS:
            wrong.append((name, f"{seconds:.1f} s"))
    assert wrong == []
    assert refused > 0.4 * number, "the mutations are hostile"
    assert peak() - before < GROWTH


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("model.options = {name = 1}", "model.options.name"),
        ("client.epochs = 1e15", "client.epochs"),
        ("client.steps = 1e15", "client.steps"),
        ("client.batch_size = 1e15", "client.batch_size"),
        ("rounds = 1e15", "rounds"),
        ("data.clients = 1e15", "data.clients"),
        ("store_megabytes = 1e15", "store_megabytes"),
        ("workers = 1_000_000_000", "workers"),
        (f"seed = {2**200}", "seed: "),
        (f"method.server_lr = {2**200}", "method.server_lr: "),
        ("model.options.hidden = [1_000_000_000_000]", "'hidden': [1000000000000]"),
        ("model.options.hidden = [[[[1]]]]", "model.options.hidden: "),
        ("model.options.hidden = 1979-05-27", "model.options.hidden: "),
        ("rounds = 1979-05-27", "rounds: "),
        ("client.lr = nan", "client.lr: "),
        ('data_dir = "a\\u0000b"', "data_dir: "),
        ("a = " + "[" * 40 + "]" * 40, "a.0.0.0"),
        ("targets = [" + "2," * 20_000 + "]", "targets: "),
        (f"participation = {'[' + '[0],' * 100 + ']'}", "participation lists 100 rounds, but rounds = 200"),
    ],
)
def test_the_field_is_named(tmp_path: Path, line: str, named: str) -> None:
    (tmp_path / "file.toml").write_text(f"{line}\n" + ("rounds = 200\n" if "participation" in line else ""))
    with pytest.raises(InputError) as error:
        load(RunSpec, tmp_path / "file.toml")
    assert named in str(error.value)


LONG = ".".join("a" * 100_000)  # a key, which the parser would take minutes for
LONG_KEYS = [
    f"{LONG} = 1", f"[{LONG}]", f"[[{LONG}]]", f"x = {{{LONG} = 1}}", f"x = [1, {{{LONG} = 1}}]",
    f"y = 1\r\n{LONG} = 1", " . ".join(["'a.b'"] * 100_000) + " = 1", "\t.".join(['"\\"."'] * 100_000) + " = 1",
    ".".join("1" * 100_000) + " = 1", " . ".join(["1.1"] * 100_000) + " = 1", f"x = 0.5\n1.5.{LONG} = 1",
]  # fmt: skip
# Values with all that a text may have in it, after which a key begins again.
VALUES = [
    "0.5", "-1_0.5e-10", "1.0", '"#"', '"\\""', "'\"'", "'#'", '"\\\\"', '""', "''", '"""a"b""c\n\' """', "'''\n\" '''",
    '"""b""""', "'''b'''''", '"""\\\n"""', '"""\\""""', "[0.5, 'a.b'] # ' \"", "[\n0.5, # \"\"\"\n]",
    "1979-05-27T00:32:00.999Z", '"' + "A sentence. " * 500 + '"', "[" + "0.25," * 1000 + "]",
]  # fmt: skip


@pytest.mark.parametrize("text", LONG_KEYS, ids=range(len(LONG_KEYS)))
def test_a_key_with_very_many_parts_is_refused_at_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.toml").write_text(text)
    began = time.process_time()
    with pytest.raises(InputError, match=r"file\.toml cannot be read: it is nested too deep$"):
        RunSpec.load(tmp_path / "file.toml")
    assert time.process_time() - began < 2


@pytest.mark.parametrize("before", chosen(VALUES[::4], VALUES), ids=lambda text: repr(text[:20]))
def test_dots_outside_keys_are_no_parts_and_none_hides_a_key(before: str) -> None:
    """Whatever stands before it, a long key is refused, and a text without one is read as the parser reads it."""
    for value in VALUES:
        inside = f"x = [{{z = {value}, KEY = 1}}]" if "#" not in value else f"x = {value}\n[[KEY]]"
        for rest in (inside, f"x = {value}\nKEY = 1"):
            text = f"y = {before}\n{rest}"
            short = text.replace("KEY", "a.b.c")
            assert parse_toml(short) == tomllib.loads(short)
            with pytest.raises(RecursionError):
                parse_toml(text.replace("KEY", LONG[:201]))


def test_a_thousand_decimals_on_one_line_are_read(tmp_path: Path) -> None:
    values = [round(0.001 + i * 1e-6, 6) for i in range(1000)]
    (tmp_path / "file.toml").write_text(f"methods = ['fedavg']\ngrid = {{'client.lr' = {values}}}")
    assert StudySpec.load(tmp_path / "file.toml").grid == {"client.lr": values}
    assert from_flag(str(values)) == values


@pytest.mark.parametrize(
    "text",
    ["'" * 10**6, '"' + '\\"' * 500_000, "1" * 10**6, "." * 10**6, '"""' + '""a' * 300_000, "+-" * 500_000,
     "1.1e" * 250_000, "1_" * 500_000, '"' + "\\" * 1_000_001, "a" * 10**6],
    ids=range(10),
)  # fmt: skip
def test_no_content_is_looked_at_twice(text: str) -> None:
    began = time.process_time()
    with pytest.raises((ValueError, RecursionError)):
        parse_toml(text)
    assert time.process_time() - began < SECONDS


FLAGS = [
    ["--participation", f"{{{LONG[:120_001]} = 1}}"], ["--model.options", f"{{{LONG[:120_001]} = 1}}"],
    ["--participation", "[" * 50_000], ["--participation", "[[" * 30 + "]]" * 30], ["--participation", "9" * 5000],
    ["--participation", '{"bernoulli": ' * 500 + "1" + "}" * 500], ["--participation", "0x" + "f" * 6000],
    ["--workers", "[" * 50_000], ["--workers", '{"a": 1}'], ["--seed", "9" * 5000], ["--rounds", "1e15"],
    ["--rounds", "\x1b[2J"], ["--model.options", "[" * 50_000], ["--model.options", '{"name": 1}'],
    ["--model.options", '{"a":' * 50_000], ["--model.options", '{"hidden": null}'], ["--model.options", "{"],
    ["--model.options", '{"hidden": [NaN]}'], ["--data", '{"name": 1}'], ["--data", "{" * 50_000], ["--method", "{"],
    ["--method", "[" * 50_000], ["--method", '{"name": {}}'], ["--client.lr", "nan"], ["--client.epochs", "1e15"],
    ["--probes", "[" * 50_000], ["--probes", '{"name": "sharpness", "rho": NaN}'], ["--targets", "x" * 100_000],
    ["--\x1b[2J", "1"], ["--" + "a." * 5000, "1"], ["--", "1"], ["-x"], [""], ["--rounds="], ["--method.name", ""],
    ["--data_dir", "a\ud800"],
]  # fmt: skip


@pytest.mark.parametrize(
    "words", FLAGS, ids=[" ".join(words)[:40].encode("ascii", "replace").decode() for words in FLAGS]
)
def test_hostile_flags_work_or_are_one_line(words: list[str]) -> None:
    began, message = time.process_time(), ""
    try:
        build(resolve(RunSpec, words))
    except InputError as error:
        message = str(error)
    assert (message + " ").isprintable()
    assert len(message) < 2500
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    ("name", "content"), [pair for pair in mutations(80) if pair[0].startswith("run")][:: effort(12, 1)]
)
def test_the_command_ends_well_or_in_one_line(
    name: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.toml").write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["fedflat", "run", str(tmp_path / "file.toml"), "--dry-run"])
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    err = capsys.readouterr().err
    is_one_line = err.startswith("fedflat: ") and err.count("\n") == 1 and err[:-1].isprintable()
    assert (code, err) == (0, "") or (code == 2 and is_one_line), (name, code, err)


LINES = ["a = " + "[" * 100_000, "model.options = {name = 1}", "client.epochs = 1e15"]


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.slow
@pytest.mark.parametrize("line", chosen(LINES[:1], LINES))
def test_the_installed_command(tmp_path: Path, line: str) -> None:
    (tmp_path / "file.toml").write_text(line)
    environment = os.environ | {"PYTHONPATH": str(Path(fedflat.cli.__file__).parents[2])}
    command = [sys.executable, "-m", "fedflat", "run", str(tmp_path / "file.toml"), "--out", str(tmp_path / "out")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("fedflat: ")
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
