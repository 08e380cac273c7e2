"""Models of the hub: `prepare-model --hub` alone fetches them, at one commit; what names them elsewhere asks nobody."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.hub import no_network
from fedflat.models.blocks.fetched import folder_of
from fedflat.models.blocks.pretrained import loaded
from support.transformers import picture_folder

NAME = "hub:somebody/tiny-vit"
RUN = (
    f"--data.name digits --data.clients 4 --model.name transformer --model.options.path {NAME} --rounds 2 "
    "--checkpoint_every 1 --client.steps 1 --client.batch_size 4 --flatness []"
)


@pytest.fixture
def commits() -> dict[str, str]:
    """To what the branches of the hub of our own point."""
    return {"main": "a" * 40, "v2": "b" * 40}


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: dict[str, str]) -> list[str]:
    """The commits that are fetched from a hub of our own, which has one model."""
    asked: list[str] = []

    def snapshot_download(repository: str, repo_type: str, revision: str, local_dir: Path, allow_patterns) -> None:
        assert (repository, repo_type) == ("somebody/tiny-vit", "model")
        assert not any("py" in pattern or "bin" in pattern for pattern in allow_patterns)
        asked.append(revision)
        shutil.copytree(tmp_path / "hub", local_dir, dirs_exist_ok=True)

    def model_info(repository: str, revision: str) -> SimpleNamespace:
        return SimpleNamespace(sha=commits.get(revision, revision))

    picture_folder(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(model_info=model_info))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "cache"))
    return asked


@pytest.fixture
def contacts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Names that were looked up, and addresses that were connected to."""
    found: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        found.append(arguments)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return found


@pytest.mark.slow
def test_what_a_folder_from_elsewhere_names_is_not_fetched(
    fedflat, fetched: list[str], contacts: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is done with it; once its owner has fetched the model, all of it works."""
    assert fedflat(f"prepare-model {NAME} --hub")[0] == 0
    code, _, err = fedflat(f"run {RUN} --out runs/whole")
    assert code == 0, err
    env = json.loads(Path("runs/whole/env.json").read_text())
    assert env[0]["fetched from the hub"] == {NAME: "a" * 40}
    shutil.copytree("runs/whole", "runs/stopped")
    for name in ("summary.json", "model.safetensors"):
        Path("runs/stopped", name).unlink()
    Path("recipe.toml").write_text(f'[model]\nname = "transformer"\noptions = {{ path = "{NAME}" }}\n')
    commands = [
        "resume runs/stopped", "resume runs/whole --rounds 3", "flatness runs/whole --measure gradient_norm",
        "landscape runs/whole", "export runs/whole out", "run recipe.toml --data.clients 4 --rounds 1",
        f"compare {RUN} --methods [fedavg,fedsam] --out runs/both", f"run {RUN} --dry-run",
    ]  # fmt: skip
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("FEDFLAT_CACHE", str(Path("empty").resolve()))
        for command in commands:
            code, _, err = fedflat(command)
            assert code != 0, command
            assert f"`fedflat prepare-model {NAME} --hub`" in err, (command, err)
            assert err.count("\n") == 1
        with pytest.raises(InputError, match="prepare-model"):
            _ = ff.load_run("runs/whole").model
        assert fedflat("verify runs/whole")[0] == 0
    assert fedflat("flatness runs/whole --measure gradient_norm")[0] == 0
    assert contacts == []
    assert fetched == ["a" * 40]


def test_a_commit_is_kept_and_fetched_again(fedflat, fetched: list[str], commits: dict[str, str]) -> None:
    """Whatever the branch is at by then; each has a folder of its own."""
    places = []
    for flags in ("--hub", "--hub", "--hub --revision v2", "--hub", "", f"--hub --revision {'a' * 40}"):
        code, out, err = fedflat(f"prepare-model {NAME} {flags}")
        assert (code, err) == (0, "")
        places.append(folder_of("path", NAME))
        assert f"commit {places[-1].name}, kept in" in out
        commits["main"] = "d" * 40
    a, b = "a" * 40, "b" * 40
    assert [place.name for place in places] == [a, a, b, b, b, a]
    assert fetched == [a, a, b, b, a]
    assert huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY
    assert ff.models.fetch(NAME) == places[-1]


@pytest.mark.parametrize("name", ["somebody/tiny-vit", "hub:tiny", "hub:a/b/c", "hub:../..", "hub:a/..", "hub:"])
def test_what_is_no_name_of_the_hub_is_not_fetched(fedflat, fetched: list[str], name: str) -> None:
    code, _, err = fedflat(f"prepare-model {name} --hub")
    assert code == 2
    assert err.endswith("is no model of the hub: those are called hub:OWNER/NAME\n")
    assert fetched == []


def test_without_the_flag_nothing_is_fetched(fedflat, fetched: list[str]) -> None:
    code, _, err = fedflat(f"prepare-model {NAME}")
    assert code == 2
    assert err.endswith(f"`fedflat prepare-model {NAME} --hub` does, or in Python fedflat.models.fetch\n")
    assert "--revision v2 needs --hub" in fedflat(f"prepare-model {NAME} --revision v2")[2]
    assert fetched == []


def test_what_the_hub_refuses_is_one_line_and_keeps_nothing(
    fedflat, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot_download(*_, **__) -> None:
        raise OSError("no such repository\nand much more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    code, _, err = fedflat(f"prepare-model {NAME} --hub")
    assert (code, err) == (2, "fedflat: hub: somebody/tiny-vit cannot be fetched: no such repository\n")
    with pytest.raises(InputError, match="is not on this machine"):
        folder_of("path", NAME)


def test_a_folder_whose_files_name_something_elsewhere_asks_nobody(tmp_path: Path) -> None:
    """Such as a backbone or a kernel, which some versions of the library fetch; before and after, sockets work."""

    class Asking:
        @staticmethod
        def from_pretrained(*_, **__) -> None:
            socket.create_connection(("203.0.113.7", 443), timeout=1)

    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be loaded: it asks the network for more, which is not done"):
        loaded(Asking, tmp_path, "path", str(tmp_path))
    with no_network(), pytest.raises(ConnectionError):
        socket.getaddrinfo("huggingface.co", 443)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass
