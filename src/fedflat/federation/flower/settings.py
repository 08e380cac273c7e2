"""The configuration of an exported app, of its runs and of a node; and the operator's registry of members.

Keys of Flower's configuration have dashes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from platformdirs import user_data_path
from pydantic import ConfigDict, Field, model_validator

from ...core.errors import InputError
from ...core.number_kinds import NumberKind
from ...experiments.config_errors import validated
from ...experiments.schema import Section
from ...files import read_toml
from ..client_names import CLIENT_NAME, checked_name
from ..terms import SETTINGS, key_of

SHAPE = re.compile(r"\d{1,6}(x\d{1,6}){0,3}")
APP_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SAMPLES = re.compile(r"[1-9]\d{0,14}")


class FlowerSection(Section):
    """A section of Flower's configuration: keys have dashes where Python's names have underscores."""

    model_config = ConfigDict(alias_generator=key_of, populate_by_name=True)

    @classmethod
    def parse(cls, where: str, table: Mapping[str, Any]) -> Self:
        """Return the section in `table`. Raises InputError, naming the key and `where`, the place of the table."""
        try:
            return validated(cls, dict(table))
        except InputError as error:
            raise InputError(f"{where}: {error}") from error


def _setting(name: str) -> Any:
    """Return pydantic's declaration of one of the `SETTINGS`."""
    declared = SETTINGS[name]
    limits: dict[str, Any] = dict(declared.limits)
    return Field(declared.default, description=declared.meaning, **limits)


class RunSettings(FlowerSection):
    """The settings of a run: `[tool.flwr.app.config]` of an exported app, or `flwr run --run-config`."""

    out: str = Field("runs/federation", min_length=1, description="the server's folder; a federation in it is resumed")
    clients: int = Field(1, ge=1, description="number of clients with which the federation begins")
    wait: float = _setting("wait")
    deadline: float = _setting("deadline")
    quorum: float = _setting("quorum")
    goal: float = _setting("goal")
    members: str = _setting("members")
    registry: str = Field(
        "", description="the server's TOML file of members with samples and public keys, in place of `members`"
    )
    join_later: bool = _setting("join_later")
    max_samples: int = _setting("max_samples")
    norm_multiple: float = _setting("norm_multiple")
    secure_sum: float | None = _setting("secure_sum")
    unmask_again: int = Field(
        0,
        ge=0,
        description="rounds before this one may be unmasked a second time, for other clients than the first; the "
        "difference of both sums is what these clients sent",
    )
    shape: str | None = _setting("shape")
    classes: int | None = _setting("classes")
    numbers: NumberKind = _setting("numbers")
    test: str = _setting("test")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.shape is None) != (self.classes is None):
            raise ValueError("shape and classes go together: both for clients' own samples, neither for a named set")
        if self.shape is not None and not SHAPE.fullmatch(self.shape):
            raise ValueError(f"shape must be up to four numbers such as 3x32x32, got {self.shape!r}")
        if self.registry and self.members:
            raise ValueError("registry and members both say who may take part; give one of them")
        named = self.named_members
        if named is not None and len(named) < self.clients:
            raise ValueError(f"members names {len(named)} clients, and clients is {self.clients}: too few are named")
        if self.join_later and (self.members or self.registry):
            raise ValueError(
                "join-later is for clients that nobody lists; who is in members or registry always may join"
            )
        return self

    @property
    def stated(self) -> dict[str, Any]:
        """The settings that are not at their defaults, by key, without members and without paths at the server."""
        private = {"out", "registry", "members", "test"}
        return self.model_dump(by_alias=True, exclude_defaults=True, exclude=private)

    @property
    def named_members(self) -> dict[str, int] | None:
        """The number of samples of each client in `members`; None if empty. Raises InputError, naming the key."""
        found: dict[str, int] = {}
        for word in self.members.split():
            name, _, samples = word.partition("=")
            if not CLIENT_NAME.fullmatch(name) or not SAMPLES.fullmatch(samples) or name in found:
                raise InputError(f"members must be such as clinic-a=1200 clinic-b=800, each once, got {word[:80]!r}")
            found[name] = int(samples)
        return found or None


