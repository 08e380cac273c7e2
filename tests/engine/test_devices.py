"""Training on a device, tried on a stand-in: nothing is left on the CPU, and the host rarely waits.

A wait costs more than a local step of a small model. So none is inside local training, each chunk of clients has at
most `PER_CHUNK`, and a round at most `PER_COHORT` and `PER_ROUND` beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.adapters.lora import Mode
from fedflat.core.errors import InputError
from fedflat.core.torch_module import WITHOUT_FLOAT64
from fedflat.data import federated
from fedflat.data.federated import Holdings
from fedflat.data.partition import Samples, all_partitions
from fedflat.data.preparation import AUGMENTATIONS, IMAGENET
from fedflat.engine import choice, ranks
from fedflat.engine.stacked import Stacked
from fedflat.methods import find
from fedflat.metrics.flatness import all_measures
from fedflat.models import vit_b_32
from fedflat.rounds.device import usable_device
from support.device_rounds import ROUNDS, Waits, counted
from support.effort import chosen, covering_methods, few_methods, for_few_rounds, in_turns
from support.federation import federation, simulation, tanh_network
from support.meta_device import MetaDevice
from support.transformers import SIZES, picture_folder, text_folder

HARD = {"client": {"weight_decay": 0.05, "max_norm": 1.0, "momentum": 0.5, "epochs": None, "steps": 2}}
EXECUTORS = ("sequential", "stacked")
PER_CHUNK = 2  # whether all is finite, and how large the numbers of the mean are
PER_CHUNK_WITH_FILE = 1  # more: clients' records are written to a file
PER_COHORT = 1  # the mean training loss
PER_ROUND = 10  # server, drift, numbers that it sends, evaluation of one or two models


def assert_within_budget(sim: ff.Simulation, device: MetaDevice, per_chunk: int = PER_CHUNK) -> None:
    """Of the second round: the first one sets up."""
    sim.round()
    device.equal = False  # so that a second model is evaluated, where there may be one
    waits = Waits.of_a_round(sim, device)
    device.equal = True
    chunks = -(-len(sim.cohort(1)) // sim.executor.chunk)
    assert waits.steps == 0, device.places()
    assert 1 <= waits.cohort <= per_chunk * chunks + PER_COHORT, device.places()
    assert waits.rest <= PER_ROUND, device.places()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "executor"), in_turns(covering_methods(), EXECUTORS))
def test_every_method(name: str, executor: str, tmp_path: Path) -> None:
    """Two rounds, a checkpoint, and a round after it."""
    method = for_few_rounds(find(name))
    with MetaDevice() as device:
        sim = simulation(method, device="meta", executor=executor, **HARD)
        assert_within_budget(sim, device)
        sim.save(tmp_path / "state.safetensors")
        resumed = simulation(method, device="meta", executor=executor, **HARD)
        resumed.load(tmp_path / "state.safetensors")
        resumed.round()
    assert resumed.w.is_meta
    assert all(x.is_meta for x in resumed.server.tensors().values())


@pytest.mark.parametrize("name", ["Local", "Centralised"])
def test_the_baselines(name: str) -> None:
    """Of `Local` every client's model is evaluated, and each evaluation waits."""
    with MetaDevice() as device:
        sim = simulation(find(name)(), device="meta", executor="sequential")
        sim.round()
        waits = Waits.of_a_round(sim, device)
    assert waits.steps == 0


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_records_in_a_file(executor: str, tmp_path: Path) -> None:
    """A chunk's records are copied to the host at once, however many fields they have."""
    with MetaDevice() as device:
        settings = {"device": "meta", "executor": executor, "store_budget": 0, "store_folder": tmp_path}
        with simulation(find("Scaffold")(), **settings) as sim:
            assert_within_budget(sim, device, PER_CHUNK + PER_CHUNK_WITH_FILE)
            sim.save(tmp_path / "state.safetensors")
        with simulation(find("Scaffold")(), **settings) as resumed:
            resumed.load(tmp_path / "state.safetensors")
            resumed.round()


