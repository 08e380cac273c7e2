from __future__ import annotations

import pytest
import torch

import fedflat as ff


def outline(name: str, **settings) -> torch.nn.Module:
    """The model without memory for its numbers, which nobody reads here."""
    with torch.device("meta"):
        return ff.models.build(name, **settings)


def parameters(name: str, **settings) -> int:
    return sum(p.numel() for p in outline(name, **settings).parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        ("lenet", {"classes": 10}, 797_962),  # methods of FedGF, Caldarola et al., FedGloSS
        ("lenet", {"classes": 100}, 815_332),
        ("lenet5", {"classes": 10}, 62_006),  # 456 + 2,416 of convolutions, 48,120 + 10,164 + 850
        ("resnet18-gn", {"classes": 10}, 11_181_642),  # FedSMOO, FedLESAM
        ("resnet18-gn", {"classes": 100}, 11_227_812),
        ("resnet18-gn-cifar", {"classes": 10}, 11_173_962),
        ("resnet18-nonorm", {"classes": 100}, 11_210_532),  # FedGF
        ("emnist-cnn", {"classes": 62}, 1_206_590),  # FedSAM
        ("textcnn", {"classes": 14}, 3_124_514),  # FedVSSAM
        (
            "vit-b-32",
            {"classes": 10},
            87_455_232 + 768 * 10 + 10,
        ),  # FedLESAM: 12 layers of 7_087_872, the rest 2_400_768
        ("vit-b-32", {"classes": 345}, 87_455_232 + 768 * 345 + 345),
        ("fedgmt-cnn", {"classes": 10}, 75 * 32 + 32 + 800 * 64 + 64 + 4096 * 512 + 512 + 5120 + 10),
        ("mlp", {"classes": 10, "shape": (1, 8, 8)}, 64 * 64 + 64 + 64 * 10 + 10),
        ("mlp", {"classes": 10, "shape": (784,), "hidden": (200,)}, 784 * 200 + 200 + 200 * 10 + 10),
        ("mlp", {"classes": 3, "shape": (5,), "hidden": ()}, 5 * 3 + 3),
        (
            "causal-transformer",  # tokens and places; two blocks of norms, attention and network; norm and scores
            {"classes": 82},
            (82 + 80) * 64 + 2 * (4 * 64 + 4 * (64 * 64 + 64) + 8 * 64 * 64 + 5 * 64) + 2 * 64 + 64 * 82 + 82,
        ),
        (
            "dilated-cnn",
            {"classes": 4, "shape": (1, 32, 32)},
            16 * 9 + 16 + 4 * (16 * 16 * 9 + 16) + 5 * 2 * 16 + 4 * 16 + 4,
        ),
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


def test_those_that_say_so_keep_batch_statistics_and_no_other() -> None:
    """Of a `transformer` the files decide."""
    for name in set(ff.models.model_names()) - {"transformer"}:
        model = outline(name, classes=3, shape=(3, 32, 32) if name in ("mlp", "cnn", "dilated-cnn") else None)
        keeps = any(hasattr(layer, "track_running_stats") for layer in model.modules())
        assert keeps == ("-bn-" in name)


@pytest.mark.parametrize(
    "name",
    [n for n in ff.models.model_names() if n not in ("mlp", "cnn", "dilated-cnn", "transformer", "vit-b-32")],
)
def test_papers_models_score_their_own_inputs(name: str) -> None:
    """One column per class, gradients everywhere, and the same scores for a sample whatever is beside it."""
    torch.manual_seed(0)
    model = ff.models.build(name, classes=7).eval()
    shape = {"emnist-cnn": (1, 28, 28), "textcnn": (128,), "causal-transformer": (80,)}.get(name, (3, 32, 32))
    tokens = {"textcnn": 30_000, "causal-transformer": 7}.get(name)
    x = torch.randint(tokens, (2, *shape)) if tokens else torch.randn(2, *shape)
    scores = model(x)
    assert scores.shape == (2, *(shape if name == "causal-transformer" else ()), 7)
    torch.testing.assert_close(model(x[:1]), scores[:1], rtol=1e-4, atol=1e-5)
    scores.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("name", ["resnet18-gn", "resnet18-gn-cifar", "wrn28-4-gn"])
def test_normalisation_has_two_groups(name: str) -> None:
    """As in the released code; the number of parameters does not tell."""
    assert {m.num_groups for m in outline(name, classes=10).modules() if isinstance(m, torch.nn.GroupNorm)} == {2}


def test_wide_resnet_is_as_wide_and_deep_as_its_name() -> None:
    """28 = 3 groups of 4 blocks of 2 convolutions, the stem, 3 shortcuts; 4 times 16, 32 and 64 channels."""
    model = ff.models.build("wrn28-4-gn", classes=100)
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len([c for c in convolutions if c.kernel_size == (3, 3)]) == 25
    assert len([c for c in convolutions if c.kernel_size == (1, 1)]) == 3
    assert {c.out_channels for c in convolutions} == {16, 64, 128, 256}
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(5.87e6, rel=1e-3)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="model = 'vgg' is unknown; known are causal-transformer, cnn, "):
        ff.models.build("vgg", classes=3)
    with pytest.raises(ValueError, match="model 'mlp' needs shape="):
        ff.models.build("mlp", classes=3)
    with pytest.raises(ValueError, match=r"model 'cnn' takes images .* got shape \(5,\)"):
        ff.models.build("cnn", classes=3, shape=(5,))


def test_an_error_without_a_message_is_named_by_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(classes: int, shape: tuple[int, ...]) -> torch.nn.Module:
        raise AssertionError

    monkeypatch.setattr("fedflat.models.mlp.build", build)
    with pytest.raises(ValueError, match=r"^model 'mlp' cannot be built with .*: AssertionError$"):
        ff.models.build("mlp", classes=2, shape=(3,))
