"""Write the parts of the documentation that are read off the package; with --check, fail if they are not current."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from benchmarks import attacks, privacy, recipe_costs
from benchmarks.federation_tables import cost_table, kills_table, settings_table
from benchmarks.growth_tables import growth_table, read_growth
from benchmarks.ranks_tables import aggregation_table, rounds_table
from benchmarks.results import Results
from benchmarks.secure_sum_tables import rounds_table as sum_rounds_table
from benchmarks.secure_sum_tables import sums_table
from benchmarks.tables import Table, circumstances, peers_table, target_table, times_table, vectors_table
from docs import attack_tables, privacy_tables, published, study
from docs.gpu_lines import gpu_lines_table
from docs.method_grid import grid
from docs.method_pages import index_table, link, method_pages, page_problems
from docs.package_listing import package_listing
from docs.study_analysis import Results as StudyResults
from docs.study_guidance import guidance, reach
from fedflat.data.partition import all_partitions
from fedflat.experiments.recipe import Recipe, all_recipes
from fedflat.federation.flower.settings import NodeSettings, RunSettings
from fedflat.methods import all_methods
from fedflat.metrics.flatness import all_measures
from fedflat.reports.catalogue import costs, documentation, settings, summary
from fedflat.reports.listing import COSTS, FILE, LEGEND
from fedflat.reports.recipes import details

ROOT = Path(__file__).parent.parent
UNMEASURED = "Not measured yet."
STUDY = ROOT / "studies" / "flat-or-tuned" / "results"


def between(page: str, what: str, content: str) -> str:
    """`page` with what stands between the marks of `what` renewed."""
    return renewed((ROOT / page).read_text(), what, content)


def renewed(text: str, what: str, content: str) -> str:
    """`text` with what stands between the marks of `what` renewed."""
    begin, end = f"<!-- {what}: written by docs/generate.py -->", f"<!-- end of {what} -->"
    before, rest = text.split(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def method_table() -> str:
    """Every method in one line, as a Markdown table."""
    titles = ["method", "idea", *COSTS, "paper"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, cls in all_methods().items():
        idea = summary(cls).replace("|", "\\|")  # a norm's bars would end the cell
        lines.append(f"| {' | '.join([f'`{name}`', idea, *map(str, costs(cls)), str(cls.paper)])} |")
    return "\n".join([*lines, "", f"{LEGEND}."])


def cost_of_methods() -> str:
    """What every method costs and needs, and the radius that papers give, as a Markdown table."""
    titles = ["method", *COSTS, "weights", "published rho"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, cls in all_methods().items():
        cells = [link(name), *map(str, costs(cls)), cls.weights]
        rho = any(f.name == "rho" and "radius" in f.metadata["meaning"] for f in settings(cls))
        lines.append(f"| {' | '.join(cells)} | {cls.sources.published.get('rho', '') if rho else ''} |")
    return "\n".join([*lines, "", f"{LEGEND}. Weights: of the clients in the server's mean."])


def partition_table() -> str:
    """The partition schemes as a Markdown table."""
    lines = ["| name | parameters | what it does |", "|---|---|---|"]
    for name, cls in all_partitions().items():
        parameters = ", ".join(f"`{f.name}` = {f.default}" for f in settings(cls))
        first = documentation(cls).split("\n\n")[0].replace("\n", " ")
        lines.append(f"| `{name}` | {parameters} | {first} |")
    return "\n".join(lines)


def measure_table() -> str:
    """Every measure of flatness with its settings and its definition, as Markdown."""
    rows = ["| measure | settings | definition |", "|---|---|---|"]
    for name, cls in all_measures().items():
        defaults = ", ".join(f"`{f.name}` = {f.default}" for f in settings(cls))
        words = " ".join(documentation(cls).split()).replace("|", "\\|")
        rows.append(f"| `{name}` | {defaults} | {words} |")
    return "\n".join(rows)


def recipe_list() -> str:
    """Every paper with its notes, every recipe with its own."""
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
    """How many numbers of the paper the recipe has, and what contradicts them, with the cells."""
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


def recipes_page() -> str:
    """docs/recipes.md with every recipe, and how many of the papers' cells have numbers."""
    text = between("docs/recipes.md", "recipes", recipe_list())
    text = renewed(text, "coverage", published.coverage_table().markdown())
    file = recipe_costs.FILE
    costs = recipe_costs.page_part(json.loads(file.read_text())) if file.exists() else UNMEASURED
    return renewed(text, "recipe costs", costs)


def published_page() -> str:
    """docs/published.md: what several sources print for the same cell."""
    tables = {
        "spread": published.spread_table, "differences": published.difference_table, "copies": published.copy_table,
        "sources": published.source_table,
    }  # fmt: skip
    text = between("docs/published.md", "cells", published.cell_tables())
    for what, table in tables.items():
        text = renewed(text, what, table().markdown())
    return text


