from __future__ import annotations

from dataclasses import replace
from inspect import signature
from math import inf, nan

import pytest

import fedflat as ff
from fedflat import Client
from fedflat.core.errors import InputError
from fedflat.core.hyper import Interval, allowed
from fedflat.data.selection import DataOptions
from fedflat.methods import find
from fedflat.metrics.flatness.measures.sharpness import Sharpness

FedGF, FedCM, FedSMOO, FedSAM = map(find, ("FedGF", "FedCM", "FedSMOO", "FedSAM"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedSAM(rho=-1), r"FedSAM\.rho must be a number in \[0, inf\), got -1"),
        (lambda: FedSAM(rho=nan), r"FedSAM\.rho must be .*, got nan"),
        (lambda: FedSAM(rho="a"), r"FedSAM\.rho must be .*, got 'a'"),
        (lambda: FedSAM(rho=True), r"FedSAM\.rho must be .*, got True"),
        (lambda: FedSAM(rho=None), r"FedSAM\.rho must be .*, got None"),
        (lambda: FedCM(alpha=0), r"FedCM\.alpha must be a number in \(0, 1\], got 0"),
        (lambda: FedCM(server_lr_mode="best"), r"must be one of 'relative', 'absolute', got 'best'"),
        (lambda: FedGF(window=2.5), r"FedGF\.window must be a whole number in \[1, inf\), got 2.5"),
        (lambda: FedGF(c=1.5), r"FedGF\.c must be a number in \[0, 1\] or none, got 1.5"),
        (lambda: FedSMOO(dynamic_reg=1), r"FedSMOO\.dynamic_reg must be true or false, got 1"),
        (lambda: ff.LoRA(targets=("q",), head=0), r"adapter\.head must be a text, got 0"),
        (lambda: ff.LoRA(targets=("q",), start=-1), r"adapter\.start must be a text or none, got -1"),
        (lambda: DataOptions(test_domain=3), r"data\.test_domain must be a text or none, got 3"),
        (lambda: DataOptions(labels=True), r"data\.labels must be one of 'numbers', 'names', got True"),
    ],
)
def test_wrong_values_name_class_field_and_range(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_right_values_pass() -> None:
    assert FedGF(c=None, threshold=inf).c is None
    assert FedGF(c=1, rho=0).c == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedSAM(roh=0.1), r"FedSAM has no field 'roh'; it has .*rho.*; did you mean rho\?$"),
        (lambda: FedSAM(0.1), r"FedSAM takes its values by name, such as FedSAM\(server_lr=\.\.\.\); it has "),
        (lambda: FedSAM(rho=0.1, xyz=1), r"FedSAM has no field 'xyz'; it has [\w, ]+$"),
        (lambda: Client(learning_rate=0.1), r"Client has no field 'learning_rate'; it has lr, .*; did you mean lr\?$"),
        (lambda: Client(0.1), r"Client takes its values by name, such as Client\(lr=\.\.\.\)"),
        (lambda: Client(epoch=5), r"did you mean epochs\?$"),
        (lambda: Sharpness(0.1), r"Sharpness takes its values by name"),
        (lambda: Sharpness(rhoo=0.1), r"did you mean rho\?$"),
        (lambda: ff.Dirichlet(0.1, 0.2), r"Dirichlet takes its values by name, such as Dirichlet\(alpha=\.\.\.\)"),
        (lambda: ff.Dirichlet(0.1, alpha=0.2), r"Dirichlet takes its values by name"),
        (lambda: ff.Dirichlet(aplha=0.1), r"did you mean alpha\?$"),
        (lambda: ff.Domain(3), r"Domain has no fields; write Domain\(\)$"),
        (lambda: ff.Dirichlet("a"), r"Dirichlet\.alpha must be a number in \(0, inf\), got 'a'"),
    ],
)  # fmt: skip
def test_wrong_names_say_what_to_write(make, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_partition_takes_its_first_field_without_a_name() -> None:
    assert ff.Dirichlet(0.3) == ff.Dirichlet(alpha=0.3)
    assert ff.LabelDirichlet(0.3, least=2) == ff.LabelDirichlet(alpha=0.3, least=2)
    assert ff.Pathological(3).classes_per_client == 3


def test_the_signature_remains_that_of_the_fields() -> None:
    assert list(signature(ff.Dirichlet).parameters) == ["alpha"]
    assert list(signature(Client).parameters)[:2] == ["lr", "lr_decay"]
    assert replace(Client(lr=0.5), epochs=2) == Client(lr=0.5, epochs=2)


def test_interval() -> None:
    assert 0 in Interval(low=0)
    assert 0 not in Interval(low=0, open_low=True)
    assert 1.1 not in Interval(0, 1)
    assert allowed(FedCM, "alpha") == "a number in (0, 1]"