def samples(shape: tuple[int, ...], **settings) -> ff.FederatedData:
    """Two clients with pictures, which are normalised, or with tokens."""
    random = torch.Generator().manual_seed(0)
    kind = torch.uint8 if len(shape) == 3 else torch.int64
    clients = [
        (torch.randint(100, (n, *shape), generator=random, dtype=kind), torch.randint(3, (n,), generator=random))
        for n in (3, 2)
    ]
    data = ff.FederatedData.from_clients(clients, test=clients[1], classes=3, **settings)
    if shape[0] == 3:
        object.__setattr__(data, "preparation", IMAGENET)
    return data


def trained(model: str | nn.Module, data: ff.FederatedData, executor: str, device: MetaDevice, **settings) -> None:
    sim = ff.Simulation(
        model, data, find("FedAvg")(), ff.Client(batch_size=2), rounds=3, device="meta", executor=executor, **settings
    )
    assert_within_budget(sim, device)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("augment", ["none", "crop-flip"])
def test_samples_that_do_not_fit_stay_on_the_host(executor: str, augment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, evaluation and measures copy them batch by batch; labels are on the device."""
    monkeypatch.setattr(federated, "are_too_large", lambda parts, device: device.type == "meta")
    data = samples((3, 8, 8), augment=augment)
    data = replace(data, own_test=Holdings.in_order([1, 1]), validation=Holdings.in_order([1, 1]))
    attack = ff.Attack(kind="label-flip", share=0.5)
    with MetaDevice() as device:
        sim = ff.Simulation("cnn", data, find("FedSAM")(), ff.Client(batch_size=2), rounds=2, device="meta",
                            executor=executor, attack=attack)  # fmt: skip
        sim.round()
        assert sim.data.is_on_host
        assert (sim.data.x.device.type, sim.data.y.device.type) == ("cpu", "meta")
        assert (sim.data.test[0].device.type, sim.data.test[1].device.type) == ("cpu", "meta")
        sim.result(["sharpness", "client-accuracy"])
    assert device.sent, "batches were copied"


def test_half_of_the_free_memory_of_a_gpu_is_for_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2000, 10**9))
    gpu, parts = torch.device("cuda", 0), [torch.zeros(600, dtype=torch.uint8), torch.zeros(50, dtype=torch.int64)]
    assert not federated.are_too_large(parts, gpu)
    assert federated.are_too_large([*parts, torch.zeros(1, dtype=torch.uint8)], gpu)
    assert not federated.are_too_large(parts * 9, torch.device("cpu"))


SHAPES = {"emnist-cnn": (1, 28, 28), "textcnn": (128,), "vit-b-32": (3, 16, 16), "mlp": (1, 8, 8), "cnn": (1, 8, 8)}
MODELS = chosen(
    ["cnn", "emnist-cnn", "lenet", "mlp", "resnet18-gn", "textcnn", "vit-b-32"],
    [name for name in ff.models.model_names() if name != "transformer"],
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "executor"), in_turns(MODELS, EXECUTORS))
def test_every_model(name: str, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vit_b_32, "SIZES", {**SIZES, "patch_size": 8})
    monkeypatch.setattr(Stacked, "numbers_at_once", 10**9)  # so that large models are stacked, too
    with MetaDevice() as device:
        trained(name, samples(SHAPES.get(name, (3, 32, 32))), executor, device)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "executor"), in_turns(["texts", "pictures"], ["stacked", "sequential"]))
def test_transformers_from_folders(kind: str, executor: str, tmp_path: Path) -> None:
    if kind == "texts":
        folder, data = text_folder(tmp_path / "model", classes=3, length=12), samples((12,))
        data = ff.FederatedData.from_clients([(data.x[:3] % 8, data.y[:3]), (data.x[3:] % 8, data.y[3:])], classes=3)
    else:
        folder, data = picture_folder(tmp_path / "model", classes=3), samples((1, 8, 8))
    with MetaDevice() as device:
        trained("transformer", data, executor, device, model_options={"path": str(folder)})


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "executor"), in_turns(Mode.__args__, EXECUTORS))
def test_every_adapter(mode: str, executor: str) -> None:
    module = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))
    with MetaDevice() as device:
        trained(module, federation(), executor, device, adapter=ff.LoRA(targets=("0",), r=2, mode=mode))


@pytest.mark.slow
@pytest.mark.parametrize(("augment", "executor"), in_turns(AUGMENTATIONS, EXECUTORS))
def test_every_augmentation(augment: str, executor: str) -> None:
    with MetaDevice() as device:
        trained("cnn", samples((3, 8, 8), augment=augment), executor, device)


@pytest.mark.parametrize("task", ["multi-label", "regression"])
def test_other_tasks(task: str) -> None:
    random = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 6, generator=random), torch.ones(n, 3)) for n in (5, 2, 4)]
    data = ff.FederatedData.from_clients(clients, test=clients[0], classes=3, task=task)
    with MetaDevice() as device:
        trained(nn.Linear(6, 3), data, "stacked", device)


@pytest.mark.parametrize("name", chosen(["iid", "domain", "natural"], list(all_partitions())))
def test_every_partition(name: str) -> None:
    random = np.random.default_rng(0)
    y = random.integers(3, size=120)
    all_samples = Samples(y, 3, domain=np.arange(120) % 2, domains=("a", "b"), user=np.arange(120) % 10)
    parts = Holdings.of(all_partitions()[name]().split(all_samples, 4, random))
    x = torch.from_numpy(random.normal(size=(120, 6)).astype(np.float32))
    data = ff.FederatedData(x, torch.from_numpy(y), parts.members, parts.offsets, 3)
    with MetaDevice() as device:
        trained(nn.Linear(6, 3), data, "stacked", device)


def test_a_run_with_everything() -> None:
    with MetaDevice():
        sim = simulation(
            find("FedSAM")(), device="meta", executor="stacked", rounds=2, probes=["gradient-norm"], probe_every=1
        )
        run = sim.run()
    assert run.metrics["t"].to_pylist() == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("executor", chosen(EXECUTORS[1:], EXECUTORS))
def test_dropout(executor: str) -> None:
    module = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Dropout(0.3), nn.Linear(7, 3))
    with MetaDevice() as device:
        trained(module, federation(), executor, device)


# --- a device without float64, such as Apple's: vectors and sums are on the CPU ---------------------------------------


@pytest.fixture
def without_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetaDevice]:
    monkeypatch.setattr(choice, "check_stack", lambda one: None)  # invented gradients do not agree
    WITHOUT_FLOAT64.add("meta")
    with MetaDevice(has_float64=False) as device:
        yield device
    WITHOUT_FLOAT64.remove("meta")


@pytest.fixture
def with_float64() -> Iterator[MetaDevice]:
    with MetaDevice() as device:
        yield device


def on_device(method: str, executor: str, **changes) -> ff.Simulation:
    """In single precision, unless the model is another one."""
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))
    settings = {"model": model, "device": "meta", "executor": executor} | HARD | changes
    return simulation(for_few_rounds(find(method)), **settings)


@pytest.mark.slow
@pytest.mark.usefixtures("without_float64")
@pytest.mark.parametrize(("name", "executor"), in_turns(few_methods(), EXECUTORS))
def test_every_method_without_float64(name: str, executor: str, tmp_path: Path) -> None:
    sim = on_device(name, executor)
    sim.round()
    sim.save(tmp_path / "state.safetensors")
    resumed = on_device(name, executor)
    resumed.load(tmp_path / "state.safetensors")
    resumed.round()
    assert {x.device.type for x in (resumed.w, *resumed.server.tensors().values())} == {"cpu"}
    assert {x.device.type for x in (resumed.data.x, next(resumed.model.parameters()))} == {"meta"}


FEW = {"eigenvalues": {"most": 5}, "trace": {"most": 4}, "density": {"probes": 2, "steps": 3}, "lpf": {"draws": 2}}
FURTHER = {
    "a guard and an attack": {"guard": ff.Guard(multiple=2.0), "attack": ff.Attack(kind="little-is-enough", share=0.4)},
    "records in a file": {"store_budget": 0},
    "dropout": {"model": nn.Sequential(nn.Linear(6, 7), nn.Dropout(0.3), nn.Linear(7, 3))},
    "an adapter": {"adapter": ff.LoRA(targets=("0",), r=2, mode="alternate")},
    "pictures": {"model": "cnn", "data": samples((3, 8, 8), augment="fl-simulator"), "participation": 2},
    "tokens": {"model": "textcnn", "data": samples((128,)), "participation": 2},
    "auto": {"executor": "auto"},
}


@pytest.mark.slow
@pytest.mark.usefixtures("without_float64")
@pytest.mark.parametrize(("further", "executor"), in_turns(FURTHER, EXECUTORS))
def test_everything_else_without_float64(further: str, executor: str) -> None:
    sim = on_device("Scaffold", **{"executor": executor} | FURTHER[further])
    sim.round()
    sim.round()
    assert sim.w.device.type == "cpu"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "device"), in_turns(all_measures(), ("with_float64", "without_float64")))
def test_every_measure_of_flatness(name: str, device: str, request: pytest.FixtureRequest) -> None:
    """Measures wait as often as they like: they are taken after training."""
    request.getfixturevalue(device)
    changes = {"model": tanh_network()} if device == "with_float64" else {}
    if name == "aggregation-error":  # which is one of adapters
        changes = {"model": nn.Sequential(nn.Linear(6, 3)), "adapter": ff.LoRA(targets=("0",), r=2)}
    sim = on_device("Scaffold", "stacked", rounds=2, **changes)
    sim.round()
    assert len(sim.flatness([all_measures()[name](**FEW.get(name, {}))]).findings) == 1


@pytest.mark.usefixtures("without_float64")
@pytest.mark.parametrize("task", ["classification", "multi-label", "regression"])
def test_the_end_of_a_run_without_float64(task: str) -> None:
    """Losses and scores of all tasks, and the accuracy of every client."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(5) % 3 if task == "classification" else torch.ones(5, 3)
    clients = [(torch.randn(n, 6, generator=random), y[:n]) for n in (5, 2, 4)]
    data = ff.FederatedData.from_clients(clients, test=clients[0], classes=3, task=task)
    run = on_device("FedAvg", "stacked", model=nn.Linear(6, 3), data=data, rounds=2).run()
    assert {"test_loss_last", "train_loss"} <= run.summary.keys()


@pytest.mark.usefixtures("without_float64")
def test_double_precision_without_float64_is_refused() -> None:
    with pytest.raises(InputError, match="dtype: device = 'meta' has no float64; set dtype = 'float32'"):
        simulation(find("FedAvg")(), device="meta")


def test_auto_is_never_apples_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert usable_device("auto").type == "cpu"


def test_ranks_exchange_the_numbers_of_a_device_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged: list[str] = []
    monkeypatch.setattr(ranks.dist, "all_reduce", lambda x, how: exchanged.append(x.device.type))
    with MetaDevice():
        found = ranks.Ranks(2, 0, alone=False)._reduce(torch.ones(3, device="meta"))
    assert (exchanged, found.is_meta) == (["cpu"], True)


def test_nothing_that_never_ran_on_a_gpu_is_chosen_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the run is: on the CPU, the same trial goes on with the compiled step."""
    times = {"sequential": 2.0, "stacked": 1.0, "graphed": 0.1, "compiled": 0.1}
    monkeypatch.setattr(choice, "_step_times", lambda some, *_: {one.name: times[one.name] for one in some})
    with MetaDevice():
        sim = simulation(find("FedAvg")(), device="meta")
        assert choice.choose("auto", sim._make, sim.cohort(0), 1e9).name == "stacked"
    sim = simulation(find("FedAvg")(), device="cpu")
    assert choice.choose("auto", sim._make, sim.cohort(0), 1e9).name == "compiled"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "executor"), in_turns(ROUNDS, EXECUTORS))
def test_the_docs_state_what_is_counted(name: str, executor: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tests.md").read_text()
    [row] = [line.split("|")[2:-1] for line in page.splitlines() if line.startswith(f"| {name} |")]
    column = 2 * EXECUTORS.index(executor)
    stated = [int(cell.split(" to ")[1]) for cell in row[column : column + 2]]
    found = counted(name, executor)
    assert stated == [found.steps, found.cohort + found.rest]
