"""A method around another one: everything that it does not change is the other's."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from fedflat.core.errors import InputError
from fedflat.core.local import has_schedule
from fedflat.core.method import Context, Method, hyper
from fedflat.core.user_code import HOOKS, check_method_class
from fedflat.core.wrapper import Wrapper, chain, label_of, serves_another
from fedflat.methods import all_methods, find
from fedflat.rounds.segments import code_digest, source_digest
from support.federation import final_w, simulation

FedAvg = find("FedAvg")


class Around(Wrapper):
    """It changes nothing."""

    base: Method = hyper(FedAvg(), "the method inside")


class Halved(Around):
    """It halves the step size of every round."""

    def round_lr(self, ctx: Context) -> float:
        return super().round_lr(ctx) / 2


INSIDE = {name: cls for name, cls in all_methods().items() if not issubclass(cls, Wrapper)}


@pytest.mark.parametrize("name", ["FedSMOO", "FedLESAM", "FedMoSWA", "FedExP", "FedRobust", "Centralised"])
def test_around_a_method_it_is_that_method(name: str) -> None:
    method = find(name)()
    for executor in ("sequential", "stacked"):
        assert torch.equal(final_w(Around(base=method), executor=executor), final_w(method, executor=executor))


def test_every_hook_and_property_of_a_method_is_passed_on() -> None:
    """A hook that the interface gets later, and that `Wrapper` does not pass on, would be lost without a word."""
    public = {name for name in vars(Method) if not name.startswith("_")}
    assert set(HOOKS) <= public
    assert public <= set(vars(Wrapper)) | {"group", "sources"}, "these are of the wrapper's own paper"


@pytest.mark.parametrize("cls", INSIDE.values(), ids=INSIDE)
def test_what_is_asked_of_the_method_is_answered_by_the_base(cls: type[Method]) -> None:
    base = cls().fitted((3, 2, 2))
    around = Around(base=cls()).fitted((3, 2, 2))
    for role in ("server", "client", "down", "up", "mean", "weights", "training"):
        assert getattr(around, role) is getattr(base, role)
    for record in (base.server, base.client, base.down, base.up, base.mean):
        assert record.widths(12, around) == record.widths(12, base)
    assert has_schedule(around) == has_schedule(base)
    assert serves_another(around) == serves_another(base)
    assert around.base == base


def test_a_hook_that_is_changed_is_seen_by_the_base() -> None:
    halved, slower = (
        simulation(m, client={"lr": lr})
        for m, lr in ((Halved(base=find("Scaffold")()), 0.2), (find("Scaffold")(), 0.1))
    )
    assert torch.equal(halved.run().w, slower.run().w)
    assert [row["lr"] for row in halved.history] == [row["lr"] for row in slower.history]


def test_it_is_copied_and_pickled() -> None:
    method = Halved(base=find("FedSAM")(rho=0.3))
    assert copy.deepcopy(method) == method == pickle.loads(pickle.dumps(method))
    with pytest.raises(AttributeError, match="nothing"):
        method.nothing  # noqa: B018


def test_its_name_and_code_are_of_both() -> None:
    one, other = find("SWA")(base=find("FedSAM")()), find("SWA")(base=find("FedASAM")())
    assert [type(x).__name__ for x in chain(one)] == ["SWA", "FedSAM"]
    assert (label_of(one), label_of(FedAvg())) == ("SWA-FedSAM", "FedAvg")
    assert code_digest(one) != code_digest(other)
    assert code_digest(FedAvg()) == source_digest(FedAvg)


def test_a_wrapper_of_ones_own_is_a_method() -> None:
    check_method_class(Around)

    class Bare(Wrapper):
        """The method inside has no default."""

    with pytest.raises(InputError, match=r"^Bare needs a default for the method inside"):
        check_method_class(Bare)


def test_one_around_another_is_refused() -> None:
    with pytest.raises(InputError, match=r"^Around\.base: Around is a wrapper itself"):
        Around(base=Around())


def test_an_error_of_a_method_inside_names_that_method() -> None:
    class Mine(FedAvg):
        """client  -  server  -"""

        def step(self, w, client, down, grad, ctx):
            raise KeyError("mine")

    with pytest.raises(
        InputError, match=r"method test_wrapper\.py:\S*Mine: step raised KeyError: 'mine' \(test_wrapper"
    ):
        simulation(Around(base=Mine()), executor="sequential").run()


def test_planned_rounds_are_known_to_those_that_say_so_alone() -> None:
    seen = []

    class Asks(FedAvg):
        """client  -  server  -"""

        def step(self, w, client, down, grad, ctx):
            seen.append(ctx.rounds)
            return super().step(w, client, down, grad, ctx)

    class Says(Asks):
        """client  -  server  -"""

        depends_on_rounds = True

    for method, rounds in ((Asks(), 0), (Says(), 3), (Around(base=Says()), 3)):
        seen.clear()
        simulation(method, rounds=3, executor="sequential").round()
        assert set(seen) == {rounds}
