"""The policy of a site: limits in a TOML file of its operator, beyond which a node takes part in no run.

The server may ask for more protection, never for less. A refusal names the line of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field

from ...core.errors import InputError
from ...experiments.config_errors import validated
from ...experiments.schema import Section
from ...files import read_text, read_toml
from .settings import APP_DIGEST, RunSettings

if TYPE_CHECKING:
    from .study import Study

CONFIG = "--node-config"
APP = "the app's pyproject.toml"
QUOTABLE = re.compile(r"[^\s\"'\\=]+")


class SiteLimits(Section):
    """The content of a policy file; without a file, the defaults hold."""

    apps: list[Annotated[str, Field(pattern=f"^{APP_DIGEST.pattern}$")]] = Field(
        [], description="digests of the apps that may run, as `fedflat flower digest` prints them"
    )
    secure_sum: float | None = Field(
        None, gt=0.5, le=1, description="the least `secure-sum` of a run; with it no record is sent unmasked"
    )
    min_clients: int = Field(
        3, ge=2, description="fewest clients whose records a secure sum may be of; if the file states it, also the "
        "fewest of a round without `secure-sum`",
    )  # fmt: skip
    unmask_again: int = Field(
        0, ge=0, description="the largest `unmask-again` of a run, unless that of the app is larger"
    )
    privacy: bool = Field(False, description="whether the study must have `[privacy]`, with noise = 'system'")
    max_epsilon: float | None = Field(
        None, gt=0, description="the largest `privacy.epsilon` of the study, which must then have `[privacy]`"
    )
    max_parameters: int | None = Field(None, ge=1, description="the most parameters of the model")


@dataclass(frozen=True)
class SitePolicy:
    """The limits of a site, and the file that states them."""

    limits: SiteLimits
    path: Path | None

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """Read the file `path`; without one, return the defaults. Raises InputError, naming the file and the key."""
        if path is None:
            return cls(SiteLimits.model_validate({}), None)
        try:
            return cls(validated(SiteLimits, read_toml(path)), path)
        except InputError as error:
            raise InputError(f"policy {path}: {error}") from error

    def check_settings(self, run: RunSettings, app: RunSettings | None) -> None:
        """Raise InputError for a run with weaker protection than the policy or the app's own settings require.

        app: the settings in the app's own folder, which the site's operator has read.
        """
        least = [(self.limits.secure_sum or 0.0, self._line("secure_sum"))]
        most = [(self.limits.unmask_again, self._line("unmask_again"))]
        if app is not None:
            least.append((app.secure_sum or 0.0, f"{APP} (secure-sum = {app.secure_sum})"))
            most.append((app.unmask_again, f"{APP} (unmask-again = {app.unmask_again})"))
        share, where = max(least)
        if (run.secure_sum or 0.0) < share:
            found = "missing" if run.secure_sum is None else run.secure_sum
            raise InputError(f"run-config: secure-sum is {found}, at least {share} is required by {where}")
        rounds, where = max(most)
        if run.unmask_again > rounds:
            raise InputError(f"run-config: unmask-again is {run.unmask_again}, at most {rounds} is allowed by {where}")

    def check_study(self, study: Study) -> None:
        """Raise InputError for a study that is not private as the policy requires, or whose model is too large."""
        private, limits = study.spec.privacy, self.limits
        key = "privacy" if limits.privacy else "max_epsilon"
        if limits.privacy or limits.max_epsilon is not None:
            if private is None:
                raise InputError(f"the study has no [privacy], which is required by {self._line(key)}")
            if private.noise != "system":
                raise InputError(f"privacy.noise is {private.noise!r}, 'system' is required by {self._line(key)}")
        if private is not None and limits.max_epsilon is not None and private.epsilon > limits.max_epsilon:
            raise InputError(f"privacy.epsilon is {private.epsilon:g}, at most {limits.max_epsilon:g} is allowed by "
                             f"{self._line('max_epsilon')}")  # fmt: skip
        if limits.max_parameters is not None and (found := _parameters(study)) > limits.max_parameters:
            raise InputError(f"the model has {found:,} parameters, at most {limits.max_parameters:,} are allowed by "
                             f"{self._line('max_parameters')}")  # fmt: skip

    def check_round(self, clients: int, has_secure_sum: bool) -> None:
        """Raise InputError for a round in which too few clients take part.

        clients: in the round, as the server says; with `has_secure_sum` the fewest whose records the sum may be of.
        """
        stated = "min_clients" in self.limits.model_fields_set
        if clients < self.limits.min_clients and (has_secure_sum or stated):
            what = "the sum may be of" if has_secure_sum else "the round is of"
            raise InputError(f"{what} {clients} clients, at least {self.limits.min_clients} are required by "
                             f"{self._line('min_clients')}")  # fmt: skip

    def _line(self, key: str) -> str:
        """Name the line that states `key`, with its value."""
        stated = f"{key} = {json.dumps(getattr(self.limits, key))}"
        if self.path is None or key not in self.limits.model_fields_set:
            return f"the default of a site's policy ({stated})"
        lines = read_text(self.path).splitlines()
        number = next((n for n, line in enumerate(lines, 1) if re.match(rf"\s*[\"']?{key}[\"']?\s*=", line)), None)
        return f"{self.path.name}, {f'line {number}' if number else 'the line'} ({stated})"


def approved_apps(given: Sequence[str], policy: Path | None) -> Sequence[str]:
    """Return the digests of the apps that a node may run: those of the policy, or the `given` ones if it has none.

    Raises InputError if both have some, or if neither has.
    """
    listed = [] if policy is None else SitePolicy.load(policy).limits.apps
    if given and listed:
        raise InputError("--app-digest is given, and the policy lists apps: give one of them")
    if policy is not None and not (given or listed):
        raise InputError("--app-digest or `apps` in the policy is missing")
    return given or listed


def node_arguments(policy: Path, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a SuperNode with the file `policy` in its `--node-config`.

    Raises InputError for a configuration that is a file or names a policy itself, and for a path that it cannot hold.
    """
    path, given = str(policy.absolute()), list(arguments)
    if not QUOTABLE.fullmatch(path):
        raise InputError(
            f"--policy {path!r}: Flower's configuration cannot hold this path; choose one of plain letters"
        )
    place = next((i for i, word in enumerate(given) if word.partition("=")[0] == CONFIG), None)
    if place is None:
        return [*given, CONFIG, f'policy="{path}"']
    place += "=" not in given[place]  # its value is the next word
    config = given[place] if place < len(given) else ""
    if config.endswith(".toml") or re.search(r"(^|[\s=])policy=", config):
        raise InputError(f"{CONFIG} must be keys and values without policy, beside --policy")
    given[place : place + 1] = [f'{config} policy="{path}"'.lstrip()]
    return given


def _parameters(study: Study) -> int:
    """Count the parameters of the study's model, of which nothing is allocated."""
    import torch  # here, because a SuperNode reads policies without it

    with torch.device("meta"):
        module = study.spec.module_for(study.classes, study.shape)
    return sum(parameter.numel() for parameter in module.parameters())
