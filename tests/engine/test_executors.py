"""Sequential, stacked and chunked runs are one run; so is a resumed one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedflat as ff
from fedflat.core.method import Method
from fedflat.engine.stacked import Stacked
from fedflat.methods import find
from fedflat.rounds.cost import full_passes_per_round, gradients_per_step
from fedflat.rounds.executor import Sequential
from support.effort import chosen, covering_methods, few_methods, for_few_rounds, in_turns
from support.federation import federation, simulation, tanh_network

HARD = {"client": {"weight_decay": 0.05, "max_norm": 1.0, "momentum": 0.5}}


def trajectory(sim: ff.Simulation) -> torch.Tensor:
    return torch.stack([sim.w.clone() for _ in sim])


def test_stacked_is_sequential(covering_method: Method) -> None:
    """Uneven clients, short batches, decay, clipping and momentum; 1e-12 relative in float64, in every round."""
    one = trajectory(simulation(covering_method, executor="sequential", **HARD))
    many = trajectory(simulation(covering_method, executor="stacked", **HARD))
    assert (one - many).norm() <= 1e-12 * one.norm()
    assert (one[-1] - one[0]).norm() > 1e-2


@pytest.mark.parametrize("name", few_methods())
def test_chunks_do_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = for_few_rounds(find(name))
    whole = trajectory(simulation(method, executor="stacked"))
    monkeypatch.setattr(Stacked, "numbers_at_once", 2 * whole.shape[1])
    sim = simulation(method, executor="stacked")
    assert sim.executor.chunk == 2
    parts = trajectory(sim)
    assert (whole - parts).norm() <= 1e-12 * whole.norm()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "executor"), in_turns(covering_methods(), ["sequential", "stacked"]))
def test_resumed_is_uninterrupted_to_the_last_bit(name: str, executor: str, tmp_path) -> None:
    """A new simulation goes on from the file: same weights and same reported metrics, in every later round."""
    method = for_few_rounds(find(name))
    whole, first = simulation(method, executor=executor), simulation(method, executor=executor)
    expected = trajectory(whole)
    for _ in range(3):
        first.round()
    first.save(tmp_path / "state.safetensors")
    resumed = simulation(method, executor=executor)
    resumed.load(tmp_path / "state.safetensors")
    assert torch.equal(trajectory(resumed), expected[3:])
    without_time = [[{k: v for k, v in row.items() if k != "seconds"} for row in s.history] for s in (whole, resumed)]
    assert without_time[0] == without_time[1]


@pytest.mark.slow
def test_order_of_clients_in_a_cohort_does_not_matter() -> None:
    one, other = ([[0, 3, 5], [1, 2, 4]], [[5, 0, 3], [4, 2, 1]])
    runs = [trajectory(simulation(find("FedSMOO")(), participation=cohorts, rounds=2)) for cohorts in (one, other)]
    assert torch.equal(*runs)


@pytest.mark.slow
def test_gradients_are_counted(covering_method: Method) -> None:
    """Both executors count the same, and the count is what the batches and the method ask for."""

    counts = set()
    for executor in ("sequential", "stacked"):
        sim = simulation(covering_method, executor=executor)
        for _ in sim:
            pass
        counts.add(sim.history[-1]["gradients"])
    steps = sum(int(sim.client.local_steps(sim.data.sizes[sim.cohort(t)]).sum()) for t in range(sim.rounds))
    batches = sum(int(sim.client.batches_per_epoch(sim.data.sizes[sim.cohort(t)]).sum()) for t in range(sim.rounds))
    assert counts == {steps * gradients_per_step(covering_method) + batches * full_passes_per_round(covering_method)}


def dropout_network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Dropout(0.1), nn.Linear(6, 7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 3))
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("name", few_methods())
@pytest.mark.slow
def test_stacked_is_sequential_with_dropout(name: str) -> None:
    """Padded batches included: three epochs of batches of four over 1 to 12 samples."""
    method = for_few_rounds(find(name))
    settings = {"rounds": 3, **HARD}
    one = trajectory(simulation(method, model=dropout_network(), executor="sequential", **settings))
    many = trajectory(simulation(method, model=dropout_network(), executor="stacked", **settings))
    assert (one - many).norm() <= 1e-12 * one.norm()
    still = dropout_network()
    for layer in (still[0], still[3]):
        layer.p = 0.0
    without = trajectory(simulation(method, model=still, executor="sequential", **settings))
    assert (one - without).norm() > 1e-3 * one.norm(), "and the masks matter"


@pytest.mark.parametrize("name", ["FedAvg", "FedSAM", "FedSMOO", "MimeLite", "FedGMT"])
def test_stacked_is_sequential_with_convolutions_and_dropout(name: str) -> None:
    """Elements and whole channels, as in the EMNIST network; uneven clients."""
    g = torch.Generator().manual_seed(0)
    clients = [(torch.rand(n, 1, 8, 8, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in (9, 2, 5)]
    torch.manual_seed(0)
    features = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout2d(0.25), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten())
    model = nn.Sequential(*features, nn.Linear(36, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    data = ff.FederatedData.from_clients(clients, classes=3)
    settings = {"data": data, "model": model, "rounds": 2, "participation": 3}
    runs = [trajectory(simulation(find(name)(), executor=e, **settings)) for e in ("sequential", "stacked")]
    assert (runs[0] - runs[1]).norm() <= 1e-12 * runs[0].norm()
    assert (runs[0][1] - runs[0][0]).norm() > 1e-3


class Watched(nn.Module):
    """Keeps which of 64 units each of two dropouts has kept, pass by pass."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.masks: list[tuple[tuple[bool, ...], tuple[bool, ...]]] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = (functional.dropout(torch.ones(64), 0.5, self.training) for _ in range(2))
        if self.masks is not None:
            self.masks.append((tuple((one > 0).tolist()), tuple((other > 0).tolist())))
        return self.out(x)


