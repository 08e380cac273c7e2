"""The stand-in for a GPU sees what a GPU would refuse, and what would wait for one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedflat.core.records import is_finite
from support.meta_device import MetaDevice, WrongDeviceError

ON_CPU = torch.ones(3)


def on_device() -> torch.Tensor:
    return torch.ones(3, device="meta")


@pytest.mark.parametrize(
    "mixed",
    [
        lambda: on_device() + ON_CPU,
        lambda: torch.cat([on_device(), ON_CPU]),
        lambda: on_device().index_select(0, torch.tensor([0])),
        lambda: torch.zeros(()).add_(on_device().sum()),  # of one number, but it is the result
        lambda: ON_CPU.index_put((torch.tensor([0]),), on_device()[:1]),
    ],
    ids=["sum", "concatenation", "selection", "result", "assignment"],
)
def test_a_tensor_left_on_the_cpu_raises_at_once(mixed: Callable[[], object]) -> None:
    with MetaDevice(), pytest.raises(WrongDeviceError):
        mixed()


def test_a_number_of_the_cpu_is_no_mistake() -> None:
    with MetaDevice() as device:
        assert (on_device() * torch.tensor(2.0)).is_meta
    assert not device.waits


@pytest.mark.parametrize(
    ("waits", "kind"),
    [
        (lambda: on_device().sum().item(), "read"),
        (lambda: bool(on_device().any()), "read"),
        (lambda: on_device().tolist(), "read"),
        (lambda: on_device().cpu(), "read"),
        (lambda: torch.zeros(3).copy_(on_device()), "read"),
        (lambda: torch.nonzero(on_device()), "read"),
        (lambda: on_device()[on_device() > 0], "read"),
        (lambda: torch.equal(on_device(), on_device()), "read"),
        (lambda: on_device()[np.array([0])], "upload"),
        (lambda: ON_CPU.to("meta"), "upload"),
        (lambda: torch.tensor([1.0, 2.0], device="meta"), "upload"),
        (lambda: on_device().new_tensor([1.0]), "upload"),
        (lambda: on_device().copy_(ON_CPU), "upload"),
    ],
)
def test_what_waits_is_seen_once(waits: Callable[[], object], kind: str) -> None:
    with MetaDevice() as device:
        waits()
    assert [wait.kind for wait in device.waits] == [kind]


def test_copies_that_do_not_wait_are_counted_apart() -> None:
    with MetaDevice() as device:
        ON_CPU.to("meta", non_blocking=True)
        on_device().copy_(ON_CPU, non_blocking=True)
    assert not device.waits
    assert [copy.kind for copy in device.sent] == ["upload", "upload"]


def test_a_place_is_the_innermost_line_of_our_code() -> None:
    with MetaDevice() as device:
        is_finite(ON_CPU.to("meta", non_blocking=True)).item()
        is_finite(torch.ones(2, 3, device="meta")).tolist()
    assert {wait.place for wait in device.waits} == {"outside"}, "the reads are here, and not in `is_finite`"


def test_numbers_are_made_up_alike_for_a_shape() -> None:
    with MetaDevice():
        assert torch.equal(torch.ones(4, device="meta").cpu(), torch.zeros(4, device="meta").cpu())


def results() -> list[torch.Tensor]:
    """Of operations that differ in what decides the form of a result: kinds, sizes, steps, numbers, lists."""
    x, whole = torch.ones(2, 3, device="meta"), torch.ones(2, 3, device="meta", dtype=torch.int64)
    grown = torch.ones(2, 3, device="meta")
    return [
        *(x + 1, whole + 1, whole + 1.0, whole + True, x.double() + x, x.t() + 1, x[:1] + 1),
        *(x.sum(0), x.sum(1), x.sum(1, keepdim=True), x.sum(1, dtype=torch.float64)),
        *(torch.cat([x, x]), torch.cat([x, x], 1), torch.cat([x]), x.clone(), x.t().clone(), x.t().contiguous()),
        *(x.add_(1), x.mul_(x), x.t_(), grown.resize_(4), grown.resize_(4), x.new_zeros(2), x.max(0)[1]),
    ]


def test_results_have_the_form_that_torch_gives_them_however_often() -> None:
    expected = [(x.shape, x.stride(), x.dtype) for x in results()]
    with MetaDevice():
        for _ in range(3):
            assert [(x.shape, x.stride(), x.dtype) for x in results()] == expected
