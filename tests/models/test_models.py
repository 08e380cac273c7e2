from __future__ import annotations

import pytest
import torch

import fedflat as ff


def parameters(name: str, **settings) -> int:
    return sum(p.numel() for p in ff.models.build(name, **settings).parameters())


@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        ("lenet", {"classes": 10}, 797_962),  # methods of FedGF, Caldarola et al., FedGloSS
        ("lenet", {"classes": 100}, 815_332),
        ("mlp", {"classes": 10, "shape": (1, 8, 8)}, 64 * 64 + 64 + 64 * 10 + 10),
        ("mlp", {"classes": 10, "shape": (784,), "hidden": (200,)}, 784 * 200 + 200 + 200 * 10 + 10),
        ("mlp", {"classes": 3, "shape": (5,), "hidden": ()}, 5 * 3 + 3),
        ("cnn", {"classes": 10, "shape": (1, 8, 8)}, 16 * 9 + 16 + 32 * 16 * 9 + 32 + 32 * 4 * 10 + 10),
    ],
)
def test_parameter_counts(name: str, settings: dict, count: int) -> None:
    assert parameters(name, **settings) == count


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (2, 3)), ("cnn", (1, 8, 8)), ("cnn", (1, 28, 28)), ("lenet", (3, 32, 32))]
)
def test_scores_have_one_column_per_class(name: str, shape: tuple[int, ...]) -> None:
    assert ff.models.build(name, classes=7, shape=shape)(torch.zeros(4, *shape)).shape == (4, 7)


def test_none_keeps_batch_statistics() -> None:
    for name in ff.models.model_names():
        model = ff.models.build(name, classes=3, shape=(3, 32, 32))
        assert not [m for m in model.modules() if hasattr(m, "track_running_stats")]


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="model = 'vgg' is unknown; known are cnn, lenet, mlp"):
        ff.models.build("vgg", classes=3)
    with pytest.raises(ValueError, match="model 'mlp' needs shape="):
        ff.models.build("mlp", classes=3)
    with pytest.raises(ValueError, match=r"model 'cnn' takes images .* got shape \(5,\)"):
        ff.models.build("cnn", classes=3, shape=(5,))
