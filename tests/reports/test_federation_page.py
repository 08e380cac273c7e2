"""The report of a federation's folder: who took part, who did not and why, and what a reader must know besides."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedflat.cli.app import app as cli
from fedflat.core.errors import InputError
from fedflat.federation.flower.client_reports import ClientReport
from fedflat.federation.flower.directory import FederationDirectory
from fedflat.federation.flower.event_log import EVENTS, EventLog
from fedflat.reports.federation import ClientFacts, FederationData, RoundFacts, write_federation_page
from support.flower_fixtures import GridFederation, failing, study_of
from support.virtual_time import passing_at_once

pytestmark = pytest.mark.slow

ROUNDS = 5


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> GridFederation:
    """Client 3 does not answer its second order; a second node has the name of client 2."""
    federation = GridFederation(study_of(rounds=ROUNDS), tmp_path_factory.mktemp("federation"), deadline=1.5)
    answers = []

    def tamper(number, contents):
        answers.append(number)
        return None if len(answers) == 3 else contents  # the first one is its introduction

    federation.nodes[103].tamper = tamper
    federation.nodes[200] = federation.node(2, 5)
    with passing_at_once():
        federation.serve()
    return federation


def copied(federation: GridFederation, folder: Path) -> GridFederation:
    shutil.copytree(federation.folder, folder, dirs_exist_ok=True)
    return GridFederation(federation.spec, folder)


def test_every_answer_is_accounted_for(federation: GridFederation) -> None:
    """Three clients are asked in each round: rows of clients and columns of rounds have the same sums."""
    data = FederationData.read(federation.out)
    assert [len(facts.counted) + len(facts.missing) for facts in data.rounds.values()] == [3] * ROUNDS
    assert sum(one.counted for one in data.clients) == 3 * ROUNDS - 1
    assert {one.name: one.missing for one in data.clients if one.missing} == {"client-3": 1}
    assert [one.samples for one in data.clients] == [event["samples"] for event in federation.events("client")]
    assert data.clients[3].reason == "no answer before the deadline (1 x)"
    assert data.refused == [("200", "client-2: another node has this name", 1)]
    last = {name: t + 1 for t, facts in data.rounds.items() for name in facts.counted}
    assert {one.name: one.last for one in data.clients} == {one.name: last.get(one.name) for one in data.clients}
    assert (data.finished, data.damaged) == (True, [])
    assert data.headline.endswith("Of 15 answers that were asked for, 14 counted.")


def test_rounds_that_were_gone_back_behind_are_left_out(federation: GridFederation, tmp_path: Path) -> None:
    again = copied(federation, tmp_path)
    FederationDirectory(again.out).roll_back(3)
    data = FederationData.read(again.out)
    assert (list(data.rounds), len(data.history), data.finished) == ([0, 1, 2], 3, False)
    assert data.headline.startswith("3 of 5 rounds are done")
    assert any(what.startswith("rolled back: done 3") for _, what in data.happened)


def test_the_page_has_tables_and_figures_and_loads_nothing(federation: GridFederation, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["report", str(federation.out), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert f"report: {tmp_path / 'report.html'}" in done.output.replace("\n", "")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 4  # accuracy, loss, drift, who took part
    rows = re.findall(r">(client-\d)</th><td>(\d+)</td><td>(\d+)</td><td>(\d+)</td>", page)
    assert sum(int(row[2]) for row in rows) == 14
    assert "client-2: another node has this name" in unescape(page)
    assert not re.search(r"<script|src=|href=.https?://|@import|url\(.?http", page)
    assert "not finished" not in page


def test_what_clients_write_stays_text(federation: GridFederation, tmp_path: Path) -> None:
    again = copied(federation, tmp_path)
    EventLog(again.out).append("node refused", node="1", reason="<script>alert(1)</script>\x1b[2J")
    page = write_federation_page(FederationData.read(again.out), tmp_path / "page").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J" in page


def test_damage_is_said_on_the_page(federation: GridFederation, tmp_path: Path) -> None:
    """And a log whose lines have other types than ours is no traceback."""
    again = copied(federation, tmp_path)
    path = again.out / EVENTS
    path.write_text(
        path.read_text()
        + '{"time": 5, "event": "round", "t": 1, "counted": 7, "missing": [1]}\n'
        + '{"time": "x", "event": "client", "client": ["a"], "samples": "many"}\n'
    )
    data = FederationData.read(again.out)
    assert [line.partition(":")[0] for line in data.damaged] == [EVENTS]
    assert "is not as it was written" in write_federation_page(data, tmp_path / "page").read_text()


def test_a_federation_without_a_round_has_a_page_too(tmp_path: Path) -> None:
    federation = GridFederation(study_of(), tmp_path)
    federation.nodes.pop(103)
    with passing_at_once(), pytest.raises(Exception, match="4 of 5 clients came"):
        federation.serve()
    page = write_federation_page(FederationData.read(federation.out), tmp_path).read_text()
    assert "0 of 4 rounds are done" in page
    assert "failed" in page


def test_other_folders_are_one_line(federation: GridFederation, tmp_path: Path) -> None:
    with failing(InputError, f"{tmp_path} holds no federation"):
        FederationData.read(tmp_path)
    done = CliRunner().invoke(cli, ["report", str(federation.out), str(tmp_path)])
    assert str(done.exception) == "a federation has a report of its own; give one folder"


def test_a_long_setting_is_shortened_visibly(federation: GridFederation, tmp_path: Path) -> None:
    """A mark stands between its beginning and its end: numbers that just end would look like all of them."""
    out = copied(federation, tmp_path / "copy").out
    EventLog(out, "study").append("settings", means=[1.0] + [2.0] * 400 + [3.0])
    page = unescape(write_federation_page(FederationData.read(out), tmp_path).read_text())
    assert re.search(r"<td>\[1.0, (2.0, )+[\d., ]*\[\.\.\.\][\d., ]*3\.0\]</td>", page)


def test_settings_are_on_the_page_and_no_path_of_this_machine(federation: GridFederation, tmp_path: Path) -> None:
    page = unescape(write_federation_page(FederationData.read(federation.out), tmp_path).read_text())
    assert '<th scope="row">rounds</th><td>5</td>' in page
    assert re.search(r'<th scope="row">method</th><td>name = \w+', page)
    assert '<th scope="row">deadline</th><td>1.5</td>' in page
    assert str(federation.out) not in page
    assert str(Path.cwd()) not in page


def test_all_clients_in_every_round_are_a_sentence_and_no_figure(federation: GridFederation, tmp_path: Path) -> None:
    names, data = ["a", "b"], FederationData.read(federation.out)
    whole = replace(data, clients=[ClientFacts(name, 5, counted=3) for name in names],
                    rounds={t: RoundFacts(names, {}) for t in range(3)})  # fmt: skip
    text, drawn = "All 2 clients took part in each of the 3 rounds.", "who took part in each round"
    page = write_federation_page(whole, tmp_path).read_text()
    assert (text in page, drawn in page) == (True, False)
    page = write_federation_page(replace(whole, rounds={0: RoundFacts(["a"], {})}), tmp_path).read_text()
    assert (text in page, drawn in page) == (False, True)


def test_a_rehearsal_has_a_figure_of_the_score_of_each_client(federation: GridFederation, tmp_path: Path) -> None:
    """Of the own models, too, if there are any; of regressions R2."""
    data = FederationData.read(federation.out)
    for scores, own, title, models in (
        ({"accuracy": 0.5, "loss": 1.0}, {"accuracy": 0.75}, "accuracy % by client", 2),
        ({"mse": 1.0, "r2": 0.5}, {}, "R² by client", 1),
    ):
        reports = [ClientReport(name, 5, 2, 3, scores, own) for name in ("north", "south")]
        page = write_federation_page(replace(data, reports=reports), tmp_path).read_text()
        [drawn] = re.findall(rf'<svg role="img" aria-label="{title}".*?</svg>', page, re.DOTALL)
        assert [len(re.findall(rf">the {whose} model<", drawn)) for whose in ("server's", "client's own")] == [
            1, models - 1
        ]  # fmt: skip
    reports = [ClientReport("north", 5, 2)]
    assert 'by client"' not in write_federation_page(replace(data, reports=reports), tmp_path).read_text()


@pytest.mark.parametrize(("clients", "rounds"), [(100, 3), (3, 400)], ids=["clients", "rounds"])
def test_many_clients_or_rounds_are_counted_and_not_drawn_one_by_one(
    federation: GridFederation, tmp_path: Path, clients: int, rounds: int
) -> None:
    names = [f"client-{i:03}" for i in range(clients)]
    data = replace(
        FederationData.read(federation.out), history=[{"t": t, "test_accuracy": 0.5} for t in range(rounds)],
        clients=[ClientFacts(name, 5, counted=rounds - 1) for name in names],
        rounds={t: RoundFacts(names[1:], {names[0]: "no answer"}) for t in range(rounds)},
    )  # fmt: skip
    page = write_federation_page(data, tmp_path).read_text()
    assert "how many clients took part by round" in page
    assert ("mean of 7 rounds" in page) == (rounds == 400)
    assert len(page) < 300_000
