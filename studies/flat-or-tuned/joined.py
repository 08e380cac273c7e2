"""What this study says beside the second one: what changed in its answer and why, and its scale."""

from __future__ import annotations

import tomllib
from pathlib import Path

from ..scale import scale
from .analysis import BARELY, BASES, HELD, SIGMA, UNDECIDED, Results, by_method
from .page import NOT_MEASURED, heading, kind_of_contrasts
from .power import power_chapter, power_sentence

HERE = Path(__file__).parent


def chapters(results: Results) -> dict[str, str]:
    """Return what stands between the marks, by mark."""
    return {"changed": changed(results), "power": power_chapter(results), "scale": scale_of(results)}


def changed(results: Results) -> str:
    """Return the reasons for which the answer is another one than at first, with the numbers behind them."""
    if not ended(results):
        return NOT_MEASURED
    split, least, most = widest_rise(results)
    return "\n".join([
        f"* **No gap.** {no_gap(results)}, so there was nothing that flatness could close. The verdicts are about "
        "speed of optimisation.",
        f"* **Little power.** {seeds(results)} seeds find a lead of one point ([power](#power)) "
        f"{power_sentence(results)}. *Undecided* says no more than that.",
        f"* **LPF was training loss.** Half of sigma squared times the trace, by which noise raises the loss, is "
        f"{least:.1%} to {most:.1%} of LPF in the means of the tuned methods, most at {heading(split)}. Its rise over "
        "the training loss is shown now.",
    ])  # fmt: skip


def ended(results: Results) -> list[str]:
    """Return the splits of which every tuned run has ended."""
    return [split for split in results.splits("tuned") if results.have_ended(split, "tuned")]


def no_gap(results: Results) -> str:
    """Return how far test and training accuracy are apart at most, over all tuned methods."""
    gaps = [one for split in ended(results) for one in gaps_of(results, split)]
    return (
        f"Test and training accuracy of the final models differ by at most {max(map(abs, gaps)):.2f} points in each of "
        f"the {len(gaps)} means over seeds, of every tuned method at every split"
    )


def gaps_of(results: Results, split: str) -> list[float]:
    """Return test minus training accuracy in points, mean over seeds of each tuned method."""
    rows = [row for row in results.of("tuned", split) if row["train_accuracy"] is not None]
    test, train = (by_method(rows, name) for name in ("accuracy_of_final_model", "train_accuracy"))
    return [100 * (test[name].mean - train[name].mean) for name in train]


def widest_rise(results: Results) -> tuple[str, float, float]:
    """Return the least and the most share of LPF that is half of sigma^2 times the trace, and the split of the most."""
    found = []
    for split in ended(results):
        lpf, trace = (by_method(results.of("tuned", split), name) for name in ("lpf", "trace"))
        found += [(SIGMA**2 * trace[name].mean / 2 / lpf[name].mean, split) for name in lpf]
    most, split = max(found)
    return split, min(found)[0], most


def seeds(results: Results) -> int:
    """Return the number of seeds of the comparison."""
    return len({row["seed"] for row in results.of("tuned", ended(results)[0])})


def scale_of(results: Results) -> str:
    """Return the scale of the tuned comparisons."""
    if not ended(results):
        return NOT_MEASURED
    table = tomllib.loads((HERE / f"tune-{ended(results)[0]}.toml").read_text())
    rounds = " and ".join(
        f"{max(row['rounds'] for row in results.of('tuned', split)):,} rounds at {heading(split)}"
        for split in ended(results)
    )
    return scale(table["data"]["name"], table["model"], table["data"]["clients"], table["participation"], rounds,
                 f"{len(BASES)} flat methods", f"{seeds(results)} seeds")  # fmt: skip


def outcome(results: Results) -> str:
    """Return how many tuned flat methods held a lead and how many are undecided, and that there was no gap."""
    if not ended(results):
        return NOT_MEASURED
    said = []
    for split in ended(results):
        every = kind_of_contrasts(results, split, "tuned")
        held = [one.method for one in every if one.verdict in (HELD, BARELY)]
        names = f" ({', '.join(held)})" if held else ""
        undecided = sum(one.verdict == UNDECIDED for one in every)
        said.append(f"{len(held)} of {len(every)} flat methods{names} at {heading(split)}, where {undecided} stayed "
                    "undecided")  # fmt: skip
    return f"Tuned alike, a lead over their plain bases was held by {'; by '.join(said)}. {no_gap(results)}."
