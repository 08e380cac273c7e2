from __future__ import annotations

import sys

import pytest
import torch

from fedflat.core.method import GROUPS, Method
from fedflat.core.records import Model
from fedflat.core.wrapper import Wrapper
from fedflat.methods import all_methods, find
from fedflat.methods.fedsam import FedSAM


def test_unknown_class_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="unknown class keyword 'sever'"):

        class Wrong(Method, sever=Model):
            """Misspelt."""


def test_defaults_of_server_and_broadcast() -> None:
    method = find("Scaffold")()
    server = method.init_server(torch.ones(3))
    assert torch.equal(server.w, torch.ones(3))
    assert not server.c.any()
    assert method.broadcast(server).tensors().keys() == {"w", "c"}


def test_methods_are_found_by_any_spelling() -> None:
    assert find("fed-SMOO") is find("FedSMOO") is all_methods()["FedSMOO"]
    with pytest.raises(ValueError, match=r"unknown method 'fedfoo'; known are .*FedAvg, "):
        find("fedfoo")


def test_the_nine_methods_of_the_main_job_and_fedcm_are_there() -> None:
    nine = {"FedAvg", "Scaffold", "FedDyn", "FedSAM", "MoFedSAM", "FedSMOO", "FedLESAM", "FedGF", "FedVSSAM"}
    assert nine | {"FedCM"} <= set(all_methods())


@pytest.mark.parametrize("cls", all_methods().values(), ids=all_methods())
def test_every_method_of_the_package_states_its_own_group(cls: type[Method]) -> None:
    """Most inherit from FedAvg, whose group is not theirs."""
    assert vars(cls).get("group") in GROUPS


def test_a_users_method_is_in_the_group_of_its_base_or_among_the_others() -> None:
    class Mine(FedSAM):
        """A user's own variant."""

    class Around(Wrapper):
        """A user's own wrapper, whose idea need not be that of the method inside."""

        base: Method = FedSAM()

    assert Mine.group == FedSAM.group == "flat"
    assert Around.group == Method.group == "others"


def test_a_method_without_a_paper_is_a_base_of_others() -> None:
    """So that a new method that forgot its citation, and would not be listed, is noticed here."""

    def descendants(cls: type[Method]) -> list[type[Method]]:
        return [cls, *(below for sub in cls.__subclasses__() for below in descendants(sub))]

    listed = set(all_methods().values())
    for cls in descendants(Method):
        if cls.__module__.startswith("fedflat.methods") and cls.__module__ in sys.modules and cls not in listed:
            assert set(descendants(cls)) & listed, f"{cls.__name__} is no base: give it a paper"
