"""Certificates and keys of a federation: an authority, the server's certificate, and a key pair for every node."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec

from ...core.errors import InputError
from ...files import create_folder, write_atomically
from ..client_names import checked_name

AUTHORITY_DAYS = 3650
CURVE = ec.SECP384R1()
Issuer = tuple[x509.Name, ec.EllipticCurvePrivateKey]


class Certificates:
    """A folder of certificates and keys; only their owner can read private keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.authority_key = folder / "ca.crt", folder / "ca.key"
        self.server, self.server_key = folder / "server.crt", folder / "server.key"

    def node_key(self, name: str) -> Path:
        """Return the path of a node's private key; the public key is next to it, with the suffix `.pub`."""
        return self.folder / "nodes" / name

    def make(self, hosts: Sequence[str], nodes: Sequence[str], days: int = 365) -> list[Path]:
        """Make the files that are missing, and return their paths; existing files are never overwritten.

        hosts: names and addresses of the server, for its certificate. nodes: names of clients. days: validity of the
        server's certificate; to renew the certificate, remove its file and call this method on the machine that has
        `ca.key`. Raises InputError, naming the argument or the file.
        """
        if days < 1:
            raise InputError(f"days must be at least 1, got {days}")
        for name in nodes:
            if checked_name(name).endswith(".pub"):
                raise InputError(f"node {name!r} ends as public keys do")
        names = [] if self.server.exists() else _alternative_names(hosts)
        made: list[Path] = []
        try:
            create_folder(self.folder)
            create_folder(self.folder / "nodes", 0o700)
            if names and not self.authority.exists():
                made += _issue(self.authority, self.authority_key, "fedflat federation authority", AUTHORITY_DAYS)
            if names:
                made += _issue(self.server, self.server_key, hosts[0], days, names, self._issuer())
            return made + [path for name in nodes for path in _make_node(self.node_key(name))]
        except OSError as error:
            raise InputError(f"{self.folder} cannot be written: {error.strerror}") from error

    def _issuer(self) -> Issuer:
        """Read the authority's name and key. Raises InputError if the key is missing."""
        if not self.authority_key.exists():
            raise InputError(f"{self.authority_key} is missing, which signs the server's certificate; bring it back")
        key = form.load_pem_private_key(self.authority_key.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InputError(f"{self.authority_key} is not a key that was made here")
        return x509.load_pem_x509_certificate(self.authority.read_bytes()).subject, key


def _issue(
    certificate: Path, key_file: Path, subject: str, days: int, names: Sequence[x509.GeneralName] = (),
    issuer: Issuer | None = None,
) -> list[Path]:  # fmt: skip
    """Write a new private key and its certificate; return their paths.

    The certificate is signed by `issuer`. Without `issuer`, it is the self-signed certificate of an authority.
    """
    key, now, ca = ec.generate_private_key(CURVE), datetime.now(UTC), issuer is None
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject[:64])])
    issuer_name, issuer_key = issuer or (name, key)
    builder = (
        x509.CertificateBuilder().issuer_name(issuer_name).subject_name(name)
        .public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks of machines differ
        .not_valid_after(now + timedelta(days=days))
    )  # fmt: skip
    unused = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                            "encipher_only", "decipher_only"), False)  # fmt: skip
    extensions: list[tuple[x509.ExtensionType, bool]] = [  # with True if it is critical
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False),
        (x509.BasicConstraints(ca, path_length=0 if ca else None), True),
        (x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, **unused), True),
    ]
    if not ca:
        extensions.append((x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), False))
        extensions.append((x509.SubjectAlternativeName(names), False))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    content = builder.sign(issuer_key, hashes.SHA384()).public_bytes(form.Encoding.PEM)
    _write_key(key_file, key, form.PrivateFormat.PKCS8)  # first, as the next call replaces a key without certificate
    write_atomically(certificate, lambda path: path.write_bytes(content))
    return [key_file, certificate]


def _make_node(path: Path) -> list[Path]:
    """Write the files of a node's key pair that are missing."""
    public = path.with_name(f"{path.name}.pub")
    missing = [file for file in (path, public) if not file.exists()]
    if path in missing:
        _write_key(path, ec.generate_private_key(CURVE), form.PrivateFormat.OpenSSH)
    if public in missing:
        key = form.load_ssh_private_key(path.read_bytes(), None).public_key()
        content = key.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH) + b"\n"
        write_atomically(public, lambda path: path.write_bytes(content))
    return missing


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, kind: form.PrivateFormat) -> None:
    content = key.private_bytes(form.Encoding.PEM, kind, form.NoEncryption())
    write_atomically(path, lambda path: path.write_bytes(content), private=True)


def _alternative_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Convert host names and addresses to the form of certificates. Raises InputError for a missing or invalid host."""
    if not hosts:
        raise InputError("host is missing: the names and addresses by which nodes reach the server")
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError as error:
            parts = host.split(".")
            if not all(part.isascii() and part.replace("-", "a").isalnum() and len(part) < 64 for part in parts):
                raise InputError(f"host {host!r} is neither a name nor an address") from error
            names.append(x509.DNSName(host))
    return names
