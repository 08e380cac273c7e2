"""The report of a federation, from the server's folder: accuracy, participation, refusals and other events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from ..core.errors import InputError, printable, shortened
from ..federation.flower.client_reports import ClientReport, read_reports
from ..federation.flower.directory import CLIENTS, MODEL, RESULT, SETTINGS, STUDY, FederationDirectory, check
from ..federation.flower.ejections import Absence, Ejections
from ..federation.flower.event_log import read_events
from ..federation.membership import Membership
from ..metrics.protocols import SCORES, score_name
from ..rounds.settings import flattened
from .figures import COLOURS, INLINE, inline
from .html_page import write_html
from .text_table import NOTHING, text_table

PLAIN = ("time", "event")  # fields of every event
SHOWN_ELSEWHERE = ("round", "client", "node refused", SETTINGS)  # events that tables and figures show
CURVES = (
    *((name, score.axis, score.factor) for name, score in SCORES.items()), ("test_loss", "test loss", 1.0),
    ("drift", "drift", 1.0),
)  # fmt: skip
NAMED = 40  # most clients of a map, which shows their names
COLUMNS = 150  # most rounds of a map
BARS = 60  # most bars of the figure that replaces a larger map
THIRD = 4.2, 2.9  # inches of a curve; three stand side by side
WIDTH = 6.2  # inches of a figure beside its caption
ROW = 0.22  # inches of a client's row in the map
MARK = 0.76  # of a round's width
# Marks differ in height, too, and in brightness on grey paper.
STATES: Mapping[str, Any] = {
    "took part": {"color": COLOURS[1], "linewidth": 11}, "missing or refused": {"color": COLOURS[5], "linewidth": 5},
}  # fmt: skip
FILE = "report.html"
LONGEST_TEXT = 400  # characters of a setting or an event
RECALL = "recall/"  # beginning of the names of the recalls of classes


@dataclass(frozen=True)
class RoundFacts:
    """The clients that took part in a round, and those that were missing."""

    counted: Sequence[str] | None  # clients whose replies are in the mean; None if the log does not name them
    missing: Mapping[str, str]  # clients that were asked and whose replies are not in the mean, with the reason


@dataclass
class ClientFacts:
    """One client over all rounds in the model's history."""

    name: str
    samples: int | None  # None if the log does not say it
    absence: Absence | None = None  # at present: it is ejected, or has left
    counted: int | None = None  # rounds whose mean has the client's reply; None if the log does not say it
    missing: int = 0  # rounds in which the client was asked and whose mean does not have its reply
    last: int | None = None  # the last round whose mean has its reply, from 1
    reasons: Counter[str] = field(default_factory=Counter)  # why the client was missing

    @property
    def title(self) -> str:
        """The name, marked if the client is ejected or has left."""
        return self.name if self.absence is None else f"{self.name} ({'left' if self.absence.left else 'ejected'})"

    @property
    def reason(self) -> str:
        """The most frequent reason for missing a round, and its count; empty if it missed none."""
        return "; ".join(f"{reason} ({times} x)" for reason, times in self.reasons.most_common(1))


