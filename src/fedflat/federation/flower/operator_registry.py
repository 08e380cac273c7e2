"""The operator's registry: a TOML file at the server with every client's number of samples and public keys.

[clinic-a]
samples = 1200
keys = ["ecdsa-sha2-nistp384 AAAAE2VjZHNh..."]    # the line of clinic-a.pub; two while a key is renewed
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as form
from pydantic import Field

from ...core.errors import InputError
from ...experiments.config_errors import validated
from ...experiments.schema import Section
from ...files import read_toml
from ..membership import checked_name


class Member(Section):
    """A client in the registry."""

    samples: int = Field(ge=1, lt=2**53, description="number of samples, which the client must have")
    keys: list[str] = Field(min_length=1, description="public keys, each the line of a .pub file")


@dataclass(frozen=True)
class OperatorRegistry:
    """A file that is read anew for every question, so that keys can be renewed while a federation runs."""

    path: Path

    def samples(self) -> dict[str, int]:
        """Numbers of samples by client. Raises InputError, naming the file and the key."""
        return {name: member.samples for name, member in self._members().items()}

    def keys_of(self, name: str) -> set[bytes]:
        """A client's public keys in the form in which Flower has them. Raises InputError if it is not listed."""
        members = self._members()
        if name not in members:
            raise InputError(f"{name} is not in {self.path}")
        return {self._pem(name, line) for line in members[name].keys}

    def _members(self) -> dict[str, Member]:
        found = {}
        for name, table in read_toml(self.path).items():
            try:
                found[checked_name(name)] = validated(Member, table if isinstance(table, dict) else {"samples": table})
            except InputError as error:
                raise InputError(f"{self.path}: {name[:64]!r}: {error}") from error
        if not found:
            raise InputError(f"{self.path} lists no client")
        return found

    def _pem(self, name: str, line: str) -> bytes:
        try:
            key = form.load_ssh_public_key(line.encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise InputError(f"{self.path}: {name}: keys: {line[:40]!r} is not the line of a .pub file") from error
        return key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
