"""Every recipe loads, every cell can be built, and every combination of data, model and method trains."""

from __future__ import annotations

import gc
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fedflat.core.errors import InputError
from fedflat.data.dataset import FileDataset, LoadedDataset, SampleArrays
from fedflat.experiments import spec as specs
from fedflat.experiments.recipe import Cell, When, all_recipes, check_model_files, find_recipe
from fedflat.experiments.spec import ModelSection, RunSpec, federated_data
from fedflat.methods import FedGF
from fedflat.models import build, vit_b_32
from support.effort import chosen
from support.transformers import SIZES, text_folder

# Tables and figures that are experiments, as the papers number them.
WANTED = {
    "fedgf": {
        "Table": [1, 2, 3, 4, 5, 7, 8, 9, 10],
        "Figure": [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    },
    "fedvssam": {"Table": [1, 3], "Figure": [1, 2, 3, 4, 5, 6, 7, 8, 9]},
    "fedsam": {"Table": [1, 2, 4, 5], "Figure": [1, 2, 3, 4, 5, 6]},
    "fedlesam": {"Table": [2, 3, 4, 5, 7, 8, 9], "Figure": [1, 2, 3, 4, 5, 6]},
    "fedsmoo": {"Table": [1, 2, 3, 6, 7, 8], "Figure": [2, 3, 4, 5, 6, 7, 8, 9, 10]},
}

CELLS = [cell for recipe in all_recipes().values() for cell in recipe.cells()]
PARTS = 5  # of the combinations that are trained


@pytest.mark.parametrize("paper", WANTED)
def test_every_table_and_figure_that_is_an_experiment_has_a_recipe(paper: str) -> None:
    covered = {item for recipe in all_recipes().values() if recipe.paper == paper for item in recipe.item.items}
    wanted = {f"{kind} {number}" for kind, numbers in WANTED[paper].items() for number in numbers}
    assert wanted <= covered
    assert all(re.fullmatch(r"(Table|Figure) \d+", item) for item in covered)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.recipe.name}:{cell.name}")
def test_every_cell_is_a_study(cell: Cell) -> None:
    """Options named by `when` exist, and every method that local training has settings for."""
    study = cell.study()
    assert study.rounds >= 1
    absent = {label for when in cell.recipe.item.when if set(when.cell) <= set(cell.options) for label in when.without}
    assert len(study.methods) == max(1, len(cell.recipe.item.use) - len(absent))
    known = {option for each in cell.recipe.cells() for option in each.options}
    assert all(set(when.cell) <= known for when in cell.recipe.item.when)
    classes = {method.name for method in study.methods}
    assert set(study.client_of) <= classes | set(cell.recipe.base.methods)


def test_a_recipe_of_pretrained_weights_is_refused_without_them() -> None:
    """In one line that names the option; random weights would be another experiment."""
    for name in ("fedlesam/table3", "fedlesam/figure4-domains"):
        for cell in find_recipe(name).cells():
            model = cell.study().model
            with pytest.raises(InputError, match=r"^model option pretrained = 'FOLDER' is no folder"):
                build(model.name, 10, (3, 224, 224), **model.options)
            with pytest.raises(InputError, match=r"^model option pretrained = 'FOLDER' is no folder"):
                check_model_files(cell.study())


def test_only_c_differs_in_table_5_of_fedgf() -> None:
    for cell in find_recipe("fedgf/table5").cells():
        first, *others = [method.values() for method in cell.study().methods]
        names = {"c", "threshold"}  # which a fixed c does not use
        assert all({name: x for name, x in one.items() if one[name] != first[name]}.keys() <= names for one in others)


def test_every_variant_of_figure_11_of_fedgf_differs_from_its_centre_in_one_value() -> None:
    for cell in find_recipe("fedgf/figure11").cells():
        centre, *others = [method.values() for method in cell.study().methods]
        changed = [[name for name in one if one[name] != centre[name]] for one in others]
        assert [len(names) for names in changed] == [1] * 13
        table = next(each for each in find_recipe("fedgf/table1").cells(",".join(cell.options)))
        (there,) = [method.values() for method in table.study().methods if method.name == "FedGF"]
        used = FedGF(**{name: x for name, x in there.items() if name != "name"})
        assert FedGF(**{n: x for n, x in centre.items() if n != "name"}) == replace(used, rho_g=used.rho)


