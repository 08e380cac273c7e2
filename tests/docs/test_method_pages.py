"""Every method has a page, whose equations can be shown, explain their letters, and name what its class has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docutils.utils.math.latex2mathml import tex2mathml

from docs import method_equations, method_pages
from docs.method_equations import STAGES, fingerprint, formulas, letters, own_part, problems
from fedflat.core.errors import InputError
from fedflat.core.method import GROUPS, Method, Sources, hyper
from fedflat.core.records import Delta, Model, Vector, per_round
from fedflat.engine.problem import check_weights
from fedflat.methods import all_methods
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.fedprox import FedProx
from fedflat.reports.method_facts import ROLES
from fedflat.reports.method_records import records, widths

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "methods"
FILES = {cls: FOLDER / f"{name.lower()}.md" for name, cls in all_methods().items()}
PAGES = {cls: file.read_text() for cls, file in FILES.items() if file.exists()}  # a missing one is told below
INDEX = (ROOT / "docs" / "methods.md").read_text()
names = pytest.mark.parametrize("cls", PAGES, ids=lambda cls: cls.__name__)


def test_every_method_has_a_page_and_every_page_a_method() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {file.name for file in FILES.values()}


def test_nothing_is_wrong_with_any_page() -> None:
    assert method_pages.page_problems() == []


def test_the_index_has_every_method_once_in_a_line_that_leads_to_its_page() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\((methods/\w+\.md)\) \| .+ \|( \d \|){4}$", INDEX, re.MULTILINE)
    names = [cls.__name__ for cls in sorted(all_methods().values(), key=lambda cls: GROUPS.index(cls.group))]
    assert [(name, file) for name, file, _ in rows] == [(name, f"methods/{name.lower()}.md") for name in names]
    assert all((ROOT / "docs" / file).exists() for _, file, _ in rows)


@names
def test_a_page_has_the_whole_algorithm_as_formulas_that_can_be_shown(cls: type[Method]) -> None:
    own = own_part(PAGES[cls])
    places = [own.find(f"**{stage}**") for stage in STAGES]
    assert -1 not in places
    assert places == sorted(places)
    assert "$$" in own[places[2] : places[3]], "the local step is a formula that stands alone"
    found = list(formulas(PAGES[cls]))
    assert len(found) >= 15
    assert all(tex2mathml(formula, as_block=True).startswith("<math") for formula in found)
    assert own.count("$") % 2 == 0


@names
def test_what_the_page_says_is_what_the_class_says(cls: type[Method]) -> None:
    text = " ".join(PAGES[cls].replace("`", "").replace("\\", "").split())
    said = [*cls.sources.departures, *cls.sources.readings, *cls.sources.published.values()]
    assert [one for one in said if " ".join(one.replace("`", "").split()) not in text] == []
    assert cls.paper.bibtex in PAGES[cls]
    for role, record in records(cls).items():
        first = PAGES[cls].split(f"| {ROLES[role]} |")[1] if widths(record, cls) else ""
        assert all(f" `{field}` |" in first for field in widths(record, cls))


@names
def test_a_page_names_reference_tests_that_exist(cls: type[Method]) -> None:
    chapter = PAGES[cls].split("## Reference test\n")[1].split("\n## ")[0]
    [file] = re.findall(r"\]\(\.\./\.\./(tests/\S+\.py)\)", chapter)
    tests = re.findall(r"`(test_\w+)`", chapter)
    source = (ROOT / file).read_text()
    assert tests
    assert all(f"\ndef {test}(" in source for test in tests)
    assert cls.__name__ in source


@names
def test_the_weights_that_a_page_allows_are_those_that_the_code_takes(cls: type[Method]) -> None:
    if cls.training != "federated":
        return
    [line] = re.findall(r"^\* weights of the clients in the mean: (.*)$", PAGES[cls], re.MULTILINE)
    try:
        check_weights(cls(), "samples")
    except InputError:
        assert line.startswith("equal ones; by samples is refused")
    else:
        assert line == "equal, or by samples"


def test_every_link_of_the_pages_leads_to_a_file() -> None:
    linked = [(file, target) for file in (*FOLDER.iterdir(), ROOT / "docs" / "methods.md")
              for target in re.findall(r"\]\(([^):\s]+)\)", file.read_text())]  # fmt: skip
    assert len(linked) > 3 * len(PAGES)
    assert [(file.name, target) for file, target in linked if not leads_somewhere(file, target)] == []
    assert not leads_somewhere(ROOT / "docs" / "methods.md", "methods.md#no-such-chapter")


def leads_somewhere(file: Path, target: str) -> bool:
    """Whether a link of a page leads to a file, and if it names a chapter, to a heading of it."""
    path, _, chapter = target.partition("#")
    linked = file.parent / path if path else file
    return linked.exists() and (not chapter or chapter in anchors(linked))


def anchors(file: Path) -> set[str]:
    """How the headings of a page are linked to."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# What is found -------------------------------------------------------------------------------------------------------


class Kept(Model):
    m: Vector  # a momentum


class Perturbed(Model):
    s: Vector = per_round()  # a perturbation, in parameter units


class Mine(FedAvg, server=Kept):
    """A method.

    client  w_i <- w_i - lr g_i(w_i)
    """

    paper = FedAvg.paper
    sources = Sources()
    size: float = hyper(1.0, "a size")


