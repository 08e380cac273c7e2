"""The model card of a run: README.md in the form of the Hugging Face hub, written from settings and results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError, printable, shortened
from ..data.dataset import FileDataset
from ..data.own_folders import FolderDataset
from ..data.sources import source, source_names
from ..methods import all_methods
from ..metrics.protocols import score_name
from ..rounds.segments import versions
from ..rounds.settings import fields_by_name, text_of_model

if TYPE_CHECKING:
    from .run_directory import StoredRun

CARD = "README.md"
METRICS = {
    "test_accuracy": "accuracy",
    "test_r2": "r_squared",
    "test_perplexity": "perplexity",
    "test_mean_iou": "mean_iou",
}  # the hub's names of the scores of runs
SETTINGS = (
    "method", "client", "participation", "weights", "loss", "perturbation", "augmentation", "adapter", "privacy",
    "guard", "attack", "compress", "buffers", "precision", "seed",
)  # fmt: skip
LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}")  # the hub's short names, such as apache-2.0
OWN = "data of the author's own"
LOCAL = "a file of the author's own"  # in place of a name that holds a path
LONGEST = 120  # characters of a value; a list of cohorts has thousands
HUB = "hub:"  # before the name of a model of the hub


def model_card(run: StoredRun, license: str | None = None) -> str:
    """Return the text of the card. Without `license` it states none, because only the author can grant one.

    No path of this machine, and no result of a single client, is in it. Raises InputError for a license that is no
    short name.
    """
    if license is not None and not LICENSE.fullmatch(license):
        raise InputError(f"license must be a short name of the hub, such as 'mit', got {shortened(license)!r}")
    front = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in _front(run, license).items())
    parts = [f"---\n{front}---", f"# {run.method} on {_data_name(run)}", _summary(run), _results(run), _training(run)]
    return "\n\n".join([*parts, _use(run), *_citations(run), _license(license)]) + "\n"


def _front(run: StoredRun, license: str | None) -> dict[str, Any]:
    """Return the keys of the card that the hub reads."""
    front: dict[str, Any] = {"library_name": "fedflat", "tags": ["federated-learning", "fedflat", run.method.lower()]}
    if license is not None:
        front["license"] = license
    if repository := _repository(_data_name(run)):
        front["datasets"] = [repository]
    if base := base_model(run.initial_model.options):
        front["base_model"] = base
    score = score_name(run.summary)
    if score in METRICS:
        front |= {"metrics": [METRICS[score]], "model-index": [_index(run, score)]}
    return front


def _index(run: StoredRun, score: str) -> dict[str, Any]:
    """Return the result of the final model, which is the one in the files, in the hub's form."""
    name = _data_name(run)
    data = {"name": name, "type": _repository(name) or name, "split": "test"}
    metric = {"type": METRICS[score], "value": run.summary[f"{score}_last"]}
    return {"name": run.method, "results": [{"task": {"type": _task(run)}, "dataset": data, "metrics": [metric]}]}


def _task(run: StoredRun) -> str:
    """Return the hub's name of the task."""
    kind = run.samples
    if kind.form.has_positions:
        return "text-generation" if kind.task == "next-token" else "image-segmentation"
    samples = "text" if kind.numbers == "tokens" else "image" if len(kind.shape) == 3 else "tabular"
    return f"{samples}-{'regression' if kind.task == 'regression' else 'classification'}"


def base_model(options: Mapping[str, Any]) -> str | None:
    """Return the repository on the hub that a model with these options starts from, if there is one."""
    values = (options.get(name) for name in ("path", "pretrained"))
    return next((x.removeprefix(HUB) for x in values if isinstance(x, str) and x.startswith(HUB)), None)


def _data_name(run: StoredRun) -> str:
    """Return the name of the data set; of the user's own data, which others do not know, at most the format."""
    name = str(run.settings["data"]["name"])
    if name not in source_names():
        return OWN
    return f"{OWN} ({name})" if isinstance(source(name), FolderDataset) else name


def _repository(data: str) -> str | None:
    """Return the repository of a data set on the hub, if it is known."""
    found = source(data) if data in source_names() else None
    return found.hub.repository if isinstance(found, FileDataset) and found.hub else None


