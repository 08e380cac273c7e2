"""The page of every method: its equations, which are written by hand, and what is read off its class."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import torch

from benchmarks.tables import Table
from docs.method_equations import STAGES, own_part, problems, shared_letters
from fedflat.core.errors import InputError
from fedflat.core.hyper import allowed
from fedflat.core.method import Method
from fedflat.core.wrapper import Wrapper
from fedflat.engine.problem import check_ranks, check_weights
from fedflat.methods import all_methods
from fedflat.reports.catalogue import costs, documentation, grouped, settings, summary
from fedflat.reports.method_facts import COSTS, ROLES
from fedflat.reports.method_list import LEGEND
from fedflat.reports.method_records import meanings, records, widths
from fedflat.rounds.cost import full_passes_per_round, gradients_per_step, vector_cost

ROOT = Path(__file__).parent.parent
FOLDER = Path("docs") / "methods"
MEAN = "scaled when clients join a federation, whose parts begin at zero"
MARKS = {
    "per_round": "zero at the start of each round",
    "uniform_mean": "averaged with equal weights whatever those of the clients are",
}
CODE = re.compile(r"""(`[^`]+`|--\w+|[a-z][\w.]* = (?:"[^"]*"|true|false))""")  # in the words of a class
# What the two baselines are held against; every other method has a transcription of its paper's equations.
BASELINES = {
    "Centralised": "tests/engine/test_baselines.py::test_centralised_is_fedavg_of_one_client_that_has_everything",
    "Local": "tests/engine/test_baselines.py::test_local_is_a_federation_of_one_for_every_client",
}
TRANSCRIPTION = r"test_transcription\w*"
NEEDS = {
    "with_teacher": "a task of classification: a teacher's scores are compared; any other task is refused",
    "teacher_gradient": "a task of classification: a teacher's scores are compared; any other task is refused",
    "wrt_inputs": "a loss that can be differentiated by the samples",
    "full_grad": "a pass over all of a client's samples in each round",
}


def link(name: str, folder: str = "methods/") -> str:
    """Return a link to the page of a method, from a page of docs/."""
    return f"[{name}]({folder}{name.lower()}.md)"


def index_table() -> str:
    """Return every method in one line with a link to its page, in a table for each group, as Markdown."""
    tables = [
        f"**{group.capitalize()}**\n\n{_table_of(classes).markdown()}"
        for group, classes in grouped(all_methods().values()).items()
    ]
    return "\n\n".join([*tables, f"{LEGEND}."])


def _table_of(classes: Sequence[type[Method]]) -> Table:
    rows = [(link(cls.__name__), escaped(summary(cls)), *map(str, costs(cls))) for cls in classes]
    return Table(("method", "idea", *COSTS), rows)


def method_pages() -> dict[Path, str]:
    """Return the page of every method as it should be; one that is not there yet is given places for its equations."""
    found = {}
    for name, cls in all_methods().items():
        file = ROOT / FOLDER / f"{name.lower()}.md"
        found[file] = page(cls, file.read_text() if file.exists() else skeleton(name))
    return found


def page_problems() -> list[str]:
    """Return a line for each problem: pages without a method, equations, methods without a reference test."""
    wanted = {f"{name.lower()}.md": cls for name, cls in all_methods().items()}
    lines = [
        f"{FOLDER / file.name}: there is no such method; remove the page"
        for file in sorted((ROOT / FOLDER).glob("*")) if file.name not in wanted
    ]  # fmt: skip
    for name, cls in wanted.items():
        file = ROOT / FOLDER / name
        lines += problems(cls, file.read_text() if file.exists() else skeleton(cls.__name__), str(FOLDER / name))
        test, found = reference_tests(cls)
        lines += [] if found else [f"{test}: {cls.__name__} has no function test_transcription, its reference test"]
    return lines


def skeleton(name: str) -> str:
    """Return a page without equations."""
    stages = "\n\n".join(f"**{stage}** " for stage in STAGES)
    return (
        f"# {name}\n\n<!-- idea: x -->\n<!-- end of idea -->\n\n## Equations\n\n{stages}\n\n"
        "| letter | in the code | what it is | unit |\n|---|---|---|---|\n\n<!-- facts: x -->\n<!-- end of facts -->\n"
    )


def page(cls: type[Method], text: str) -> str:
    """Return `text` with all that is read off the class renewed."""
    text = _between(text, "idea", "\n\n".join([summary(cls), cited(cls)]))
    return _between(text, "facts", "\n\n".join(facts(cls, own_part(text))))


def _between(text: str, what: str, content: str) -> str:
    mark = re.compile(rf"<!-- {what}: .*? -->\n.*?<!-- end of {what} -->", re.DOTALL)
    written = f"<!-- {what}: written by docs/generate.py -->\n{content}\n<!-- end of {what} -->"
    return mark.sub(lambda _: written, text)


def cited(cls: type[Method]) -> str:
    """Return the paper in one line, with a link, and the file that has the code."""
    paper = cls.paper
    at = f", [arXiv:{paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else ""
    source = f"src/fedflat/methods/{cls.__module__.rpartition('.')[2]}.py"
    return f"{paper.short}: *{paper.title}*{at}. Code: [{source}](../../{source})."


def facts(cls: type[Method], own: str) -> Iterator[str]:
    """Yield all chapters that follow the equations."""
    shared = [(letter.tex, letter.code, letter.meaning, letter.unit) for letter in shared_letters(own)]
    yield "Letters that methods share:"
    yield Table(("letter", "in the code", "what it is", "unit"), shared).markdown()
    yield f"## In plain text\n\n```text\n{documentation(cls)}\n```"
    yield f"## Settings\n\n{settings_table(cls)}"
    yield f"## What is sent and kept\n\n{records_table(cls)}\n\n{cost(cls)}"
    yield f"## Combines with\n\n{bullets(combinations(cls))}"
    if cls.sources.departures:
        yield f"## Where papers and released code depart\n\n{bullets(cls.sources.departures)}"
    if cls.sources.readings:
        yield f"## How we read what the papers leave open\n\n{bullets(cls.sources.readings)}"
    yield f"## Reference test\n\n{reference(cls)}"
    yield f"## Citation\n\n```bibtex\n{cls.paper.bibtex}\n```"


def bullets(texts: Any) -> str:
    """Return a list, in which a norm's bars and the like stay as they are."""
    return "\n".join(f"* {plain(text)}" for text in texts)


def plain(text: str) -> str:
    """Return words of a class as Markdown: settings and flags are code, and what would be markup is not."""
    pieces = re.split(CODE, text)
    return "".join(
        f"`{piece.strip('`')}`" if number % 2 else re.sub(r"([*<])", r"\\\1", piece)
        for number, piece in enumerate(pieces)
    )


def escaped(text: str) -> str:
    """Return the same in a cell of a table, which a bar would end."""
    return plain(text).replace("|", "\\|")


def settings_table(cls: type[Method]) -> str:
    """Return the hyper-parameters with what papers and code took."""
    rows = []
    for f in settings(cls):
        tried = ", ".join(map(str, cls.sources.grids.get(f.name, ())))
        published = escaped(cls.sources.published.get(f.name, ""))
        meaning = escaped(f"{f.metadata.get('meaning', '')}")
        rows.append((f"`{f.name}`", default(f.default), escaped(allowed(cls, f.name)), meaning, published, tried))
    if not rows:
        return "None."
    return Table(("field", "default", "values", "meaning", "published", "tried"), rows).markdown()


def default(value: Any) -> str:
    """Return a value as configurations write it."""
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def records_table(cls: type[Method]) -> str:
    """Return every field that is sent, kept or averaged."""
    comments = meanings(cls)
    rows = []
    for role, record in records(cls).items():
        for number, (name, width) in enumerate(widths(record, cls).items()):
            size = numbers(record, cls, name, width)
            marks = [text for mark, text in MARKS.items() if name in record.marked(mark)]
            marks += [MEAN] if role == "server" and name in record.marked("mean_of_clients") else []
            what = escaped("; ".join(filter(None, [comments[record, name], *marks])))
            rows.append(("" if number else ROLES[role], f"`{name}`", size, what))
    return Table(("", "field", "numbers", "what it is"), rows).markdown()


def numbers(record: Any, cls: type[Method], name: str, width: int) -> str:
    """Return how many numbers a field has with default hyper-parameters, and on which of them that depends."""
    mark, *needed = get_type_hints(record, include_extras=True)[name].__metadata__
    if mark not in ("d", "1"):
        return _told(cls, mark)
    told = " and ".join(_told(cls, one.partition("=")[0]) for one in needed)
    return ("d" if width > 1 else str(width)) + (f" (depends on {told})" if told else "")


def _told(cls: type[Method], name: str) -> str:
    """Return a hyper-parameter by its name, and a property by its docstring, as a part of a sentence."""
    if name in (f.name for f in settings(cls)):
        return f"`{name}`"
    words = (inspect.getdoc(getattr(cls, name)) or name).split("\n")[0].partition(";")[0].rstrip(".")
    return words[0].lower() + words[1:]


def cost(cls: type[Method]) -> str:
    """Return what a round costs with default hyper-parameters."""
    method = cls()
    sent, passes = vector_cost(method), full_passes_per_round(method)
    full = f", and {passes} gradient on all samples per round" if passes else ""
    text = (
        "d is the number of parameters. With the default fields, in model-sized vectors per client and round: "
        f"{sent.down} down, {sent.up} up, {sent.client} kept between rounds, {sent.stored} held in a round; "
        f"minibatch gradients per local step: {gradients_per_step(method)}{full}."
    )
    if cls.sources.charged is None:
        return text
    exact = (sent.down + sent.up) / 2
    return f"{text} Communication relative to FedAvg: {exact:g}; papers charge {cls.sources.charged}."


def combinations(cls: type[Method]) -> Iterator[str]:
    """Yield what is certain from the class and from what the code refuses."""
    if issubclass(cls, Wrapper):
        yield "any base that the class does not refuse; what follows is that of the default one"
    if cls.training == "federated":
        yield f"weights of the clients in the mean: {weights(cls)}"
    yield "participation: every rule, with dropouts, stragglers and held-out clients" + kept(cls)
    yield "`client.momentum`: accepted; it begins at zero in every round and acts on the whole direction"
    if mixes(cls()):
        yield '`client.wd_scope = "inside"` scales the decay by the weight of the fresh gradient; `"outside"` does not'
    if cls().penalty:
        yield '`client.clip_scope = "flsim"` leaves one half of the proximal term unclipped; `"full"` clips both'
    for hook, need in NEEDS.items():
        if hook in names_in(cls):
            yield f"needs {need}"
    if cls.depends_on_rounds:
        yield "planned rounds: its rounds depend on them, so a finished run cannot be given more"
    federation = "yes" if cls.training == "federated" else f"refused, as this is {cls.training} training"
    yield f"real federations: {federation}"
    refused = refusal(lambda: check_ranks(2, "auto", (), cls()))
    yield f"several ranks: {f'refused: {refused}' if refused else 'yes'}"
    yield "each of these beside other methods: [what goes with what](../methods.md#what-goes-with-what)"


def mixes(method: Method) -> bool:
    """Tell whether the direction of a local step has the fresh gradient with another weight than 1."""
    down = method.broadcast(method.init_server(torch.ones(3)))
    return bool(torch.as_tensor(method.fresh_weight(down) != 1).any())


def weights(cls: type[Method]) -> str:
    """Return which weights the code takes, and with which options it takes others."""
    refused = refusal(lambda: check_weights(cls(), "samples"))
    if not refused:
        return "equal, or by samples"
    others = [
        f"`{f.name} = {str(not f.default).lower()}`" for f in settings(cls) if isinstance(f.default, bool)
        if not refusal(lambda f=f: check_weights(replace(cls(), **{f.name: not f.default}), "samples"))  # type: ignore[misc]
    ]  # fmt: skip
    return f"equal ones; by samples is refused{', except with ' + ' or '.join(others) if others else ''}"


def kept(cls: type[Method]) -> str:
    """Return the words that the records of clients age, if there are any."""
    if not widths(cls().client, cls):
        return ""
    return "; a client's record begins in its first round, and ages while it is not asked"


def refusal(attempt: Any) -> str:
    """Return the line with which the code refuses something, empty if it does not."""
    try:
        attempt()
    except InputError as error:
        return str(error)
    return ""


def names_in(cls: type[Method]) -> set[str]:
    """Return all names that the hooks of a method use."""
    functions = [thing for base in cls.__mro__ if base is not Method for thing in vars(base).values()]
    return {name for thing in functions if inspect.isfunction(thing) for name in thing.__code__.co_names}


def reference_tests(cls: type[Method]) -> tuple[str, list[str]]:
    """Return the file and the names of the tests that hold a method against its paper; no names if there are none."""
    file, _, name = BASELINES.get(cls.__name__, "").partition("::")
    file = file or f"tests/methods/test_{cls.__module__.rpartition('.')[2]}.py"
    text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
    return file, re.findall(rf"^def ({name or TRANSCRIPTION})\(", text, re.MULTILINE)


def reference(cls: type[Method]) -> str:
    """Return the chapter about these tests."""
    file, tests = reference_tests(cls)
    told = "The equations in NumPy, transcribed without the class, in loops over rounds, clients and local steps:"
    if cls.__name__ in BASELINES:
        told = "It has no equations of a paper's; it is held against FedAvg:"
    return f"{told} {', '.join(f'`{test}`' for test in tests) or 'none'} in [{file}](../../{file})."