def app_settings(folder: Path) -> RunSettings | None:
    """Read the settings in an app's pyproject.toml; None if the file is missing. Raises InputError if it is damaged."""
    path = folder / "pyproject.toml"
    table: Any = read_toml(path) if path.exists() else None
    for key in ("tool", "flwr", "app", "config"):
        table = table.get(key) if isinstance(table, dict) else None
    return RunSettings.parse(f"{path}", table) if isinstance(table, dict) else None


class NodeSettings(FlowerSection):
    """The settings of a node: `flower-supernode --node-config`."""

    name: str | None = Field(None, description="the client's name, unique in the federation")
    data: str | None = Field(
        None, description="folder or file with own samples, in the format of data.name; else x.npy and y.npy"
    )
    partition_id: int | None = Field(None, ge=0, description="the client's number in a named set's partition")
    num_partitions: int | None = Field(None, ge=1, description="clients of the partition, the same at all nodes")
    data_dir: str | None = Field(None, description="folder with the data sets; default $FEDFLAT_DATA")
    state: str | None = Field(
        None, min_length=1, description="folder for the client's state; default in the user's data folder"
    )
    device: str | None = Field(
        None, min_length=1, description="where this client trains: auto, cpu, cuda, ...; default the study's `device`"
    )
    policy: str | None = Field(
        None, min_length=1, description="file with the site's limits: `fedflat flower node --policy` sets it, and "
        "checks the app",
    )  # fmt: skip

    @property
    def state_folder(self) -> Path:
        """The folder with the state of this node's clients in all federations."""
        return Path(self.state).expanduser() if self.state else user_data_path("fedflat") / "federations"

    def client_name(self, clients: int, own_samples: bool) -> str:
        """Return the client's name in a federation with `clients` clients.

        A client with own samples has the name in the configuration. A client with a part of a named set gets a name
        from its number; such names sort like the numbers. Raises InputError, naming the key, for a configuration that
        does not fit.
        """
        wrong = {"partition-id": self.partition_id} if own_samples else {"name": self.name, "data": self.data}
        given = [key for key, value in wrong.items() if value is not None]
        if given:
            kind = "clients have their own samples" if own_samples else "clients have parts of a named set"
            raise InputError(f"node-config: {given[0]} does not go with this study, whose {kind}")
        if own_samples:
            return checked_name(self.name)
        if self.partition_id is None or self.partition_id >= clients:
            raise InputError(f"node-config: partition-id is {self.partition_id}, expected 0 to {clients - 1}")
        if self.num_partitions not in (None, clients):
            raise InputError(f"node-config: num-partitions is {self.num_partitions}, the study has {clients} clients")
        return f"client-{self.partition_id:0{len(str(clients - 1))}d}"


class Member(Section):
    """A client in the registry."""

    samples: int = Field(ge=1, lt=2**53, description="number of samples, which the client must have")
    keys: list[str] = Field(min_length=1, description="public keys, each the line of a .pub file")


@dataclass(frozen=True)
class OperatorRegistry:
    """The operator's TOML file with every client's number of samples and public keys.

    The file is read again at every call, so that keys can be renewed while a federation runs. The table of a client:

    [clinic-a]
    samples = 1200
    keys = ["ecdsa-sha2-nistp384 AAAAE2VjZHNh..."]    # the line of clinic-a.pub; two while a key is renewed
    """

    path: Path

    def samples(self) -> dict[str, int]:
        """Return the numbers of samples by client. Raises InputError, naming the file and the key."""
        return {name: member.samples for name, member in self._members().items()}

    def keys_of(self, name: str) -> set[bytes]:
        """Return a client's public keys in Flower's form, PEM. Raises InputError if the client is not listed."""
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
        # Needs the extra flower, which inspecting a federation's folder does not need.
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization as form

        try:
            key = form.load_ssh_public_key(line.encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise InputError(f"{self.path}: {name}: keys: {line[:40]!r} is not the line of a .pub file") from error
        return key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