def _summary(run: StoredRun) -> str:
    data, model = run.settings["data"], text_of_model(run.settings["model"])
    return (
        f"{_kind(run)} ({printable(model)}) trained by federated learning with {run.method}: "
        f"{run.summary['rounds']:.0f} rounds with {data['clients']} clients on {_data_name(run)}."
    )


def _kind(run: StoredRun) -> str:
    """Say what the files hold: a model, or an adapter and the name or repository of its base."""
    if run.settings.get("adapter") is None:
        return "A model"
    initial = run.initial_model
    base = base_model(initial.options)
    is_local = base is None and any(initial.options.get(name) is not None for name in ("path", "pretrained"))
    own = " with weights of the author's own" if is_local else ""
    return f"An adapter of `{_cell(base or _shown(initial.model))}`{own}"


def _results(run: StoredRun) -> str:
    """Return a table of the results on the test samples."""
    known = {name: value for name, value in run.summary.items() if name.startswith("test_") and isfinite(value)}
    rows = [(name, f"{value:.6g}") for name, value in known.items()]
    text = _table(("measure", "value"), rows) if rows else "The run had no test samples."
    return (
        "## Results\n\nNames that end in `_last` are of the model in these files; a score without it is the mean "
        f"over the last evaluations.\n\n{text}"
    )


def _training(run: StoredRun) -> str:
    """Return a table of the settings, and the versions."""
    rows = [(name, _shown(value)) for name, value in _settings(run)]
    origins = [f"fedflat {version}, commit {commit or 'unknown'}" for version, commit in run.directory.origins()]
    trained = "; ".join(dict.fromkeys(origins)) or "a version of fedflat that the run did not record"
    table = _table(("setting", "value"), rows)
    here = versions(["fedflat"])["fedflat"]
    return f"## How it was trained\n\n{table}\n\nTrained by {trained}; exported by fedflat {here}."


def _settings(run: StoredRun) -> Iterator[tuple[str, Any]]:
    """Yield the settings that the results depend on, by dotted name; those that are not set are left out."""
    settings = run.settings
    for key in SETTINGS:
        value = settings.get(key)
        if isinstance(value, Mapping):
            fields, kind = fields_by_name(value), str(value["class"])
            if kind.lower() not in fields and not kind.lower().startswith(
                key
            ):  # Share has a share, and client a Client
                yield key, kind
            yield from ((f"{key}.{name}", x) for name, x in fields.items() if x is not None)
        elif value is not None:
            yield key, value
    partition = settings["data"]["partition"]
    yield "partition", partition["class"] if isinstance(partition, Mapping) else partition
    if isinstance(partition, Mapping):
        yield from ((f"partition.{name}", x) for name, x in fields_by_name(partition).items() if x is not None)


def _shown(value: Any) -> str:
    """Return a value as a text; one that holds a path of a machine is not shown."""
    text = str(value)
    return LOCAL if ("/" in text or "\\" in text) and not text.startswith(HUB) else shortened(text, LONGEST)


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    """Return a table of Markdown with every cell as code, so that a text from elsewhere is shown as it is."""
    body = [f"| {' | '.join('`' + _cell(x) + '`' for x in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|---|---|", *body])


def _cell(text: str) -> str:
    return printable(text).replace("`", "'").replace("|", "/") or " "


def _use(run: StoredRun) -> str:
    schema, rows = run.samples.schema, ""
    if schema is not None:
        rows = (
            f" It takes rows of a table with the columns {', '.join(f'`{_cell(x)}`' for x in schema.feature_columns)}, "
            "scaled and encoded: `load.py` has `encoded()`, which does this, and `fedflat predict` does it by itself."
        )
    return (
        "## Use\n\nThe file `load.py` loads the model. Which samples it takes is described in the documentation of "
        "fedflat, under \"Use the model\"." + rows
    )  # fmt: skip


def _citations(run: StoredRun) -> list[str]:
    """Return the papers of the method, and of a method that wraps it, as BibTeX; a method of one's own has none."""
    known = all_methods()
    papers = dict.fromkeys(known[name].paper.bibtex for name in run.method.split("-") if name in known)
    return ["\n".join(["## The method's paper", "", "```bibtex", *papers, "```"])] if papers else []


def _license(license: str | None) -> str:
    stated = f"`{license}`" if license else "None is stated; ask the author, and observe the terms of the data."
    return f"## License\n\n{stated}"