@dataclass(frozen=True)
class FederationData:
    """The content of the report."""

    path: Path
    label: str
    planned: int  # number of rounds
    finished: bool
    history: Sequence[Mapping[str, float]]  # metrics of each round, from the newest intact checkpoint
    rounds: Mapping[int, RoundFacts]  # the rounds in the log, by number from 0
    clients: Sequence[ClientFacts]
    refused: Sequence[tuple[str, str, int]]  # node, reason, count
    happened: Sequence[tuple[str, str]]  # time and event, in the order of the log
    damaged: Sequence[str]  # damaged files, each with its problem
    settings: Mapping[str, str]  # by name: those of the study that its result depends on, and those of its last run
    reports: Sequence[ClientReport] = ()  # of the clients of a rehearsal

    @classmethod
    def read(cls, path: Path) -> FederationData:
        """Read the server's folder. Raises InputError if it holds no federation, or if its study file is damaged."""
        if not (path / STUDY).exists():
            raise InputError(f"{path} holds no federation")
        spec, events = FederationDirectory(path).spec(), list(read_events(path))
        damaged = [f"{name}: {problem}" for name, problem in check(path) if problem]
        try:
            state = FederationDirectory(path).newest()
        except InputError:  # all checkpoints are damaged, and listed in `damaged`
            state = None
        history = state.history if state else ()
        known = dict(Membership.load(state.path).members) if state else {}
        rounds = {t: facts for t, facts in _rounds(events).items() if t < len(history)}
        finished = (path / RESULT).exists() and (path / MODEL).exists()
        clients, absent = _clients(events, known, rounds), Ejections(path).read()
        for client in clients:
            client.absence = absent.get(client.name)
        stated = [event for event in events if event["event"] == SETTINGS][-1:]
        settings = _by_section(flattened(spec.decisive()))
        settings |= {name: _text(x) for event in stated for name, x in event.items() if name not in PLAIN}
        readable = finished and not any(line.startswith(CLIENTS) for line in damaged)
        return cls(path, spec.label, spec.rounds, finished, history, rounds, clients, _refused(events),
                   _happened(events), damaged, settings, read_reports(path) if readable else ())  # fmt: skip

    @property
    def is_private(self) -> bool:
        """Whether the rounds have differential privacy."""
        return "privacy" in self.settings

    @property
    def is_complete(self) -> bool:
        """Whether every client's reply counted in every round."""
        names = {client.name for client in self.clients}
        return bool(self.rounds) and all(names == set(facts.counted or ()) for facts in self.rounds.values())

    @property
    def headline(self) -> str:
        """Progress, test accuracy and participation in one or two sentences."""
        done = f"{len(self.history)} of {self.planned} rounds are done"
        name = score_name(name for row in self.history for name, value in row.items() if value is not None) or ""
        scores = [row[name] for row in self.history if row.get(name) is not None]
        reached = f"{SCORES[name].title} of {SCORES[name].text(scores[-1], 1)}" if scores else ""
        accuracy = f", and the model has a {reached}" if scores else ""
        spent = [row["epsilon"] for row in self.history if row.get("epsilon") is not None]
        accuracy += f" at epsilon {spent[-1]:.3g}" if spent else ""
        missing = sum(len(facts.missing) for facts in self.rounds.values())
        asked = missing + sum(len(facts.counted or ()) for facts in self.rounds.values())
        if any(facts.counted is None for facts in self.rounds.values()):
            return f"{done}{accuracy}. {missing} answers did not come or did not count."
        return f"{done}{accuracy}. Of {asked} answers that were asked for, {asked - missing} counted."


def _rounds(events: Iterable[Mapping[str, Any]]) -> dict[int, RoundFacts]:
    """Return the rounds of the log by number, except those undone by a rollback or a restart from an earlier round."""
    rounds: dict[int, RoundFacts] = {}
    for event in events:
        t, done, counted, missing = (event.get(name) for name in ("t", "done", "counted", "missing"))
        if event["event"] == "round" and type(t) is int:
            reasons = missing if isinstance(missing, dict) else {}
            names = [str(name) for name in counted] if isinstance(counted, list) else None
            rounds[t] = RoundFacts(names, {str(name): _text(reason) for name, reason in reasons.items()})
        if event["event"] in ("begun", "rolled back") and type(done) is int:
            rounds = {t: facts for t, facts in rounds.items() if t < done}
    return dict(sorted(rounds.items()))


def _clients(
    events: Iterable[Mapping[str, Any]], members: Mapping[str, int], rounds: Mapping[int, RoundFacts]
) -> list[ClientFacts]:
    """Return the clients sorted by name: members, and clients that have registered according to the log."""
    registered = {str(event.get("client")): event.get("samples") for event in events if event["event"] == "client"}
    samples = {name: value if type(value) is int else None for name, value in registered.items()} | dict(members)
    clients = {name: ClientFacts(name, value) for name, value in sorted(samples.items())}
    for t, facts in rounds.items():
        for name in facts.counted or ():
            if name in clients:
                clients[name].counted, clients[name].last = (clients[name].counted or 0) + 1, t + 1
        for name, reason in facts.missing.items():
            if name in clients:
                clients[name].missing += 1
                clients[name].reasons[reason] += 1
    if all(facts.counted is not None for facts in rounds.values()):
        for client in clients.values():
            client.counted = client.counted or 0
    return list(clients.values())


