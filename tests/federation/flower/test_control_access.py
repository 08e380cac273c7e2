"""A SuperLink's control API is for those who know its secret."""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path

import pytest
from flwr.cli.auth_plugin import OidcCliPlugin
from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.supercore.credential_store.file_credential_store import FileCredentialStore

from fedflat.core.errors import InputError
from fedflat.federation.flower.internals import TokenCheck
from fedflat.federation.flower.superlink import is_secret, log_in, read_secret, run_superlink
from support.flower_fixtures import failing

SECRET = "0123456789abcdef" * 4
ACCESS = TokenCheck(partial(is_secret, SECRET))


@pytest.mark.parametrize(
    "metadata",
    [[], [(ACCESS_TOKEN_KEY, "")], [(ACCESS_TOKEN_KEY, SECRET[:-1])], [(ACCESS_TOKEN_KEY, SECRET)] * 2, [("x", SECRET)],
     [(ACCESS_TOKEN_KEY, "é" * 64)], [(ACCESS_TOKEN_KEY, SECRET.encode())]],
)  # fmt: skip
def test_who_does_not_send_the_secret_is_nobody(metadata: list[tuple[str, str]]) -> None:
    assert ACCESS.validate_tokens_in_metadata(metadata) == (False, None)


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1:", "https://127.0.0.1:8000", ":8000", "a b:8000"])
def test_an_address_under_which_flower_would_not_look_is_refused(address: str, tmp_path: Path) -> None:
    with failing(InputError, "must be HOST:PORT"):
        log_in(address, SECRET, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["fl.example.org:8443", "[::1]:8000"])
def test_names_and_addresses_with_a_port_are_stored(address: str, tmp_path: Path) -> None:
    assert address in log_in(address, SECRET, tmp_path).read_text()


def test_what_login_stores_is_what_flower_sends_and_the_superlink_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = log_in("127.0.0.1:8000", SECRET, tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setattr("flwr.cli.auth_plugin.oidc_cli_plugin.get_credential_store", lambda: FileCredentialStore(path))
    plugin = OidcCliPlugin("127.0.0.1:8000")
    plugin.load_tokens()
    allowed, account = ACCESS.validate_tokens_in_metadata(plugin.write_tokens_to_metadata([]))
    assert allowed
    assert account is not None


def test_nobody_gets_a_token_from_the_superlink() -> None:
    assert ACCESS.get_login_details() is None
    assert ACCESS.get_auth_tokens("device") is None
    assert ACCESS.refresh_tokens([]) == (None, None)


@pytest.mark.parametrize(
    ("content", "mode", "line"),
    [
        (SECRET, 0o604, "secret can be read by every user of this machine"),
        (SECRET[:31], 0o600, "secret must hold at least 32 characters"),
        ("", 0o600, "secret must hold at least 32 characters"),
        ("é" * 64, 0o600, "secret must hold at least 32 characters"),
    ],
)
def test_a_secret_that_is_none_is_refused_in_one_line(tmp_path: Path, content: str, mode: int, line: str) -> None:
    path = tmp_path / "secret"
    path.write_text(content)
    path.chmod(mode)
    for refused in (read_secret, lambda path: run_superlink(path, [])):
        with failing(InputError, line):
            refused(path)


def test_a_file_of_a_group_is_read_without_its_last_line_break(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o640)
    assert read_secret(path) == SECRET
