"""Compares finished runs, seed by seed: makes rows, finds the baseline of each row, and writes caveats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..core.errors import InputError, MissingPackageError, printable
from ..core.hyper import plain_numbers
from ..engine.problem import BF16
from ..experiments.recipe import Published
from ..experiments.settings_tables import identities, labels
from ..experiments.statistics import mean_estimate, paired_difference
from ..files import write_text
from ..methods import plain
from ..metrics.protocols import SCORES, Protocol, long_mean
from ..rounds.settings import settings_key
from . import tables
from .columns import caption, columns
from .comparison_data import ComparisonData, FinishedRun, Row, Target, accuracy, curve_of, score_of, test_samples
from .run_settings import HASHES, settings_of_all

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 150  # characters of a line of text
# Two runs with the same seed are paired only if they share these settings (name: name in words). Otherwise their
# accuracies would not differ because of the methods alone.
PAIRED_BY = {
    "partition_hash": "partition",
    "data": "data",
    "data_hash": "samples",
    "augmentation": "augmentation",
    "model": "model",
    "model_hash": "initial weights",
    "base_hash": "frozen parameters",
    "layers": "layers of the model",
    "loss": "loss",
    "batches": "batches",
    "participation": "participation",
    "weights": "weights of clients",
    "precision": "precision",
}


class Comparison(ComparisonData):
    """A comparison of methods, which can be printed, written as a page or a file, or returned as a table of numbers."""

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained page; returns its path. Raises InputError if it cannot be written."""
        from .page import Chapter, write_page  # here, because figures need matplotlib

        return write_page([Chapter(self)], Path(path))

    def figure(self, path: str | Path, show: str | None = None, size: str = "column") -> Path:
        """Write one figure for a paper as PDF or SVG, by the extension of `path`; returns its path.

        show: what is shown, such as "accuracy" or "test-loss"; by default the name of the file without the extension.
        size: "column" or "page", 3.35 or 6.9 inches wide.
        Raises InputError for another extension, an unknown size, or a figure that these runs do not have.
        """
        from .paper_figures import write_figure  # here, because figures need matplotlib

        return write_figure(self, Path(path), show, size)

    def to_pandas(self) -> pd.DataFrame:
        """Return the numbers, one row per method, as a DataFrame. Raises InputError if pandas is not installed."""
        try:
            import pandas  # noqa: F401  # not one of our dependencies
        except ImportError as error:
            raise MissingPackageError(
                "to_pandas needs pandas: `pip install pandas`, or use `.table()` (pyarrow)"
            ) from error
        frame: Any = self.table().to_pandas()
        return frame

    def to_csv(self, path: str | Path | None = None) -> str | Path:
        """Return the numbers, to all digits, as CSV text; with a `path`, write them there and return the path."""
        text = tables.csv_text(self)
        if path is None:
            return text
        write_text(Path(path), text)
        return Path(path)

    def to_latex(self, columns: Sequence[str] | None = None) -> str:
        """Return the table as a LaTeX `tabular` (package booktabs); the best is bold if its interval excludes zero.

        columns: titles of the columns besides the method, such as `["test accuracy %"]`; by default all columns, but
        those titled "rounds to" only if targets were given. Raises InputError for an unknown title.
        """
        return tables.latex_table(self, columns)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for a notebook."""
        module: Any = tables.environment().get_template("table.html.j2").module
        return str(module.comparison_table(self.rows, columns(self), caption(self)))

    def __repr__(self) -> str:
        methods, seeds = len(self.rows), ", ".join(map(str, self.seeds))
        return f"<Comparison of {methods} {'row' if methods == 1 else 'rows'} with {self.baseline}, seeds {seeds}>"

    def __str__(self) -> str:
        console = Console(width=WIDTH, no_color=True, force_terminal=False)
        with console.capture() as captured:
            console.print(*tables.tables(self), sep="\n")
        table = captured.get().rstrip()
        return "\n".join([printable(tables.headline(self)), table, *map(printable, self.notes)])


def compare(
    runs: Sequence[FinishedRun],
    baseline: str | None = None,
    targets: Sequence[float] = (),
    protocol: Protocol = "last",
    published: Sequence[Published] = (),
) -> Comparison:
    """Compare finished runs; differences are paired by seed.

    Runs may differ in anything: the method and its fields, local training, partition, model, rounds, participation.
    Runs that differ only in the seed make one row. Its label is the method with the settings that differ among the
    runs, such as `FedSAM(rho=0.1, alpha=0.5)`.

    A difference is computed only between runs that share partition, model, initial weights, loss, cohorts and batches.
    So each row is compared with the row of the baseline method that has the same other settings: in a sweep over alpha,
    rho and lr, `FedSAM(rho=0.1, alpha=0.5, lr=0.05)` with `FedAvg(alpha=0.5, lr=0.05)`. If the baseline has no run with
    the same lr, its row with the most settings in common is used. If it has no row with the same partition, there is no
    difference.

    `baseline` is a method or the label of one row; by default FedAvg, or the first method if FedAvg has no run.
    `targets` are accuracies in (0, 1), or perplexities; the first round that reaches each is reported. The default is
    one target, the accuracy of the first baseline.
    `protocol` says which accuracy of a run counts: "last" (mean of the last evaluations), "final", "best-validation"
    (of the round that did best on validation samples) or "best-test" (chosen on the test set, so too good).
    `published` numbers of a paper are shown next to ours.

    Raises ValueError without runs, for two runs with the same settings and seed, a baseline that has no run, a target
    out of range, or a run without the accuracy that `protocol` needs.
    """
    if not isinstance(runs, Sequence) or not runs:
        raise InputError("compare needs a list of at least one finished run")
    targets = plain_numbers(list(targets))
    for run in runs:
        if not hasattr(run, "summary"):
            raise InputError(f"compare takes finished runs, of `Simulation.run` or `fedflat.load_run`, got {run!r}")
        if score_of(run) != score_of(runs[0]):
            titles = " and ".join(SCORES[score_of(one)].title for one in (runs[0], run))
            raise InputError(f"compare: the runs have different scores, {titles}; compare them apart")
    SCORES[score_of(runs[0])].check_targets(targets)
    groups = grouped(runs)
    pairs = paired(groups, baseline)
    used = [reference for reference in pairs if reference is not None]
    goals = tuple(targets) or (mean_estimate([accuracy(run, protocol) for run in used[0].runs]).mean,)
    rows = [_row(group, reference, goals, protocol) for group, reference in zip(groups, pairs, strict=True)]
    name = used[0].label if len({reference.label for reference in used}) == 1 else used[0].runs[0].method
    return Comparison(rows, name, goals, protocol, notes(groups, pairs, name, protocol), published, bool(targets))


def _row(group: Group, reference: Group | None, goals: Sequence[float], protocol: Protocol) -> Row:
    """Return the row of a group of runs; `reference` is the group of its baseline, if it has one."""
    runs = group.runs
    both = [*runs, *(reference.runs if reference else ())]
    numbers = [run.summary | {name: measured.value for name, measured in run.flatness.items()} for run in runs]
    names = [name for name in numbers[0] if all(name in of_run for of_run in numbers)]
    ours, theirs = (
        {run.seed: accuracy(run, protocol) for run in group} for group in (runs, reference.runs if reference else ())
    )
    curves, reached = [curve_of(run) for run in runs], []
    for goal in goals:
        by_seed = ([curve.reached(goal, smooth) for curve in curves] for smooth in (False, True))
        reached.append(Target(goal, *(tuple(cost for cost in costs if cost is not None) for costs in by_seed)))
    return Row(
        label=group.label,
        runs=runs,
        estimates={name: mean_estimate([of_run[name] for of_run in numbers]) for name in names},
        accuracy=mean_estimate(list(ours.values())),
        difference=None if reference is group else paired_difference(ours, theirs, test_samples(both)),
        reached=reached,
        baseline=reference.label if reference else None,
        settings=group.settings,
    )


@dataclass(frozen=True)
class Group:
    """The runs of one row, which differ in the seed only."""

    label: str
    settings: Mapping[str, Any]  # by name
    runs: list[FinishedRun] = field(default_factory=list)


def grouped(runs: Sequence[FinishedRun]) -> list[Group]:
    """Group runs by method and settings, in their order. Raises InputError if two have equal settings and seed."""
    groups: dict[frozenset[tuple[str, str]], Group] = {}
    methods, settings = [run.method for run in runs], settings_of_all(runs)
    names, keys = labels(methods, settings), identities(methods, settings)
    for run, label, own, key in zip(runs, names, settings, keys, strict=True):
        group = groups.setdefault(key, Group(label, own))
        for other in group.runs:
            if other.seed == run.seed:
                raise InputError(_twice(runs, other, run))
        group.runs.append(run)
    return list(groups.values())


def _twice(runs: Sequence[FinishedRun], one: FinishedRun, other: FinishedRun) -> str:
    """Return the message on two runs with equal settings and seed: their places or folders, and what else differs."""
    places = [place for place, run in enumerate(runs) if run is one or run is other]
    folders = [str(run.directory.path) for run in (one, other) if hasattr(run, "directory")]
    which = " and ".join(folders) or f"numbers {' and '.join(map(str, places))} of the list"
    differing = [name for name, value in other.settings.items() if one.settings.get(name) != value]
    only = f", and differ only in {', '.join(differing)}" if differing else ""
    return f"two runs of {one.method} have the same settings and seed {one.seed}{only}: {which}; leave one of them out"


def paired(groups: Sequence[Group], baseline: str | None) -> list[Group | None]:
    """Return for each group the baseline's group that it is compared with; None if no group matches.

    A group of the baseline is compared with itself. Among the baseline's groups that share all settings in `PAIRED_BY`,
    the one with the most other settings in common is chosen; on a tie, the first one. Raises InputError if the
    requested `baseline` has no run.
    """
    wanted = plain(baseline or "FedAvg")
    named = [group for group in groups if plain(group.label) == wanted]
    of_method = named or [group for group in groups if plain(group.runs[0].method) == wanted]
    if not of_method and baseline is not None:
        names = ", ".join(group.label for group in groups)
        raise InputError(f"baseline = {baseline!r} has no run; there are runs of {names}")
    candidates = of_method or [group for group in groups if group.runs[0].method == groups[0].runs[0].method]
    return [_closest(group, candidates) for group in groups]


def _closest(group: Group, candidates: Sequence[Group]) -> Group | None:
    """Return the first candidate that can be paired with `group` and has the most settings in common with it."""
    others = {name: value for name, value in group.settings.items() if not name.startswith("method.")}

    def shared(candidate: Group) -> int:
        return sum(candidate.settings.get(name) == value for name, value in others.items())

    return max((other for other in candidates if not differences(group, other)), key=shared, default=None)


def differences(ours: Group, theirs: Group) -> list[str]:
    """Return the settings of `PAIRED_BY` in which two groups differ for any seed that both have.

    Without a common seed, only settings that do not depend on the seed are compared.
    """
    by_seed = {run.seed: run for run in theirs.runs}
    pairs = [(run, by_seed[run.seed]) for run in ours.runs if run.seed in by_seed]
    names = list(PAIRED_BY) if pairs else [name for name in PAIRED_BY if name not in HASHES]
    pairs = pairs or [(ours.runs[0], theirs.runs[0])]
    return [name for name in names if any(_value(one, name) != _value(other, name) for one, other in pairs)]


def _value(run: FinishedRun, name: str) -> Any:
    if name != "batches":
        return run.settings[name]
    client = run.settings["client"]  # with a client's samples and the seed, these determine its batches
    steps = client["steps"] or (client["epochs"] or 1, "epochs")
    return steps, client["batch_size"], client.get("accumulate", 1)


def notes(groups: Sequence[Group], pairs: Sequence[Group | None], baseline: str, protocol: Protocol) -> list[str]:
    """Return the caveats of the comparison, as sentences."""
    runs = [run for group in groups for run in group.runs]
    seeds = {group.label: sorted(run.seed for run in group.runs) for group in groups}
    other = [(group.label, pair.label) for group, pair in zip(groups, pairs, strict=True)
             if pair is not None and seeds[group.label] != seeds[pair.label]]  # fmt: skip
    return [
        *_unpaired(groups, pairs, baseline),
        *_own_training(groups),
        *([f"{BF16.capitalize()}."] if any(_value(run, "precision") == "bf16" for run in runs) else []),
        *(["Runs have different numbers of rounds."] if len({run.summary["rounds"] for run in runs}) > 1 else []),
        *(f"Not paired: {ours} has seeds {seeds[ours]}, {theirs} has {seeds[theirs]}." for ours, theirs in other),
        *(_long_mean(runs) if protocol == "last" else ()),
    ]


def _unpaired(groups: Sequence[Group], pairs: Sequence[Group | None], baseline: str) -> Iterator[str]:
    """Yield a sentence for each reason why groups have no baseline, with the labels of these groups."""
    references = [pair for pair in pairs if pair is not None]
    reasons: dict[str, list[str]] = {}
    for group, pair in zip(groups, pairs, strict=True):
        if pair is None:
            fewest = min((differences(group, reference) for reference in references), key=len)
            reasons.setdefault(", ".join(PAIRED_BY[name] for name in fewest), []).append(group.label)
    for reason, names in reasons.items():
        yield f"Not paired with {baseline}, whose {reason} differ: {', '.join(names)}."


def _own_training(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence if methods differ in local training; labels tell runs of one method apart."""
    clients = [(settings_key(group.runs[0].settings["client"]), group.runs[0].method) for group in groups]
    own, ways = dict(clients), set(clients)
    if len(own) > 1 and len(ways) == len({method for _, method in ways}):
        yield f"Local training has settings of their own for some methods: see {', '.join(own.values())} below."


def _long_mean(runs: Sequence[FinishedRun]) -> Iterator[str]:
    """Yield a sentence if the mean over the last evaluations covers more than a fifth of a run."""
    for run in runs:
        warning = long_mean(int(run.summary[f"{score_of(run)}_evaluations"]), len(curve_of(run).rounds))
        if warning:
            yield f"{warning[0].upper()}{warning[1:]}."
            return
