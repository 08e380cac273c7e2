"""Where the numbers of a report come from: the versions and the commit that computed the runs, and when."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ..core.errors import InputError
from ..experiments.run_directory import StoredRun
from ..files import read_json
from ..rounds.segments import versions
from .comparison_data import FinishedRun

PACKAGES = ("fedflat", "torch")
LONGEST = 60  # characters of a version
_PLAIN = re.compile(r"[\w.+:-]+")


def origin(runs: Iterable[FinishedRun]) -> list[str]:
    """Lines such as "fedflat 0.1.0, torch 2.6.0; commit 1a2b3c4; computed on 2026-01-31".

    Runs in a folder say it in env.json, which only informs: what is damaged or missing there is left out. Runs that
    are in no folder were computed by this process.
    """
    segments = [segment for run in runs for segment in _segments(run)]
    found = []
    for package in PACKAGES:
        known = _known(segment.get("versions", {}).get(package) for segment in segments)
        found += [f"{package} {' and '.join(known)}"] if known else []
    lines = [", ".join(found)] if found else []
    commits = _known(segment.get("commit") for segment in segments)
    lines += [f"commit {' and '.join(commits)}"] if commits else []
    days = _known(str(segment.get("started"))[:10] for segment in segments if segment.get("started"))
    lines += [f"computed on {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "")] if days else []
    return lines


def _segments(run: FinishedRun) -> list[dict[str, Any]]:
    """What env.json says of each part of a run."""
    if not isinstance(run, StoredRun):
        return [{"versions": versions(PACKAGES)}]
    try:
        content = read_json(run.directory.checksums.check("env.json"))
    except InputError:
        return []
    segments = content if isinstance(content, list) else []
    return [one for one in segments if isinstance(one, dict) and isinstance(one.get("versions", {}), dict)]


def _known(texts: Iterable[object]) -> list[str]:
    """The different texts that look like a version, a commit or a day, in their order."""
    return sorted({text for text in texts if isinstance(text, str) and len(text) <= LONGEST and _PLAIN.fullmatch(text)})
