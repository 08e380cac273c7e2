"""Check pages of reports with axe-core in headless Chromium: light and dark, at 600 and 1280 pixels.

    make accessibility
    python -m benchmarks.accessibility runs/digits/report.html      # other pages than those that it makes

Needs Chromium, and npm, which fetches axe-core into a temporary folder; the tests check what axe has found so far
without npm. Prints every finding; exit code 1 if one of them is serious or critical. Run it from a clone.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

import fedflat as ff  # noqa: E402 (after the path)
from fedflat.federation.flower.client_reports import ClientReport  # noqa: E402
from fedflat.metrics.flatness import Finding, Flatness, Measured  # noqa: E402
from fedflat.metrics.flatness.surface import Mark, Surface  # noqa: E402
from fedflat.reports.federation import FederationData, write_federation_page  # noqa: E402
from fedflat.reports.surfaces import write_landscape  # noqa: E402
from support.browser import CHROMIUM, browse  # noqa: E402
from support.finished_runs import Fake  # noqa: E402
from support.flower_fixtures import GridFederation, study_of  # noqa: E402

AXE = "axe-core@4.14.1"
METHODS = ("FedAvg", "FedSAM", "FedGF", "FedDyn", "Scaffold", "FedSMOO", "MoFedSAM", "FedLESAM", "FedVSSAM")
WIDTHS = (600, 1280)
PATIENCE = 20_000  # milliseconds of a page's own clock; axe takes a second
CALL = """axe.run({ resultTypes: ["violations"] }).then(({ violations }) => {
  document.title = "axe " + JSON.stringify(violations.map(({ id, impact, help, nodes }) =>
    ({ id, impact, help, where: nodes.map((node) => node.target.join(" ")) })));
});"""


def fetched(folder: Path) -> str:
    """Return the text of axe-core, which npm fetches and whose hash it compares with the registry's."""
    subprocess.run(["npm", "pack", "--silent", AXE], cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603, S607
    [package] = folder.glob("axe-core-*.tgz")
    with tarfile.open(package) as files:
        files.extract("package/axe.min.js", folder, filter="data")
    return (folder / "package/axe.min.js").read_text()


def comparison(methods: int, seeds: int) -> ff.reports.Comparison:
    rng = np.random.default_rng(0)
    flat = Flatness((Finding("Steepness", "Steepness", {"steepness": Measured(1.0, 0.25, "interval")}, {}),))
    return ff.compare([
        Fake(method, seed, list(np.sort(rng.random(20))), flatness=flat, columns={"test_loss": list(rng.random(20))})
        for method in METHODS[:methods] for seed in range(seeds)
    ])  # fmt: skip


def pages(folder: Path) -> Iterator[Path]:
    """Make a page of each kind: of studies with many and few methods, of a run, of surfaces, of federations."""
    for methods, seeds in ((9, 5), (2, 3), (1, 1)):
        yield comparison(methods, seeds).to_html(folder / f"{methods} methods of {seeds} seeds" / "report.html")
    x = np.linspace(-1, 1, 11)
    loss, marks = x**2 + x[:, None] ** 2, (Mark("the model", 0.0, 0.0, 0.0),)
    surfaces = [Surface(method, "global model", ("first", "second"), x, x, loss, marks, "-") for method in METHODS[:2]]
    yield write_landscape(surfaces, [], folder / "landscape", "surfaces")
    federation = GridFederation(study_of(rounds=4), folder / "federation")
    federation.serve()
    data = FederationData.read(federation.out)
    yield write_federation_page(data, folder / "a federation")
    scores = {"accuracy": 0.5, "loss": 1.0} | {f"recall/{c}": 0.5 for c in range(10)}
    reports = [ClientReport(one.name, 9, 3, 5, scores, scores) for one in data.clients]
    yield write_federation_page(replace(data, reports=reports), folder / "a rehearsal")


def findings(page: Path, axe: str, folder: Path, width: int, is_dark: bool) -> list[dict[str, Any]]:
    """Return what axe finds on a page whose folded parts are open."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    text = text.replace("<details", "<details open")
    before, end, after = text.rpartition("</body>")
    copy = folder / "copy.html"
    copy.write_text(f"{before}<script>{axe}</script><script>{CALL}</script>{end}{after}")
    dom, log = browse(copy, width, folder / "profile", is_dark, PATIENCE)
    found = re.search(r"<title>axe (.*?)</title>", dom, re.DOTALL)
    if not found:
        raise SystemExit(f"{page}: axe has not ended\n{log}")
    content: list[dict[str, Any]] = json.loads(html.unescape(found[1]))
    return content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="HTML files; by default one of each kind is made")
    given, worst = parser.parse_args().pages, 0
    if CHROMIUM is None:
        raise SystemExit("there is no Chromium on this machine")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        axe = fetched(folder)
        for page, width, is_dark in product(given or pages(folder), WIDTHS, (False, True)):
            found = findings(page, axe, folder, width, is_dark)
            print(f"{page.parent.name}/{page.name}, {width} pixels, {'dark' if is_dark else 'light'}: {len(found)}")
            for one in found:
                print(f"    {one['impact']}: {one['help']} ({one['id']}): {', '.join(one['where'][:3])}")
                worst += one["impact"] in ("serious", "critical")
    raise SystemExit(f"{worst} serious or critical findings" if worst else 0)


if __name__ == "__main__":
    main()
