"""The choice of a simulation's executor: the requested one, or the fastest of those with the same results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from time import perf_counter, process_time

import torch
from torch import Tensor, nn

from ..adapters import adapted_network
from ..core.errors import InputError, StackingError, with_type
from ..core.hidden_state import close
from ..core.local import LocalResult
from ..core.model_check import Randomness
from ..core.objective import Batch, Objective
from ..data.types import Index
from ..rounds.executor import Executor, Sequential, stacked
from ..rounds.local_training import ContextFactory
from .prepared import Graphed
from .ranks import Ranks
from .stacked import Compiled, Stacked

log = logging.getLogger(__name__)
EXECUTORS = {kind.__name__.lower(): kind for kind in (Sequential, Stacked, Compiled, Graphed)}
ASKED = "asked for"
LARGE = 2**20  # bytes of a model whose vectors do not fit into a core's cache: stacking it gains nothing
CLEARLY = 1.25  # speed-up that overrules the default; a smaller one may be noise, and equal runs should choose alike
WORTHWHILE = 1.1  # least speed-up for which a step is compiled; compiling takes seconds
TRIAL_STEPS = 1, 5  # local steps of each client in a short and in a long trial, which differ by steps alone
ENOUGH, MOST = 0.1, 20  # timing of an executor ends after this many seconds or trials, but not before two trials
COMPILING = 20.0  # seconds of a run in which compiling a step, which takes up to ten, pays off
LONG_TRIAL_STEPS, LONG_ENOUGH = (2, 12), 0.5  # the same for compiled steps, which are tried in long runs only
TRIAL_CLIENTS = 8  # most clients whose results are compared bit by bit
CHECKED_SAMPLES = 4  # samples whose gradients in a stack are compared with those of single clients


@dataclass(frozen=True)
class Choice:
    """The chosen executor of a simulation, and the reason for the choice."""

    executor: Executor
    reason: str
    seconds: dict[str, float] = field(default_factory=dict)  # processor time of a client's step, by timed executor

    @property
    def name(self) -> str:
        """The executor's name in settings."""
        return self.executor.name


def check_name(name: str, randomness_of: Randomness, device: torch.device) -> None:
    """Raise InputError for an unknown name, or for a model that the executor cannot run.

    Random numbers other than dropout's come from one generator, which cannot be seeded for each client of a stack.
    Dropout masks are computed from 64-bit hashes; for some shapes, the compiler of torch 2.13 computes wrong hashes.
    """
    if name != "auto" and name not in EXECUTORS:
        raise InputError(f"executor = {name!r} is unknown; known are auto, {', '.join(EXECUTORS)}")
    if name == "graphed" and device.type != "cuda":
        raise InputError("executor = 'graphed' replays CUDA graphs and needs a GPU; set device = 'cuda'")
    if randomness_of is Randomness.OTHER and name not in ("auto", "sequential"):
        raise InputError(f"executor = {name!r} cannot run a model that draws random numbers other than dropout")
    if randomness_of is Randomness.OF_BATCH and name not in ("auto", "sequential"):
        raise InputError(f"executor = {name!r} fills up short batches, and here a sample's scores depend on the "
                         "others; use 'sequential'")  # fmt: skip
    if randomness_of is Randomness.DROPOUT and name == "compiled":
        raise InputError("executor = 'compiled' cannot run a model with dropout; use 'stacked'")


def choose(name: str, make: Callable[[type[Executor]], Executor], cohort: Index, steps: float) -> Choice:
    """Return the executor called `name`; for `auto`, the one that runs the first steps of `cohort` (c,) fastest.

    steps: the number of local steps of all clients in the run; it decides whether compiling saves time. CUDA graphs,
    and compiling for a GPU, are used only on request, because the tests have not run them on a GPU.
    """
    one = make(Sequential)
    if name != "auto":
        if name in ("stacked", "compiled"):
            check_stack(one)
        if name == "graphed" and one.batches.data.is_on_host:
            raise InputError("executor = 'graphed' needs the samples on the GPU, and they need more than half of its "
                             "free memory; use 'stacked'")  # fmt: skip
        if name in ("compiled", "graphed") and one.batches.client.accumulate > 1:
            raise InputError(f"executor = {name!r} prepares steps of one batch; use 'stacked' with client.accumulate")
        return Choice(make(EXECUTORS[name]), ASKED)
    many = make(Stacked)
    if reason := _one_at_a_time(one, many, cohort):
        return Choice(one, reason)
    try:
        check_stack(one)
        choice = _faster(one, many, cohort)
    except Exception as error:  # a model that fails only in a stack can be trained without one
        Trial(one, cohort).run()
        log.warning("executor stacked fails, so one client is trained after another: %s", _in_a_line(error))
        return Choice(one, f"stacked fails: {_in_a_line(error)}")
    on_cpu, dropout = one.batches.data.y.device.type == "cpu", one.randomness is Randomness.DROPOUT
    short = steps * choice.seconds[choice.name] < COMPILING
    by_kind = choice.executor is one and _trains_alone(one.objective.module)
    return choice if by_kind or not on_cpu or dropout or short else _compiled(choice, make, cohort)