def watched(name: str) -> list[tuple[tuple[bool, ...], tuple[bool, ...]]]:
    """The masks of two rounds of two clients that take two steps each, over four samples."""
    data, client = federation(sizes=(4, 4), test=1), {"epochs": 1, "batch_size": 2}
    settings = {"data": data, "model": Watched().double(), "participation": 2, "rounds": 2, "client": client}
    sim = simulation(find(name)(), executor="sequential", **settings)
    sim.objective.module.masks = masks = []  # now, since a model that keeps something is refused
    for _ in sim:
        pass
    return [one for one in masks if not all(one[0])]  # no evaluations


def test_masks_are_one_within_a_step_and_differ_everywhere_else() -> None:
    """Between layers, steps, clients and rounds; both gradients of a SAM step see one mask."""
    passes = watched("FedSAM")
    assert len(passes) == 2 * (2 * 2 * 2)
    assert passes[::2] == passes[1::2]
    assert len({mask for step in passes[::2] for mask in step}) == 2 * (2 * 2 * 2)


def test_masks_differ_between_the_batches_of_a_full_gradient() -> None:
    passes = watched("MimeLite")
    assert len({mask for step in passes for mask in step}) == 2 * len(passes) == 2 * (2 * 2 * (2 + 2))


def test_the_teacher_sees_the_masks_of_its_student() -> None:
    passes = watched("FedGMT")
    assert passes[::2] == passes[1::2]
    assert len(set(passes)) == 2 * 2 * 2


def test_dropout_is_off_in_evaluations() -> None:
    sim = simulation(find("FedAvg")(), model=dropout_network())
    x, y = sim.data.test
    for reported in sim:
        expected = functional.cross_entropy(sim.model.eval()(x), y)
        assert reported.metrics["test_loss"] == pytest.approx(expected.item(), rel=1e-12)