def written(**changes: str) -> str:
    """A page of `Mine` whose equations are right, but for what `changes` says of its parts."""
    parts = {"The server sends": "$w^t$", "A client starts": "$w^t$", "Local step": "$$\nd_{i,k} = g_i(w_{i,k})\n$$",
             "The client sends": r"$\delta_i$", "The server updates": r"$w^t + \eta_g\,\sigma\,m^t$"}  # fmt: skip
    rows = {"m": r"| $m^t$ | `m` | momentum | parameters |", "size": r"| $\sigma$ | `size` | a size | 1 |",
            "rate": r"| $\eta_g$ | `server_lr` | step | 1 |"}  # fmt: skip
    compared = changes.pop("compared", fingerprint(Mine))
    parts |= {key: value for key, value in changes.items() if key in parts}
    rows |= {key: value for key, value in changes.items() if key not in parts}
    text = "\n\n".join(f"**{stage}** {formula}" for stage, formula in parts.items() if formula)
    table = "\n".join(row for row in rows.values() if row)
    mark = f"<!-- compared with the code: {compared} -->"
    return f"# Mine\n\n## Equations\n\n{mark}\n\n{text}\n\n{table}\n\n<!-- facts: x -->\n"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"Local step": ""}, "the equations have no part **Local step**"),
        ({"The client sends": r"$\nosuch{x}$"}, r"the formula \nosuch{x} cannot be shown"),
        ({"The client sends": r"$\tilde w_i$"}, "docutils puts the index"),
        ({"The client sends": r"$\delta_i + \kappa$"}, "the table of letters does not say what kappa is"),
        ({"m": "| $m^t$ | | momentum | parameters |"}, "the equations do not name `m`, which Mine has"),
        (
            {"size": r"| $\sigma$ | `length` | a size | 1 |"},
            "the table of letters names `length`, which Mine does not have",
        ),
        ({"compared": "00000000"}, "the code of Mine is not the one that its equations were compared with"),
    ],
)
def test_one_line_says_what_is_wrong_with_equations(changes: dict[str, str], problem: str) -> None:
    if problem.startswith("the equations have no part"):
        changes = {**changes, "The client sends": r"$$\delta_i$$"}
    assert problems(Mine, written(), "p.md") == []
    found = problems(Mine, written(**changes), "p.md")
    assert any(line.startswith(f"p.md: {problem}") for line in found)
    assert all("\n" not in line for line in found)


def test_a_method_without_a_page_or_equations_is_told_in_one_line_where_to_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(method_pages, "ROOT", tmp_path)
    monkeypatch.setattr(method_pages, "all_methods", lambda: {"Mine": Mine})
    (tmp_path / "docs" / "methods").mkdir(parents=True)
    line, _ = method_pages.page_problems()
    assert line == (
        'docs/methods/mine.md: Mine has no equations; write them under "## Equations", as other pages have them'
    )
    assert problems(Mine, method_pages.skeleton("Mine"), "p.md") == [line.replace("docs/methods/mine.md", "p.md")]


def test_a_page_of_a_removed_method_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method_pages, "ROOT", tmp_path)
    monkeypatch.setattr(method_pages, "all_methods", lambda: {"Mine": Mine})
    folder = tmp_path / "docs" / "methods"
    folder.mkdir(parents=True)
    (folder / "fedgone.md").write_text("# FedGone\n")
    assert method_pages.page_problems()[0] == "docs/methods/fedgone.md: there is no such method; remove the page"


def test_a_method_without_a_transcription_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class FedNowhere(FedAvg):
        """A method."""

    FedNowhere.__module__ = "fedflat.methods.fednowhere"
    monkeypatch.setattr(method_pages, "all_methods", lambda: {**all_methods(), "FedNowhere": FedNowhere})
    no_page, no_test = method_pages.page_problems()
    assert no_page.startswith("docs/methods/fednowhere.md: FedNowhere has no equations")
    assert no_test == (
        "tests/methods/test_fednowhere.py: FedNowhere has no function test_transcription, its reference test"
    )


def test_the_fingerprint_is_of_the_code_alone() -> None:
    def made(body: str) -> str:
        return f"class X:\n    def step(self, w: Tensor, a: int) -> Tensor:\n        {body}\n"

    def canonical(source: str) -> object:
        return method_equations._canonical(method_equations.ast.parse(source).body[0].body[0])

    plain = canonical(made("return w + a"))
    assert canonical(made('"""What it does."""\n        return w + a  # why')) == plain
    assert canonical(made("return (\n            w + a\n        )").replace("w: Tensor", "w")) == plain
    assert canonical(made("return w - a")) != plain
    assert fingerprint(FedProx) != fingerprint(FedAvg)


def test_letters_are_told_from_commands_words_and_functions() -> None:
    text = r"$\bar\delta = \frac{1}{S}\sum_{i \in \mathcal{S}} w_i \text{ where } \operatorname{unit}(\eta)$ and words"
    assert letters(text) == {"bar delta", "S", "i", "mathcalS", "w", "unit", "eta"}


def test_comments_of_records_are_what_the_table_says() -> None:
    class Told(FedAvg, client=Perturbed, up=Delta):
        """A method."""

    table = method_pages.records_table(Told)
    assert "|  | `s` | d | a perturbation, in parameter units; zero at the start of each round |" in table
    assert "| sent by a client | `delta` | d | w_i - w, parameters |" in table


def test_how_many_numbers_a_field_has_and_what_that_depends_on() -> None:
    asked = [("FedGF", "server", "far"), ("FedGF", "down", "c"), ("FedSMOO", "up", "s_i"), ("FedNSAM", "down", "m"),
             ("FedLESAM", "down", "last"), ("FedRobust", "client", "A")]  # fmt: skip
    found = []
    for name, role, field in asked:
        cls = all_methods()[name]
        record = records(cls)[role]
        found.append(method_pages.numbers(record, cls, field, widths(record, cls)[field]))
    assert found == [
        "`window`", "1", "d (depends on `sam_correction`)", "d (depends on `perturbation` and `rho`)",
        "0 (depends on whether the server sends its last move)",
        "the number of entries of the matrix A: channels squared",
    ]  # fmt: skip
