"""Who may take part: a certificate authority, the server's certificate, and a key for every node."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...core.errors import InputError
from ...files import create_folder, write_atomically
from ..membership import checked_name

DAYS = 365
AUTHORITY_DAYS = 3650
Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Certificates:
    """A folder of certificates and keys; private keys can be read by their owner alone."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate, which every machine needs."""
        return self.folder / "ca.crt"

    @property
    def _authority_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"

    def node_key(self, name: str) -> Path:
        """The private key of a node; the public one is beside it, with the ending `.pub`."""
        return self.folder / "nodes" / name

    def make(self, hosts: Sequence[str], nodes: Sequence[str], days: int = DAYS) -> list[Path]:
        """Make what is missing, and give it; nothing is written over.

        hosts: names and addresses of the server, for its certificate. nodes: names of clients. days: for which the
        server's certificate is valid; to renew it, remove it, and have `ca.key` there. Raises InputError, naming the
        argument or the file, for what cannot be made.
        """
        if days < 1:
            raise InputError(f"days must be at least 1, got {days}")
        names = [checked_name(name) for name in nodes]
        public = [name for name in names if name.endswith(".pub")]
        if public:
            raise InputError(f"node {public[0]!r} ends as public keys do")
        if not self.server.exists():
            alternatives(hosts)
        try:
            create_folder(self.folder)
            create_folder(self.folder / "nodes", 0o700)
            made = [] if self.server.exists() else self._make_authority() + self._make_server(hosts, days)
            return made + [path for name in names for path in self._make_node(name)]
        except OSError as error:
            raise InputError(f"{self.folder} cannot be written: {error.strerror}") from error

    def _make_authority(self) -> list[Path]:
        """The authority, whose key is needed only for servers' certificates; none if it is there."""
        if self.authority.exists():
            return []
        key, name = ec.generate_private_key(ec.SECP384R1()), _name("fedflat federation authority")
        certificate = _certificate(name, name, key, key, AUTHORITY_DAYS, _of_authority())
        self._authority_key.unlink(missing_ok=True)  # of an authority that was not made to its end
        self._write(self._authority_key, _pem(key), secret=True)
        self._write(self.authority, certificate.public_bytes(serialization.Encoding.PEM))
        return [self._authority_key, self.authority]

    def _make_server(self, hosts: Sequence[str], days: int) -> list[Path]:
        if not self._authority_key.exists():
            raise InputError(f"{self._authority_key} is missing, which signs the server's certificate; bring it back")
        signer = serialization.load_pem_private_key(self._authority_key.read_bytes(), None)
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise InputError(f"{self._authority_key} is not a key that was made here")
        issuer = x509.load_pem_x509_certificate(self.authority.read_bytes()).subject
        key = ec.generate_private_key(ec.SECP384R1())
        certificate = _certificate(_name(hosts[0]), issuer, key, signer, days, _of_server(alternatives(hosts)))
        self.server_key.unlink(missing_ok=True)  # its certificate has been removed, to be renewed
        self._write(self.server_key, _pem(key), secret=True)
        self._write(self.server, certificate.public_bytes(serialization.Encoding.PEM))
        return [self.server_key, self.server]

    def _make_node(self, name: str) -> list[Path]:
        path, made = self.node_key(name), []
        public = path.with_name(f"{name}.pub")
        if not path.exists():
            key, ssh = ec.generate_private_key(ec.SECP384R1()), serialization.PrivateFormat.OpenSSH
            private = key.private_bytes(serialization.Encoding.PEM, ssh, serialization.NoEncryption())
            self._write(path, private, secret=True)
            made.append(path)
        if not public.exists():
            known = serialization.load_ssh_private_key(path.read_bytes(), None).public_key()
            text = known.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
            self._write(public, text + b"\n")
            made.append(public)
        return made

    def _write(self, path: Path, content: bytes, secret: bool = False) -> None:
        """A new file, whole or not there; of a secret one, nobody else can read even the beginning."""
        write_atomically(path, lambda temporary: temporary.write_bytes(content), private=secret)


def alternatives(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Names and addresses as a certificate has them. Raises InputError, naming the argument."""
    if not hosts:
        raise InputError("host is missing: the names and addresses by which nodes reach the server")
    return [_alternative(host) for host in hosts]


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: Key,
    signer: Key,
    days: int,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA384())


def _of_authority() -> list[tuple[x509.ExtensionType, bool]]:
    return [(x509.BasicConstraints(ca=True, path_length=0), True), (_usage(signs_certificates=True), True)]


def _of_server(names: Sequence[x509.GeneralName]) -> list[tuple[x509.ExtensionType, bool]]:
    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName(names), False),
    ]


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternative(host: str) -> x509.GeneralName:
    """A name or address as a certificate has it. Raises InputError if it is neither."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    parts = host.split(".")
    if not all(part and len(part) < 64 and part.replace("-", "a").isalnum() and part.isascii() for part in parts):
        raise InputError(f"host {host!r} is neither a name nor an address")
    return x509.DNSName(host)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _pem(key: Key) -> bytes:
    plain = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, plain, serialization.NoEncryption())
