"""Completion of names by the shell. The names are read off files, and nothing is imported, so that it is quick."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from click import Context
from click.shell_completion import CompletionItem
from typer.core import TyperCommand

PACKAGE = Path(__file__).parent.parent
FIELD = re.compile(r"^    ([a-z]\w*): .+ = ", re.MULTILINE)  # of a class with fields; indented deeper it is none
HYPER = re.compile(r"^    (\w+): [^=\n]+ = hyper\(", re.MULTILINE)


def method_names(incomplete: str = "") -> list[str]:
    """The methods, in lower case unless `incomplete` is not; commands accept both."""
    names = []
    for file in _modules("methods"):
        for text in file.read_text().split("\nclass ")[1:]:
            if "\n    paper = " in text and "@abstractmethod" not in text:  # others hold what methods share
                names.append(text[: text.index("(")])
    return [name.lower() for name in names] if incomplete.islower() or not incomplete else names


def source_names() -> list[str]:
    """The data sets: the keys of their table."""
    return re.findall(r'^    "(\w+)": \w+\(', _text("data/sources"), re.MULTILINE)


def model_names() -> list[str]:
    """The models."""
    return [file.stem.replace("_", "-") for file in _modules("models")]


def partition_names() -> list[str]:
    """The partition schemes; other modules of their folder hold what they share."""
    files = [file for file in _modules("data/partition") if "(Partition)" in file.read_text()]
    return [file.stem.replace("_", "-") for file in files]


def recipe_names() -> list[str]:
    """The recipes, e.g. fedgf/table1."""
    files = sorted((PACKAGE / "experiments" / "recipes").glob("*/*.toml"))
    return [f"{file.parent.name}/{file.stem}" for file in files if file.stem != "base"]


def paper_names() -> list[str]:
    """The papers that recipes are from."""
    return sorted({name.partition("/")[0] for name in recipe_names()})


def setting_names(study: bool = False) -> list[str]:
    """The dotted keys of a run's settings, or of a study's, whose methods are a list; fields of all methods alike."""
    spec = (PACKAGE / "experiments" / "spec.py").read_text()
    inside = {
        "data": [*FIELD.findall(_class(spec, "DataSection")), *HYPER.findall(_text("data/selection"))],
        "client": HYPER.findall(_text("rounds/local_training")),
        "model": FIELD.findall(_class(spec, "ModelSection")),
        "adapter": ["name", *HYPER.findall(_text("adapters/lora"))],
        "privacy": HYPER.findall(_text("rounds/privacy/settings")),
        "attack": HYPER.findall(_text("rounds/attack")),
        "guard": HYPER.findall(_text("rounds/guard")),
        "partition": ["name", *_hyper_fields("data/partition")],
        "method": ["name", *_method_fields()],
    }
    names = FIELD.findall(_class(spec, "Experiment") + _class(spec, "StudySpec" if study else "RunSpec"))
    return [f"{name}.{field}" for name in names for field in inside.get(name, ())] + [
        x for x in names if x not in inside
    ]


def _class(text: str, name: str) -> str:
    """The text of a class in a module."""
    return text.partition(f"\nclass {name}(")[2].partition("\n\n\n")[0]


def _text(module: str) -> str:
    return (PACKAGE / f"{module}.py").read_text()


def _hyper_fields(folder: str) -> list[str]:
    """The fields of all classes in a folder, each once."""
    return list(dict.fromkeys(field for file in _modules(folder) for field in HYPER.findall(file.read_text())))


def _method_fields() -> list[str]:
    """The fields of all methods; `base.rho` for those of the method inside another one."""
    fields, around = _hyper_fields("methods"), [x for x in _modules("methods") if "(Wrapper)" in x.read_text()]
    own = {field for file in around for field in HYPER.findall(file.read_text())}
    inside = ["base.name", *(f"base.{field}" for field in fields if field not in own)]
    return [field for field in fields if field != "base"] + inside


def _modules(folder: str) -> list[Path]:
    """The files of the modules in a folder of the package."""
    return [file for file in sorted((PACKAGE / folder).glob("*.py")) if file.stem != "__init__"]


NAMES: dict[str, Callable[[str], list[str]]] = {  # by setting
    "--method": method_names,
    "--methods": method_names,
    "--data": lambda _: source_names(),
    "--model": lambda _: model_names(),
    "--partition": lambda _: partition_names(),
}


class SettingsCommand(TyperCommand):
    """A command that takes settings as flags, which `flags.resolve` reads.

    The shell completes a name after `--method`, `--method.name`, `--data`, ..., and the settings themselves.
    """

    allow_extra_args = True
    ignore_unknown_options = True

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """The names that the last flag before `incomplete` accepts, or else the command's own options and settings."""
        flag = ctx.args[-1].removesuffix(".name") if ctx.args else ""
        if flag in NAMES:
            return [CompletionItem(name) for name in NAMES[flag](incomplete) if name.startswith(incomplete)]
        offered = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("--"):
            study = ctx.info_name == "compare" or (ctx.parent is not None and ctx.parent.info_name == "recipes")
            flags = (f"--{name}" for name in setting_names(study))
            offered += [CompletionItem(flag) for flag in flags if flag.startswith(incomplete)]
        return offered