def performance_page() -> str:
    """docs/performance.md with what was measured, which lies beside it; tables of what was not have no figures."""
    measured, growth = ROOT / "docs" / "performance.json", ROOT / "docs" / "growth" / "growth.json"
    results = Results.load(measured) if measured.exists() else Results({})
    text = (ROOT / "docs" / "performance.md").read_text()
    for what, content in (measured_chapters(results) | growth_chapter(growth)).items():
        text = renewed(text, what, content)
    return text


def measured_chapters(results: Results) -> dict[str, str]:
    """The targets, and if something was measured, everything that was."""
    missing = UNMEASURED
    tables = {"times": times_table, "vectors": vectors_table, "peers": peers_table}
    chapters = {what: table(results).markdown() if results.every else missing for what, table in tables.items()}
    circumstance = circumstances(results) if results.every else missing
    return chapters | {"circumstances": circumstance, "targets": target_table(results).markdown()}


def growth_chapter(file: Path) -> dict[str, str]:
    """Figure and figures of growth."""
    if not file.exists():
        return {"growth": UNMEASURED}
    return {"growth": f"![Cost of a round](growth/growth.svg)\n\n{growth_table(read_growth(file)).markdown()}"}


def ranks_page() -> str:
    """docs/ranks.md with what was measured."""
    content = json.loads((ROOT / "docs" / "ranks.json").read_text())
    text = (ROOT / "docs" / "ranks.md").read_text()
    text = renewed(text, "rounds", rounds_table(content).markdown())
    return renewed(text, "aggregation", aggregation_table(content).markdown())


def which_method_page() -> str:
    """docs/which_method.md with costs, and what the study found."""
    text = between("docs/which_method.md", "costs", cost_of_methods())
    results = StudyResults.load(STUDY)
    return renewed(renewed(text, "guidance", guidance(results)), "reach", reach(results))


def study_page(folder: Path) -> dict[Path, str]:
    """docs/study.md and its figures, from the results in `folder`; what is not there was not measured yet."""
    results = StudyResults.load(folder)
    text = (ROOT / "docs" / "study.md").read_text()
    for what, content in (study.chapters(results) | {"guidance": guidance(results), "reach": reach(results)}).items():
        text = renewed(text, what, content)
    figures = study.figures(results)
    return {ROOT / "docs" / "study.md": text} | {
        ROOT / "docs" / study.FIGURES / name: figure for name, figure in figures.items()
    }


def durability_page() -> str:
    """docs/durability.md with what was tried, and what is promised."""
    text = renewed((ROOT / "docs" / "durability.md").read_text(), "promises", promises_table())
    file = ROOT / "docs" / "trials.json"
    return renewed(text, "trials", trials_table(json.loads(file.read_text())) if file.exists() else UNMEASURED)


def promises_table() -> str:
    """Every promise and its tests. Raises ValueError for a test that is not there."""
    rows = []
    for number, promise in enumerate(tomllib.loads((ROOT / "docs" / "promises.toml").read_text())["promise"], start=1):
        for test in promise["tests"]:
            file, _, name = test.partition("::")
            if not (ROOT / file).exists() or (name and f"def {name}(" not in (ROOT / file).read_text()):
                raise ValueError(f"docs/promises.toml: there is no {test}")
        held = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in promise["tests"])
        rows.append((str(number), promise["says"], held))
    return Table(("", "promise", "held by"), rows).markdown()


def trials_table(content: dict[str, Any]) -> str:
    """How often each trial was made, and what was lost or wrong."""
    rows = [
        (
            row["name"],
            row["audit"],
            f"{row['tried']:,}",
            f"{row['tried'] - len(row['wrong']):,}",
            "; ".join(row["wrong"]),
        )
        for row in content["trials"]
    ]
    return Table(
        ("trial", "the audit: tried, survived, lost", "tried now", "survived", "lost or wrong"), rows
    ).markdown()


def deploy_page() -> str:
    """docs/deploy.md with the settings there are and what was measured."""
    content = json.loads((ROOT / "docs" / "federation.json").read_text())
    tables = {
        "run settings": settings_table(RunSettings), "node settings": settings_table(NodeSettings),
        "cost": cost_table(content), "kills": kills_table(content),
    }  # fmt: skip
    text = (ROOT / "docs" / "deploy.md").read_text()
    for what, table in tables.items():
        text = renewed(text, what, table.markdown())
    return text


def secure_sum_page() -> str:
    """docs/secure_sum.md with what was measured."""
    file, text = ROOT / "docs" / "secure_sum.json", (ROOT / "docs" / "secure_sum.md").read_text()
    content = json.loads(file.read_text()) if file.exists() else {}
    for what, table in {"sums": sums_table, "rounds": sum_rounds_table}.items():
        text = renewed(text, what, table(content).markdown() if what in content else UNMEASURED)
    return text


