"""Normalising and augmenting, against slow transcriptions picture by picture."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chi2_contingency, chisquare
from torch import nn

import fedflat as ff
from fedflat.data.preparation import AUGMENTATIONS, IMAGENET, Augmentation, Preparation
from fedflat.methods import find
from fedflat.rounds.batches import Batches
from fedflat.rounds.randomness import Purpose, words
from support.files import random_pictures

CIFAR = Preparation(mean=(0.491, 0.482, 0.446), std=(0.247, 0.243, 0.261), dtype=torch.float64)
MNIST = Preparation(mean=(0.1307,), std=(0.3081,), dtype=torch.float64)
PLAIN = Preparation(dtype=torch.float64)
FEDGF, FL_SIMULATOR = AUGMENTATIONS["crop-flip"], AUGMENTATIONS["fl-simulator"]
MANY = np.random.default_rng(0).integers(0, 2**64, 200_000, dtype=np.uint64)
SMALLEST = 1e-4  # a p-value that chance makes smaller once in 10,000 tests; the words are fixed


def normalised(picture: np.ndarray, preparation: Preparation) -> np.ndarray:
    """(x / 255 - mean) / std of a picture (channels, height, width), channel by channel."""
    result = picture.astype(np.float64) / 255
    for channel, (mean, std) in enumerate(zip(preparation.mean, preparation.std, strict=True)):
        result[channel] = (result[channel] - mean) / std
    return result


@pytest.mark.parametrize(("preparation", "channels"), [(CIFAR, 3), (IMAGENET, 3), (MNIST, 1), (PLAIN, 1), (PLAIN, 3)])
def test_pictures_are_normalised(preparation: Preparation, channels: int) -> None:
    pictures = random_pictures(5, channels, 6)
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-5)):
        found = replace(preparation, dtype=dtype)(torch.from_numpy(pictures))
        expected = np.stack([normalised(picture, preparation) for picture in pictures])
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
    stacked = preparation(torch.from_numpy(pictures).expand(2, 5, channels, 6, 6))
    assert torch.equal(stacked[1], preparation(torch.from_numpy(pictures)))


def test_all_256_grey_values_are_told_apart() -> None:
    greys = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert (replace(MNIST, dtype=torch.float32)(greys).flatten().diff() > 0).all()


def test_what_is_not_pictures_stays() -> None:
    tokens = torch.tensor([[3, 2, 0]], dtype=torch.int16)
    assert CIFAR(tokens).dtype == torch.int64
    assert CIFAR(tokens).tolist() == tokens.tolist()
    numbers = torch.rand(2, 1, 8, 8)
    assert CIFAR(numbers) is numbers


def moved_in_fedgfs_order(
    picture: np.ndarray, preparation: Preparation, flipped: bool, down: int, right: int
) -> np.ndarray:
    """Pad the stored picture with zeros by 4, crop, flip, and normalise at the end."""
    _, height, width = picture.shape
    padded = np.pad(picture, ((0, 0), (4, 4), (4, 4)))
    cropped = padded[:, 4 + down : 4 + down + height, 4 + right : 4 + right + width]
    return normalised(cropped[:, :, ::-1] if flipped else cropped, preparation)


def moved_in_fl_simulators_order(
    picture: np.ndarray, preparation: Preparation, flipped: bool, down: int, right: int
) -> np.ndarray:
    """Normalise, flip, and then pad with zeros by 4 and crop; an offset of nothing is no crop."""
    prepared = normalised(picture, preparation)
    _, height, width = prepared.shape
    padded = np.pad(prepared[:, :, ::-1] if flipped else prepared, ((0, 0), (4, 4), (4, 4)))
    return padded[:, 4 + down : 4 + down + height, 4 + right : 4 + right + width]


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (5, 9)])
@pytest.mark.parametrize(("preparation", "channels"), [(CIFAR, 3), (MNIST, 1), (PLAIN, 3)])
@pytest.mark.parametrize(
    ("augmentation", "slow"), [(FEDGF, moved_in_fedgfs_order), (FL_SIMULATOR, moved_in_fl_simulators_order)]
)
def test_pictures_are_those_of_the_papers_code(
    augmentation: Augmentation, slow, preparation: Preparation, channels: int, size: tuple[int, int]
) -> None:
    pictures = np.random.default_rng(1).integers(0, 256, (60, channels, *size), dtype=np.uint8)
    found = augmentation(torch.from_numpy(pictures), MANY[:60], preparation)
    flipped, down, right = augmentation.decisions(MANY[:60])
    assert {*flipped} == {True, False}
    assert len({*down}) > 5
    for i, picture in enumerate(pictures):
        expected = slow(picture, preparation, flipped[i], down[i], right[i])
        np.testing.assert_allclose(found[i], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("augmentation", [FEDGF, FL_SIMULATOR])
def test_any_number_of_batch_axes(augmentation: Augmentation) -> None:
    pictures = torch.from_numpy(random_pictures(24, 3, 8))
    flat = augmentation(pictures, MANY[:24], CIFAR)
    stacked = augmentation(pictures.view(4, 6, 3, 8, 8), MANY[:24].reshape(4, 6), CIFAR)
    assert torch.equal(stacked.flatten(0, 1), flat)
    assert torch.equal(augmentation(pictures[5:6], MANY[5:6], CIFAR)[0], flat[5])
    assert len(augmentation(pictures[:0], MANY[:0], CIFAR)) == 0


@pytest.mark.parametrize("augmentation", [FEDGF, FL_SIMULATOR])
def test_dtypes_and_the_stored_picture_stay(augmentation: Augmentation) -> None:
    pictures = torch.from_numpy(random_pictures(10, 3, 8))
    before = pictures.clone()
    assert augmentation(pictures, MANY[:10], replace(CIFAR, dtype=torch.float32)).dtype == torch.float32
    assert torch.equal(pictures, before)
    numbers = torch.rand(10, 1, 8, 8)  # such as digits, which are stored ready
    assert augmentation(numbers, MANY[:10], Preparation()).dtype == torch.float32


@pytest.mark.parametrize(("preparation", "channels"), [(CIFAR, 3), (MNIST, 1), (PLAIN, 1)])
def test_the_border(preparation: Preparation, channels: int) -> None:
    """White pictures: what is not white is border, black in FedGF's order, the mean colour in FL-Simulator's."""
    white = torch.full((500, channels, 8, 8), 255, dtype=torch.uint8)
    black = normalised(np.zeros((channels, 1, 1), np.uint8), preparation)
    for augmentation, border in ((FEDGF, black), (FL_SIMULATOR, np.zeros((channels, 1, 1)))):
        found = augmentation(white, MANY[:500], preparation).numpy()
        for channel in range(channels):
            inside = normalised(np.full((channels, 1, 1), 255), preparation)
            expected = sorted({inside[channel].item(), border[channel].item()})
            assert np.unique(found[:, channel]).tolist() == pytest.approx(expected, abs=1e-14)


# The decisions, over many words


@pytest.mark.parametrize("source", ["numpy", "counters"])
@pytest.mark.parametrize(("augmentation", "crop"), [(FEDGF, 1.0), (FL_SIMULATOR, 0.5)])
def test_decisions_have_their_chances(augmentation: Augmentation, crop: float, source: str) -> None:
    counted = words(7, Purpose.AUGMENTATION, np.arange(20)[:, None, None], 3, np.arange(100)[:, None], np.arange(100))
    flipped, down, right = augmentation.decisions(MANY if source == "numpy" else counted.reshape(-1))
    n = len(flipped)
    assert binomtest(int(flipped.sum()), n, 0.5).pvalue > SMALLEST
    chances = np.full(9, crop / 9) + np.where(np.arange(9) == 4, 1 - crop, 0)
    for move in (down, right):
        assert (move.min(), move.max()) == (-4, 4)
        assert chisquare(np.bincount(move + 4, minlength=9), n * chances).pvalue > SMALLEST
    together = np.bincount((down + 4) * 9 + right + 4, minlength=81)
    chances = np.full(81, crop / 81) + np.where(np.arange(81) == 40, 1 - crop, 0)
    assert chisquare(together, n * chances).pvalue > SMALLEST, "down and right are drawn apart, the crop once"


@pytest.mark.parametrize("augmentation", [FEDGF, FL_SIMULATOR])
def test_decisions_are_independent_of_each_other_and_of_the_next_sample(augmentation: Augmentation) -> None:
    counted = words(0, Purpose.AUGMENTATION, 0, np.arange(1000)[:, None], 0, np.arange(100))
    for some in (MANY, counted.reshape(-1)):
        flipped, down, right = augmentation.decisions(some)
        place = (down + 4) * 9 + right + 4
        table = np.zeros((2, 81))
        np.add.at(table, (flipped.astype(int), place), 1)
        assert chi2_contingency(table).pvalue > SMALLEST
        for one in (flipped.astype(int), down + 4, right + 4):
            table = np.zeros((one.max() + 1, one.max() + 1))
            np.add.at(table, (one[:-1], one[1:]), 1)
            assert chi2_contingency(table).pvalue > SMALLEST


def test_a_probability_of_nothing_and_of_one() -> None:
    never = Augmentation(crop=0.0, flip=0.0, flip_first=False, border="black")
    assert not any(decision.any() for decision in never.decisions(MANY))
    assert Augmentation(crop=0.0, flip=1.0, flip_first=False, border="black").decisions(MANY)[0].all()
    pictures = torch.from_numpy(random_pictures(4, 3, 8))
    assert torch.equal(never(pictures, MANY[:4], CIFAR), CIFAR(pictures))


# In training


def pictured(augment: str = "crop-flip", sizes: tuple[int, ...] = (9, 2, 5, 7)) -> ff.FederatedData:
    """Clients with uneven numbers of colour pictures."""
    rng = np.random.default_rng(0)
    clients = [(rng.integers(0, 256, (n, 3, 8, 8), dtype=np.uint8), rng.integers(3, size=n)) for n in sizes]
    data = ff.FederatedData.from_clients(clients, test=clients[0], classes=3)
    return replace(data, augmentation=AUGMENTATIONS[augment], preparation=CIFAR)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def simulation(data: ff.FederatedData, executor: str, **changes) -> ff.Simulation:
    settings = {
        "model": network(),
        "method": find("FedSAM")(),
        "client": ff.Client(lr=0.1, epochs=2, batch_size=4),
        "rounds": 2,
    }
    return ff.Simulation(data=data, executor=executor, **(settings | changes))


@pytest.mark.parametrize("augment", ["crop-flip", "fl-simulator"])
def test_both_executors_see_the_same_pictures(augment: str) -> None:
    """Uneven clients and short last batches; and the augmentation matters."""
    runs = []
    for executor, what in (("sequential", augment), ("stacked", augment), ("sequential", "none")):
        sim = simulation(pictured(what), executor)
        runs.append(torch.stack([sim.w.clone() for _ in sim]))
    one, many, without = runs
    assert (one - many).norm() <= 1e-12 * one.norm()
    assert (one - without).norm() > 1e-2 * one.norm()


@dataclass(frozen=True)
class Watched(Augmentation):
    """Keeps the words that it was given."""

    seen: list[np.ndarray]

    def __call__(self, x: torch.Tensor, bits: np.ndarray, preparation: Preparation) -> torch.Tensor:
        assert bits.shape == x.shape[:-3]
        self.seen.append(bits)
        return super().__call__(x, bits, preparation)


def watched(data: ff.FederatedData) -> tuple[ff.FederatedData, list[np.ndarray]]:
    seen: list[np.ndarray] = []
    return replace(data, augmentation=Watched(**vars(FEDGF), seen=seen)), seen


def test_words_differ_between_clients_steps_rounds_samples_and_seeds() -> None:
    data, seen = watched(pictured(sizes=(8, 8, 8)))
    for seed in range(2):
        batches = Batches(data, ff.Client(epochs=2, batch_size=4), seed, torch.float64)
        for t in range(3):
            work = batches.plan(t, np.arange(3))
            for k in range(4):
                batches.batch(work.samples[:, k], t, work.clients, k)
    drawn = np.concatenate([bits.reshape(-1) for bits in seen])
    assert len(drawn) == 2 * 3 * 4 * 3 * 4
    assert len(np.unique(drawn)) == len(drawn)


def test_a_client_has_its_words_whoever_is_beside_it() -> None:
    data, seen = watched(pictured())
    batches = Batches(data, ff.Client(batch_size=4), 0, torch.float64)
    order = np.array([2, 0, 3])
    together = batches.batch(torch.zeros(3, 4, dtype=torch.int64), 5, order, 1).x
    for row, client in enumerate(order):
        alone = batches.batch(torch.zeros(3, dtype=torch.int64), 5, client, 1).x
        assert torch.equal(alone, together[row, :3])
        assert np.array_equal(seen[-1], seen[0][row, :3])


def test_evaluations_and_full_gradients_are_not_augmented() -> None:
    """Test loss, final training loss and flatness are those of the pictures as they are."""
    data, seen = watched(pictured())
    sim = simulation(data, "sequential", rounds=1)
    before = len(seen)
    sim.round()
    assert len(seen) - before == 2 * (3 + 1 + 2 + 2), "once a step, though FedSAM takes two gradients"
    during = len(seen)
    run = sim.result(flatness=["sharpness"])
    (full,) = Batches(data, ff.Client(), 0, torch.float64).everything(np.array([0]), stacked=False)
    assert torch.equal(full.x, CIFAR(data.client(0)[0]))
    assert len(seen) == during
    with torch.no_grad():
        x, y = data.test
        expected = nn.functional.cross_entropy(run.model(CIFAR(x)), y).item()
    assert run.metrics["test_loss"][-1].as_py() == pytest.approx(expected, rel=1e-12)
    assert ff.flatness(run.model, replace(data, augmentation=None)) == ff.flatness(run.model, data)


def test_augmented_runs_resume(tmp_path) -> None:
    whole, first, second = (simulation(pictured(), "stacked") for _ in range(3))
    for _ in whole:
        pass
    first.round()
    first.save(tmp_path / "state.safetensors")
    second.load(tmp_path / "state.safetensors")
    second.round()
    assert torch.equal(second.w, whole.w)
    other = simulation(pictured("fl-simulator"), "stacked")
    with pytest.raises(ValueError, match=r"augmentation\.crop was"):
        other.load(tmp_path / "state.safetensors")
