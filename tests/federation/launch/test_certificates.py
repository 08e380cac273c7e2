"""Certificates that TLS accepts, and private keys that are private and never overwritten."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedflat.core.errors import InputError
from fedflat.federation.launch.certificates import Certificates
from support.flower_fixtures import failing


def test_certificates_are_what_tls_accepts(tmp_path: Path) -> None:
    """The authority's signature holds, names are the server's, and a handshake between the two ends succeeds."""
    keys = Certificates(tmp_path)
    keys.make(["fl.example.org", "127.0.0.1", "::1"], ["clinic-a"], days=30)
    authority, server = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (keys.authority, keys.server))
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert timedelta(days=29) < server.not_valid_after_utc - datetime.now(UTC) < timedelta(days=31)
    for name, works in (("fl.example.org", True), ("other.example.org", False)):
        assert handshake(keys, name) is works


def handshake(keys: Certificates, name: str) -> bool:
    """Whether a client that trusts the authority accepts the server as `name`; in memory."""
    client, server = ssl.create_default_context(cafile=keys.authority), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys.server, keys.server_key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, server_side=True)]
    for _ in range(6):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return ends[0].version() == "TLSv1.3"


def test_keys_are_private_and_never_written_over(tmp_path: Path) -> None:
    keys = Certificates(tmp_path / "keys")
    made = keys.make(["localhost"], ["a", "b"])
    secret = [path for path in made if stat.S_IMODE(path.stat().st_mode) == 0o600]
    assert {path.name for path in secret} == {"ca.key", "server.key", "a", "b"}
    assert {path.name for path in made} - {path.name for path in secret} == {"ca.crt", "server.crt", "a.pub", "b.pub"}
    before = {path: path.read_bytes() for path in made}
    assert [path.name for path in keys.make([], ["b", "c"])] == ["c", "c.pub"]
    assert all(path.read_bytes() == content for path, content in before.items())
    private = serialization.load_ssh_private_key(keys.node_key("a").read_bytes(), None)
    public = serialization.load_ssh_public_key(keys.node_key("a").with_name("a.pub").read_bytes())
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public


def test_the_servers_certificate_is_renewed_by_the_same_authority(tmp_path: Path) -> None:
    keys = Certificates(tmp_path)
    keys.make(["localhost"], [])
    authority, offline = keys.authority.read_bytes(), (tmp_path / "ca.key").read_bytes()
    keys.server.unlink()
    (tmp_path / "ca.key").unlink()
    with failing(InputError, "ca.key is missing, which signs the server's certificate; bring it back"):
        keys.make(["localhost"], [])
    (tmp_path / "ca.key").write_bytes(offline)
    assert [path.name for path in keys.make(["fl.example.org"], [])] == ["server.key", "server.crt"]
    assert keys.authority.read_bytes() == authority
    assert handshake(keys, "fl.example.org")
    keys.make([], ["a"])
    keys.node_key("a").with_name("a.pub").unlink()
    assert [path.name for path in keys.make([], ["a"])] == ["a.pub"]


@pytest.mark.parametrize(
    ("hosts", "nodes", "days", "line"),
    [([], [], 1, "host is missing"), (["a b"], [], 1, "host 'a b' is neither a name nor an address"),
     (["a"], ["x.pub"], 1, "ends as public keys do"), (["a"], ["../x"], 1, "name '../x' must be up to 64"),
     (["a"], [], 0, "days must be at least 1")],
)  # fmt: skip
def test_certificates_that_cannot_be_made(tmp_path: Path, hosts, nodes, days: int, line: str) -> None:
    with failing(InputError, line):
        Certificates(tmp_path / "keys").make(hosts, nodes, days)
    assert not list((tmp_path / "keys").rglob("*.key"))
