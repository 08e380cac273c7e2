"""What the largest Hessian eigenvalue and the trace of LeNet cost, in gradients and in memory.

    python -m benchmarks.flatness [--data-dir FOLDER] [--samples 2000] [--batch 250] [--repeats 3] [--out FILE.json]

Compares fedflat with curvlinops and hessian-eigenthings where these are installed: same model, same samples in the
same batches, same tolerances. Every implementation has a process of its own for every task. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedflat as ff
from fedflat.core.objective import Objective
from fedflat.metrics.flatness.measures.eigenvalues import Eigenvalues
from fedflat.metrics.flatness.measures.trace import Trace
from fedflat.metrics.flatness.subject import Subject

CONTESTANTS = {
    "fedflat": "fedflat",
    "curvlinops": "curvlinops-for-pytorch",
    "hessian-eigenthings": "hessian-eigenthings",
}
TASKS = ("eigenvalue", "trace")
TOLERANCE = 1e-4  # residual of the eigenvalue, relative to it
RELATIVE_ERROR = 0.05  # half of the trace's 95 % interval
Answer = dict[str, Any]  # value; error; products: with the Hessian on all samples; note


@dataclass(frozen=True)
class Problem:
    """A trained LeNet and the samples it is measured on, as every implementation gets them."""

    model: nn.Module  # in evaluation mode
    x: Tensor  # (n, 3, 32, 32)
    y: Tensor  # (n,)
    batch: int

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """The samples as (x, y), so many at once."""
        return list(zip(self.x.split(self.batch), self.y.split(self.batch), strict=True))

    def first(self, n: int) -> Problem:
        """The same with the first `n` samples."""
        return replace(self, x=self.x[:n], y=self.y[:n])

    def gradient(self) -> None:
        """One gradient on all samples in plain PyTorch: the unit of time."""
        self.model.zero_grad()
        for x, y in self.batches:
            (cross_entropy(self.model(x), y) * (len(y) / len(self.y))).backward()


def main() -> None:
    """Run every implementation on every task and print the table."""
    asked = arguments()
    if asked.child:
        print(json.dumps(child(asked)))
        return
    with tempfile.TemporaryDirectory() as folder:
        asked.problem = str(Path(folder) / "problem.pt")
        torch.save(prepare(asked), asked.problem)
        results = compare(asked)
    print(table(results))
    if asked.out:
        Path(asked.out).write_text(json.dumps({"settings": settings(asked), "results": results}, indent=2))


def arguments() -> argparse.Namespace:
    """The command line; what begins with `child` is for processes that this one starts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", help="folder with CIFAR-10; without it pictures are made up")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=250, help="samples in one pass, for everybody")
    parser.add_argument("--epochs", type=int, default=5, help="of training on the samples before measuring")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(CONTESTANTS), choices=list(CONTESTANTS))
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=TASKS)
    parser.add_argument("--products", type=int, help="for the trace by curvlinops, which states no error")
    parser.add_argument("--out", help="JSON file for the results")
    for name in ("--child", "--task", "--measure", "--problem"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.samples % asked.batch:
        parser.error("--samples must be a multiple of --batch: hessian-eigenthings averages batches with equal weights")
    torch.set_num_threads(asked.threads)
    return asked


def settings(asked: argparse.Namespace) -> Answer:
    """What the figures depend on."""
    names = ("samples", "batch", "epochs", "repeats", "threads")
    data = "CIFAR-10" if asked.data_dir else "made-up pictures"
    return {name: getattr(asked, name) for name in names} | {"data": data, "torch": torch.__version__}


# --- the problem -----------------------------------------------------------------------------------------------------


def prepare(asked: argparse.Namespace) -> Answer:
    """LeNet after some epochs of plain SGD on the samples that it is measured on."""
    torch.manual_seed(0)
    x, y = cifar10(asked) if asked.data_dir else made_up(asked.samples)
    model = ff.models.build("lenet", 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    for _ in range(asked.epochs):
        for some in torch.randperm(len(y)).split(50):
            optimizer.zero_grad()
            cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
    return {"state": model.state_dict(), "x": x, "y": y}


def cifar10(asked: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """The first samples of a random split, normalised."""
    data = ff.data.load("cifar10", clients=1, data_dir=asked.data_dir)
    some = torch.from_numpy(data.members[: asked.samples])
    return data.inputs(some).float(), data.y[some]


def made_up(samples: int) -> tuple[Tensor, Tensor]:
    """CIFAR-shaped noise around a coarse picture per class, so that there is something to learn."""
    coarse = nn.functional.interpolate(torch.randn(10, 3, 4, 4), size=32, mode="bilinear")
    y = torch.randint(0, 10, (samples,))
    return 0.5 * coarse[y] + torch.randn(samples, 3, 32, 32), y


def load(asked: argparse.Namespace) -> Problem:
    """What `prepare` has made."""
    content = torch.load(asked.problem)
    model = ff.models.build("lenet", 10)
    model.load_state_dict(content["state"])
    return Problem(model.eval(), content["x"], content["y"], asked.batch)


# --- the implementations ---


def fedflat(problem: Problem, task: str, products: int | None) -> Callable[[], Answer]:
    """With the memory that so many samples take."""
    data = ff.FederatedData.from_clients([(problem.x, problem.y)], classes=10)
    n, measure = (
        len(problem.y),
        Eigenvalues(tol=TOLERANCE) if task == "eigenvalue" else Trace(relative_error=RELATIVE_ERROR),
    )

    def answer() -> Answer:
        objective = Objective(problem.model)
        subject = Subject(objective, objective.space.flatten(problem.model), data, max_samples=n)
        footprint = subject.pooled.footprint
        subject.pooled.memory = int(problem.batch * (footprint.graph + footprint.product)) + 1
        told: list[int] = []
        value, *_ = measure.measure(subject, lambda done, total: told.append(done)).values.values()
        return {"value": value.value, "error": value.error, "products": told[-1]}

    return answer


def curvlinops(problem: Problem, task: str, products: int | None) -> Callable[[], Answer]:
    """ARPACK on its operator, as its documentation shows; Hutch++ with as many products as hessian-eigenthings."""
    from curvlinops import HessianLinearOperator, hutchpp_trace
    from scipy.sparse.linalg import eigsh

    class Counted(HessianLinearOperator):
        """Columns one after another: together they would take as many times the memory, and no less time."""

        count = 0

        def _matmat(self, M: list[Tensor]) -> list[Tensor]:
            columns = [super(Counted, self)._matmat([m[..., i : i + 1] for m in M]) for i in range(M[0].shape[-1])]
            self.count += len(columns)
            return [torch.cat(each, dim=-1) for each in zip(*columns, strict=True)]

    def answer() -> Answer:
        parameters, n = list(problem.model.parameters()), len(problem.y)
        loss = nn.CrossEntropyLoss()
        H = Counted(problem.model, loss, parameters, problem.batches, check_deterministic=False, num_data=n)
        if task == "eigenvalue":
            start = np.random.default_rng(0).standard_normal(H.shape[0]).astype(np.float32)
            value, error = eigsh(H.to_scipy(), 1, which="LA", tol=TOLERANCE, v0=start)[0][0], None
        else:
            torch.manual_seed(0)
            value, error = hutchpp_trace(H, products), None
        return {"value": float(value), "error": error, "products": H.count}

    if task == "trace" and not products:
        raise SystemExit("curvlinops states no error of a trace: install hessian-eigenthings, or give --products")
    return answer


def hessian_eigenthings(problem: Problem, task: str, products: int | None) -> Callable[[], Answer]:
    """Lanczos and Hutch++. Neither has a stopping rule: the numbers are doubled until its own error is small enough.

    Only the last run is counted, as if the number had been known before.
    """
    from hessian_eigenthings import HessianOperator, hutch_plus_plus, lanczos, supervised_loss
    from scipy.stats import t as student

    H = HessianOperator(problem.model, problem.batches, supervised_loss(nn.CrossEntropyLoss()))

    def eigenvalue(steps: int) -> Answer:
        found = lanczos(H, k=1, max_iter=steps, tol=TOLERANCE, which="LA", seed=0)
        error = float(found.residuals[0])
        return {
            "value": float(found.eigenvalues[0]),
            "error": error,
            "products": steps,
            "enough": bool(found.converged),
        }

    def trace(products: int) -> Answer:
        found = hutch_plus_plus(H, num_matvecs=products, seed=0)
        error = float(student.ppf(0.975, products // 3 - 1)) * found.stderr
        enough = error <= RELATIVE_ERROR * abs(found.estimate)
        return {"value": found.estimate, "error": error, "products": products, "enough": enough}

    run, number = (eigenvalue, products or 5) if task == "eigenvalue" else (trace, products or 30)
    while not products and not run(number)["enough"]:
        number *= 2
    return lambda: run(number)


# --- measuring -------------------------------------------------------------------------------------------------------


def child(asked: argparse.Namespace) -> Answer:
    """One implementation on one task: times, or the peak of memory."""
    torch.manual_seed(0)
    problem = load(asked)
    make = {"fedflat": fedflat, "curvlinops": curvlinops, "hessian-eigenthings": hessian_eigenthings}[asked.child]
    small = replace(problem.first(8), batch=8)
    make(small, "eigenvalue", 5)()  # what a first pass sets up
    if asked.measure == "memory":
        return peak(make(problem.first(2 * asked.batch), asked.task, asked.products))
    return times(make(problem, asked.task, asked.products), problem.gradient, asked.repeats)


def times(answer: Callable[[], Answer], gradient: Callable[[], None], repeats: int) -> Answer:
    """The answer, and the seconds of every run and of a gradient after it."""
    gradients, runs = [], []
    for _ in range(repeats):
        found, seconds = timed(answer)
        runs.append(seconds)
        gradients.append(timed(gradient)[1])
    return {**found, "runs": runs, "gradients": gradients}


def timed(run: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """What it gives, and the seconds it takes: by the clock, and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    given = run()
    return given, (time.perf_counter() - clock, time.process_time() - processor)


def peak(answer: Callable[[], Answer]) -> Answer:
    """The peak of this process's memory above what it has now; None where the system does not tell (Linux does).

    Two batches are enough for it: nobody holds more than one at a time.
    """
    if not Path("/proc/self/clear_refs").exists():
        return {"bytes": None}
    ctypes.CDLL(None).malloc_trim(0)  # what is free is not there to be used again
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = status("VmRSS")
    answer()
    return {"bytes": status("VmHWM") - before}


def status(name: str) -> int:
    """A number of bytes that Linux tells of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def compare(asked: argparse.Namespace) -> list[Answer]:
    """All on all tasks; hessian-eigenthings before curvlinops, which is given its number of products."""
    results, products = [], asked.products
    for task in asked.tasks:
        for name in sorted(asked.only, reverse=True):
            if (known := installed(name)) is None:
                print(f"{name} is not installed and left out", file=sys.stderr)
                continue
            results.append({"task": task, "name": name, "version": known})
            results[-1] |= in_its_own_process(asked, name, task, "time", products if task == "trace" else None)
            if (found := results[-1].get("products")) is not None:
                if (task, name) == ("trace", "hessian-eigenthings"):
                    products = products or found
                results[-1] |= in_its_own_process(asked, name, task, "memory", found)
            print(line(results[-1]), flush=True)
    return results


def installed(name: str) -> str | None:
    """The version of a implementation."""
    try:
        return version(CONTESTANTS[name]) if name != "fedflat" else ff.__version__
    except PackageNotFoundError:
        return None


def in_its_own_process(asked: argparse.Namespace, name: str, task: str, measure: str, products: int | None) -> Answer:
    """What `child` finds there, or why it does not.

    Where memory is measured, blocks from 1 MB on go back to the system when they are freed: what counts is what is
    needed, and not how well malloc happened to use it again.
    """
    given = {"child": name, "task": task, "measure": measure, "problem": asked.problem, "repeats": asked.repeats}
    given |= {"samples": asked.samples, "batch": asked.batch, "threads": asked.threads}
    given |= {"products": products} if products else {}
    command = [sys.executable, __file__, *(f"--{key}={value}" for key, value in given.items())]
    environment = os.environ | ({"MALLOC_MMAP_THRESHOLD_": "1000000"} if measure == "memory" else {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603  # ourselves
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    found: Answer = json.loads(done.stdout.splitlines()[-1])
    return found


# --- telling ---------------------------------------------------------------------------------------------------------

HEAD = (
    f"{'task':<11}{'package':<21}{'value':>10}{'error':>10}{'products':>9}"
    f"{'gradients: median (min to max)':>33}{'by CPU':>9}{'MB':>8}"
)


def ratios(result: Answer, which: int) -> list[float]:
    """Every run in units of the gradient after it, by the clock (0) or the processor (1)."""
    return [run[which] / gradient[which] for run, gradient in zip(result["runs"], result["gradients"], strict=True)]


def line(result: Answer) -> str:
    """One row of the table."""
    head = f"{result['task']:<11}{result['name']:<21}"
    if "failed" in result:
        return head + result["failed"]
    error = "-" if result["error"] is None else f"{result['error']:.2g}"
    clock, memory = ratios(result, 0), "-" if result.get("bytes") is None else f"{result['bytes'] / 1e6:.0f}"
    times = f"{median(clock):.0f} ({min(clock):.0f} to {max(clock):.0f})"
    processor = f"{min(ratios(result, 1)):.0f}"
    return f"{head}{result['value']:>10.4g}{error:>10}{result['products']:>9}{times:>33}{processor:>9}{memory:>8}"


def table(results: list[Answer]) -> str:
    """All rows."""
    return "\n".join(["", HEAD, *map(line, results)])


if __name__ == "__main__":
    main()
