"""GroupNorm in place of BatchNorm, and networks with BatchNorm as users bring them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.methods import FedSAM


def moved(layer: nn.Module) -> nn.Module:
    """The layer with affine parameters of its own."""
    torch.manual_seed(0)
    nn.init.uniform_(layer.weight, 0.5, 2)
    nn.init.uniform_(layer.bias, -1, 1)
    return layer


@pytest.mark.parametrize(
    ("layer", "normalise", "shape"),
    [
        (nn.BatchNorm2d(6), nn.functional.instance_norm, (2, 6, 4, 5)),
        (nn.BatchNorm1d(6), nn.functional.instance_norm, (2, 6, 7)),
        (nn.BatchNorm3d(6), nn.functional.instance_norm, (2, 6, 2, 3, 2)),
        (nn.SyncBatchNorm(6), nn.functional.instance_norm, (2, 6, 4, 5)),
    ],
)
def test_one_channel_to_a_group_is_instance_normalisation(layer, normalise, shape: tuple[int, ...]) -> None:
    converted, x = ff.models.to_group_norm(moved(layer).double(), groups=6), torch.randn(*shape, dtype=torch.float64)
    torch.testing.assert_close(converted(x), normalise(x, weight=layer.weight, bias=layer.bias))


def test_one_group_is_layer_normalisation() -> None:
    layer, x = moved(nn.BatchNorm1d(6)).double(), torch.randn(5, 6, dtype=torch.float64)
    expected = nn.functional.layer_norm(x, (6,), layer.weight, layer.bias, layer.eps)
    torch.testing.assert_close(ff.models.to_group_norm(layer, groups=1)(x), expected)


@pytest.mark.parametrize(
    ("channels", "groups", "found"), [(64, 32, 32), (48, 32, 24), (7, 32, 7), (10, 4, 2), (13, 4, 1)]
)
def test_the_largest_number_of_groups_divides_the_channels(channels: int, groups: int, found: int) -> None:
    assert ff.models.to_group_norm(nn.BatchNorm2d(channels), groups).num_groups == found


def test_the_original_is_unchanged_and_modes_dtypes_and_options_are_kept() -> None:
    shared = nn.BatchNorm2d(4, eps=0.1, affine=False)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), shared, nn.ModuleDict({"again": shared}), nn.BatchNorm2d(4)).double()
    module[3].eval().weight.requires_grad_(False)
    converted = ff.models.to_group_norm(module, groups=2)
    assert isinstance(module[1], nn.BatchNorm2d)
    assert converted[1] is converted[2]["again"], "a layer in two places stays one layer"
    assert (converted[1].eps, converted[1].affine, converted[1].weight) == (0.1, False, None)
    assert (converted[3].training, converted[3].weight.requires_grad) == (False, False)
    assert converted[3].weight.dtype == torch.float64
    assert converted[3].weight.data_ptr() != module[3].weight.data_ptr()


class Own(nn.BatchNorm2d):
    """A layer that may compute anything."""


@pytest.mark.parametrize(
    ("module", "groups", "message"),
    [
        (nn.Linear(2, 2), 2, "Linear has no BatchNorm to replace"),
        (nn.Sequential(Own(4)), 2, "layer 0 is Own, not a plain BatchNorm"),
        (nn.BatchNorm2d(4), 0, "groups must be a whole number of at least 1, got 0"),
        (nn.BatchNorm2d(4), True, "groups must be a whole number of at least 1, got True"),
    ],
)
def test_what_cannot_be_replaced_is_refused(module: nn.Module, groups: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ff.models.to_group_norm(module, groups)


def pictures() -> ff.FederatedData:
    draws = torch.Generator().manual_seed(0)
    clients = [(torch.randint(256, (n, 3, 16, 16), generator=draws, dtype=torch.uint8),
                torch.randint(3, (n,), generator=draws)) for n in (6, 4)]  # fmt: skip
    return ff.FederatedData.from_clients(clients, classes=3)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    """A network of another library, with weights from a local file and statistics that are not the initial ones."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"num_channels": 3, "embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 1], "layer_type": "basic"}
    network = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=3, **sizes))
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean, -0.5, 0.5)
    folder: Path = tmp_path_factory.mktemp("backbone")
    network.save_pretrained(folder)
    return transformers.ResNetForImageClassification.from_pretrained(folder)


def statistics(module: nn.Module) -> dict[str, Tensor]:
    return {name: x for name, x in module.named_buffers() if "running" in name}


@pytest.mark.parametrize(("buffers", "keep"), [("frozen", ["classifier"]), ("averaged", []), ("local", ["classifier"])])
def test_a_pretrained_network_with_batch_normalisation_trains(backbone: nn.Module, buffers, keep: list[str]) -> None:
    sim = ff.Simulation(backbone, pictures(), FedSAM(), ff.Client(lr=0.05, batch_size=2), 1, buffers=buffers, keep=keep,
                        workers=1, executor="sequential")  # fmt: skip
    sim.run()
    own = sim.model if sim.has_whole_model else sim.client_model(0)
    still = [torch.equal(x, statistics(backbone)[name]) for name, x in statistics(own).items()]
    assert all(still) if buffers == "frozen" else not any(still)
    converted = ff.models.to_group_norm(backbone)
    ff.Simulation(converted, pictures(), FedSAM(), ff.Client(lr=0.05, batch_size=2), 1, workers=1).run()
