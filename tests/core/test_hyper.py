from __future__ import annotations

from math import inf, nan

import pytest

from fedflat.core.hyper import Interval, allowed
from fedflat.methods import find

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
    ],
)
def test_wrong_values_name_class_field_and_range(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_right_values_pass() -> None:
    assert FedGF(c=None, threshold=inf).c is None
    assert FedGF(c=1, rho=0).c == 1
    with pytest.raises(TypeError, match="unexpected keyword argument 'roh'"):
        FedSAM(roh=0.1)


def test_interval() -> None:
    assert 0 in Interval(low=0)
    assert 0 not in Interval(low=0, open_low=True)
    assert 1.1 not in Interval(0, 1)
    assert allowed(FedCM, "alpha") == "a number in (0, 1]"
