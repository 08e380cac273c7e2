"""Errors of a user's hooks become one line with the place; those of this package stay as they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError, NonFiniteError
from fedflat.core.method import Method
from fedflat.core.object_references import allow_code
from fedflat.core.records import Delta, Model
from fedflat.core.user_code import class_title, own_errors_named
from fedflat.methods import FedAvg, find
from support.federation import simulation

HOOKS = ["init_server", "broadcast", "init_client", "start", "step", "finish", "receive", "update"]


def mine(**hooks: Callable[..., Any]) -> Method:
    """FedAvg with some hooks of the user's own."""
    return type("Mine", (FedAvg,), hooks, server=Model, down=Model, up=Delta)()


def line_of(function: Callable[..., Any]) -> int:
    return inspect.getsourcelines(function)[1] + 1


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("executor", ["sequential", "stacked", "auto"])
def test_every_hook_that_raises_is_named_with_its_line(hook: str, executor: str) -> None:
    arguments = ", ".join(inspect.signature(getattr(Method, hook)).parameters)
    scope: dict[str, Any] = {}
    code = f"def {hook}({arguments}):\n    raise KeyError('mine')\n"
    exec(compile(code, "/somewhere/mom.py", "exec"), scope)
    with pytest.raises(
        InputError, match=rf"^method \S*Mine: {hook} raised KeyError: 'mine' \(mom.py, line 2\)$"
    ) as caught:
        simulation(mine(**{hook: scope[hook]}), executor=executor).run()
    assert isinstance(caught.value.__cause__, KeyError), "the cause has the whole traceback"


def test_a_folder_whose_name_begins_like_the_packages_is_a_users() -> None:
    scope: dict[str, Any] = {}
    file = f"{Path(ff.__file__).parent}_mine/mom.py"
    exec(compile("def step(self, w, client, down, grad, ctx):\n    raise KeyError('mine')\n", file, "exec"), scope)
    with pytest.raises(InputError, match=r"step raised KeyError: 'mine' \(mom.py, line 2\)$"):
        simulation(mine(step=scope["step"]), executor="sequential").run()


def test_the_line_is_the_last_one_in_the_users_file() -> None:
    """A function that the hook calls, and torch below it."""

    def product(w: torch.Tensor) -> Any:
        return w @ torch.ones(3, 5)

    with pytest.raises(
        InputError, match=rf"step raised RuntimeError: .*\(test_user_code.py, line {line_of(product)}\)"
    ):
        simulation(mine(step=lambda self, w, client, down, grad, ctx: product(w)), executor="sequential").run()


def test_a_subclass_of_a_method_of_the_package_may_break_the_hook_that_it_inherits() -> None:
    """The error is raised in the package's file, so it keeps its traceback."""

    def broken(self: Method, w: Any, client: Any, down: Any, grad: Any, ctx: Any) -> Any:
        return FedAvg.step(self, w, client, down, None, ctx)

    with pytest.raises(TypeError, match="NoneType"):
        simulation(mine(step=broken), executor="sequential").run()


@pytest.mark.parametrize("error", [NonFiniteError("round 3"), MemoryError(), InputError("rho is too large")])
def test_an_error_with_words_of_its_own_stays(error: Exception) -> None:
    def step(self: Method, w: Any, client: Any, down: Any, grad: Any, ctx: Any) -> Any:
        raise error

    thing = mine(step=step)
    with pytest.raises(type(error)) as caught, own_errors_named("method", thing, ["step"]):
        thing.step(None, None, None, None, None)
    assert caught.value is error


def test_an_error_from_elsewhere_stays() -> None:
    with pytest.raises(ZeroDivisionError), own_errors_named("method", mine(), HOOKS):
        _ = 1 / 0


def test_a_class_is_called_as_its_user_names_it(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("from fedflat.methods import FedAvg\nclass Mine(FedAvg):\n    pass\n")
    with allow_code():
        assert class_title(find(f"{path}:Mine")) == "own.py:Mine"
    assert class_title(FedAvg) == "FedAvg"


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
def test_a_worker_names_the_line_too() -> None:
    """A worker's error comes without its traceback."""

    def step(self: Method, w: Any, client: Any, down: Any, grad: Any, ctx: Any) -> Any:
        raise KeyError("mine")

    message = rf"step raised KeyError: 'mine' \(test_user_\w+.py, line {line_of(step)}"
    with simulation(mine(step=step), executor="sequential", workers=2) as sim, pytest.raises(InputError, match=message):
        sim.run()


@pytest.mark.parametrize(
    ("hook", "returned", "message"),
    [
        ("step", lambda w, *_: w, r"step must return a pair \(Tensor, Nothing\), it returned a Tensor"),
        ("step", lambda w, client, *_: (client, w), r"pair \(Tensor, Nothing\), it returned \(Nothing, Tensor\)"),
        ("step", lambda *_: None, r"step must return a pair \(Tensor, Nothing\), it returned nothing"),
        ("finish", lambda w, *_: Delta(w), r"finish must return a pair \(Delta, Nothing\), it returned a Delta"),
        ("update", lambda server, *_: server.w, "update must return the record Model, it returned a Tensor"),
        ("receive", lambda up, ctx: up.delta, "receive must return the record Delta, it returned a Tensor"),
        ("broadcast", lambda server: server.w, "broadcast must return the record Model, it returned a Tensor"),
        ("init_server", lambda w: w, "init_server must return the record Model, it returned a Tensor"),
        ("init_client", lambda down: None, "init_client must return the record Nothing, it returned nothing"),
    ],
)
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_what_a_hook_must_return_is_said(hook: str, returned: Callable[..., Any], message: str, executor: str) -> None:
    method = mine(**{hook: lambda self, *arguments: returned(*arguments)})
    with pytest.raises(InputError, match=rf"^method \S*Mine: .*{message}$"):
        simulation(method, executor=executor).run()


def test_the_classes_of_a_session_have_no_file() -> None:
    scope: dict[str, Any] = {"ff": ff, "__name__": "a_session"}
    exec("class Mine(ff.Method, server=ff.core.records.Model): pass", scope)
    assert class_title(scope["Mine"]) == "Mine"
