"""Methods around another method, whose records and hooks they take over and change in part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

from torch import Tensor

from .errors import InputError
from .method import Context, Method, Oracle


class OfBase:
    """An attribute that a wrapper has from its base; asked of the class, it is that of the default base."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __get__(self, wrapper: Any, kind: Any) -> Any:
        return getattr((kind if wrapper is None else wrapper).base, self.name)


class Wrapper(Method):
    """A method around another one, `base`: records, hooks and all else are those of the base.

    A subclass gives `base` a default, and changes the hooks that it is about, whose `super()` is the base. It cannot
    go around a wrapper. The file of the base need not know of it.
    """

    base: Method

    weights: ClassVar[Any] = OfBase()
    training: ClassVar[Any] = OfBase()
    depends_on_rounds: ClassVar[Any] = OfBase()
    server: ClassVar[Any] = OfBase()
    client: ClassVar[Any] = OfBase()
    down: ClassVar[Any] = OfBase()
    up: ClassVar[Any] = OfBase()
    mean: ClassVar[Any] = OfBase()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.base, Wrapper):
            raise InputError(nested(type(self).__name__, type(self.base).__name__))

    def __getattr__(self, name: str) -> Any:
        """What records ask of a method, such as an option that says how wide a field is, is asked of the base."""
        if name == "base" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self.base, name)

    @property
    def needs_equal_weights(self) -> bool:
        return self.base.needs_equal_weights

    @property
    def penalty(self) -> float:
        return self.base.penalty

    def fresh_weight(self, down: Any) -> Tensor | float:
        return self.base.fresh_weight(down)

    def fitted(self, shape: tuple[int, ...]) -> Self:
        return replace(self, base=self.base.fitted(shape))

    def check_rounds(self, rounds: int) -> None:
        self.base.check_rounds(rounds)

    def round_lr(self, ctx: Context) -> float:
        return self.base.round_lr(ctx)

    def init_server(self, w: Tensor) -> Any:
        return self.base.init_server(w)

    def broadcast(self, server: Any) -> Any:
        return self.base.broadcast(server)

    def init_client(self, down: Any) -> Any:
        return self.base.init_client(down)

    def start(self, down: Any, client: Any) -> Tensor:
        return self.base.start(down, client)

    def moving(self, down: Any) -> Tensor | None:
        return self.base.moving(down)

    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        return self.base.step(w, client, down, grad, ctx)

    def finish(self, w: Tensor, client: Any, down: Any, ctx: Context) -> tuple[Any, Any]:
        return self.base.finish(w, client, down, ctx)

    def lr_factor(self, ctx: Context) -> Tensor | float:
        return self.base.lr_factor(ctx)

    def receive(self, up: Any, ctx: Context) -> Any:
        return self.base.receive(up, ctx)

    def update(self, server: Any, mean: Any, ctx: Context) -> Any:
        return self.base.update(server, mean, ctx)

    def served(self, server: Any) -> Tensor:
        return self.base.served(server)


def nested(wrapper: str, base: str) -> str:
    """Why one wrapper does not go around another, given their names."""
    return (
        f"{wrapper}.base: {base} is a wrapper itself, and {wrapper} goes around a method that is none, such as FedSAM"
    )


def chain(method: Method) -> list[Method]:
    """The method, and inside a wrapper the one that it is around: the last one is no wrapper."""
    return [method, *(chain(method.base) if isinstance(method, Wrapper) else ())]


def serves_another(method: Method) -> bool:
    """Whether the model that is evaluated may be another one than the one that is trained."""
    return any(type(one).served not in (Method.served, Wrapper.served) for one in chain(method))


def label_of(method: Method) -> str:
    """What runs of a method are called: its class, and around another method both, such as `SWA-FedASAM`."""
    return "-".join(type(one).__name__ for one in chain(method))
