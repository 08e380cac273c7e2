"""All that could not be tried without a GPU, in one call of under nine minutes, without a network.

    python -m benchmarks.gpu --out docs/gpu.json        # `make docs` then writes the section of docs/tests.md
    python -m benchmarks.gpu --page docs/gpu.json       # prints that section
    python -m benchmarks.gpu --device cpu --quick       # the same on the CPU, with tiny sizes

Every part has a process of its own and at most a third of the time, so one that fails or hangs leaves the others
alone, and the file is written after every part. Parts for which no time is left are listed as left out. The exit code
is 1 if a check fails or a part ends with an error.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from fedflat.cli.console import in_one_line
from fedflat.core.errors import InputError, with_type
from fedflat.core.native_libraries import tune_allocator
from fedflat.files import write_atomically
from fedflat.rounds.device import device_name, usable_device

from .gpu_page import page_part
from .gpu_parts import COMMAND, ON_GPU_ONLY, PARTS, RANK, Finding, Setting, as_rank
from .measurement import Measurement
from .ranks import command_of
from .results import Results, Settings, described, now

MINUTES = 8.5  # the last part is ended then, so that the whole stays under nine
MOST = 1 / 3  # of the time for one part
LEAST = 5.0  # seconds without which no part is begun
RAN, LEFT_OUT, STOPPED = "ran", "left out: no time", "stopped: it took too long"


def main() -> None:
    """Measure, print the page's section, or, as a process that this starts, do one part."""
    with in_one_line():
        given = _parser().parse_args()
        if given.take:
            take(json.loads(given.take), given.into)
        elif given.page:
            print(page_part(Results.load(given.page)))
        else:
            sys.exit(try_all(given))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="JSON file for the results")
    parser.add_argument("--device", default="cuda", help="what is tried")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether all of it works, not how fast")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"time for everything (default {MINUTES})")
    parser.add_argument("--repeats", type=int, help="times of everybody; default 5, or 2 if quick")
    parser.add_argument("--only", nargs="*", default=[], metavar="PART", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--page", type=Path, help="such a file, whose section of the page is printed")
    parser.add_argument("--take", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    return parser


def try_all(given: argparse.Namespace) -> int:
    """Do every part while there is time, and write the file after each; return the exit code."""
    unknown = [name for name in given.only if name not in PARTS]
    if unknown:
        raise InputError(f"there is no part {unknown[0]!r}; known are {', '.join(PARTS)}")
    begin, names = perf_counter(), [name for name in PARTS if name in given.only or not given.only]
    setting = Setting(str(usable_device(given.device)), given.quick, given.repeats or (2 if given.quick else 5))
    settings = described(Settings(setting.repeats, quick=setting.quick))
    results = Results(settings | {"device": device_facts(setting), "minutes": given.minutes})
    results.save(given.out)  # what cannot be written is reported before anything is measured
    for number, name in enumerate(names, start=1):
        passed, limit = perf_counter() - begin, 60 * given.minutes
        print(f"{number} of {len(names)}, {passed:.0f} s: {name} ...", flush=True)
        facts, measured = part_result(name, setting, min(limit - passed, MOST * limit))
        results = results.with_part(name, facts, measured)
        results.save(given.out)
        print("\n".join(_lines(name, facts)), flush=True)
    cut = [name for name, facts in results.parts.items() if facts["ended"] in (LEFT_OUT, STOPPED)]
    print(
        f"{perf_counter() - begin:.0f} s; written: {given.out}", *(f"without all of {name}" for name in cut), sep="; "
    )
    return int(any(_is_wrong(facts) for facts in results.parts.values()))


def _lines(name: str, facts: dict[str, Any]) -> list[str]:
    """Return what a part has found, and how it ended, for whoever waits."""
    marks = {False: "WRONG: "}
    found = [f"  {marks.get(one['passed'], '')}{one['what']}: {one['text']}" for one in facts["findings"]]
    return [*found, *(f"  {note}" for note in facts["notes"]), f"  {name}: {facts['ended']}"]


def _is_wrong(facts: dict[str, Any]) -> bool:
    return facts["failed"] or any(one["passed"] is False for one in facts["findings"])


def device_facts(setting: Setting) -> dict[str, Any]:
    """Return what the figures depend on, as JSON-able values."""
    device = setting.torch_device
    facts: dict[str, Any] = {"device": setting.device, "name": device_name(device), "cuda": torch.version.cuda}
    if not setting.is_gpu:
        return facts
    found = torch.cuda.get_device_properties(device)
    return facts | {
        "driver": _driver(),
        "cudnn": torch.backends.cudnn.version(),
        "memory": found.total_memory,
        "capability": f"{found.major}.{found.minor}",
        "matmul precision": torch.get_float32_matmul_precision(),
    }


def _driver() -> str | None:
    """Return the version of the driver, as its own program tells it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.TimeoutExpired):
        lines = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.split()  # noqa: S603
        return lines[0] if lines else None
    return None


def part_result(name: str, setting: Setting, seconds: float) -> tuple[dict[str, Any], list[Measurement]]:
    """Return what a part found in at most `seconds`, with how it ended, and what it measured."""
    begin, content = now(), _nothing(LEFT_OUT)
    if name in ON_GPU_ONLY and not setting.is_gpu:
        content["ended"] = f"not measured on {setting.device}"
    elif seconds > LEAST:
        with tempfile.TemporaryDirectory() as folder:
            into = Path(folder) / "part.json"
            ended = run_for(command_of(COMMAND, 0, {"part": name} | vars(setting), into), seconds)
            content |= json.loads(into.read_text()) if into.exists() else {}
            content |= {"ended": ended, "failed": ended != STOPPED} if ended else {}
    measured = [Measurement(**one) for one in content.pop("measurements")]
    return content | {"begin": begin, "end": now()}, measured


def run_for(command: Sequence[str], seconds: float) -> str:
    """Run `command` and all that it starts for at most `seconds`; return how it ended, "" if well."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, start_new_session=True)  # noqa: S603 (this interpreter)
    try:
        code = process.wait(seconds)
        return f"the process ended with exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        return STOPPED
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class _Notes(logging.Handler):
    """Keeps the warnings of fedflat, such as why a step is not compiled, each once."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._notes:
            self._notes.append(text)


def take(what: dict[str, Any], into: Path) -> None:
    """Do one part in this process; `into` holds what was found so far, and in the end how the part ended."""
    tune_allocator()
    name, setting = what.pop("part"), Setting(**what)
    usable_device(setting.device)  # which sets it up; memory cannot be counted before
    if setting.is_gpu:
        torch.cuda.set_device(setting.device)
    if name == RANK:
        return as_rank(setting, into)
    content = _nothing(STOPPED)
    logging.getLogger("fedflat").addHandler(_Notes(content["notes"]))
    try:
        for found in PARTS[name](setting):
            content["findings" if isinstance(found, Finding) else "measurements"].append(asdict(found))
            _write(content, into)
        content["ended"] = RAN
    except Exception as error:
        traceback.print_exc()  # for whoever has the GPU
        content |= {"ended": with_type(error), "failed": True}
    return _write(content, into)


def _nothing(ended: str) -> dict[str, Any]:
    """Return the result of a part before it has found anything."""
    return {"findings": [], "measurements": [], "notes": [], "ended": ended, "failed": False}


def _write(content: dict[str, Any], into: Path) -> None:
    write_atomically(into, lambda file: file.write_text(json.dumps(content)))


if __name__ == "__main__":
    main()
