"""Which methods are alike, and what differs between two, held against the definitions of their classes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.console import Console

from fedflat.core.errors import InputError
from fedflat.reports.method_facts import MethodFacts, RecordField
from fedflat.reports.method_likeness import (
    BOTH,
    NEAREST,
    ComparedText,
    differences,
    differences_table,
    relatives,
    relatives_table,
)
from fedflat.reports.method_list import all_facts, facts_named


def names_like(name: str) -> list[str]:
    return [one.facts.name for one in relatives(facts_named(name), all_facts())]


def of_part(lines: list[ComparedText], part: str) -> list[tuple[str, str]]:
    return [(line.owner, line.text) for line in lines if line.part == part]


def method(name: str, lineage: str = "", fields: str = "", group: str = "flat") -> MethodFacts:
    """A method with these bases, and with records that have these fields, one letter for each."""
    records = tuple(RecordField("kept by the server", letter, "d", "") for letter in fields)
    return replace(facts_named("FedSAM"), name=name, lineage=(name, *lineage), records=records, group=group)


def test_relatives_are_ordered_by_class_then_fields_then_group() -> None:
    mine = method("Mine", "AB", "wxyz", "flat")
    sisters = [
        method("stranger", "", "wxyz", "flat"),
        method("cousin of another group", "B", "wx", "personal"),
        method("cousin with fewer fields", "B", "w", "flat"),
        method("cousin with further fields", "B", "wxyzpqrstuv", "flat"),
        method("cousin", "B", "wx", "flat"),
        method("sister", "A", "", "personal"),
        mine,
    ]
    found = [one.facts.name for one in relatives(mine, sisters)]
    assert found == [
        "sister", "cousin", "cousin of another group", "cousin with further fields", "cousin with fewer fields",
        "stranger",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("MoFedSAM", {"FedCM"}, {"FedVSSAM"}),  # FedCM on the SAM gradient; FedVSSAM has only its server's step
        ("FedVSSAM", {"FedCM", "MoFedSAM"}, {"FedAvg", "FedSAM"}),
        ("FedLESAM_S", {"FedLESAM", "FedLESAM_D"}, {"Scaffold", "FedGAMMA"}),  # a perturbation inside Scaffold
        ("FedLESAM_S", {"Scaffold", "FedGAMMA", "FedMoSWA"}, {"FedAvg", "FedSAM", "FedDyn"}),
        ("FedDyn", {"FedSpeed", "FedGloSS", "FedGMT", "FedSMOO", "FedLESAM_D"}, {"FedAvg", "Scaffold", "FedCM"}),
        ("FedAvgM", {"FedACG"}, {"FedAvg", "FedAdam"}),  # they keep the same momentum
    ],
)
def test_relatives_of_methods_are_those_of_their_definition(name: str, before: set[str], after: set[str]) -> None:
    found = names_like(name)
    assert max(map(found.index, before)) < min(map(found.index, after))


@pytest.mark.parametrize("facts", all_facts(), ids=lambda facts: facts.name)
def test_every_other_method_is_a_relative_once(facts: MethodFacts) -> None:
    assert sorted([facts.name, *names_like(facts.name)]) == sorted(one.name for one in all_facts())


def test_what_differs_between_scaffold_and_fedgamma_is_the_sam_gradient() -> None:
    """FedGAMMA is Scaffold on the SAM gradient: one setting and one gradient more, and no other record."""
    lines = differences(facts_named("FedGAMMA"), facts_named("Scaffold"))
    assert of_part(lines, "nearest shared class") == [(BOTH, "Scaffold")]
    assert of_part(lines, "settings") == [
        (BOTH, "server_lr = 1.0"),
        ("FedGAMMA", "rho = 0.05: radius of the perturbation, in parameter units; 0 is Scaffold"),
    ]
    for role in ("sent to a client", "sent by a client", "kept by a client", "kept by the server"):
        assert {owner for owner, _ in of_part(lines, role)} == {BOTH}, role
    assert [line for line in of_part(lines, "cost") if line[0] != BOTH] == [
        ("FedGAMMA", "gradients per local step: 2"), ("Scaffold", "gradients per local step: 1"),
    ]  # fmt: skip
    assert of_part(lines, "equations, client")[:2] == [
        ("FedGAMMA", "w_i <- w_i - lr (g_i(w_i + rho unit(g_i(w_i))) - c_i + c)"),
        ("Scaffold", "w_i <- w_i - lr (g_i(w_i) - c_i + c)"),
    ]
    assert {owner for owner, _ in of_part(lines, "equations, server")} == {BOTH}


def test_what_differs_between_mofedsam_and_fedsam_is_the_momentum() -> None:
    """The server sends its last direction, too, which costs a vector down."""
    lines = differences(facts_named("MoFedSAM"), facts_named("FedSAM"))
    assert of_part(lines, "nearest shared class") == [(BOTH, "FedAvg")]
    assert [owner for owner, text in of_part(lines, "sent to a client")] == [BOTH, "MoFedSAM"]
    assert of_part(lines, "sent by a client") == [(BOTH, "delta: w_i - w, parameters")]
    assert [line for line in of_part(lines, "cost") if line[0] != BOTH] == [
        ("MoFedSAM", "model-sized vectors sent to a client: 2"), ("FedSAM", "model-sized vectors sent to a client: 1"),
    ]  # fmt: skip
    assert {text.partition(" = ")[0] for owner, text in of_part(lines, "settings") if owner == "MoFedSAM"} == {
        "beta", "server_lr_mode",
    }  # fmt: skip
    assert of_part(lines, "equations, server") == [
        ("MoFedSAM", "Delta <- mean (w - w_i) / (lr K_i)"), (BOTH, "w <- w + server_lr mean (w_i - w)"),
    ]  # fmt: skip


def test_a_default_that_differs_is_told_of_both() -> None:
    lines = of_part(differences(facts_named("FedSMOO"), facts_named("FedDyn")), "settings")
    assert [(owner, text.partition(":")[0]) for owner, text in lines if text.startswith("alpha")] == [
        ("FedSMOO", "alpha = 1.0"), ("FedDyn", "alpha = 0.1"),
    ]  # fmt: skip


def test_fields_of_one_name_that_are_not_alike_are_two() -> None:
    """FedDyn's server keeps a mean of moves as h, FedVSSAM's a direction."""
    lines = of_part(differences(facts_named("FedVSSAM"), facts_named("FedDyn")), "kept by the server")
    assert [(owner, text[:2]) for owner, text in lines] == [(BOTH, "w:"), ("FedVSSAM", "h:"), ("FedDyn", "h:")]


def test_parts_have_one_order_though_a_method_has_none_of_some() -> None:
    """Local keeps a model at the client and has no settings; FedAvg has some, and keeps nothing there."""
    for pair in [("Local", "FedAvg"), ("FedAvg", "Local")]:
        parts = list(dict.fromkeys(line.part for line in differences(*map(facts_named, pair))))
        assert parts == [
            "nearest shared class", "idea", "group", "settings", "sent to a client", "sent by a client",
            "kept by a client", "averaged by the server", "kept by the server", "cost", "equations, client",
            "equations, server",
        ]  # fmt: skip


def test_the_difference_is_the_same_from_either_side() -> None:
    pair = facts_named("FedSMOO"), facts_named("FedSOL")
    assert set(differences(*pair)) == set(differences(*pair[::-1]))
    with pytest.raises(InputError, match="--like FedSOL: this is the method itself"):
        differences(pair[1], pair[1])


@pytest.mark.parametrize("width", [80, 160, 200])
def test_tables_fit_their_lines(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    facts, other = facts_named("FedLESAM_D"), facts_named("FedWMSAM")
    console = Console(width=width)
    console.print(relatives_table(facts, all_facts(), width, "fedlesam-d"))
    out = capsys.readouterr().out
    assert re.findall(r"^ (\w+) .* \d+ of \d+ ", out, re.MULTILINE) == names_like("FedLESAM_D")[:NEAREST]
    assert "fedflat methods FedLESAM --like fedlesam-d" in " ".join(out.split())
    console.print(differences_table(facts, other))
    out += capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
