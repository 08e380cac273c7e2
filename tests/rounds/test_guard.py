"""The guard: what bounds it has, and that no client moves the mean by more than its share of them."""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedflat as ff
from fedflat.core.descent import Descent
from fedflat.core.errors import InputError
from fedflat.core.local import local_round
from fedflat.core.method import Method
from fedflat.core.method_contract import CLIENTS, SHAPES, STEPS, D, context, oracles, states, target
from fedflat.core.records import Record, Scalar, Vector, gradient_scale, in_range, record_norm, shortened_to
from fedflat.rounds.aggregation import RunningMean
from fedflat.rounds.guard import REMEMBERED, Guard, GuardState, lower_median
from support.effort import effort

LR = 0.1
STEPS_TAKEN = torch.tensor(STEPS, dtype=torch.float32)[:, None]


class Fields(Record):
    delta: Vector
    control: Vector = gradient_scale()
    cosine: Scalar = in_range(-1, 1)


def record(*rows: tuple[float, float, float]) -> Fields:
    """For each client a delta and a control of these lengths, and a cosine."""
    delta, control, cosine = torch.tensor(rows, dtype=torch.float64).T[:, :, None]
    return Fields(delta.expand(-1, 4) / 2, control.expand(-1, 4) / 2, cosine)


def guarded(start: float = 1.0, **settings) -> GuardState:
    return GuardState(Guard(**settings), start)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, "guard: nothing is bounded"), ({"bound": inf}, "guard: nothing is bounded"),
     ({"bound": 0.0}, "guard.bound must be"),
     ({"bound": nan}, "guard.bound must be"), ({"multiple": 0.9}, "guard.multiple must be"),
     ({"max_weight": 0.5}, "guard.max_weight must be"),
     ({"bound": 1.0, "action": "drop"}, "guard.action must be")],
)  # fmt: skip
def test_a_guard_that_would_be_none_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Guard(**settings)


def test_baselines_in_which_nothing_is_sent_have_no_guard() -> None:
    for name in ("Local", "Centralised"):
        with pytest.raises(InputError, match="no client sends"):
            GuardState.new(Guard(bound=1.0), ff.methods.find(name)(), torch.zeros(3))


def test_clipping_by_hand() -> None:
    """(3, 24 / 2) is 12.4 long: at most 6.2 halves both fields. A cosine has no length, and is cut to its range."""
    found = guarded(bound=153**0.5 / 2).screen(record((3, 24, 5), (3, 0, 0.5)), torch.full((2, 1), 0.5))
    assert (found.accepted.tolist(), found.clipped.tolist()) == ([True, True], [True, False])
    for name, x in record((1.5, 12, 1), (3, 0, 0.5)).tensors().items():
        torch.testing.assert_close(getattr(found.record, name), x, rtol=1e-15, atol=0)
    assert found.sent.tolist() == pytest.approx([153**0.5, 3])
    assert found.norms.tolist() == pytest.approx([153**0.5 / 2, 3])


def test_refusing_by_hand() -> None:
    found = guarded(bound=4.0, action="refuse").screen(record((4.1, 0, 0), (3.9, 0, 0), (1, 0, 1.1)), torch.ones(3, 1))
    assert found.accepted.tolist() == [False, True, False]
    assert torch.equal(found.record.delta[1], record((3.9, 0, 0)).delta[0]), "as it came"


