"""Which executor a simulation uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time

import torch
from torch import nn

from ...core.errors import InputError
from ...core.model_check import Randomness
from ...data.federated import Index
from ...rounds.executor import Executor
from ...rounds.sequential import Sequential
from ..ranks import Ranks
from .graphed import Graphed
from .stacked import Compiled, Stacked
from .trial import Trial, stands_alone

EXECUTORS = {kind.__name__.lower(): kind for kind in (Sequential, Stacked, Compiled, Graphed)}
ASKED = "asked for"
CLEARLY = 1.5  # times faster than what the rule says; less may be noise, and a choice should not change from run to run
WORTHWHILE = 1.2  # times faster that a compiled step must be, which takes seconds to make
ENOUGH, MOST = 0.03, 20  # seconds of trying a way out, and times; two times at least, as anything may come between
COMPILING = 60.0  # seconds that compiling and trying a step may take, generously


@dataclass(frozen=True)
class Choice:
    """The executor of a simulation and how it was found."""

    executor: Executor
    reason: str
    seconds: dict[str, float] = field(default_factory=dict)  # processor time of a client's step, where it was timed

    @property
    def name(self) -> str:
        """As in settings."""
        return _name(self.executor)


def check_name(name: str, randomness_of: Randomness, device: torch.device) -> None:
    """Raise InputError for an unknown name, or for a model that the executor cannot run.

    Random numbers other than dropout's come from one generator, which cannot be seeded for each client of a stack.
    Dropout's masks are hashes of 64 bits, which the compiler of torch 2.13 gets wrong for some shapes.
    """
    if name != "auto" and name not in EXECUTORS:
        raise InputError(f"executor = {name!r} is unknown; known are auto, {', '.join(EXECUTORS)}")
    if name == "graphed" and device.type != "cuda":
        raise InputError("executor = 'graphed' replays CUDA graphs and needs a GPU; set device = 'cuda'")
    if randomness_of is Randomness.OTHER and name not in ("auto", "sequential"):
        raise InputError(f"executor = {name!r} cannot run a model that draws random numbers other than dropout")
    if randomness_of is Randomness.DROPOUT and name == "compiled":
        raise InputError("executor = 'compiled' cannot run a model with dropout; use 'stacked'")


def choose(name: str, make: Callable[[type[Executor]], Executor], cohort: Index, steps: float) -> Choice:
    """The executor called `name`; for `auto` the one that is faster on the first steps of `cohort` (c,).

    `steps` are the client steps of the whole run: compiling pays from some number on. Small models without
    convolutions are stacked and others go one after another unless the trial says clearly otherwise: stacked
    convolutions become grouped ones, which are slower.
    """
    one = make(Sequential)
    if name != "auto":
        return Choice(make(EXECUTORS[name]), ASKED)
    if one.randomness is Randomness.OTHER:
        return Choice(one, "the model draws random numbers other than dropout")
    if one.batches.data.y.is_cuda:
        one = make(Graphed)
    many = make(Stacked)
    if min(many.chunk, len(cohort)) == 1:
        return Choice(one, "only one client is stacked: there is one, or the model is large")
    return _timed(one, many, lambda: make(Compiled), cohort, steps)


def agreed(
    ranks: Ranks, make: Callable[[type[Executor]], Executor], cohort: Index, chosen: Callable[[], Choice]
) -> Choice:
    """The same executor for all ranks, of those that were started as ranks: what rank 0 has `chosen`.

    A trial that prefers stacks is overruled for models whose clients have other bits in other stacks: who is stacked
    with whom depends on the number of ranks.
    """
    if ranks.alone:
        return chosen()
    mine: Choice | None = None
    with ranks.together():
        if ranks.index == 0:
            mine = _exact(chosen(), make, cohort)
    name, reason, seconds = ranks.first(mine and (mine.name, mine.reason, mine.seconds))
    return mine or Choice(make(EXECUTORS[name]), reason, seconds)


def _exact(choice: Choice, make: Callable[[type[Executor]], Executor], cohort: Index) -> Choice:
    """`choice`, unless it is found by trial and its bits depend on the stack; one that was asked for says so."""
    if choice.executor.chunk == 1 or stands_alone(choice.executor, cohort):
        return choice
    if choice.reason == ASKED:
        return replace(choice, reason=f"{ASKED}; the last bits depend on the number of ranks")
    return Choice(make(Sequential), "in stacks, the last bits would depend on the number of ranks", choice.seconds)


def _timed(one: Executor, many: Executor, compiled: Callable[[], Executor], cohort: Index, steps: float) -> Choice:
    """The faster of two, and the compiled stack if the run is long enough for it."""
    seconds = {_name(executor): _step_time(executor, cohort) for executor in (one, many)}
    expected, other = (one, many) if _convolutional(one) else (many, one)
    faster = seconds[_name(other)] * CLEARLY < seconds[_name(expected)]
    chosen, reason = (other, "much faster on the first steps") if faster else (expected, "by model, and not slower")
    if chosen is one or one.randomness is Randomness.DROPOUT or steps * seconds[_name(many)] < COMPILING:
        return Choice(chosen, reason, seconds)
    last = compiled()
    seconds[_name(last)] = _step_time(last, cohort)
    if seconds[_name(last)] * WORTHWHILE < seconds[_name(many)]:
        return Choice(last, "a long run of small steps", seconds)
    return Choice(chosen, reason, seconds)


def _name(executor: Executor) -> str:
    return type(executor).__name__.lower()


def _step_time(executor: Executor, cohort: Index) -> float:
    """Seconds of one client's step (of the processor, or on a GPU), the best of some after one that warms up."""
    trial = Trial(executor, cohort)
    trial.run()
    on_gpu = trial.plan.samples.is_cuda
    times: list[float] = []
    while len(times) < 2 or (sum(times) < ENOUGH and len(times) < MOST):
        started = _clock(on_gpu)
        trial.run()
        times.append(_clock(on_gpu) - started)
    return min(times) / int(trial.plan.steps.sum())


def _clock(on_gpu: bool) -> float:
    """Seconds that the processor has worked, which other processes disturb less; the time on a GPU that is done."""
    if not on_gpu:
        return process_time()
    torch.cuda.synchronize()
    return perf_counter()


def _convolutional(executor: Executor) -> bool:
    return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in executor.objective.module.modules())
