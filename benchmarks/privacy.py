"""Accuracy against epsilon, and what canaries prove of the same settings.

    fedflat recipes run ours-privacy/dp-fedsam --data-dir DATA --out RUNS
    python -m benchmarks.privacy RUNS

The first takes an hour or two on two cores, the second ten minutes on one. Writes docs/private_accuracy.csv and
docs/privacy_audit.csv, of which the tables of docs/privacy.md are made.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.experiments.recipe import find_recipe
from fedflat.experiments.run_directory import StoredRun
from fedflat.rounds.accountant import epsilon, noise_for

from .privacy_audit import lower_bound, scores

DOCS = Path(__file__).parent.parent / "docs"
ACCURACY, AUDIT = DOCS / "private_accuracy.csv", DOCS / "privacy_audit.csv"
RECIPE = "ours-privacy/dp-fedsam"
# rate, noise multiplier, rounds, delta, repetitions of 500 canaries: settings of which much can be proved
STRONG = [(1.0, 1.0, 1, 1e-3, 200), (0.2, 0.7, 4, 1e-3, 200)]
REPETITIONS = 400  # for the settings of the recipe, which have 200 rounds


@dataclass(frozen=True)
class PrivateRun:
    """A finished run of the recipe."""

    method: str
    target: float | None  # the epsilon that it may spend; none without privacy
    seed: int
    accuracy: float  # of the final model on the test set, percent
    epsilon: float | None  # spent, for one client added or removed
    epsilon_replace_one: float | None
    noise_multiplier: float | None


@dataclass(frozen=True)
class Audit:
    """What canaries prove of a setting with 95 % confidence, beside what the accountant states."""

    rate: float
    noise_multiplier: float
    rounds: int
    delta: float
    stated: float  # epsilon
    proved: float  # epsilon, at least
    stated_twice: float  # epsilon with twice the noise
    target: float | None = None  # of the recipe's cell; none for another setting


def finished(folder: Path) -> list[PrivateRun]:
    """Return all runs of the recipe in `folder`. Raises InputError if one is missing."""
    return [
        private_run(StoredRun.open(path))
        for cell in find_recipe(RECIPE).cells()
        for path in sorted((folder / cell.name / "runs").iterdir())
    ]


def private_run(run: StoredRun) -> PrivateRun:
    """Return what the tables need of a run."""
    spec, summary = run.spec, run.summary
    spent = (summary.get(name) for name in ("epsilon", "epsilon_replace_one", "noise_multiplier"))
    target = None if spec.privacy is None else spec.privacy.epsilon
    return PrivateRun(spec.method.name, target, spec.seed, 100 * summary["test_accuracy_last"], *spent)


def recipe_settings() -> dict[float, tuple[float, float, int, float, int]]:
    """Return for each epsilon of the recipe: rate, noise multiplier, rounds, delta and repetitions."""
    found = {}
    for cell in find_recipe(RECIPE).cells():
        study = cell.study()
        if (one := study.privacy) is not None:
            noise = noise_for(one.epsilon, one.delta, one.rate, study.rounds)
            found[one.epsilon] = (one.rate, noise, study.rounds, one.delta, REPETITIONS)
    return found


def audited(rate: float, noise: float, rounds: int, delta: float, repetitions: int, target: float | None) -> Audit:
    """Put canaries into the sums of private rounds with these settings, and return the epsilon that they prove."""
    privacy = ff.Privacy(epsilon=1e6, delta=delta, clip=0.5, rate=rate, noise_multiplier=noise,
                         noise="seeded-not-private")  # fmt: skip
    stated, twice = (epsilon(rate, factor * noise, rounds, delta) for factor in (1, 2))
    proved = lower_bound(scores(privacy, rounds, repetitions), delta)
    return Audit(rate, noise, rounds, delta, stated, proved, twice, target)


def read_runs() -> list[PrivateRun]:
    """Return the runs that were measured; empty if there are none."""
    return [PrivateRun(one["method"], *_numbers(one, "target"), int(one["seed"]),
                       *_numbers(one, "accuracy", "epsilon", "epsilon_replace_one", "noise_multiplier"))
            for one in _read(ACCURACY)]  # fmt: skip


def read_audits() -> list[Audit]:
    """Return the audits that were made; empty if there are none."""
    return [Audit(*_numbers(one, "rate", "noise_multiplier"), int(one["rounds"]),
                  *_numbers(one, "delta", "stated", "proved", "stated_twice", "target"))
            for one in _read(AUDIT)]  # fmt: skip


def _read(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def _numbers(row: dict[str, str], *names: str) -> Iterable[Any]:
    return [float(row[name]) if row[name] else None for name in names]


def write(file: Path, kind: type[Any], rows: Sequence[Any]) -> None:
    """Write rows of a dataclass `kind`."""
    with file.open("w", newline="") as text:
        table = csv.DictWriter(text, [f.name for f in fields(kind)], lineterminator="\n")
        table.writeheader()
        for row in rows:
            table.writerow({name: f"{x:.6g}" if isinstance(x, float) else x for name, x in asdict(row).items()})


def main() -> None:
    """Collect the runs in the folder that is named, and audit their settings."""
    if len(sys.argv) != 2:
        raise SystemExit("python -m benchmarks.privacy RUNS: the folder of the finished recipe")
    try:
        write(ACCURACY, PrivateRun, finished(Path(sys.argv[1])))
    except (InputError, OSError) as error:
        raise SystemExit(str(error)) from None
    settings = [(None, one) for one in STRONG] + list(recipe_settings().items())
    audits = []
    for target, one in settings:
        audits.append(audited(*one, target))
        print(f"rate {one[0]:g}, noise {one[1]:.3g}, {one[2]} rounds: stated {audits[-1].stated:.3f}, "
              f"proved {audits[-1].proved:.3f}", flush=True)  # fmt: skip
    write(AUDIT, Audit, audits)


if __name__ == "__main__":
    main()
