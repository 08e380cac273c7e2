"""What rounds cost in FL-Simulator: FedAvg on all workloads; SCAFFOLD, FedSAM and FedSMOO on W1.

    python benchmarks/peers/fl_simulator.py --checkout FOLDER [--workloads W1 W2 W3 W5] [--evaluate] [--out FILE.json]

FOLDER is a clone of github.com/woodenchild95/FL-Simulator. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import redirect_stdout
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import Result, Run, missing, parser, report
from tasks import Task, vector
from timing import Laps

PEER = "FL-Simulator"
METHODS = {"W1": ("FedAvg", "SCAFFOLD", "FedSAM", "FedSMOO")}  # elsewhere FedAvg
TESTED = 10_000  # samples of the test set; with all that clients hold, 60,000
LOADED = "torch's DataLoader on arrays in memory, shuffled, the last batch partial; clipping"
PICTURES = "every second picture flipped and every second one cropped; weight decay 0.001"


def main() -> None:
    """Time the workloads."""
    made = parser(__doc__ or "")
    made.add_argument("--checkout", type=Path, help="a clone of FL-Simulator")
    made.add_argument("--evaluate", action="store_true", help="on W1 also rounds with its evaluation (work 'W1 full')")
    asked = made.parse_args()
    asked.checkout = usable(asked.checkout)
    report(asked, lambda name: every(name, asked))


def usable(checkout: Path | None) -> Path:
    """Return `checkout`, from which can be imported afterwards; ends the program if there is none."""
    if checkout is None or not (checkout / "server" / "server.py").is_file():
        missing(f"{PEER}: give --checkout FOLDER, a clone of github.com/woodenchild95/FL-Simulator")
    sys.path.insert(0, str(checkout.resolve()))
    try:
        import server  # noqa: F401  # theirs, as `dataset` and `utils` below
    except ImportError as error:
        missing(f"{PEER}: {error}; it needs numpy, torch and torchvision")
    return checkout


def commit(checkout: Path) -> str:
    """Return what is checked out there, as far as git tells."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"


def every(name: str, asked: argparse.Namespace) -> Iterator[Result]:
    """Yield all methods on the work `name`; W1 is W1a, as pictures are always augmented there."""
    run = Run.of({"W1": "W1a"}.get(name, name), asked)
    data = Data(run.task, tested=asked.evaluate)
    for method in METHODS.get(name, ("FedAvg",)):
        yield from time(name, method, run, data, asked)


class Data:
    """The clients' samples, under the names that FL-Simulator knows."""

    def __init__(self, task: Task, tested: bool) -> None:
        clients = task.clients()
        self.client_x = [x.numpy() for x, _ in clients]
        self.client_y = [y.numpy()[:, None] for _, y in clients]
        if tested:
            random = np.random.default_rng(0)
            self.test_x = random.standard_normal((TESTED, *task.work.shape), dtype=np.float32)
            self.test_y = random.integers(10, size=(TESTED, 1))


def time(name: str, method: str, run: Run, data: Data, asked: argparse.Namespace) -> Iterator[Result]:
    """Yield rounds of one method; a second result with the evaluation of all samples, if that is asked for."""
    evaluated = asked.evaluate and name == "W1"
    laps, tests = Laps(), Laps()
    torch.manual_seed(0)
    module = run.task.build()
    before = vector(module)
    with redirect_stdout(io.StringIO()):
        server = timed(method, run, data, module, laps, tests if evaluated else None)
        server.train()
    figures = run.figures(laps, before, vector(server.server_model))
    includes = f"{LOADED}; {PICTURES}" if run.task.work.pictures else LOADED
    shared: dict[str, Any] = {"peer": PEER, "version": commit(asked.checkout), "method": method} | figures
    yield Result(work=name, includes=f"{includes}; no evaluation", **shared)
    if evaluated:
        shared |= dict(zip(("seconds", "wall"), whole(figures, tests, run), strict=True))
        samples = sum(map(len, data.client_y)) + TESTED
        yield Result(work=f"{name} full", includes=f"{includes}; evaluation on {samples} samples", **shared)


def whole(figures: dict[str, Any], tests: Laps, run: Run) -> Iterator[list[float]]:
    """Yield seconds of the processor and by the clock with those of the evaluation, which are not scaled."""
    for name, more in zip(("seconds", "wall"), tests.seconds(run.rounds), strict=True):
        yield [train + test for train, test in zip(figures[name], more, strict=True)]


def timed(method: str, run: Run, data: Data, module: torch.nn.Module, laps: Laps, tests: Laps | None) -> Any:
    """Return its server for `method`; a round is timed from the choice of its clients until the new model is there."""
    import server
    import utils

    base: Any = getattr(server, method)
    takes_message = len(signature(base.postprocess).parameters) > 2  # SCAFFOLD's does not, though all are given it

    class Timed(base):  # type: ignore[misc]
        def _activate_clients_(self, t: int) -> Any:
            laps.begin()
            return np.sort(np.random.default_rng(t).choice(len(data.client_x), run.task.cohort, replace=False))

        def postprocess(self, client: int, received: Any) -> None:
            super().postprocess(*(client, received)[: 2 if takes_message else 1])

        def _test_(self, t: int, selected: Any) -> None:
            laps.end()
            if tests:
                tests.begin()
                if t:  # not in the warm-up
                    super()._test_(t, selected)
                tests.end()

        def _save_results_(self) -> None:
            pass

        def _summary_(self) -> None:
            pass

    arguments = (torch.device("cpu"), run.task.build, module, utils.get_mdl_params(module), data, method)
    return Timed(*arguments, args=settings(run, method))


def settings(run: Run, method: str) -> Namespace:
    """Return its command line, with the values of the work and its own defaults for the rest."""
    work, client = run.task.work, run.task.work.client()
    theirs = {"alpha": 0.1, "beta": 0.1, "beta1": 0.9, "beta2": 0.99, "lamb": 0.1, "rho": 0.1, "gamma": 1.0}
    theirs |= {"epsilon": 0.01, "global_learning_rate": 1.0, "lr_decay": 1.0, "seed": 0, "use_RI": False}
    return Namespace(
        method=method,
        dataset="CIFAR10" if work.pictures else "mnist",  # how samples are loaded: augmented, or as they are
        non_iid=False,
        save_model=False,
        active_ratio=work.cohort / work.clients,
        total_client=work.clients,
        comm_rounds=run.all_rounds,
        local_epochs=run.task.epochs,
        batchsize=work.batch,
        weight_decay=client.weight_decay,
        local_learning_rate=client.lr,
        **theirs,
    )


if __name__ == "__main__":
    main()
