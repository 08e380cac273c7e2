"""Write the parts of the documentation that are read off the package; with --check, fail if they are not current."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks import attacks, compression, gpu_page, network_audit, new_methods, privacy, recipe_costs
from benchmarks.executor_grid import grid_table
from benchmarks.growth_figure import read_growth
from benchmarks.results import Results
from benchmarks.tables import (
    Table,
    circumstances,
    joined_days,
    other_frameworks_table,
    peers_table,
    target_table_of_days,
    times_table,
    vectors_table,
)
from docs import compression_tables, example_headers, ledger, new_method_tables, published, study_quotes
from docs import measured_tables as measured
from docs.gpu_lines import gpu_lines_table
from docs.links import absolute, anchor, broken_links
from docs.measured_tables import UNMEASURED
from docs.method_grid import grid
from docs.method_pages import index_table, link, method_pages, page_problems
from docs.notebooks import notebooks
from docs.other_packages import packages_table
from docs.package_listing import package_listing
from docs.perturbation_options import options_table
from fedflat.data.partition import all_partitions
from fedflat.experiments.recipe import Recipe, all_recipes
from fedflat.federation.flower.settings import NodeSettings, RunSettings
from fedflat.federation.flower.site_policy import SiteLimits
from fedflat.methods import all_methods
from fedflat.metrics.flatness import all_measures
from fedflat.reports.catalogue import costs, documentation, grouped, settings
from fedflat.reports.listing import FILE
from fedflat.reports.method_facts import COSTS
from fedflat.reports.method_list import LEGEND
from fedflat.reports.plans import details

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
STUDY = ROOT / "studies" / "flat-or-tuned" / "results"
GAP_STUDY = ROOT / "studies" / "gap-and-flatness" / "results"
study = import_module("studies.flat-or-tuned.page")  # the hyphens of the folder keep it from an import statement
study_analysis = import_module("studies.flat-or-tuned.analysis")
gap_study = import_module("studies.gap-and-flatness.page")


def parts() -> dict[str, Mapping[str, str]]:
    """Return what stands between the marks of each page, by mark; but for pages of methods and of studies."""
    return {
        "README.md": {
            "methods": names_by_group(),
            "studies": absolute(study_quotes.readme(*both_studies())),
            "packages": absolute(packages_table()),
        },
        "examples/README.md": {"examples": example_headers.table()},
        "docs/methods.md": {"index": index_table(), "grid": grid(), **new_method_parts()},
        "docs/which_method.md": {"costs": cost_of_methods(), **study_quotes.which_method(*both_studies())},
        "docs/decisions.md": {"contents": decisions()},
        "docs/data.md": {"partitions": partition_table()},
        "docs/flatness.md": {"measures": measure_table()},
        "docs/recipes.md": recipe_parts(),
        "docs/published.md": published_parts(),
        "docs/performance.md": performance_parts(),
        "docs/ranks.md": ranks_parts(),
        "docs/howto/model_parts.md": {
            "normalisation": of_file("normalisation.json", measured.normalisation_table),
        },
        "docs/howto/perturbation.md": {"options": options_table()},
        "docs/howto/compression.md": compression_parts(),
        "docs/deploy.md": deploy_parts(),
        "docs/operate.md": operate_parts(),
        "docs/durability.md": {"promises": promises_table(), "trials": of_file("trials.json", measured.trials_table)},
        "docs/guards.md": guards_parts(),
        "docs/secure_sum.md": secure_sum_parts(),
        "docs/privacy.md": privacy_parts(),
        "docs/tests.md": {
            "gpu results": gpu_results(),
            "gpu lines": gpu_lines_table().markdown(),
            "versions": of_file("matrix.json", measured.versions_table),
            "flower versions": of_file("matrix.json", measured.flower_table),
            "planted defects": of_file("planted_defects.json", measured.defects_table),
        },
    }


def renewed(text: str, contents: Mapping[str, str]) -> str:
    """Return `text` with what stands between its marks replaced by `contents`, by mark."""
    for what, content in contents.items():
        begin, end = f"<!-- {what}: written by docs/generate.py -->", f"<!-- end of {what} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"
    return text


def of_file(name: str, table: Any, part: str = "") -> str:
    """Return the table of a JSON file in docs/, or say that nothing was measured if it has no such `part`."""
    content = json.loads((DOCS / name).read_text()) if (DOCS / name).exists() else {}
    is_there = part in content if part else bool(content)
    return table(content).markdown() if is_there else UNMEASURED


def cell(text: str) -> str:
    """Return `text` for a cell of a table, which a bar, as of a norm, would end."""
    return text.replace("|", "\\|")


def names_by_group() -> str:
    """Return a line for each group of methods with their names."""
    groups = grouped(all_methods().values()).items()
    return "\n".join(f"* **{group.capitalize()}**: {', '.join(cls.__name__ for cls in some)}" for group, some in groups)


def cost_of_methods() -> str:
    """Return what every method costs and needs, and the radius that papers give."""
    rows = []
    for name, cls in all_methods().items():
        has_rho = any(f.name == "rho" and "radius" in f.metadata["meaning"] for f in settings(cls))
        published_rho = str(cls.sources.published.get("rho", "")) if has_rho else ""
        rows.append((link(name), *map(str, costs(cls)), cls.weights, published_rho))
    table = Table(("method", *COSTS, "weights", "published rho"), rows)
    return f"{table.markdown()}\n\n{LEGEND}. Weights: of the clients in the server's mean."


def partition_table() -> str:
    """Return the partition schemes with their parameters and the first paragraph of their docstrings."""
    rows = [(f"`{name}`", defaults(cls), documentation(cls).split("\n\n")[0].replace("\n", " "))
            for name, cls in all_partitions().items()]  # fmt: skip
    return Table(("name", "parameters", "what it does"), rows).markdown()


def measure_table() -> str:
    """Return every measure of flatness with its settings and its definition."""
    rows = [(f"`{name}`", defaults(cls), cell(" ".join(documentation(cls).split())))
            for name, cls in all_measures().items()]  # fmt: skip
    return Table(("measure", "settings", "definition"), rows).markdown()


def defaults(cls: type) -> str:
    """Return the fields of a class with their defaults."""
    return ", ".join(f"`{f.name}` = {f.default}" for f in settings(cls))


def recipe_list() -> str:
    """Return every paper with its notes, every recipe with its own."""
    parts: list[str] = []
    paper = None
    for name, recipe in all_recipes().items():
        if recipe.paper != paper:
            paper = recipe.paper
            parts += [f"### {paper}: {recipe.base.title}", "", f"{recipe.base.paper}.", ""]
            parts += [*(f"* {note}" for note in recipe.base.notes), ""]
        cells = [f"`{cell.name}`" for cell in recipe.cells()]
        parts += [f"#### {name}", "", f"{', '.join(recipe.item.items)}: {recipe.item.title}.", ""]
        parts += [
            *(f"* {line}" for line in [*details(recipe), *printed(recipe)]),
            f"* cells ({len(cells)}): {', '.join(cells)}",
            "",
        ]
    return "\n".join(parts).rstrip()


def printed(recipe: Recipe) -> list[str]:
    """Return how many numbers of the paper the recipe has, and what contradicts them, with the cells."""
    blocks = recipe.published.blocks if recipe.published else []
    numbers = sum(len(block.values_by_method) for block in blocks)
    tables = ", ".join(dict.fromkeys(block.where.split(",")[0] for block in blocks))
    cells: dict[str, list[str]] = {}
    for block in blocks:
        if block.warning:
            cells.setdefault(f"{block.where}, {block.quantity}: {block.warning}", []).append(
                ",".join(block.cell) or "all"
            )
    warnings = [
        f"warning, {' and '.join(where) if len(where) < 3 else f'{len(where)} cells'}, {text}"
        for text, where in cells.items()
    ]
    return [f"the paper's numbers: {numbers} ({tables})", *warnings] if blocks else []


def recipe_parts() -> dict[str, str]:
    """Return the parts of docs/recipes.md: every recipe, what the papers print, and what recipes cost."""
    file = recipe_costs.FILE
    return {
        "recipes": recipe_list(),
        "coverage": published.coverage_table().markdown(),
        "recipe costs": recipe_costs.page_part(json.loads(file.read_text())) if file.exists() else UNMEASURED,
    }


def published_parts() -> dict[str, str]:
    """Return the parts of docs/published.md: what several sources print for the same cell, and our ledger."""
    tables = {
        "spread": published.spread_table, "differences": published.difference_table, "copies": published.copy_table,
        "sources": published.source_table,
    }  # fmt: skip
    found = {what: table().markdown() for what, table in tables.items()}
    return {"cells": published.cell_tables()} | found | ledger.parts()


def new_method_parts() -> dict[str, str]:
    """Return what the newer methods reached beside their relatives, in tables and in a sentence."""
    rows, file = new_methods.rows(), new_methods.FILE
    results = new_methods.read(json.loads(file.read_text())) if file.exists() else []
    tables = {
        "newer methods": new_method_tables.server_table, "newer personal methods": new_method_tables.personal_table,
        "newer methods compared": new_method_tables.difference_table,
    }  # fmt: skip
    found = {what: table(rows, results).markdown() if results else UNMEASURED for what, table in tables.items()}
    return found | {"newer methods in words": new_method_tables.findings(rows, results) if results else UNMEASURED}


def compression_parts() -> dict[str, str]:
    """Return what compressed messages did to accuracy and flatness, in tables and in sentences."""
    file = compression.FILE
    results = compression.read(json.loads(file.read_text())) if file.exists() else []
    tables = {
        "compressed": compression_tables.value_table, "compressed ratios": compression_tables.ratio_table,
        "compressed verdicts": compression_tables.verdict_table,
    }  # fmt: skip
    found = {what: table(results).markdown() if results else UNMEASURED for what, table in tables.items()}
    return found | {"compressed errors": compression_tables.largest_error(results) if results else UNMEASURED}


def performance_parts() -> dict[str, str]:
    """Return the targets, and what was measured; targets of what was not have no figures."""
    growth = DOCS / "growth" / "growth.json"
    days = [Results.load(file) for file in sorted(DOCS.glob("performance*.json"), reverse=True)] or [Results({})]
    results = joined_days(days)
    found = {"targets": target_table_of_days(days).markdown(), "growth": UNMEASURED}
    found["other frameworks"] = other_frameworks_table(days).markdown()
    for what, table in {"times": times_table, "vectors": vectors_table, "peers": peers_table}.items():
        found[what] = table(results).markdown() if results.every else UNMEASURED
    if growth.exists():
        table = measured.growth_table(read_growth(growth))
        found["growth"] = f"![Cost of a round](growth/growth.svg)\n\n{table.markdown()}"
    found["executor grid"] = of_file("executor_grid.json", grid_table)
    told = [f"{_days(day)}: {circumstances(day)}" for day in days if day.every]
    return found | {"circumstances": "\n\n".join(told) or UNMEASURED}


def _days(results: Results) -> str:
    """Return the dates on which the works were measured."""
    return ", ".join(sorted({str(part["begin"]["at"])[:10] for part in results.parts.values()}))


def gpu_results() -> str:
    """Return what was found on a GPU, or that none was there."""
    file = DOCS / "gpu.json"
    return gpu_page.page_part(Results.load(file) if file.exists() else None)


def ranks_parts() -> dict[str, str]:
    """Return rounds and sums of several ranks."""
    tables = {"rounds": measured.rank_rounds_table, "aggregation": measured.aggregation_table}
    return {what: of_file("ranks.json", table) for what, table in tables.items()}


def deploy_parts() -> dict[str, str]:
    """Return the settings of federations."""
    return {
        "run settings": measured.settings_table(RunSettings).markdown(),
        "node settings": measured.settings_table(NodeSettings).markdown(),
        "policy": measured.settings_table(SiteLimits).markdown(),
    }


def operate_parts() -> dict[str, str]:
    """Return what was measured of federations."""
    return {
        "cost": of_file("federation.json", measured.federation_cost_table),
        "beside": of_file("federation.json", measured.beside_flower_table, "beside"),
        "kills": of_file("federation.json", measured.kills_table),
    }


def secure_sum_parts() -> dict[str, str]:
    """Return the cost of secure sums, and of rounds with them."""
    tables = {"sums": measured.secure_sums_table, "rounds": measured.secure_rounds_table}
    return {what: of_file("secure_sum.json", table, what) for what, table in tables.items()}


def guards_parts() -> dict[str, str]:
    """Return what attacks and guards did."""
    rows = attacks.read() if attacks.FILE.exists() else []
    tables = {
        "attacks": measured.attack_table, "methods": measured.method_table, "costs": measured.guard_cost_table,
        "claims": measured.claims_table,
    }  # fmt: skip
    found = {what: table(rows).markdown() if rows else UNMEASURED for what, table in tables.items()}
    return {"worst cost": measured.worst_cost(rows)} | found


def privacy_parts() -> dict[str, str]:
    """Return accuracies by epsilon, and what canaries proved."""
    runs, audits = privacy.read_runs(), privacy.read_audits()
    file = DOCS / "network_audit.json"
    network = network_audit.shown(json.loads(file.read_text())) if file.exists() else None
    table = measured.private_accuracy_table(runs, audits) if runs else None
    return {
        "audit": measured.audit_table(audits).markdown() if audits else UNMEASURED,
        "network audit": measured.network_audit_table(network).markdown() if network else UNMEASURED,
        "private accuracy": table.markdown() if table else UNMEASURED,
    }


def promises_table() -> str:
    """Return every promise and its tests. Raises ValueError for a test that is not there."""
    rows = []
    for number, promise in enumerate(tomllib.loads((ROOT / "docs" / "promises.toml").read_text())["promise"], start=1):
        for test in promise["tests"]:
            file, _, name = test.partition("::")
            if not (ROOT / file).exists() or (name and f"def {name}(" not in (ROOT / file).read_text()):
                raise ValueError(f"docs/promises.toml: there is no {test}")
        held = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in promise["tests"])
        rows.append((str(number), promise["says"], held))
    return Table(("", "promise", "held by"), rows).markdown()


def decisions() -> str:
    """Return the contents of docs/decisions.md: every decision by room, with its status."""
    text = (DOCS / "decisions.md").read_text()
    rooms = [room.split("\n", 1) for room in re.split(r"^## ", text, flags=re.MULTILINE)[2:]]  # after the contents
    return "\n\n".join(decisions_in(name, some) for name, some in rooms)


def decisions_in(room: str, decisions: str) -> str:
    """Return the decisions of one room as a table under a link to it."""
    found = re.findall(r"^### ((\d+)\. (.+))\n\nStatus: (.+)$", decisions, re.MULTILINE)
    rows = [(number, f"[{title}](#{anchor(heading)})", status) for heading, number, title, status in found]
    return f"**[{room}](#{anchor(room)})**\n\n{Table(('', 'decision', 'status'), rows).markdown()}"


def study_results(folder: Path) -> Any:
    """Return the results of the study in `folder`; what is not there was not measured yet."""
    return study_analysis.Results.load(folder)


def both_studies() -> tuple[Any, Any]:
    """Return the results of the first and of the second study."""
    return study_results(STUDY), gap_study.Results.load(GAP_STUDY)


def study_page(folder: Path) -> dict[Path, str]:
    """Return docs/study.md and its figures, from the results in `folder` and those of the second study."""
    results = study_results(folder)
    contents = study.chapters(results) | study_quotes.first_study(results, gap_study.Results.load(GAP_STUDY))
    return page_with_figures("study.md", contents, study.FIGURES, study.figures(results))


def gap_study_page(folder: Path) -> dict[Path, str]:
    """Return docs/gap_study.md and its figure, from the results in `folder`."""
    results = gap_study.Results.load(folder)
    contents = gap_study.chapters(results) | study_quotes.second_study(results)
    return page_with_figures("gap_study.md", contents, gap_study.FIGURES, gap_study.figures(results))


def page_with_figures(
    name: str, contents: Mapping[str, str], folder: str, figures: Mapping[str, str]
) -> dict[Path, str]:
    """Return a page of docs/ with its `contents` by mark, and its figures in `folder` by file name."""
    page = DOCS / name
    return {page: renewed(page.read_text(), contents)} | {DOCS / folder / one: svg for one, svg in figures.items()}


def main() -> int:
    """Write, or with --check compare; the exit code is 1 if a page is not current, or an equation or link is wrong."""
    torch.set_num_threads(1)  # the models of the grid are small: more threads would wait for each other
    pages = {ROOT / page: renewed((ROOT / page).read_text(), contents) for page, contents in parts().items()}
    pages |= {**method_pages(), **study_page(STUDY), **gap_study_page(GAP_STUDY), **notebooks()}
    pages[FILE] = package_listing()
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if "--check" not in sys.argv[1:]:
        for path in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pages[path])
        stale = []
    wrong = [
        *(f"{path.relative_to(ROOT)} is not current; run `make docs`" for path in stale),
        *page_problems(),
        *broken_links(),
    ]
    for line in wrong:
        print(line)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