def _one_at_a_time(one: Executor, many: Executor, cohort: Index) -> str:
    """Return the reason, if one is known without a trial, to train clients one after another; empty otherwise."""
    if one.randomness is Randomness.OTHER:
        return "the model draws random numbers other than dropout"
    if one.randomness is Randomness.OF_BATCH:
        return "in the model, a sample's scores depend on the others of its batch"
    alone = min(many.chunk, len(cohort)) == 1
    return "only one client is stacked: there is one, or the model is large" if alone else ""


def _compiled(choice: Choice, make: Callable[[type[Executor]], Executor], cohort: Index) -> Choice:
    """Return `choice`, or the compiled executor if a trial shows that compiling is worthwhile."""
    plain, compiled = choice.executor, make(Compiled)
    try:
        seconds = choice.seconds | _step_times((plain, compiled), cohort, LONG_TRIAL_STEPS, LONG_ENOUGH)
    except Exception as error:
        log.warning("executor compiled fails, so steps are not compiled: %s", _in_a_line(error))
        return choice
    worthwhile = 0 < seconds[compiled.name] * WORTHWHILE < seconds[plain.name]
    return Choice(compiled, "a long run of small steps", seconds) if worthwhile else replace(choice, seconds=seconds)


def _in_a_line(error: Exception) -> str:
    """Return an error in one line, without the advice on the setting `executor`."""
    cause = error.__cause__ if isinstance(error, StackingError) and error.__cause__ else error
    return with_type(cause)


def agreed(
    ranks: Ranks, make: Callable[[type[Executor]], Executor], cohort: Index, chosen: Callable[[], Choice]
) -> Choice:
    """Return on all ranks the choice that `chosen` makes on rank 0; without ranks, the choice of this process.

    The number of ranks determines which clients share a stack. If the stack changes the bits of a client's result, a
    choice by `auto` is replaced by the sequential executor. A requested executor is kept, and the reason of the choice
    states that the bits depend on the number of ranks.
    """
    if ranks.alone:
        return chosen()
    choice: Choice | None = None
    with ranks.together():
        if ranks.index == 0:
            choice = chosen()
            if choice.executor.chunk > 1 and not stands_alone(choice.executor, cohort):
                if choice.reason == ASKED:
                    choice = replace(choice, reason=f"{ASKED}; the last bits depend on the number of ranks")
                else:
                    reason = "in stacks, the last bits would depend on the number of ranks"
                    choice = Choice(make(Sequential), reason, choice.seconds)
    name, reason, seconds = ranks.first(choice and (choice.name, choice.reason, choice.seconds))
    return choice or Choice(make(EXECUTORS[name]), reason, seconds)


def _faster(one: Executor, many: Executor, cohort: Index) -> Choice:
    """Return the faster of `one` (one client at a time) and `many` (a stack), timed on first steps of `cohort` (c,).

    By default, large models and models with convolutions or adapters train one client at a time: stacked convolutions
    become grouped convolutions, which are slower, and the vectors of a large model do not fit into the cache. Other
    models are stacked. A trial overrules this default only with a clear speed-up. Times of zero, measured by a coarse
    clock, do not overrule it.
    """
    seconds = _step_times((one, many), cohort)
    space, dtype = one.objective.space, one.batches.dtype
    large = space.d * dtype.itemsize > LARGE and one.batches.data.y.device.type == "cpu"
    by_rule, other = (one, many) if large or _trains_alone(one.objective.module) else (many, one)
    if 0 < seconds[other.name] * CLEARLY < seconds[by_rule.name]:
        return Choice(other, "much faster on the first steps", seconds)
    return Choice(by_rule, "by model, and not slower", seconds)


def _trains_alone(module: nn.Module) -> bool:
    """Tell whether a model has convolutions or adapters."""
    has_convolution = any(isinstance(x, nn.modules.conv._ConvNd) for x in module.modules())
    return has_convolution or adapted_network(module) is not None


def _step_times(
    executors: Sequence[Executor], cohort: Index, lengths: tuple[int, int] = TRIAL_STEPS, enough: float = ENOUGH
) -> dict[str, float]:
    """Estimate the seconds of a client's step with each executor, in a round of the run.

    A step's own time is the difference between a long and a short trial. What is left of the short trial is a cost of
    the round, which all local steps of the round share. Each trial counts with its shortest time, after a warm-up; the
    executors take turns. Processor time is measured, because other processes disturb it less than wall-clock time.
    """
    trials = [[Trial(executor, cohort, steps) for steps in lengths] for executor in executors]
    times: list[list[list[float]]] = []
    for trial in chain(*trials):
        trial.run()
    while len(times) < 2 or (sum(map(sum, chain(*times))) < enough * len(trials) and len(times) < MOST):
        times.append([[trial.seconds() for trial in pair] for pair in trials])
    found = {}
    for place, (executor, (short, long)) in enumerate(zip(executors, trials, strict=True)):
        shortest, longest = (min(some[place][k] for some in times) for k in (0, 1))
        found[executor.name] = _seconds_of_step(short.steps, long.steps, shortest, longest, short.round_steps)
    return found


