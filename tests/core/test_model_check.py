from __future__ import annotations

import random
from collections.abc import Callable
from time import perf_counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fedflat.core.errors import InputError
from fedflat.core.hidden_state import close
from fedflat.core.model_check import Randomness, randomness_of


class Functional(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().forward(x), 0.5, self.training)


class Noisy(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.rand(x.shape) if self.training else x)


class Attention(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)[:, None]
        return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5 if self.training else 0.0)[:, 0]


class OneWay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("A gradient was refused")


class NoWayBack(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return OneWay.apply(super().forward(x))


class Recomputing(nn.Sequential):
    """Activation checkpointing: `functional_call` is over when the layers run again, so they see other parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Counting(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


class Failing(nn.Linear):
    def __init__(self, error: Exception) -> None:
        super().__init__(4, 3)
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


class Returning(nn.Linear):
    def __init__(self, change) -> None:
        super().__init__(4, 3)
        self.change = change

    def forward(self, x: torch.Tensor):
        return self.change(super().forward(x))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(4, 3), Randomness.NOTHING),
        (nn.Linear(4, 3).requires_grad_(False), Randomness.NOTHING),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), Randomness.DROPOUT),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5).eval()), Randomness.NOTHING),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)), Randomness.NOTHING),
        (nn.Sequential(nn.RReLU(), nn.Linear(4, 3)), Randomness.OTHER),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.AlphaDropout(0.5)), Randomness.OTHER),
        (Functional(4, 3), Randomness.DROPOUT),
        (Noisy(4, 3), Randomness.OTHER),
        (Attention(4, 3), Randomness.OTHER),
    ],
)
def test_random_numbers_are_seen_wherever_they_are_drawn(module: nn.Module, expected: Randomness) -> None:
    state = torch.get_rng_state()
    assert randomness_of(module, -torch.ones(2, 4), 3) is expected
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize(
    ("module", "x", "message"),
    [
        (Counting(4, 3), torch.zeros(2, 4), "buffer 'calls' changes in training"),
        (
            nn.Linear(5, 3),
            torch.zeros(2, 4),
            r"cannot take samples of shape \(4,\) and type torch.float32: (addmm: )?mat1 and mat2",
        ),
        (
            nn.Linear(4, 3),
            torch.zeros(2, 4, dtype=torch.int64),
            r"cannot take samples of shape \(4,\) and type torch.int64: it takes floats",
        ),
        (
            Recomputing(nn.Linear(4, 3), nn.Tanh()),
            torch.zeros(2, 4),
            r"a Linear is computed again for the gradient \(activation checkpointing\)",
        ),
        (NoWayBack(4, 3), torch.zeros(2, 4), "has no gradient: A gradient was refused"),
        (
            Failing(AttributeError("'list' object has no attribute 'x'")),
            torch.zeros(2, 4),
            "AttributeError: 'list' obj",
        ),
        (Failing(KeyError("ids")), torch.zeros(2, 4), "cannot take samples .*: KeyError: 'ids'"),
        (Failing(AssertionError()), torch.zeros(2, 4), "cannot take samples .*: AssertionError"),
        (Returning(lambda scores: {"out": scores}), torch.zeros(2, 4), "returns a dict with 'out'"),
        (nn.Linear(4, 2), torch.zeros(2, 4), r"gives scores of shape \(2, 2\) for 2 samples of 3 classes"),
    ],
)
def test_what_cannot_work_is_said_before_the_first_round(module: nn.Module, x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        randomness_of(module, x, 3)


def test_short_memory_is_no_fault_of_the_model() -> None:
    """The command line and a study say what to do about it; as an InputError it would be the model's."""

    def full(scores: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        randomness_of(Returning(full), torch.randn(2, 4), 3)


def test_probabilities_in_the_place_of_scores_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="as after a softmax; cross-entropy takes the softmax itself"):
        randomness_of(Returning(lambda scores: scores.softmax(-1)), torch.randn(2, 4), 3)


@pytest.mark.parametrize("change", [torch.sigmoid, torch.relu, lambda x: x.log_softmax(-1), lambda x: x])
def test_other_scores_are_not(change) -> None:  # a warning is an error in these tests
    randomness_of(Returning(change), torch.randn(2, 4), 3)
    randomness_of(nn.Sequential(nn.Linear(4, 1), nn.Softmax(-1)), torch.randn(2, 4), 1)  # one class: nothing to learn


class Doing(nn.Linear):
    """A layer that does something besides, given the layer, its input and its output."""

    total = 0
    other = nn.Linear(4, 3)

    def __init__(self, act: Callable[[Doing, torch.Tensor, torch.Tensor], torch.Tensor | None]) -> None:
        super().__init__(4, 3)
        self.act, self.calls, self.kept, self.mean = act, 0, [], torch.zeros(3)
        self.hidden, self.same = [nn.Linear(4, 3)], [self.weight]
        self.draws, self.torch_draws = np.random.default_rng(0), torch.Generator().manual_seed(0)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        found = self.act(self, x, out)
        return out if found is None else found


def count(layer: Doing, x: torch.Tensor, out: torch.Tensor) -> None:
    layer.calls += 1


def count_in_the_class(layer: Doing, x: torch.Tensor, out: torch.Tensor) -> None:
    Doing.total += 1


def count_globally(layer: Doing, x: torch.Tensor, out: torch.Tensor) -> None:
    global calls  # noqa: PLW0603  # what is refused
    calls += 1


def keep_the_first(layer: Doing, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    layer.kept = layer.kept or [out.detach().mean()]
    return out + layer.kept[0]


def average(layer: Doing, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    layer.mean = 0.9 * layer.mean + 0.1 * out.detach().mean(0)
    return out - layer.mean


def look_at_it_when_evaluated(layer: Doing, x: torch.Tensor, out: torch.Tensor) -> None:
    if not layer.training:
        layer.seen += 1


def clamp(layer: Doing, x: torch.Tensor, out: torch.Tensor) -> None:
    layer.weight.data.clamp_(-0.01, 0.01)


calls = 0
memory: list[int] = []


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (count, "what it keeps in 'calls' changes from pass to pass"),
        (count_in_the_class, "what it keeps in 'total' changes"),
        (count_globally, "what it keeps in 'act.calls' changes"),
        (lambda layer, x, out: memory.append(1), "what it keeps in 'act.memory"),
        (lambda layer, x, out, kept=[]: kept.append(1), "what it keeps in 'act.argument 0"),
        (lambda layer, x, out: layer.kept.append(1), "what it keeps in 'kept"),
        (keep_the_first, "what it keeps in 'kept.0' changes"),
        (average, "what it keeps in 'mean' changes"),
        (look_at_it_when_evaluated, "buffer 'seen' changes"),
        (lambda layer, x, out: out * random.random(), "random numbers of Python or NumPy"),
        (lambda layer, x, out: out * np.random.rand(), "random numbers of Python or NumPy"),
        (lambda layer, x, out: out * layer.draws.random(), "what it keeps in 'draws' changes"),
        (lambda layer, x, out: out + torch.rand(3, generator=layer.torch_draws), "'torch_draws' changes"),
        (lambda layer, x, out: out + perf_counter() % 1, "other scores or gradients for the same parameters"),
        (lambda layer, x, out: torch.dropout(out, 0.5, True), "draws random numbers in evaluation mode"),
        (lambda layer, x, out: out.detach(), "its scores have no gradient"),
        (lambda layer, x, out: torch.no_grad()(layer.__class__.__mro__[1].forward)(layer, x), "have no gradient"),
        (lambda layer, x, out: functional.one_hot(out.argmax(-1), 3), "gives scores of type torch.int64"),
        (lambda layer, x, out: layer.hidden[0](x), r"forward uses a tensor of shape \(3, 4\)|a tensor of shape \(3,\)"),
        (lambda layer, x, out: layer.other(x), "forward uses a tensor of shape"),
        (lambda layer, x, out: x @ layer.same[0].T, "forward uses parameter 'weight' that training would not move"),
        (lambda layer, x, out: x.mul_(2)[:, :3] + out, "changes its input in place"),
        (clamp, "changes its parameter 'weight' in place"),
        (lambda layer, x, out: out * layer.bias.requires_grad_(False).sum(), "changes requires_grad of its parameter"),
        (lambda layer, x, out: out if layer.training else out.argmax(-1), r"gives scores of shape \(2,\)"),
        (
            lambda layer, x, out: torch.zeros(2, 3, requires_grad=True) * 2,
            r"forward uses a tensor of shape|depend on no",
        ),
    ],
)
def test_what_a_copy_would_not_do_again_is_refused_in_one_line(act, message: str) -> None:
    state = random.getstate()
    with pytest.raises(InputError, match=message) as error:
        randomness_of(Doing(act), torch.randn(4, 4), 3)
    assert len(str(error.value).splitlines()) == 1
    random.setstate(state)


SYSTEM = random.SystemRandom()


def generator_of_the_system(layer: Doing, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return out * SYSTEM.random()


def test_a_generator_without_a_state_is_refused_by_what_it_does() -> None:
    model = Doing(generator_of_the_system)
    with pytest.raises(InputError, match="gives other scores or gradients for the same parameters and samples"):
        randomness_of(model, torch.randn(4, 4), 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_parameter_that_is_not_finite_is_named(value: float) -> None:
    model = Doing(lambda layer, x, out: out * layer.scale)
    model.scale = nn.Parameter(torch.tensor(value))
    with pytest.raises(InputError, match="its parameter 'scale' has NaN or infinite values before training"):
        randomness_of(model, torch.randn(4, 4), 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_can_be_compared(value: float) -> None:
    """A tolerance that is NaN is an error of torch's, and one that is infinite would take all numbers for equal."""
    a, b = torch.tensor([1.0, value]), torch.tensor([2.0, value])
    assert close(a, a, 1e-3)
    assert not close(a, b, 1e-3)


def last(layer: Doing, x: torch.Tensor, out: torch.Tensor) -> None:
    layer.last = out.detach()  # overwritten in each pass


def mask_of_size(layer: Doing, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if not layer.kept:
        layer.kept = [torch.arange(3)]  # whatever the samples are
    return out * layer.kept[0]


@pytest.mark.parametrize("act", [last, mask_of_size, lambda layer, x, out: out + out.detach()])
def test_what_each_pass_writes_anew_is_no_memory(act) -> None:
    assert randomness_of(Doing(act), torch.randn(4, 4), 3) is Randomness.NOTHING


@pytest.mark.parametrize(
    "act", [lambda layer, x, out: out - out.mean(0), lambda layer, x, out: out * len(torch.nonzero(x > -9))]
)
def test_scores_that_depend_on_the_batch_are_seen(act) -> None:
    """Executors other than `sequential` fill up short batches, which would change them."""
    assert randomness_of(Doing(act), torch.randn(4, 4), 3) is Randomness.OF_BATCH


def test_a_sparse_gradient_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(6, 3))
    with pytest.raises(InputError, match=r"gradient of '0.weight' is sparse; make the embedding with sparse=False"):
        randomness_of(model, torch.ones(2, 2, dtype=torch.int64), 3)


def test_probabilities_in_evaluation_mode_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="its scores in evaluation mode are all in"):
        randomness_of(Doing(lambda layer, x, out: out if layer.training else out.softmax(-1)), torch.randn(4, 4), 3)