@pytest.mark.parametrize("action", ["clip", "refuse"])
@pytest.mark.parametrize("number", [nan, inf, -inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_not_finite_is_refused(action: str, number: float, place: int) -> None:
    row = [0.0, 0.0, 0.0]
    row[place] = number
    for state in (guarded(bound=1.0, action=action), guarded(max_weight=2.0, action=action)):
        assert state.screen(record(tuple(row), (0, 0, 0)), torch.ones(2, 1)).accepted.tolist() == [False, True]


def test_the_bound_follows_the_running_median() -> None:
    """Before anything was accepted the norm of the initial model stands for it, or a fixed bound, which stays."""
    state = GuardState.new(Guard(multiple=3.0), ff.methods.FedAvg(), torch.tensor([3.0, 4.0]))
    assert (state.bound, GuardState.new(Guard(multiple=3.0), ff.methods.FedAvg(), torch.zeros(3)).bound) == (15.0, 3.0)
    for norms in ([1.0, 2.0, 900.0], [4.0, 5.0], [0.5]):
        state = state.updated(norms)
    assert (state.medians, state.bound) == ((2.0, 4.0, 0.5), 6.0)
    for _ in range(REMEMBERED):
        state = state.updated([7.0])
    assert (state.medians, state.bound) == ((7.0,) * REMEMBERED, 21.0)
    both = guarded(start=100.0, bound=5.0, multiple=3.0)
    assert [both.bound, both.updated([1.0]).bound, both.updated([2.0]).bound] == [5.0, 3.0, 5.0]
    assert guarded(bound=2.0).updated([9.0]) == guarded(bound=2.0)


# The squares of smaller numbers than this have fewer digits.
NORMS = st.floats(0, 1e6).filter(lambda x: x == 0 or x > 1e-150)


@settings(max_examples=effort(50, 200))
@given(st.lists(NORMS, min_size=1, max_size=9), st.integers(0, 4), st.floats(1, 5))
def test_a_minority_cannot_raise_the_bound_above_what_an_honest_client_gives(honest, hostile: int, multiple) -> None:
    """However many rounds it sends as much as it may."""
    hostile = min(hostile, len(honest) - 1)
    state = guarded(start=1e7, multiple=multiple)
    for _ in range(2 * REMEMBERED):
        norms = state.screen(record(*((x, 0, 0) for x in [*honest, *[1e9] * hostile])), torch.ones(1, 1)).norms.tolist()
        state = state.updated(norms)
    assert state.bound <= multiple * max(honest)


def test_weights_are_limited_by_the_lower_median() -> None:
    """And stay whole numbers, with which products are exact."""
    weights = torch.tensor([3, 5, 1_000_000_000, 4], dtype=torch.float64)[:, None]
    assert Guard(max_weight=2.4).limited(weights).flatten().tolist() == [3, 5, 9, 4]
    assert torch.equal(Guard(bound=1.0).limited(weights), weights)


def test_what_a_checkpoint_kept_is_checked() -> None:
    state = guarded(multiple=2.0).updated([3.0])
    assert guarded(multiple=2.0).restored(list(state.medians)) == state
    for wrong in ([nan], [-1.0], [inf], ["x"], 3):
        with pytest.raises((ValueError, TypeError)):
            state.restored(wrong)


def honest_messages(method: Method) -> Record:
    """What four clients send that take different numbers of steps, in float32."""
    method = method.on_model(SHAPES)
    _, down, client = states(method, torch.float32)
    steps = context(torch.float32).local_steps
    found = local_round(
        method, down, client, oracles(target(CLIENTS, torch.float32)), context(torch.float32), Descent(LR)
    )
    assert torch.equal(found.steps, steps)
    return found.up


def received(method: Method, up: Record) -> Record:
    return method.receive(up, context(torch.float32, steps=STEPS_TAKEN, lr_sum=STEPS_TAKEN * LR))


def mean_of(method: Method, rows: Record, accepted: torch.Tensor, weights: torch.Tensor) -> Record:
    mean = RunningMean(method, torch.zeros(D))
    mean.add(rows.map(lambda x: x[accepted]), STEPS_TAKEN[accepted], weights[accepted])
    return mean.value()


def test_a_shortened_record_is_that_of_a_shortened_message(method: Method) -> None:
    """What the server makes of a message keeps what it means: FedExP's square is that of the shortened move."""
    up = honest_messages(method)
    whole = received(method, up)
    squared = whole.marked("squared_length")
    norm = record_norm(whole, STEPS_TAKEN * LR, frozenset(whole.ranges()), squared)
    short = shortened_to(whole, norm, 0.5 * float(norm.min()), squared)
    factor = 0.5 * float(norm.min()) / norm
    squares = up.marked("squared_length")
    shorter = {name: (x * (factor**2 if name in squares else factor)).float() for name, x in up.tensors().items()}
    expected = received(method, type(up)(**shorter))
    for name, x in short.tensors().items():
        if name not in whole.ranges():
            torch.testing.assert_close(x, getattr(expected, name), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("action", ["clip", "refuse"])
def test_no_message_moves_the_mean_by_more_than_its_share_of_the_bound(method: Method, action: str) -> None:
    """Any finite numbers, of any sign and size, and some that the server's own arithmetic takes beyond all numbers.

    The mean is compared with the one in which that client's record is zero.
    """
    honest = honest_messages(method)

    @settings(max_examples=effort(15, 40))
    @given(
        st.integers(0, 2**32 - 1),
        st.floats(-45, 38),
        st.floats(0, 40),
        st.lists(st.integers(1, 1000), min_size=4, max_size=4),
    )
    def check(seed: int, largest: float, spread: float, sizes: list[int]) -> None:
        draw = torch.Generator().manual_seed(seed)

        def any_numbers(x: torch.Tensor) -> torch.Tensor:
            powers = largest - spread * torch.rand(x[0].shape, generator=draw, dtype=torch.float64)
            signs = torch.randint(0, 2, x[0].shape, generator=draw) * 2 - 1
            return torch.cat([(signs * 10**powers).float()[None], x[1:]])

        check_shares(method, received(method, honest.map(any_numbers)), action, sizes)

    check()


def check_shares(method: Method, rows: Record, action: str, sizes: list[int]) -> None:
    """The first of `rows` moves no field of the mean by more than its share of the bound."""
    method = method.on_model(SHAPES)
    bound, weights = 0.7, torch.tensor(sizes, dtype=torch.float64)[:, None]
    found = guarded(bound=bound, action=action).screen(rows, STEPS_TAKEN * LR)
    if not found.accepted[0]:
        return  # it is not in the mean at all
    zero = found.record.map(lambda x: torch.cat([torch.zeros_like(x[:1]), x[1:]]))
    with_it, without = (mean_of(method, one, found.accepted, weights) for one in (found.record, zero))
    counted = weights[found.accepted]
    for name, x in with_it.tensors().items():
        share = 1 / len(counted) if name in rows.marked("uniform_mean") else float(sizes[0] / counted.sum())
        other = getattr(without, name)
        rounded = 1e-6 * float(other.abs().max()) * x.numel() if x.numel() else 0.0
        assert float((x.double() - other.double()).norm()) <= share * limit_of(name, rows, bound) * (1 + 1e-5) + rounded


def limit_of(name: str, rows: Record, bound: float) -> float:
    """How long a field of the first of `rows` may be, in its own unit."""
    if name in rows.ranges():
        return max(map(abs, rows.ranges()[name]))
    if name in rows.marked("squared_length"):
        return (bound / (STEPS[0] * LR if name in rows.marked("gradient_scale") else 1)) ** 2
    return bound / (STEPS[0] * LR) if name in rows.marked("gradient_scale") else bound


def test_the_property_fails_without_the_guard() -> None:
    """Or the test above would show nothing."""
    rows = received(
        ff.methods.FedAvg(), honest_messages(ff.methods.FedAvg()).map(lambda x: torch.cat([x[:1] * 1e6, x[1:]]))
    )
    assert (
        float(mean_of(ff.methods.FedAvg(), rows, torch.ones(4, dtype=torch.bool), torch.ones(4, 1)).delta.norm()) > 1e3
    )


def test_every_scalar_that_is_averaged_has_a_unit(method: Method) -> None:
    """A length, a squared length or a range; who adds a method with another has to say which it is."""
    scalars = {f.name for f in fields(method.mean) if method.mean.widths(7, method)[f.name] == 1}
    known = {"FedGF": {"drift"}}  # a length
    marked = method.mean.marked("squared_length") | set(method.mean.ranges())
    assert scalars - known.get(type(method).__name__, set()) <= marked


def test_the_lower_median_is_reached_by_more_than_half() -> None:
    assert [lower_median([3.0, 1.0, 2.0]), lower_median([4.0, 1.0, 2.0, 3.0]), lower_median([5.0])] == [2.0, 2.0, 5.0]
    assert replace(guarded(multiple=2.0), medians=(1.0, 8.0)).bound == 2.0