def _seconds_of_step(short: int, long: int, short_seconds: float, long_seconds: float, steps: int) -> float:
    """Return the seconds of one of `steps` local steps, from trials of `short` and of `long` steps."""
    if short == long:  # no client takes more steps
        return long_seconds / long
    each = max(0.0, long_seconds - short_seconds) / (long - short)
    return each + max(0.0, short_seconds - short * each) / steps


class Trial:
    """A trial of an executor: the first local steps of some clients, from the initial model.

    The clients are those with the most steps in the cohort, as many as the executor runs at once.
    """

    def __init__(self, executor: Executor, cohort: Index, steps: int = 2) -> None:
        """Prepare the first `steps` local steps of clients of `cohort` (c,); `run` then takes these steps."""
        batches, method, space = executor.batches, executor.method, executor.objective.space
        whole = batches.plan(0, batches.longest_first(0, cohort)[: executor.chunk])
        self.plan = whole.first(steps)
        self.steps, self.round_steps = int(self.plan.steps.sum()), int(whole.steps.sum())  # of all clients together
        server = method.init_server(space.flatten(executor.objective.module))
        down = stacked(method.broadcast(server), self.plan.clients)
        contexts = ContextFactory(method, space, batches.client, batches.client.warmup + 1, server.w.device)
        ctx = contexts.of(0, 1.0, len(self.plan.clients))
        client, descent = method.init_client(down), batches.client.descent(ctx.lr)
        self._run: Callable[[], LocalResult]
        self._run = lambda: executor.run(self.plan, down, client, ctx, descent, executor.step)

    def run(self) -> Tensor:
        """Run the local steps of `plan`; return the clients' models, (c, d)."""
        return self._run().w

    def seconds(self) -> float:
        """Run the local steps of `plan`; return processor seconds on the CPU, else wall-clock seconds."""
        on_cpu = self.plan.samples.device.type == "cpu"
        clock = _gpu_clock if self.plan.samples.is_cuda else process_time if on_cpu else perf_counter
        started = clock()
        self.run()
        return clock() - started


def _gpu_clock() -> float:
    """Wait for the GPU, then return the clock in seconds."""
    torch.cuda.synchronize()
    return perf_counter()


def stands_alone(executor: Executor, cohort: Index) -> bool:
    """Tell whether a client's result has the same bits in any stack, by a trial with clients of `cohort` (c,).

    The answer depends on the functions in a model. For some functions, torch uses different kernels for the last
    elements of a tensor and for the rest, or for one matrix product and for several. The kernels may round differently.
    """
    clients = executor.batches.longest_first(0, cohort)[: min(executor.chunk, TRIAL_CLIENTS)]
    together = Trial(executor, clients).run()
    for part in (slice(0, 1), slice(1, None), slice(0, None, 2), slice(1, None, 2), slice(2, 5)):
        if len(clients[part]) and not torch.equal(Trial(executor, clients[part]).run(), together[part]):
            return False
    return True


def check_stack(one: Executor) -> None:
    """Raise StackingError unless gradients can be computed in a stack of clients and equal those of single clients."""
    objective, data = one.objective, one.batches.data
    for layer in objective.module.modules():
        has_padding = getattr(layer, "padding_idx", None) is not None and not isinstance(layer, nn.Embedding)
        if has_padding and any(p.requires_grad for p in layer.parameters(False)):
            raise StackingError(
                f"model: in a stack, torch trains the padding of {type(layer).__name__}; set executor = 'sequential'"
            )
    samples = torch.arange(min(CHECKED_SAMPLES, len(data.y)), device=data.y.device)
    x, y = (torch.stack([part, part.flip(0)]) for part in (data.inputs(samples), data.y[samples]))
    keys = torch.arange(2, device=samples.device) if one.randomness is Randomness.DROPOUT else None
    w = objective.space.flatten(objective.module)
    points = torch.stack([w, w * 1.01 + 0.001])
    together = _gradient(objective, points, Batch(x, y, key=keys))
    for i, gradient in enumerate(together):
        alone = _gradient(objective, points[i], Batch(x[i], y[i], key=None if keys is None else keys[i]))
        if not _close(gradient, alone, objective):
            raise StackingError(
                "model: torch gives other gradients for several clients at once; set executor = 'sequential'"
            )


def _gradient(objective: Objective, w: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Compute the gradient as `Objective.gradient` does, but always in the precision of the model."""
    w = w.detach().requires_grad_()
    with torch.enable_grad():
        gradient: torch.Tensor = torch.autograd.grad(objective.loss(w, batch).sum(), w)[0]
    return gradient


def _close(a: torch.Tensor, b: torch.Tensor, objective: Objective) -> bool:
    """Tell whether two gradients agree up to rounding errors of the least precise dtype among the parameters."""
    floating = [p.dtype for p in objective.module.parameters() if p.is_floating_point()]
    return close(a, b, max(torch.finfo(dtype).eps for dtype in floating) ** 0.4)