def guards_page() -> str:
    """docs/guards.md with what attacks and guards did."""
    rows = attacks.read() if attacks.FILE.exists() else []
    tables = {
        "attacks": attack_tables.attack_table, "methods": attack_tables.method_table,
        "costs": attack_tables.cost_table, "claims": attack_tables.claims_table,
    }  # fmt: skip
    text = renewed((ROOT / "docs" / "guards.md").read_text(), "worst cost", attack_tables.worst_cost(rows))
    for what, table in tables.items():
        text = renewed(text, what, table(rows).markdown() if rows else UNMEASURED)
    return text


def privacy_page() -> str:
    """docs/privacy.md with accuracies by epsilon, and what canaries proved."""
    runs, audits = privacy.read_runs(), privacy.read_audits()
    text = (ROOT / "docs" / "privacy.md").read_text()
    text = renewed(text, "audit", privacy_tables.audit_table(audits).markdown() if audits else UNMEASURED)
    table = privacy_tables.accuracy_table(runs, audits)
    return renewed(text, "private accuracy", table.markdown() if runs else UNMEASURED)


def defects_table(content: dict[str, Any]) -> str:
    """Every planted defect with the test that caught it, before and after."""
    rows = [
        (row["room"], row["what"], *(caught_by(row.get(when)) for when in ("before", "after")))
        for row in content["defects"]
        if "before" in row or "after" in row
    ]
    return Table(("room", "defect", "before, caught by", "after, caught by"), rows).markdown()


def caught_by(outcome: dict[str, Any] | None) -> str:
    """The test that caught a defect, without its folder; of a defect that was not caught, what was run."""
    if outcome is None:
        return "?"
    test = outcome["caught_by"]
    return f"`{test.rpartition('/')[2]}`" if test else f"- ({outcome['tried']})"


def decisions_page() -> str:
    """docs/decisions.md with its contents: every decision by room, with its status."""
    text = (ROOT / "docs" / "decisions.md").read_text()
    rooms = [room.split("\n", 1) for room in re.split(r"^## ", text, flags=re.MULTILINE)[2:]]  # after the contents
    return renewed(text, "contents", "\n\n".join(decisions_in(name, decisions) for name, decisions in rooms))


def decisions_in(room: str, decisions: str) -> str:
    """The decisions of one room as a table under a link to it."""
    found = re.findall(r"^### ((\d+)\. (.+))\n\nStatus: (.+)$", decisions, re.MULTILINE)
    rows = [(number, f"[{title}](#{anchor(heading)})", status) for heading, number, title, status in found]
    return f"**[{room}](#{anchor(room)})**\n\n{Table(('', 'decision', 'status'), rows).markdown()}"


def anchor(heading: str) -> str:
    """Where a link to `heading` leads, as GitHub and Markdown readers make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def main() -> int:
    """Write, or with --check compare; the exit code is 1 if something is not current, or equations are missing."""
    defects = json.loads((ROOT / "docs" / "planted_defects.json").read_text())
    pages = {
        ROOT / "README.md": between("README.md", "methods", method_table()),
        ROOT / "docs" / "methods.md": renewed(between("docs/methods.md", "index", index_table()), "grid", grid()),
        **method_pages(),
        ROOT / "docs" / "which_method.md": which_method_page(),
        ROOT / "docs" / "decisions.md": decisions_page(),
        ROOT / "docs" / "data.md": between("docs/data.md", "partitions", partition_table()),
        ROOT / "docs" / "flatness.md": between("docs/flatness.md", "measures", measure_table()),
        ROOT / "docs" / "recipes.md": recipes_page(),
        ROOT / "docs" / "published.md": published_page(),
        ROOT / "docs" / "performance.md": performance_page(),
        ROOT / "docs" / "ranks.md": ranks_page(),
        ROOT / "docs" / "howto" / "devices.md": between("docs/howto/devices.md", "gpu lines", gpu_lines_table()),
        ROOT / "docs" / "deploy.md": deploy_page(),
        ROOT / "docs" / "durability.md": durability_page(),
        ROOT / "docs" / "guards.md": guards_page(),
        ROOT / "docs" / "secure_sum.md": secure_sum_page(),
        ROOT / "docs" / "privacy.md": privacy_page(),
        ROOT / "docs" / "tests.md": between("docs/tests.md", "planted defects", defects_table(defects)),
        **study_page(STUDY),
        FILE: package_listing(),
    }
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if "--check" not in sys.argv[1:]:
        for path in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pages[path])
        stale = []
    wrong = [*(f"{path.relative_to(ROOT)} is not current; run `make docs`" for path in stale), *page_problems()]
    for line in wrong:
        print(line)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
