"""The equations of a method's page, which are written by hand, held against the method's class.

A page is out of date if a letter has no meaning, if it names something that the class does not have or leaves out
something that it has, or if the method's code has changed since a person compared its equations with it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from hashlib import sha256
from textwrap import dedent
from typing import Any

from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml

from fedflat.core.method import Method
from fedflat.reports.method_records import records, widths

STAGES = ("The server sends", "A client starts", "Local step", "The client sends", "The server updates")
COMPARED = re.compile(r"<!-- compared with the code: (\w+) -->")
DISPLAYED = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+?)\$", re.DOTALL)
ROW = re.compile(r"^\| (\$.+?) \| (.*?) \| (.+?) \| (.+?) \|$", re.MULTILINE)  # of the table of letters
TEXT = re.compile(r"\\(?:text|mathrm|mathbf)\{[^}]*\}|\\(?:begin|end)\{[^}]*\}")
LETTER = re.compile(
    r"\\(?:operatorname)\{(\w+)\}|\\(?:tilde|hat|bar|mathcal)\s*\{?\s*\\?[A-Za-z]\w*\}?|\\([A-Za-z]+)|([A-Za-z])"
)
ACCENTED = re.compile(r"\\(?:tilde|hat|bar)[\s{]*\\?\w+?\}?_(?=[\w{])")
GREEK = re.compile(
    r"alpha|beta|gamma|delta|(var)?epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega|"
    r"Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega|ell"
)


@dataclass(frozen=True)
class Letter:
    """A letter that all methods share: as it is written, its name in the code, what it is, and its unit."""

    tex: str
    code: str
    meaning: str
    unit: str


SHARED = (
    Letter("$t$", "", "round, from 0", "1"),
    Letter("$i$", "", "client", "1"),
    Letter("$k$", "", "local step of the round, from 0", "1"),
    Letter("$K_i$", "", "local steps that client $i$ takes in the round, its own number", "1"),
    Letter(r"$\mathcal{S}$", "", "clients that take part in the round", "1"),
    Letter("$S$", "", "their number", "1"),
    Letter("$N$", "", "number of all clients", "1"),
    Letter("$p_i$", "", "weight of client $i$ in the mean: $1/S$, or its share of the cohort's samples", "1"),
    Letter(
        "$w^t$, $w_{i,k}$",
        "`w`",
        "the server's model before round $t$; the model of client $i$ after $k$ local steps",
        "parameters",
    ),
    Letter(
        "$g_i(x)$",
        "",
        "gradient at $x$ of the mean loss of the local step's minibatch; all gradients of a step take the same one",
        "gradient",
    ),
    Letter(r"$\eta$", "", "local step size of the round, `client.lr` with its decay", "parameters / gradient"),
    Letter(
        "$d_{i,k}$",
        "",
        "direction of a local step; clipping, weight decay and momentum of `client`, if there are any, act on it",
        "gradient",
    ),
    Letter(r"$\delta_i$", "`delta`", "change that client $i$ made in the round", "parameters"),
    Letter(r"$\bar\delta$", "`delta`", "its mean over the clients of the round", "parameters"),
    Letter(
        r"$\operatorname{unit}(x)$",
        "",
        r"$x / \left\lVert x \right\rVert$, the norm over all parameters; zero where $x$ is zero",
        "1",
    ),
    Letter(r"$\odot$", "", "product coordinate by coordinate", "1"),
)


def own_part(page: str) -> str:
    """Return what a person wrote on a page: from the heading of the equations to the generated part after them."""
    return page.partition("\n## Equations\n")[2].partition("<!-- facts:")[0]


def formulas(text: str) -> Iterator[str]:
    """Yield all formulas, those within a line and those that stand alone."""
    for found in FORMULA.finditer(text):
        yield (found[1] or found[2]).strip()


def letters(text: str) -> set[str]:
    """Return the letters, accented letters and named functions of all formulas of a text; indices are letters, too."""
    return {found for formula in formulas(text) for found in _letters(formula)}


def _letters(formula: str) -> Iterator[str]:
    for whole in LETTER.finditer(TEXT.sub(" ", formula)):
        name, command, letter = whole.groups()
        if name or letter:
            yield name or letter
        elif command is None:
            yield re.sub(r"[{}\s]", "", whole[0].replace("\\", "", 1)).replace("\\", " ")
        elif GREEK.fullmatch(command) or command == "odot":
            yield command


def shared_letters(own: str) -> list[Letter]:
    """Return those of the letters of all methods that the equations of a page have."""
    used = letters(ROW.sub("", own))
    return [letter for letter in SHARED if _main(letter.tex) in used]


def _main(tex: str) -> str:
    """Return the letter of which a row of the table says what it is."""
    return next(_letters(next(formulas(tex))))


def problems(cls: type[Method], page: str, file: str) -> list[str]:
    """Return what is wrong with the equations on the page of a method, one line for each."""
    own = own_part(page)
    if not DISPLAYED.search(own):
        return [f'{file}: {cls.__name__} has no equations; write them under "## Equations", as other pages have them']
    found = [
        *_stages(own), *_formulas(own), *_letters_without_meaning(own), *_names(cls, own), *_compared(cls, own),
    ]  # fmt: skip
    return [f"{file}: {problem}" for problem in found]


def _stages(own: str) -> Iterator[str]:
    for stage in STAGES:
        if f"**{stage}**" not in own:
            yield f"the equations have no part **{stage}**"


def _formulas(own: str) -> Iterator[str]:
    for formula in formulas(own):
        if found := ACCENTED.search(formula):
            yield f"docutils puts the index of {found[0]} under the letter; take a letter without an accent"
        try:
            tex2mathml(formula, as_block=True)
        except MathError as error:
            yield f"the formula {formula} cannot be shown: {error}"


def _letters_without_meaning(own: str) -> Iterator[str]:
    explained = letters("\n".join([*(row[1] for row in ROW.finditer(own)), *(letter.tex for letter in SHARED)]))
    for letter in sorted(letters(ROW.sub("", own)) - explained):
        yield f"the table of letters does not say what {letter} is"


def _names(cls: type[Method], own: str) -> Iterator[str]:
    """Yield names of hyper-parameters and of what is sent and kept, on the page and in the class."""
    known = {f.name for f in fields(cls)} | {name for record in records(cls).values() for name in widths(record, cls)}
    shared = {name for letter in SHARED for name in re.findall(r"`(\w+)`", letter.code)}
    for name in sorted(known - shared - set(re.findall(r"`(\w+)", own))):
        yield f"the equations do not name `{name}`, which {cls.__name__} has"
    in_table = {name for row in ROW.finditer(own) for name in re.findall(r"`(\w+)", row[2])}
    for name in sorted(in_table - known):
        yield f"the table of letters names `{name}`, which {cls.__name__} does not have"


def _compared(cls: type[Method], own: str) -> Iterator[str]:
    now = fingerprint(cls)
    if (found := COMPARED.search(own)) is None or found[1] != now:
        yield (
            f"the code of {cls.__name__} is not the one that its equations were compared with; read both, and then "
            f"write <!-- compared with the code: {now} -->"
        )


def fingerprint(cls: type[Method]) -> str:
    """Return eight digits of the code of a method's hooks without docstrings, comments, annotations and layout."""
    trees = [
        _canonical(ast.parse(dedent(inspect.getsource(hook))).body[0]) for base in reversed(cls.__mro__)
        if issubclass(base, Method) and base is not Method for hook in _hooks(base)
    ]  # fmt: skip
    return sha256(repr(trees).encode()).hexdigest()[:8]


def _hooks(cls: type) -> Iterator[Any]:
    for name, thing in sorted(vars(cls).items()):
        function = thing.fget if isinstance(thing, property) else thing
        if inspect.isfunction(function) and not name.startswith("__"):
            yield function


def _canonical(node: Any) -> Any:
    """Return a piece of a syntax tree as nested tuples that all versions of Python give."""
    if isinstance(node, list):
        return tuple(map(_canonical, node))
    if not isinstance(node, ast.AST):
        return node
    parts = {name: part for name, part in ast.iter_fields(node) if part not in (None, [])}
    for name in ("annotation", "returns", "ctx", "kind"):
        parts.pop(name, None)
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
        parts["body"] = parts["body"][1:]
    return (type(node).__name__, *((name, _canonical(part)) for name, part in sorted(parts.items())))
