"""Directions by their definition, planes by geometry, surfaces against closed forms and plain PyTorch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedflat.core.objective import Objective
from fedflat.metrics.flatness import Subject
from fedflat.metrics.flatness.surface import (
    Mark,
    Plane,
    Surface,
    filter_normalised,
    grid,
    losses_on,
    marks_on,
    plane_through,
    random_directions,
    random_plane,
    spanned,
)
from support.federation import federation, tanh_network
from support.files import refused


def relu_network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3)).double()


class Mixed(nn.Module):
    """Everything that is no filter: biases, group and layer normalisation, a relative position bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 4, 3)
        self.group = nn.GroupNorm(2, 4)
        self.layer = nn.LayerNorm([4, 4, 4])
        self.position_bias = nn.Parameter(torch.randn(1, 4, 4, 4))
        self.out = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out((self.layer(self.group(self.conv(x))) + self.position_bias).flatten(1))


def surface_of(network: nn.Module, points: int = 5, reach: float = 1.0) -> np.ndarray:
    """The loss in the network's own random directions, on the samples of `federation`."""
    objective = Objective(network)
    w = objective.space.flatten(network)
    x = grid(points, reach)
    return losses_on(Subject(objective, w, federation()).pooled.loss, random_plane(objective, w), x, x)


class TestDirections:
    @pytest.mark.parametrize("network", [tanh_network(), Mixed().double()], ids=["dense", "convolutional"])
    def test_every_filter_has_the_norm_of_the_models_and_its_own_direction(self, network: nn.Module) -> None:
        objective = Objective(network)
        (raw,) = random_directions(objective, 1, seed=4)
        scaled = objective.space.views(filter_normalised(objective.space, raw, objective.space.flatten(network)))
        filters = 0
        for name, w in network.named_parameters():
            if not name.endswith("weight") or name in ("group.weight", "layer.weight"):
                continue
            for d, d_f, w_f in zip(scaled[name], objective.space.views(raw)[name], w.detach(), strict=True):
                expected = d_f.numpy() / np.sqrt((d_f.numpy() ** 2).sum()) * np.sqrt((w_f.numpy() ** 2).sum())
                np.testing.assert_allclose(d.numpy(), expected, rtol=1e-12)
                filters += 1
        assert filters == {"Sequential": 7 + 3, "Mixed": 4 + 3}[type(network).__name__]

    def test_biases_and_normalisation_are_not_moved(self) -> None:
        network = Mixed().double()
        objective = Objective(network)
        plane = random_plane(objective, objective.space.flatten(network), seed=1)
        moved = objective.space.views(plane.at(0.7, -0.4))
        same = {name for name, p in network.named_parameters() if torch.equal(p, moved[name])}
        assert same == {"conv.bias", "group.weight", "group.bias", "layer.weight", "layer.bias", "position_bias",
                        "out.bias"}  # fmt: skip

    def test_they_are_orthogonal_before_they_are_normalised_and_not_after(self) -> None:
        objective = Objective(tanh_network())
        with torch.no_grad():
            objective.module[0].weight[0] *= 20  # filters of unequal norms
        first, second = random_directions(objective, 2, seed=0)
        assert abs(float(first @ second)) < 1e-12 * float(first.norm() * second.norm())
        plane = random_plane(objective, objective.space.flatten(objective.module))
        d1, d2 = plane.directions
        assert abs(float(d1 @ d2)) > 1e-3 * float(d1.norm() * d2.norm())

    def test_a_seed_gives_one_pair_whatever_the_model(self) -> None:
        one, other = Objective(tanh_network(0)), Objective(tanh_network(5))
        for mine, theirs in zip(random_directions(one, 2, 7), random_directions(other, 2, 7), strict=True):
            assert torch.equal(mine, theirs)
        assert not torch.equal(random_directions(one, 1, 7)[0], random_directions(one, 1, 8)[0])
        assert torch.equal(random_directions(one, 1, 7)[0], random_directions(one, 2, 7)[0])

    def test_a_model_without_weights_is_refused(self) -> None:
        class Shift(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bias = nn.Parameter(torch.zeros(3))

        with refused("weights of at least two axes"):
            random_directions(Objective(Shift()), 1, 0)


class TestSurface:
    def test_a_rescaled_network_that_is_the_same_function_has_the_same_surface(self) -> None:
        """Li et al., 2018: that is what filter normalisation is for."""
        rescaled = relu_network()
        with torch.no_grad():
            rescaled[0].weight *= 10
            rescaled[0].bias *= 10
            rescaled[2].weight /= 10
        np.testing.assert_allclose(surface_of(rescaled), surface_of(relu_network()), rtol=1e-10)

        def without_normalising(network: nn.Module) -> np.ndarray:
            objective = Objective(network)
            w = objective.space.flatten(network)
            plane = Plane(w, tuple(random_directions(objective, 2, 0)))
            return losses_on(Subject(objective, w, federation()).pooled.loss, plane, grid(3, 0.1), grid(3, 0.1))

        assert not np.allclose(without_normalising(rescaled), without_normalising(relu_network()), rtol=0.01)

    def test_its_centre_is_the_loss_of_the_model(self) -> None:
        data, network = federation(), tanh_network()
        expected = cross_entropy(network(data.x), data.y).item()
        assert surface_of(network)[2, 2] == pytest.approx(expected, rel=1e-12)

    def test_a_corner_is_the_loss_of_a_network_moved_by_hand(self) -> None:
        data, network = federation(), tanh_network()
        objective = Objective(network)
        w = objective.space.flatten(network)
        plane, losses = random_plane(objective, w), surface_of(network, reach=2.0)
        objective.space.write(network, w + 2.0 * plane.directions[0] - 1.0 * plane.directions[1])
        assert losses[1, 4] == pytest.approx(cross_entropy(network(data.x), data.y).item(), rel=1e-12)

    def test_a_quadratic_has_its_closed_form(self) -> None:
        """With w + x a + y b: 1/2 (w'Aw + x^2 a'Aa + y^2 b'Ab) + x w'Aa + y w'Ab + x y a'Ab."""
        rng = np.random.default_rng(0)
        root, w, a, b = rng.normal(size=(4, 4)), *rng.normal(size=(3, 4))
        A = root @ root.T
        x, y = grid(5, 2.0), grid(3, 1.0)
        expected = np.array(
            [[0.5 * (w @ A @ w + s * s * (a @ A @ a) + t * t * (b @ A @ b)) + s * (w @ A @ a) + t * (w @ A @ b)
              + s * t * (a @ A @ b) for s in x] for t in y])  # fmt: skip
        matrix = torch.from_numpy(A)
        plane = Plane(torch.from_numpy(w), (torch.from_numpy(a), torch.from_numpy(b)))
        found = losses_on(lambda v: float(v @ matrix @ v / 2), plane, x, y)
        np.testing.assert_allclose(found, expected, rtol=1e-12)

    def test_progress_counts_every_point(self) -> None:
        reported: list[tuple[int, int]] = []
        plane = Plane(torch.zeros(1), (torch.ones(1), torch.ones(1)))
        losses_on(float, plane, grid(3, 1.0), grid(3, 1.0), lambda *step: reported.append(step))
        assert reported == [(k, 9) for k in range(1, 10)]

    def test_on_a_line_y_is_nothing(self) -> None:
        plane = Plane(torch.tensor([1.0, 0.0]), (torch.tensor([0.0, 2.0]),))
        found = losses_on(lambda v: float(v.sum()), plane, grid(3, 1.0), np.zeros(1))
        np.testing.assert_array_equal(found, [[-1.0, 1.0, 3.0]])

    @pytest.mark.parametrize(
        ("points", "reach", "named"),
        [(50, 1.0, "points = 50"), (1, 1.0, "points = 1"), (5, 0.0, "range = 0"), (5, float("nan"), "range = nan")],
    )
    def test_a_grid_without_the_model_on_it_is_refused(self, points: int, reach: float, named: str) -> None:
        with refused(named):
            grid(points, reach)

    def test_the_grid_is_even_and_has_an_exact_zero(self) -> None:
        for points in (3, 51, 77):
            x = grid(points, 0.3)
            assert x[points // 2] == 0
            np.testing.assert_allclose(x, np.linspace(-0.3, 0.3, points), atol=1e-15)


class TestPlaneThroughModels:
    def models(self, number: int = 4, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
        rng = torch.Generator().manual_seed(2)
        return {f"model {k}": torch.randn(500, generator=rng, dtype=dtype) for k in range(number)}

    def test_it_passes_through_three_models_exactly(self) -> None:
        models = self.models()
        plane = plane_through(models)
        places = {label: plane.place(w) for label, w in models.items()}
        for label in list(models)[:3]:
            torch.testing.assert_close(plane.at(*places[label][:2]), models[label], rtol=0, atol=3e-7)
            assert places[label][2] < 1e-6
        assert places["model 0"][:2] == pytest.approx((0, 0), abs=1e-12)

    def test_distances_on_it_are_distances_between_parameters(self) -> None:
        models = self.models(dtype=torch.float64)
        plane = plane_through(models)
        spots = [np.array(plane.place(w)[:2]) for w in list(models.values())[:3]]
        for (p, v), (q, w) in pairwise([*zip(spots, models.values(), strict=False)] * 2):
            assert np.linalg.norm(p - q) == pytest.approx(float((v - w).norm()), rel=1e-12)

    def test_a_fourth_model_is_shown_at_the_nearest_point(self) -> None:
        models = self.models(dtype=torch.float64)
        plane, w = plane_through(models), models["model 3"]
        x, y, away = plane.place(w)
        assert away == pytest.approx(float((w - plane.at(x, y)).norm()), rel=1e-10)
        for dx, dy in ((0.1, 0), (0, 0.1), (-0.1, 0.1)):
            assert float((w - plane.at(x + dx, y + dy)).norm()) > away

    def test_directions_of_any_length_and_angle_give_coordinates(self) -> None:
        plane = Plane(torch.tensor([1.0, 1, 1]), (torch.tensor([2.0, 0, 0]), torch.tensor([1.0, 1, 0])))
        assert plane.place(torch.tensor([1.0 + 2 * 3 + 0.5, 1.5, 6])) == pytest.approx((3, 0.5, 5))

    def test_the_part_shown_holds_all_models_in_one_scale(self) -> None:
        models = self.models()
        plane = plane_through(models)
        x, y = spanned(plane, models, 7)
        for w in models.values():
            a, b, _ = plane.place(w)
            assert x[0] < a < x[-1]
            assert y[0] < b < y[-1]
        assert x[-1] - x[0] == pytest.approx(y[-1] - y[0])
        assert len(spanned(plane_through(models, axes=1), models, 7)[1]) == 1

    def test_marks_have_the_loss_of_the_models_not_of_the_plane(self) -> None:
        models = self.models()
        marks = marks_on(lambda w: float(w.sum()), plane_through(models), models)
        assert [mark.loss for mark in marks] == [float(w.sum()) for w in models.values()]

    def test_models_on_one_line_or_too_few_are_refused(self) -> None:
        w = self.models(1)["model 0"]
        with refused("no plane goes through a, b, c", "c is on the line"):
            plane_through({"a": w, "b": 2 * w, "c": 3 * w})
        with refused("no plane goes through a, b, c", "b is on the line"):
            plane_through({"a": w, "b": w, "c": 2 * w})
        with refused("a plane needs 3 models, got 2: a, b"):
            plane_through({"a": w, "b": 2 * w})


class TestFile:
    def surface(self) -> Surface:
        loss = np.array([[1.0, np.inf, np.nan], [0.1, 1 / 3, 4.0]])
        marks = (Mark("w", 0.0, 0.0, 1 / 3), Mark("ü, <b>", 1.0, -2.0, 7.0, 0.5))
        return Surface("FedAvg", "client 7", ("a", "b"), np.arange(3.0), np.arange(2.0), loss, marks, "how")

    def test_what_is_kept_comes_back_to_the_last_bit(self, tmp_path: Path) -> None:
        kept, path = self.surface(), tmp_path / "one.npz"
        kept.save(path)
        found = Surface.load(path)
        assert found.about() == kept.about()
        assert found.marks == kept.marks
        for name in ("x", "y", "loss"):
            np.testing.assert_array_equal(getattr(found, name), getattr(kept, name))
        assert [file.name for file in tmp_path.iterdir()] == ["one.npz"]

    def test_damage_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "one.npz"
        with refused("one.npz", "missing"):
            Surface.load(path)
        self.surface().save(path)
        path.write_bytes(path.read_bytes()[:-200])
        with refused("one.npz", "damaged"):
            Surface.load(path)
        np.savez(path, x=np.zeros(1), y=np.zeros(1), loss=np.zeros((1, 1)), about=np.array("{}"))
        with refused("one.npz", "no surface"):
            Surface.load(path)

    def test_nothing_is_unpickled(self, tmp_path: Path) -> None:
        class Harm:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return (Path(tmp_path / "harmed").write_text, ("",))

        path = tmp_path / "one.npz"
        harm = np.array([Harm()], dtype=object)
        np.savez(path, x=harm, y=harm, loss=harm, about=harm)
        with refused("one.npz", "damaged"):
            Surface.load(path)
        assert not (tmp_path / "harmed").exists()
