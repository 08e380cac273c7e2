"""`fedflat flower` as a user meets it; nothing is started."""

from __future__ import annotations

import builtins
import tomllib
from pathlib import Path

import pytest

RUN = 'rounds = 3\nmethod = "fedsam"\n[data]\nclients = 3\n[client]\nepochs = 1\nbatch_size = 20\n'


def test_export_with_flags_on_top(fedflat, tmp_path: Path) -> None:
    Path("run.toml").write_text(RUN)
    code, out, err = fedflat("flower export run.toml app --method.name scaffold --deadline 60")
    assert (code, err) == (0, "")
    assert "flwr run app" in out
    assert tomllib.loads(Path("app/study.toml").read_text())["method"]["name"] == "Scaffold"
    config = tomllib.loads(Path("app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (config["clients"], config["deadline"]) == (3, 60.0)
    assert fedflat("flower export run.toml own --shape 1x8x8 --classes 10 --clients 7")[0] == 0
    assert "def samples(node)" in Path("own/federated/client.py").read_text()


def test_a_secure_sum_is_in_the_app(fedflat) -> None:
    Path("run.toml").write_text(RUN)
    assert fedflat("flower export run.toml app --secure-sum 0.6 --norm-multiple inf")[0] == 0
    config = tomllib.loads(Path("app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (config["secure-sum"], config["norm-multiple"]) == (0.6, float("inf"))
    assert fedflat("flower export run.toml other")[0] == 0
    assert "secure-sum" not in Path("other/pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("line", "said"),
    [("export run.toml app --quorum 2", "fedflat: flower export: quorum: Input should be less than or equal to 1"),
     ("export run.toml app --secure-sum 0.5", "fedflat: flower export: secure-sum: Input should be greater than 0.5"),
     ("export run.toml app --secure-sum 0.6", "fedflat: norm-multiple: under secure-sum the server sees no client's"),
     ("export run.toml app --shape 3x3", "fedflat: --clients is missing"),
     ("export run.toml app --shape 3x3 --clients 2", "shape and classes go together"),
     ("export none.toml app", "configuration none.toml cannot be read"),
     ("export run.toml . ", "is there already"),
     ("export run.toml app --method.rhoo 1", "--method.rhoo: unknown flag"),
     ("run --data.clients 50", "data.clients = 50: each is a SuperNode on this machine, and 16 are the most"),
     ("run run.toml --deadline -3 --out x", "flower run: deadline: Input should be greater than 0"),
     ("certs keys", "host is missing"), ("certs keys --host a --node a/b", "name 'a/b' must be")],
)  # fmt: skip
def test_mistakes_in_one_line(fedflat, line: str, said: str) -> None:
    Path("run.toml").write_text(RUN)
    code, _, err = fedflat(f"flower {line}")
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_certs(fedflat) -> None:
    code, out, _ = fedflat("flower certs keys --host localhost --node a")
    assert code == 0
    assert out.split() == [f"keys/{name}" for name in
                           ("ca.key", "ca.crt", "server.key", "server.crt", "nodes/a", "nodes/a.pub")]  # fmt: skip
    assert "nothing was missing" in fedflat("flower certs keys --host localhost --node a")[1]


def test_without_flower_one_line_says_what_to_install(fedflat, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name, *arguments):
        if "launch.certificates" in name:
            raise ModuleNotFoundError("No module named 'flwr'", name="flwr")
        return original(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    code, _, err = fedflat("flower certs keys --host localhost")
    assert (code, err) == (2, "fedflat: this needs the extra flower: pip install 'fedflat[flower]'\n")
