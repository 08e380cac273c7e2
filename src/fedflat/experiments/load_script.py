"""The file load.py of an exported model: a short program that loads it, on any machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ..core.errors import InputError
from ..core.object_references import file_of, is_reference, portable, short_name
from ..data.sample_kind import SampleKind
from ..rounds.run_model import InitialModel
from .model_card import HUB

SNIPPET = "load.py"
ExportKind = Literal["model", "adapter", "fresh"]  # the last one is an adapter whose base has random weights, beside it


def onnx_script(samples: SampleKind) -> str:
    """Return the program that runs a model in ONNX."""
    given = "as it was given for training, before any scaling" if samples.schema is None else "of encoded() rows"
    return _ONNX_SNIPPET.format(given=given) + _encoding(samples)


def load_script(initial: InitialModel, samples: SampleKind, kind: ExportKind, part: str) -> str:
    """Return the program that loads the parameters of the exported model.

    It finds files beside itself and names no path of this machine. part: what is taken of the built model, such as
    ".network". A model that is code of the user is built only if the reader has allowed it, by an edit.
    """
    places = {name: Path(value).name for name, value in initial.options.items() if _is_place(name, value)}
    name, own = str(initial.model), own_file(initial)
    builder = repr(name) if own is None else f"str(folder / {own.name!r}) + {':' + short_name(name)!r}"
    given = {x: f"str({x.upper()})" if x in places else repr(value) for x, value in initial.options.items()}
    options = "".join(f", {x}={value}" for x, value in given.items())
    target = "model" if kind == "model" else "base"
    built = (
        f"{target} = fedflat.models.build({builder}, classes={initial.classes}, shape={initial.shape}{options}){part}"
    )
    head = "".join(_PLACE.format(name=x.upper(), place=place) for x, place in places.items())
    if is_reference(name):
        head += _PERMISSION.format(code=repr(portable(name)))
        built = f"with fedflat.allow_code():\n    {built}"
    return _SNIPPETS[kind].format(places=head, built=built) + _encoding(samples)


def own_file(initial: InitialModel) -> Path | None:
    """Return the user's file with the code of the model, if there is one, of which an export has a copy.

    Raises InputError if the copy would have the name of another file of the export.
    """
    own = file_of(initial.model) if isinstance(initial.model, str) else None
    if own is not None and own.name == SNIPPET:
        raise InputError(f"the model's file is called {SNIPPET}, as a file of the export; rename it, and train again")
    return own


def _is_place(name: str, value: Any) -> bool:
    """Tell whether a model's option names a file or a folder, which is not a part of the export."""
    is_text = isinstance(value, str) and not value.startswith(HUB)
    return is_text and (name in ("path", "pretrained") or Path(value).is_absolute())


def _encoding(kind: SampleKind) -> str:
    """Return the code that encodes the rows of a table for a model that was trained on them; else an empty text."""
    if kind.schema is None:
        return ""
    some = kind.schema
    numbers = dict(zip(some.numeric_columns, zip(some.means, some.deviations, strict=True), strict=True))
    categories = dict(zip(some.categorical_columns, map(list, some.categories), strict=True))
    return _ENCODING_SNIPPET.format(numbers=numbers, categories=categories, fills=some.missing == "fill")


_PLACE = """\
# {place!r}, from which the model was built, is no part of the export: put it beside this file, or name its place here.
{name} = folder / {place!r}
if not {name}.exists():
    raise SystemExit(f"load.py: there is no {{{name}}}; put it there, or change {name} in load.py")
"""
_PERMISSION = """\
# The model is code, which runs when it is built. Read it, then set this to True.
ALLOW_CODE = False
if not ALLOW_CODE:
    raise SystemExit("load.py: the model is code, " + {code} + "; read it, then set ALLOW_CODE = True in load.py")
"""
_ONNX_SNIPPET = """\
from pathlib import Path

import onnxruntime

session = onnxruntime.InferenceSession(Path(__file__).parent / "model.onnx", providers=["CPUExecutionProvider"])


def scores(x):
    \"""Return the scores (n, k) of samples x (n, ...), an array {given}.\"""
    return session.run(["scores"], {{"x": x}})[0]
"""
_MODEL_SNIPPET = """\
from pathlib import Path

import fedflat
from safetensors.torch import load_file

folder = Path(__file__).parent
{places}{built}
model.load_state_dict(load_file(folder / "model.safetensors"))
model.eval()
"""
_ADAPTER_SNIPPET = """\
from pathlib import Path

import fedflat
from peft import PeftModel

folder = Path(__file__).parent
{places}{built}
model = PeftModel.from_pretrained(base, str(folder))
model.eval()
"""
_FRESH_SNIPPET = """\
from pathlib import Path

import fedflat
from peft import PeftModel
from safetensors.torch import load_file

folder = Path(__file__).parent
{places}{built}
base.load_state_dict(load_file(folder / "base.safetensors"))
model = PeftModel.from_pretrained(base, str(folder))
model.eval()
"""
_ENCODING_SNIPPET = """

# The model takes rows of a table as encoded() returns them, not their raw numbers.
NUMBERS = {numbers}  # mean and deviation by column
CATEGORIES = {categories}
FILLS = {fills}  # whether a value may be missing


def encoded(row):
    \"""Return the features of a row, a dict of values by column, as a list; a value that is missing is None.\"""
    for name in (*NUMBERS, *CATEGORIES):
        if row[name] is None and not FILLS:
            raise ValueError(f"{{name}} has no value")
        if name in CATEGORIES and row[name] not in (None, *CATEGORIES[name]):
            raise ValueError(f"{{name}} has {{row[name]!r}}, which is none of its categories")
    numbers = [0.0 if row[x] is None else (float(row[x]) - mean) / by for x, (mean, by) in NUMBERS.items()]
    return numbers + [float(row[name] == one) for name, known in CATEGORIES.items() for one in known]
"""
_SNIPPETS: dict[ExportKind, str] = {"model": _MODEL_SNIPPET, "adapter": _ADAPTER_SNIPPET, "fresh": _FRESH_SNIPPET}
