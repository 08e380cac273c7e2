"""What a simulation promises of every method, tried on a small problem: `TRIALS` has a function for each promise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.method import Method
from ..core.method_contract import require
from ..data import FederatedData
from ..files import temporary_folder
from ..rounds.local_training import Client
from .simulation import Simulation

ROUNDS = (4, 16, 64, 256, 1024)  # the first number that the method can be planned for
SIZES = (9, 2, 14, 5, 7)  # samples of the clients: they take different numbers of steps
TOLERANCE = 1e-12  # relative, in double precision: sums of stacks round differently


def problem() -> FederatedData:
    """Five clients with samples of three classes, from a fixed seed."""
    random = torch.Generator().manual_seed(5)
    clients = [(torch.randn(n, 6, dtype=torch.float64, generator=random) + i,
                torch.randint(3, (n,), generator=random)) for i, n in enumerate(SIZES)]  # fmt: skip
    return FederatedData.from_clients(clients, classes=3)


def simulation(method: Method, executor: str, device: str = "cpu") -> Simulation:
    """Four rounds of `method`, or as many as it needs, of three of the clients, with clipping, decay and momentum."""
    client = Client(lr=0.1, lr_decay=0.9, epochs=2, batch_size=4, weight_decay=0.01, max_norm=1.0, momentum=0.5)
    return Simulation("mlp", problem(), method, client, rounds_for(method), 3, executor=executor, dtype=torch.float64,
                      model_options={"hidden": [4]}, workers=1, device=device)  # fmt: skip


def rounds_for(method: Method) -> int:
    """How many rounds the method is tried for."""
    for rounds in ROUNDS[:-1]:
        with suppress(InputError):
            method.check_rounds(rounds)
            return rounds
    return ROUNDS[-1]


def trajectory(sim: Simulation) -> Tensor:
    """Return the model after every remaining round, (rounds, d); if clients train alone, all of theirs side by side."""
    return torch.stack([_models(sim) for _ in sim])


def _models(sim: Simulation) -> Tensor:
    if sim.method.training == "local":
        return torch.cat([sim.own_model(client) for client in range(len(SIZES))])
    return sim.w.clone()


def it_trains(method: Method) -> None:
    """Check that the model moves, and stays finite."""
    path = trajectory(simulation(method, "sequential"))
    require(bool(torch.isfinite(path).all()), "the model has NaN or infinity after a round")
    require(bool((path[-1] != path[0]).any()), "the model does not move")


def a_stack_trains_as_one_client_after_another(method: Method) -> None:
    """Check that the executors agree in every round."""
    one, many = (trajectory(simulation(method, executor)) for executor in ("sequential", "stacked"))
    apart = float((one - many).norm() / one.norm())
    require(apart <= TOLERANCE, f"stacked clients end {apart:.2g} (relative) away from the same clients one by one")


def a_run_goes_on_from_a_checkpoint(method: Method) -> None:
    """Check that a resumed run has the bits of an uninterrupted one."""
    expected, first, resumed = (simulation(method, "sequential") for _ in range(3))
    whole = trajectory(expected)
    first.round()
    with temporary_folder("fedflat-trial-", Path(gettempdir())) as folder:
        first.save(folder / "state.safetensors")
        resumed.load(folder / "state.safetensors")
    require(
        torch.equal(trajectory(resumed), whole[1:]), "a resumed run has other bits; a hook keeps state outside records"
    )


def the_same_run_twice_has_the_same_bits(method: Method) -> None:
    """Nothing is random but what the engine draws."""
    one, two = (trajectory(simulation(method, "sequential")) for _ in range(2))
    require(torch.equal(one, two), "two equal runs have different bits; a hook draws random numbers or keeps state")


TRIALS: dict[str, Callable[[Method], None]] = {
    "it trains": it_trains,
    "the same run twice has the same bits": the_same_run_twice_has_the_same_bits,
    "a stack trains as one client after another": a_stack_trains_as_one_client_after_another,
    "a run goes on from a checkpoint": a_run_goes_on_from_a_checkpoint,
}
