"""Every method keeps the contract of `core.method_contract`. A new method is checked here without any edit."""

from __future__ import annotations

from dataclasses import fields

import pytest

from fedflat.core.method import Method
from fedflat.core.method_contract import CONTRACT


@pytest.mark.parametrize("promise", CONTRACT)
def test_contract(method: Method, promise: str) -> None:
    CONTRACT[promise](method)


def test_it_is_documented(method: Method) -> None:
    cls = type(method)
    assert "client  " in (cls.__doc__ or ""), "the docstring gives the update"
    assert "server  " in (cls.__doc__ or "")
    assert cls.paper.year > 2015
    assert all(f.metadata["meaning"] for f in fields(cls))
    assert set(cls.sources.published) <= {f.name for f in fields(cls)}
    assert cls.sources.departures, "says where papers and code depart, or that there is no code"
    assert cls.paper.bibtex.startswith(("@inproceedings{", "@misc{"))
    hints = [hook for hook in ("step", "finish", "update") if "return" in getattr(cls, hook).__annotations__]
    assert hints == ["step", "finish", "update"]