class Noisy(nn.Sequential):
    """Draws what is not dropout, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + 0.1 * torch.rand(x.shape, dtype=x.dtype) if self.training else x)


def noisy_network() -> nn.Module:
    return Noisy(*dropout_network())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "executor"),
    [(dropout_network, Stacked), (noisy_network, Sequential)],
    ids=["dropout", "noise"],
)
def test_the_users_random_state_changes_nothing(network, executor: type) -> None:
    sim = simulation(find("FedSAM")(), model=network())
    assert type(sim.executor) is executor
    expected = trajectory(sim)
    again = simulation(find("FedSAM")(), model=network())
    torch.manual_seed(123)
    state = torch.get_rng_state()
    assert torch.equal(trajectory(again), expected)
    assert torch.equal(torch.get_rng_state(), state), "and is left alone"


RANDOM = [(dropout_network, "sequential"), (dropout_network, "stacked"), (noisy_network, "sequential")]
DRAWING = chosen(
    [("FedSAM", *RANDOM[2]), ("MimeLite", *RANDOM[1]), ("FedGMT", *RANDOM[0])],
    [(name, *how) for name in ("FedSAM", "MimeLite", "FedGMT") for how in RANDOM],
)


def test_other_random_numbers_run_one_client_at_a_time() -> None:
    with pytest.raises(ValueError, match="executor = 'stacked' cannot run a model that draws random numbers other"):
        simulation(find("FedSAM")(), model=noisy_network(), executor="stacked")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "network", "executor"), DRAWING)
def test_a_resumed_run_draws_what_it_would_have_drawn(name: str, network, executor: str, tmp_path) -> None:
    whole, first, resumed = (simulation(find(name)(), model=network(), executor=executor) for _ in range(3))
    expected = trajectory(whole)
    for _ in range(3):
        first.round()
    first.save(tmp_path / "state.safetensors")
    resumed.load(tmp_path / "state.safetensors")
    assert torch.equal(trajectory(resumed), expected[3:])


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_whole_numbers_go_in_without_losing_precision(executor: str) -> None:
    """Tokens for an embedding: weights of short batches have the model's dtype, not that of the samples."""
    rng = np.random.default_rng(0)
    clients = [(rng.integers(9, size=(n, 4)), rng.integers(3, size=n)) for n in (5, 7, 2)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 3)).double()
    settings = {"data": ff.FederatedData.from_clients(clients, classes=3), "model": model, "participation": 3}
    reference = trajectory(simulation(find("FedSAM")(), executor="sequential", **settings))
    assert (trajectory(simulation(find("FedSAM")(), executor=executor, **settings)) - reference).norm() <= 1e-12


def test_frozen_layers_in_evaluation_mode_stay_so() -> None:
    """Evaluating in between does not switch a frozen backbone's dropout on."""
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)), nn.Linear(6, 3)).double()
    model[0].requires_grad_(False).eval()
    runs = [trajectory(simulation(find("FedAvg")(), model=model, eval_every=k)) for k in (1, 7)]
    assert torch.equal(*runs)
    assert type(simulation(find("FedAvg")(), model=model).executor) is Stacked


def test_auto_stacks_small_dense_models_only() -> None:
    data = federation()
    images = ff.FederatedData.from_clients([(torch.zeros(3, 1, 8, 8), torch.tensor([0, 1, 2]))])
    assert type(simulation(find("FedAvg")(), data=data).executor) is Stacked
    convolutional = ff.Simulation(model="cnn", data=images, method=find("FedAvg")(), rounds=1)
    assert type(convolutional.executor) is Sequential
    with pytest.raises(ValueError, match="executor = 'fast' is unknown; known are auto, sequential, stacked"):
        simulation(find("FedAvg")(), executor="fast")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "lenet"])
def test_convolutions_stack_too(name: str) -> None:
    shape = (3, 32, 32) if name == "lenet" else (1, 8, 8)
    g = torch.Generator().manual_seed(0)
    clients = [(torch.rand(n, *shape, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in (4, 2)]
    torch.manual_seed(0)
    model = ff.models.build(name, classes=3, shape=shape).double()
    settings = {
        "data": ff.FederatedData.from_clients(clients, classes=3),
        "model": model,
        "rounds": 2,
        "participation": 2,
    }
    runs = [trajectory(simulation(find("FedSAM")(), executor=e, **settings)) for e in ("sequential", "stacked")]
    assert (runs[0] - runs[1]).norm() <= 1e-12 * runs[0].norm()


def test_the_users_module_is_not_touched() -> None:
    model = tanh_network()
    before = [p.clone() for p in model.parameters()]
    run = simulation(find("FedAvg")(), model=model).run()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.equal(nn.utils.parameters_to_vector(run.model.parameters()), run.w)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "network"), in_turns(covering_methods(), [dropout_network, noisy_network]))
def test_every_forward_of_a_random_model_is_seeded(name: str, network) -> None:
    """Teachers, full gradients and input shifts included: the user's random state changes nothing and is left alone."""
    runs, method = [], for_few_rounds(find(name))
    executor = simulation(method, model=network()).choice.name  # chosen once
    for user_seed in (1, 2):
        sim = simulation(method, model=network(), rounds=2, executor=executor)
        torch.manual_seed(user_seed)
        state = torch.get_rng_state()
        runs.append(trajectory(sim))
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*runs)
