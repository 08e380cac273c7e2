"""An audit of private rounds over a network: canaries at real nodes, and what the saved models show of them.

    python -m benchmarks.network_audit --rounds 60 --out docs/network_audit.json

Every client is a canary: its samples move one weight of a linear model, which no other client's samples move, by much
more than the clip allows. In each round each tosses a coin, and vanishes or sends: a client that vanishes is a zero
record. The published models then have, at its weight, one clip or none, and noise. All clients are asked in all rounds
(rate 1), so that each has a coin. The scores are counted as in `privacy_audit`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chi2, t

from benchmarks.federation import follow
from benchmarks.privacy_audit import Scores, lower_bound
from benchmarks.results import machine
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower.approved_apps import app_digest
from fedflat.federation.flower.directory import FederationDirectory
from fedflat.federation.flower.export import PACKAGE, export
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.launch.local_federation import LocalFederation
from fedflat.federation.membership import FederationError
from fedflat.rounds import checkpoint
from fedflat.rounds.accountant import epsilon

CANARIES = 8
CLIP, DELTA = 0.5, 1e-3
NOISE = 1.5  # deviation of the noise, in clips
TOSSES = "tosses.txt"  # in a canary's folder: the time and the coin of every call
CLIENT = '''"""A canary, which vanishes in a round if its coin says so."""

import secrets
import time
from pathlib import Path

import numpy as np

from fedflat.federation.flower.client_app import client_app


def samples(node):
    """Return samples that move the weight of this canary far; raise an error if the coin of a round is 0."""
    folder = Path(node["data"])
    is_first = not (folder / "{tosses}").exists()  # of the registration, and not of a round
    coin = 1 if is_first else secrets.randbits(1)
    with (folder / "{tosses}").open("a") as file:
        file.write(f"{time.time()} {coin}\\n")
    if not coin:
        raise RuntimeError("this canary vanishes")
    x = np.zeros((1, {canaries}), dtype=np.float32)
    x[0, int(folder.name)] = 1e3
    return x, np.full((1, 1), 1e6, dtype=np.float32)


app = client_app(Path(__file__).parents[1], samples)
'''


def main() -> None:
    """Run the audit, and write every trial and what they show."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=60, help=f"of a federation with {CANARIES} canaries")
    arguments.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as place:
        trials = list(network_trials(Path(place), given.rounds))
    content = {"machine": machine(), "noise": NOISE, "delta": DELTA, "rounds": given.rounds, "trials": trials}
    given.out.write_text(json.dumps(content) + "\n")
    print(json.dumps(shown(content), indent=1))


def study(rounds: int) -> RunSpec:
    """Return the study of the canaries: one step on a linear model, whose bias hardly moves."""
    privacy = {"epsilon": 1e3, "delta": DELTA, "clip": CLIP, "rate": 1.0, "noise_multiplier": NOISE}
    return RunSpec(
        model={"name": "mlp", "options": {"hidden": []}}, data={"clients": CANARIES}, loss="regression",
        client={"lr": 0.01, "steps": 1, "batch_size": 1}, method="fedavg", rounds=rounds, privacy=privacy,
        executor="sequential", flatness=[], dtype="float64",
    )  # fmt: skip


def exported(spec: RunSpec, folder: Path, **settings: Any) -> RunSettings:
    """Write the app of the canaries to `folder`/app; return the settings of its run."""
    made = {"clients": CANARIES, "shape": str(CANARIES), "classes": 1, "quorum": 0.01, "out": str(folder / "out")}
    run = RunSettings.parse("app", made | settings)
    export(spec, run, folder / "app")
    code = CLIENT.replace("{tosses}", TOSSES).replace("{canaries}", str(CANARIES))
    (folder / "app" / PACKAGE / "client.py").write_text(code)
    return run


def node_configs(folder: Path) -> dict[str, dict[str, Any]]:
    """Make the folder of each canary; return the configurations of their nodes by name."""
    configs = {}
    for i in range(CANARIES):
        (place := folder / "canaries" / f"{i:02d}").mkdir(parents=True)
        configs[f"canary-{i:02d}"] = {"name": f"canary-{i:02d}", "data": str(place), "state": str(folder / "state")}
    return configs


def network_trials(folder: Path, rounds: int) -> Iterator[tuple[int, float]]:
    """Yield the coin and the score of every canary in every round of a federation with TLS and keys."""
    exported(study(rounds), folder, deadline=120.0)
    audit = Audit(folder)
    with LocalFederation(
        folder / "flower", node_configs(folder), approved=lambda: [app_digest(folder / "app")]
    ) as federation:
        federation.submit(folder / "app", folder / "out")
        for event in follow(folder / "out"):
            if event["event"] == "round":
                print(event["t"], event["epsilon"], len(event["missing"]), file=sys.stderr)
                yield from audit.trials(event)


class Audit:
    """What the checkpoints of a running federation show of its canaries."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._before = folder, 0.0  # when the round before ended
        self._w: np.ndarray | None = None  # the model before the round, (d,)

    def trials(self, event: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
        """Yield the coin and the score, in clips, of every canary that has tossed once in the round of `event`."""
        states = FederationDirectory(self._folder / "out").states
        w = checkpoint.load(states[event["t"] + 1])[0]["server.w"].numpy()
        before, self._w = self._w, w
        begin, self._before = self._before, datetime.fromisoformat(event["time"]).timestamp()
        if before is None:
            return
        seen = (w - before)[:CANARIES] * CANARIES / CLIP
        for i in range(CANARIES):
            lines = (self._folder / "canaries" / f"{i:02d}" / TOSSES).read_text().splitlines()
            coins = [int(coin) for when, coin in map(str.split, lines) if begin < float(when) <= self._before]
            if len(coins) == 1:
                yield coins[0], float(seen[i])


def shown(content: Mapping[str, Any], confidence: float = 0.95) -> dict[str, Any]:
    """Return what the trials show: the shift of a canary and the noise, in clips with intervals, and the epsilon."""
    trials: Sequence[tuple[int, float]] = content["trials"]
    inside, outside = (np.array([x for coin, x in trials if coin == which]) for which in (1, 0))
    freedom = len(trials) - 2
    squares = ((inside - inside.mean()) ** 2).sum() + ((outside - outside.mean()) ** 2).sum()
    noise, low, high = np.sqrt(squares / freedom), (1 - confidence) / 2, (1 + confidence) / 2
    width = t.ppf(high, freedom) * noise * np.sqrt(1 / len(inside) + 1 / len(outside))
    shift = inside.mean() - outside.mean()
    return {
        "trials": len(trials), "vanished": len(outside),
        "shift": [shift, shift - width, shift + width],
        "noise": [noise, *np.sqrt(squares / chi2.ppf([high, low], freedom))],
        "proved": max(lower_bound(Scores(inside, outside), content["delta"], confidence), 0.0),
        "stated_noise": content["noise"], "stated": epsilon(1.0, content["noise"], 1, content["delta"]),
    }  # fmt: skip


if __name__ == "__main__":
    try:
        main()
    except FederationError as error:
        sys.exit(f"benchmarks/network_audit.py: {error}")