def small(spec: RunSpec) -> RunSpec:
    """One round of two clients if there are two, one step on two samples; data, partition, model and method stay."""
    data = replace(spec.data, train_samples=None, test_samples=None)
    client = replace(spec.client, epochs=None, steps=1, batch_size=2)
    changes = {
        "data": data,
        "client": client,
        "rounds": 1,
        "participation": [[0, 1][: spec.data.clients]],
        "flatness": [],
        "probes": [],
    }
    options = {name: value for name, value in spec.model.options.items() if name != "pretrained"}
    changes["model"] = spec.model.model_copy(update={"options": options})
    return spec.model_copy(update=changes | {"device": "cpu", "executor": "sequential", "targets": []})


def synthetic(known: FileDataset, clients: int) -> LoadedDataset:
    """Samples of the set's shape, some 20 for each client, in all its classes and domains, with test samples."""

    domains = max(1, len(known.domains))

    def part(n: int) -> SampleArrays:
        x = torch.zeros(known.sample_shape(), dtype=torch.int16 if known.vocabulary_size else torch.uint8)
        x = (x + torch.arange(x.shape[-1]).to(x.dtype)).expand(n, *x.shape)
        place = np.arange(n)
        domain = place % domains if known.domains else None
        return SampleArrays(x, torch.from_numpy(place // domains % known.classes), domain, place % clients)

    number = max(20 * (20 if known.domains else clients), 2 * known.classes)
    return LoadedDataset(part(number), part(4 * domains), known.classes,
                  known.preparation, known.domains)  # fmt: skip


@pytest.fixture
def synthetic_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileDataset, "load", lambda known, *_: synthetic(known, 200))
    monkeypatch.setattr(specs, "load_once", cache(specs.load_once.__wrapped__))
    monkeypatch.setitem(vit_b_32.SIZES, "num_hidden_layers", 1)  # of twelve alike; whole, it takes a minute a method


@pytest.mark.usefixtures("synthetic_sets")
@pytest.mark.parametrize("paper", sorted({cell.recipe.paper for cell in CELLS}))
def test_every_partition_can_be_made(paper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pictures of one point, because a partition does not look at them."""
    monkeypatch.setattr(FileDataset, "sample_shape", lambda known, form=None: (1, 1, 1))
    for cell in CELLS:
        if cell.recipe.paper == paper:
            run = small(cell.study().runs()[0])
            run = run.model_copy(update={"model": ModelSection(name="mlp")})  # a transformer's folder is not here
            data = federated_data(run)
            assert data.clients == run.data.clients
            assert data.sizes.min() >= 1


@cache
def combinations() -> dict[str, RunSpec]:
    """One run for each combination of data, model and method that some cell has.

    They are found when a test asks for them: it takes seconds, also in every process that only collects the tests.
    """
    found: dict[str, RunSpec] = {}
    for cell in CELLS:
        for run in cell.study().runs()[: len(cell.recipe.item.use)]:
            found.setdefault(f"{run.data.name} {run.model.name} {run.method.name}", run)
    return found


@cache
def covering() -> dict[str, RunSpec]:
    """A combination of each model, and one for each other data set and method of the recipes.

    The latter have small models, the recipe's or an MLP in its place, for the sake of time and memory.
    """
    every = combinations()
    of_model = {run.model.name: name for name, run in reversed(every.items())}  # the first method, mostly FedAvg
    found = {name: every[name] for name in of_model.values()}
    tried = {name for run in found.values() for name in (run.data.name, run.method.name)}
    for name in sorted(every, key=is_large):
        run = every[name]
        if not tried >= {run.data.name, run.method.name}:
            tried |= {run.data.name, run.method.name}
            found[name] = run.model_copy(update={"model": ModelSection(name="mlp")}) if is_large(name) else run
    return found


def is_large(name: str) -> bool:
    """Whether a combination has a model of millions of parameters."""
    return any(kind in name for kind in ("resnet", "wrn", "vit"))


@pytest.mark.slow
@pytest.mark.usefixtures("synthetic_sets")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_combination_trains_for_a_round(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vit_b_32, "SIZES", chosen(vit_b_32.SIZES | SIZES, vit_b_32.SIZES))
    runs = list(chosen(covering, combinations)().items())[part::PARTS]
    assert runs
    for name, run in runs:
        try:
            trains_for_a_round(run, tmp_path / name)
        except Exception as error:
            error.add_note(name)
            raise


def trains_for_a_round(run: RunSpec, folder: Path) -> None:
    if run.model.name == "transformer":
        options = {"path": str(text_folder(folder, tokens=128))}
        run = run.model_copy(update={"model": run.model.model_copy(update={"options": options})})
    sim = small(run).build()
    before = sim.w.clone()
    sim.round()
    assert torch.isfinite(sim.w).all()
    assert not torch.equal(sim.w, before)
    if is_large(run.model.name):
        del sim
        gc.collect()  # or several stay in memory


def test_scale_shortens_rounds_and_the_mean_of_the_last() -> None:
    cell = find_recipe("fedgf/table1").cells("cifar10,alpha-0")[0]
    full, part = cell.study(), cell.study(scale=0.01)
    assert (full.rounds, full.last) == (10_000, 100)
    assert (part.rounds, part.last) == (100, 1)


def test_later_layers_win() -> None:
    """FedGF's radii depend on data and alpha together; its FedSMOO has no regulariser."""
    study = {cell.name: cell.study() for cell in find_recipe("fedgf/table1").cells()}
    rho = {name: next(m.rho for m in s.methods if m.name == "FedSAM") for name, s in study.items()}
    by_cell = {tuple(name.split(",")[:2]): value for name, value in rho.items()}
    assert by_cell == {
        ("cifar10", "alpha-0"): 0.1, ("cifar10", "alpha-0.005"): 0.1, ("cifar10", "alpha-10"): 0.02,
        ("cifar100", "alpha-0"): 0.02, ("cifar100", "alpha-0.005"): 0.05, ("cifar100", "alpha-10"): 0.05,
    }  # fmt: skip
    assert all(not m.dynamic_reg for s in study.values() for m in s.methods if m.name == "FedSMOO")


def test_figure_6_shows_what_the_paper_shows() -> None:
    """Of Figures 3, 5 and 6 only the one for CIFAR-100 lacks FedCM and MimeLite."""
    names = {cell.options[0]: {method.name for method in cell.study().methods}
             for cell in find_recipe("fedsam/figure3-rho-beta").cells()}  # fmt: skip
    assert names["cifar100"] == {"FedAvg", "FedSAM", "MoFedSAM"}
    assert names["cifar10"] == names["emnist"] == names["cifar100"] | {"FedCM", "MimeLite"}


def test_mistakes() -> None:
    with pytest.raises(InputError, match=r"recipe 'fedgf/table99' is unknown; known are fedgf/"):
        find_recipe("fedgf/table99")
    with pytest.raises(InputError, match=r"recipe 'x' is unknown; known are those of fedgf, fedlesam"):
        find_recipe("x")
    recipe = find_recipe("fedgf/table1")
    odd = replace(recipe, item=recipe.item.model_copy(update={"when": [When(cell=[], without=["FedNone"])]}))
    with pytest.raises(InputError, match=r"recipe fedgf/table1: without names 'FedNone', which is not in use"):
        odd.cells()[0].study()
    with pytest.raises(InputError, match=r"--cell mnist: fedgf/table1 has no option 'mnist'; it has 10-of-100, "):
        find_recipe("fedgf/table1").cells("mnist")
    with pytest.raises(InputError, match=r"--cell cifar10,cifar100: fedgf/table1 has no cell with all these options"):
        find_recipe("fedgf/table1").cells("cifar10,cifar100")
