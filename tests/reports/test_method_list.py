"""The list of methods is what the classes say, in groups, and fits a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console

from fedflat.core.errors import InputError
from fedflat.core.method import GROUPS
from fedflat.core.object_references import allow_code
from fedflat.methods import all_methods
from fedflat.reports import method_list
from fedflat.reports.listing import listing
from fedflat.reports.method_facts import COSTS, HyperParameter, MethodFacts, RecordField, equations
from fedflat.reports.method_list import all_facts, facts_named

OWN = '''
from fedflat.core.method import hyper
from fedflat.methods.fedsam import FedSAM

class Mine(FedSAM):
    """FedSAM with a word nowhere else: cantaloupe."""
    scale: float = hyper(2.0, "factor of the radius", low=0)
'''


def test_a_method_without_an_entry_is_read_off_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    methods, known = all_facts(), listing()
    fewer = {name: some[1:] for name, some in known["methods"].items()}
    monkeypatch.setattr(method_list, "listing", lambda: known | {"methods": fewer})
    assert all_facts.__wrapped__() == methods


def test_every_method_is_in_the_group_that_its_class_states_in_the_order_of_the_groups() -> None:
    assert {one.name: one.group for one in all_facts()} == {name: cls.group for name, cls in all_methods().items()}
    assert len(all_facts()) == len(all_methods())
    places = [GROUPS.index(one.group) for one in all_facts()]
    assert places == sorted(places)


@pytest.mark.parametrize("width", [80, 160, 200])
def test_methods_fit_their_lines_below_their_groups(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=width).print(method_list.method_table(all_facts(), width))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if "…" in line], "nothing is cut off"
    shown = {one.name: rf"{one.name} .* {' +'.join(str(one.cost[name]) for name in COSTS)} " for one in all_facts()}
    found, group = [], ""
    for line in map(str.strip, lines):
        group = line if line in GROUPS else group
        found += [(name, group) for name, pattern in shown.items() if re.match(pattern, line)]
    assert found == [(one.name, one.group) for one in all_facts()]


def test_facts_are_those_of_the_class() -> None:
    """FedGAMMA is Scaffold on the SAM gradient: its settings, records and costs by their definition."""
    facts = facts_named("fed-gamma")
    assert [base.rpartition(".")[2] for base in facts.lineage] == ["FedGAMMA", "Scaffold"]
    assert {one.name: one.default for one in facts.settings} == {"server_lr": "1.0", "rho": "0.05"}
    assert [(one.role, one.name) for one in facts.records] == [
        ("sent to a client", "w"), ("sent to a client", "c"), ("sent by a client", "delta"), ("sent by a client", "dc"),
        ("kept by a client", "c"), ("averaged by the server", "delta"), ("averaged by the server", "dc"),
        ("kept by the server", "w"), ("kept by the server", "c"),
    ]  # fmt: skip
    assert facts.cost == {"down": 2, "up": 2, "kept": 1, "grads": 2, "passes": 0}
    assert facts_named("MimeLite").cost["passes"] == 1, "the gradient on all samples"


def test_an_own_method_is_known_by_its_class(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    with allow_code():
        facts = facts_named(f"{file}:Mine")
    assert (facts.name, facts.group, facts.paper) == ("Mine", "flat", facts_named("FedSAM").paper)
    assert facts.lineage[1:] == facts_named("FedSAM").lineage
    assert HyperParameter("scale", "2.0", "factor of the radius") in facts.settings
    assert RecordField("sent by a client", "delta", "d", "w_i - w, parameters") in facts.records
    with pytest.raises(InputError, match="names code"):
        facts_named(f"{file}:Mine")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown method 'fedsamm'; .*; did you mean FedSAM\?$"):
        facts_named("fedsamm")


def test_statements_are_apart_though_they_share_or_span_lines() -> None:
    text = """An idea.

client  c = a;   w_i <- w_i - lr c
        h_i <- h_i + w_i;   m <- share of the rounds
        in which they differ
server  w <- mean w_i

Then a note; it is not an equation."""
    assert equations(text) == {
        "client": ["c = a", "w_i <- w_i - lr c", "h_i <- h_i + w_i", "m <- share of the rounds in which they differ"],
        "server": ["w <- mean w_i"],
    }
    assert equations("An idea alone.") == equations("") == {}


@pytest.mark.parametrize("facts", all_facts(), ids=lambda facts: facts.name)
def test_every_method_has_equations_of_client_and_server(facts: MethodFacts) -> None:
    found = equations(facts.documentation)
    assert set(found) == {"client", "server"}
    words = " ".join(" ".join(statements) for statements in found.values()).split()
    block = next(part for part in facts.documentation.split("\n\n")[1:] if re.match(r"(client|server)  ", part))
    said = re.sub(r"^(client|server) ", "", block.replace(";  ", "  "), flags=re.MULTILINE).split()
    assert sorted(words) == sorted(said), "nothing is lost"