def _refused(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """Return the nodes that were refused, each with reason and count."""
    refusals = Counter(
        (_text(event.get("node", "")), _text(event.get("reason", "")))
        for event in events
        if event["event"] == "node refused"
    )
    return [(node, reason, times) for (node, reason), times in refusals.items()]


def _happened(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the time and the text of each event that no table or figure shows."""
    lines = []
    for event in events:
        if event["event"] not in SHOWN_ELSEWHERE:
            words = [f"{key} {_text(value)}" for key, value in event.items() if key not in PLAIN]
            lines.append((_text(event["time"])[:19].replace("T", " "), f"{_text(event['event'])}: {', '.join(words)}"))
    return lines


def _by_section(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of settings by section; those of a section with several have their names."""
    sections: dict[str, dict[str, str]] = {}
    for name, value in settings.items():
        section, _, own = name.partition(".")
        if value is not None:
            sections.setdefault(section, {})[own] = _text(value)
    return {
        section: ", ".join(f"{name} = {text}" if name else text for name, text in values.items())
        for section, values in sections.items()
    }


def _text(value: object) -> str:
    return shortened(printable(str(value)), LONGEST_TEXT)


def write_federation_page(data: FederationData, folder: Path) -> Path:
    """Write the page to `folder`, atomically. Raises InputError if it cannot be written."""
    curves = [drawn for name, title, factor in CURVES if (drawn := _curve(data.history, name, title, factor))]
    is_large = len(data.clients) > NAMED or len(data.history) > COLUMNS
    drawn_map = _counts if is_large else _map
    return write_html(
        folder / FILE, "federation.html.j2",
        data=data, title=f"{data.label}, a federation of {len(data.clients)} clients", curves=curves,
        map=None if data.is_complete else drawn_map(data), is_large=is_large, clients=_client_rows(data),
        scores=_scores(data.reports), reports=report_rows(data.reports) if data.reports else None,
        reports_caption=reports_caption(data.reports),
    )  # fmt: skip


def clients_table(data: FederationData) -> Table:
    """Return a table of the clients, for a console."""
    titles = ("client", "samples", "took part", "missing", "last in round", "mostly because")
    return text_table(titles, _client_rows(data), ("client", "mostly because"))


def _client_rows(data: FederationData) -> list[list[str]]:
    rows = [(c.title, c.samples, c.counted, c.missing, c.last, c.reason) for c in data.clients]
    return [[NOTHING if cell is None else str(cell) for cell in row] for row in rows]


def reports_table(reports: Sequence[ClientReport]) -> Table:
    """Return a table of the clients of a rehearsal, for a console: a row for each model of a client.

    It has the lowest of the recalls, and no loss; the page has both, with a column for each class and model.
    """
    rows = []
    for report in reports:
        rows.append(_console_row(report, "server's", report.scores))
        if report.own_scores:
            rows.append(_console_row(report, "own", report.own_scores))
    titles = list(dict.fromkeys(title for row in rows for title in row))
    if rows and all(row["model"] == "server's" for row in rows):
        titles.remove("model")
    texts = [[row.get(title, NOTHING) for title in titles] for row in rows]
    return text_table(titles, texts, ("client", "model"), unbroken=("client", "model"),
                      caption=reports_caption(reports))  # fmt: skip


def _console_row(report: ClientReport, model: str, scores: Mapping[str, float]) -> dict[str, str]:
    """Return the cells of a client's row, by title. scores: of the model that is called `model`."""
    few = {name: value for name, value in scores.items() if name != "loss" and not name.startswith(RECALL)}
    recalls = [value for name, value in scores.items() if name.startswith(RECALL)]
    few |= {"lowest_recall": min(recalls)} if recalls else {}
    return {"client": report.name, "model": model} | _sample_texts(report) | _score_texts(few)


def report_rows(reports: Sequence[ClientReport]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return titles and rows of a table of clients: samples, and scores of the final and of the own model."""
    cells = []
    for report in reports:
        own = {f"own {title}": text for title, text in _score_texts(report.own_scores).items()}
        cells.append(_score_texts(report.scores) | own)
    titles = sorted({title: None for one in cells for title in one}, key=lambda title: title.startswith("own "))
    rows = []
    for report, one in zip(reports, cells, strict=True):
        scores = (one.get(title, NOTHING) for title in titles)
        rows.append((report.name, *_sample_texts(report).values(), *scores))
    return ["client", "samples", "classes", "test samples", *titles], rows


def _sample_texts(report: ClientReport) -> dict[str, str]:
    """Return the numbers of a client's samples as texts, by the title of their column."""
    return {
        "samples": f"{report.samples:,}", "classes": str(report.classes), "test samples": f"{report.test_samples:,}",
    }  # fmt: skip


def _score_texts(scores: Mapping[str, float]) -> dict[str, str]:
    """Return scores as texts, by the title of their column; names of classes are not changed."""
    return {
        name if name.startswith(RECALL) else name.replace("_", " "): f"{value:.3f}" for name, value in scores.items()
    }


def reports_caption(reports: Sequence[ClientReport]) -> str:
    """Return a sentence on whose model the scores are, and why a client may have none."""
    parts = ["the final model on each client's own test samples"]
    if any(report.own_scores for report in reports):
        parts.append("own: the model with the client's own part")
    if not all(report.test_samples for report in reports):
        parts.append("a client without test files has no scores")
    return "; ".join(parts)


def _curve(history: Sequence[Mapping[str, float]], name: str, title: str, factor: float) -> str | None:
    """Draw a metric against rounds, as SVG; None if it was never evaluated."""
    points = [(row["t"] + 1, factor * row[name]) for row in history if row.get(name) is not None]
    if not points:
        return None
    with rc_context(INLINE):
        figure = Figure(figsize=THIRD, layout="constrained")
        axes = figure.subplots()
        x, y = np.array(points, dtype=float).T
        axes.plot(x, np.where(np.isfinite(y), y, np.nan), color=COLOURS[1], marker="o" if len(x) < 30 else None, ms=3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="round", ylabel=title)
        return inline(figure, f"{title} by round")


def _map(data: FederationData) -> str | None:
    """Draw participation by client and round, as SVG; None before the first round has ended."""
    rows = {client.name: row for row, client in enumerate(data.clients)}
    if not rows or not data.rounds:
        return None
    with rc_context(INLINE | {"axes.grid.axis": "y"}):
        figure = Figure(figsize=(WIDTH, 1.1 + ROW * len(rows)), layout="constrained")
        axes = figure.subplots()
        for which, (label, style) in enumerate(STATES.items()):
            x, y = [], []  # one line with gaps: an element for each mark would make a file of megabytes
            for t, facts in data.rounds.items():
                for name in (facts.counted or (), facts.missing)[which]:
                    if name in rows:
                        x += [t + 1 - MARK / 2, t + 1 + MARK / 2, np.nan]
                        y += 3 * [rows[name]]
            if x:
                axes.plot(x, y, solid_capstyle="butt", label=label, **style)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlabel="round", xlim=(0.5, max(data.rounds) + 1.5), ylim=(len(rows) - 0.5, -0.5))
        figure.legend(loc="outside upper right", ncols=2, frameon=False)
        return inline(figure, "who took part in each round")


def _scores(reports: Sequence[ClientReport]) -> str | None:
    """Draw the accuracy, or R², of each client's test samples, as SVG; None if there is none."""
    name = next((name for name in ("accuracy", "r2") if any(name in one.scores for one in reports)), None)
    if name is None:
        return None
    title, factor = ("R²", 1.0) if name == "r2" else ("accuracy %", 100.0)
    with rc_context(INLINE):
        figure = Figure(figsize=(WIDTH, 0.9 + 0.3 * len(reports)), layout="constrained")
        axes = figure.subplots()
        for label, of_models, colour, marker in (
            ("the server's model", [one.scores for one in reports], COLOURS[1], "o"),
            ("the client's own model", [one.own_scores for one in reports], COLOURS[2], "D"),
        ):
            x = [factor * scores.get(name, np.nan) for scores in of_models]
            if np.isfinite(x).any():
                axes.plot(x, range(len(x)), linestyle="none", color=colour, marker=marker, markersize=5, label=label)
        axes.set_yticks(range(len(reports)), [one.name for one in reports])
        axes.set(xlabel=f"{title} on the client's own test samples", ylim=(len(reports) - 0.5, -0.5))
        figure.legend(loc="outside upper right", ncols=2, frameon=False)
        return inline(figure, f"{title} by client")


def _counts(data: FederationData) -> str | None:
    """Draw the number of participants by group of rounds, as SVG; None before the first round has ended."""
    if not data.rounds:
        return None
    width = -(-(max(data.rounds) + 1) // BARS)
    groups: dict[int, list[tuple[int, int]]] = {}
    for t, facts in data.rounds.items():
        groups.setdefault(t // width, []).append((len(facts.counted or ()), len(facts.missing)))
    counted, missing = np.array([np.mean(numbers, axis=0) for numbers in groups.values()]).T
    with rc_context(INLINE | {"axes.axisbelow": True}):
        figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
        axes = figure.subplots()
        middle = width * (np.array(list(groups)) + 0.5) + 0.5
        for bottom, heights, label in ((0.0, counted, "took part"), (counted, missing, "missing or refused")):
            axes.bar(middle, heights, width=0.9 * width, bottom=bottom, color=STATES[label]["color"], label=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="round", ylabel="clients" if width == 1 else f"clients, mean of {width} rounds")
        figure.legend(loc="outside upper right", ncols=2, frameon=False)
        return inline(figure, "how many clients took part by round")
