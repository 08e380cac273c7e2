"""Make `src/fedflat/reports/listing.json`: what lists and completion show without importing torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from benchmarks.recipe_costs import budgets_of, cells_of
from fedflat.cli.flags import keys
from fedflat.data.dataset import FileDataset
from fedflat.data.partition import all_partitions
from fedflat.data.sources import TABLE, Source
from fedflat.experiments.budget import timed_model, total
from fedflat.experiments.recipe import Recipe, all_recipes
from fedflat.experiments.spec import Experiment, RunSpec, StudySpec
from fedflat.experiments.tuning_spec import TuningSpec
from fedflat.methods import all_methods
from fedflat.reports.catalogue import facts_of, grouped
from fedflat.reports.listing import modules
from fedflat.reports.plans import recipe_texts

KINDS: dict[str, type[Experiment]] = {"run": RunSpec, "study": StudySpec, "search": TuningSpec}


def package_listing() -> str:
    """Return the text of the file."""
    facts = [facts_of(cls) for classes in grouped(all_methods().values()).values() for cls in classes]
    content = {
        "settings": {kind: setting_names(spec) for kind, spec in KINDS.items()},
        "partitions": list(all_partitions()),
        "methods": {"modules": modules("methods"), "facts": [asdict(one) for one in facts]},
        "sources": [source_row(name, known) for name, known in TABLE.items()],
        "recipes": [recipe_entry(recipe) for recipe in all_recipes().values()],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def source_row(name: str, source: Source) -> list[str]:
    """Return the name of a data set, what it is in one line, and the files that it is read from."""
    hub = f"; on the hub: {source.hub.repository}" if isinstance(source, FileDataset) and source.hub else ""
    return [name, source.summary, f"{source.where}{hub}"]


def setting_names(spec: type[Experiment]) -> list[str]:
    """Return the dotted keys that flags give; a list of sections, such as probes, is one key."""
    lists = {name for name, info in spec.model_fields.items() if getattr(info.annotation, "__origin__", None) is list}
    sections = {key: key.partition(".")[0] for key in keys(spec)}
    return list(dict.fromkeys(section if section in lists else key for key, section in sections.items()))


def recipe_entry(recipe: Recipe) -> dict[str, Any]:
    """Return the row of a recipe without hours, the models that are timed for them, and a model's files that it needs.

    The cost of a recipe whose model is in files is unknown, wherever this runs.
    """
    cells = cells_of(recipe)
    files = next((run.model.options["path"] for _, runs in cells for run in runs if "path" in run.model.options), None)
    if recipe.item.kind == "partition" or files is not None:
        return {"row": recipe_texts(recipe, None, None), "models": [], "files": files}
    work = total(budgets_of(recipe))
    models = list(dict.fromkeys(timed_model(runs[0]) for _, runs in cells))
    return {"row": recipe_texts(recipe, work, None), "models": models, "files": None}
