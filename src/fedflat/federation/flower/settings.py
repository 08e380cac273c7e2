"""What an exported app, a run of it and a node are told, by Flower's configuration; keys have dashes there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from platformdirs import user_data_path
from pydantic import ConfigDict, Field, model_validator

from ...core.errors import InputError
from ...experiments.config_errors import validated
from ...experiments.schema import Section
from ..membership import NAME, checked_name
from ..server import RoundTerms

S = TypeVar("S", bound="Dashed")
# More than a client of any of the package's data sets has. Where the operator does not say how many samples a client
# has, it bounds the weight that one can claim with `weights = "samples"`.
MOST_SAMPLES = 1_000_000
SHAPE = re.compile(r"\d{1,6}(x\d{1,6}){0,3}")
SAMPLES = re.compile(r"[1-9]\d{0,14}")


class Dashed(Section):
    """A section whose keys have dashes where Python's names have underscores."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True)

    @classmethod
    def of(cls: type[S], where: str, table: Mapping[str, Any]) -> S:
        """The section that `table` describes. Raises InputError, naming `where` and the key."""
        try:
            return validated(cls, dict(table))
        except InputError as error:
            raise InputError(f"{where}: {error}") from error

    def to_table(self) -> dict[str, Any]:
        """The keys that are set, as Flower has them."""
        return self.model_dump(by_alias=True, exclude_none=True)


class RunSettings(Dashed):
    """`[tool.flwr.app.config]` of an exported app, and `flwr run --run-config`."""

    out: str = Field("runs/federation", min_length=1, description="the server's folder; one that is begun goes on")
    clients: int = Field(1, ge=1, description="that the federation begins with")
    wait: float = Field(600.0, gt=0, description="seconds until all clients must have come")
    deadline: float = Field(600.0, gt=0, description="seconds for a round")
    quorum: float = Field(0.5, gt=0, le=1, description="share of a round's clients that must answer")
    members: str = Field(
        "", description="who may take part, with how many samples: clinic-a=1200 clinic-b=800; empty: who comes first"
    )
    max_samples: int = Field(
        MOST_SAMPLES, ge=1, lt=2**53, description="samples that a client may say it has, where members do not say it"
    )
    norm_multiple: float = Field(
        100.0, ge=1, description="of the largest norm seen before, which no client's vector may be beyond"
    )
    shape: str | None = Field(None, description="of a client's own samples, such as 3x32x32")
    classes: int | None = Field(None, ge=1, description="of a client's own samples")
    test: str = Field("", description="the server's folder with own test samples, x.npy and y.npy; none if empty")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.shape is None) != (self.classes is None):
            raise ValueError("shape and classes go together: both for clients' own samples, neither for a named set")
        if self.shape is not None and not SHAPE.fullmatch(self.shape):
            raise ValueError(f"shape must be up to four numbers such as 3x32x32, got {self.shape!r}")
        if self.test and self.shape is None:
            raise ValueError("test goes with own samples; a named set has its own test samples")
        named = self.named_members
        if named is not None and len(named) != self.clients:
            raise ValueError(f"members names {len(named)} clients, and clients is {self.clients}: not equal")
        return self

    @property
    def named_members(self) -> dict[str, int] | None:
        """Numbers of samples by client, if the operator says who they are. Raises InputError, naming the key."""
        found: dict[str, int] = {}
        for word in self.members.split():
            name, _, samples = word.partition("=")
            if not NAME.fullmatch(name) or not SAMPLES.fullmatch(samples) or name in found:
                raise InputError(f"members must be such as clinic-a=1200 clinic-b=800, each once, got {word[:80]!r}")
            found[name] = int(samples)
        return found or None

    @property
    def terms(self) -> RoundTerms:
        return RoundTerms(self.deadline, self.quorum, self.norm_multiple)

    @property
    def own_shape(self) -> tuple[int, ...] | None:
        """The shape of clients' own samples; None if they have a named set's."""
        return None if self.shape is None else tuple(map(int, self.shape.split("x")))


class NodeSettings(Dashed):
    """`flower-supernode --node-config`."""

    name: str | None = Field(None, description="the client's, in the whole federation")
    data: str | None = Field(None, description="folder with own samples, x.npy and y.npy")
    partition_id: int | None = Field(None, ge=0, description="the client's number in a named set's partition")
    num_partitions: int | None = Field(None, ge=1, description="clients of the partition, as others have it too")
    data_dir: str | None = Field(None, description="folder with the data sets; default $FEDFLAT_DATA")
    state: str | None = Field(None, min_length=1, description="folder for what a client keeps; default in the user's")

    @property
    def kept(self) -> Path:
        """The folder for what clients keep."""
        return Path(self.state).expanduser() if self.state else user_data_path("fedflat") / "federations"

    def client_name(self, clients: int, own: bool) -> str:
        """The client's name in a federation of so many clients, with `own` samples or parts of a named set, whose names
        are in the order of their numbers.

        Raises InputError, naming the key, for what does not go together.
        """
        wrong = {"partition-id": self.partition_id} if own else {"name": self.name, "data": self.data}
        given = [key for key, value in wrong.items() if value is not None]
        if given:
            kind = "clients have their own samples" if own else "clients have parts of a named set"
            raise InputError(f"node-config: {given[0]} does not go with this study, whose {kind}")
        if own:
            return checked_name(self.name)
        if self.partition_id is None or self.partition_id >= clients:
            raise InputError(f"node-config: partition-id is {self.partition_id}, expected 0 to {clients - 1}")
        if self.num_partitions not in (None, clients):
            raise InputError(f"node-config: num-partitions is {self.num_partitions}, the study has {clients} clients")
        return f"client-{self.partition_id:0{len(str(clients - 1))}d}"
