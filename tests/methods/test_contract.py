"""Every method keeps the contract of `support.contract`. A new method is checked here without any edit."""

from __future__ import annotations

import pytest

from fedflat.core.method import Method
from support.contract import CONTRACT


@pytest.mark.parametrize("promise", CONTRACT)
def test_contract(method: Method, promise: str) -> None:
    CONTRACT[promise](method)
