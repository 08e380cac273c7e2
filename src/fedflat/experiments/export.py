"""The model of a finished run in files that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from ..adapters import adapted_network, network_of
from ..adapters.peft_files import export_adapter
from ..core.errors import InputError
from ..files import make_folder, write_atomically
from .run_directory import StoredRun
from .spec import RunSpec

MODEL, BASE, SNIPPET = "model.safetensors", "base.safetensors", "load.py"


def export(run: StoredRun, folder: Path) -> list[str]:
    """Write the trained adapter of a run, in the format of `peft`, or else its model's `state_dict` as safetensors.

    Beside it is load.py, which shows how to load it. The names of the files. Raises InputError if the folder holds
    anything or cannot be written, and as `StoredRun.model` does.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already; give a new folder")
    model = run.model
    make_folder(folder)
    network = adapted_network(model)
    if network is None:
        _write_state(model, folder / MODEL)
        names, snippet = [MODEL], _MODEL_SNIPPET
    else:
        names, snippet = export_adapter(network, folder), _ADAPTER_SNIPPET
        if not _is_pretrained(run.spec):
            _write_state(_base(run.spec), folder / BASE)
            names, snippet = [*names, BASE], _FRESH_SNIPPET
    built = _built(run.spec, network)
    write_atomically(folder / SNIPPET, lambda path: path.write_text(snippet.format(built=built)))
    return [*names, SNIPPET]


def _is_pretrained(spec: RunSpec) -> bool:
    """Whether the frozen parameters are in files that the model's options name."""
    return any(spec.model.options.get(name) is not None for name in ("path", "pretrained"))


def _base(spec: RunSpec) -> nn.Module:
    """The model without its adapter, with the frozen parameters of the run's seed."""
    return network_of(spec.model_copy(update={"adapter": None}).module())


def _write_state(model: nn.Module, path: Path) -> None:
    """Write all parameters and buffers by name."""
    state = {name: x.detach().cpu().contiguous().clone() for name, x in model.state_dict().items()}
    write_atomically(path, lambda temporary: temporary.write_bytes(save(state)))


def _built(spec: RunSpec, network: Any | None) -> str:
    """The expression that makes the model before it has what was trained."""
    classes, shape = spec.classes_and_shape()
    options = "".join(f", {name}={value!r}" for name, value in spec.model.options.items())
    built = f"fedflat.models.build({spec.model.name!r}, classes={classes}, shape={shape}{options})"
    inside = network is not None and hasattr(network.base_model.model, "base_model_prefix")
    return f"{built}.network" if inside else built


_MODEL_SNIPPET = """\
from pathlib import Path

import fedflat
from safetensors.torch import load_file

model = {built}
model.load_state_dict(load_file(Path(__file__).parent / "model.safetensors"))
model.eval()
"""
_ADAPTER_SNIPPET = """\
from pathlib import Path

import fedflat
from peft import PeftModel

base = {built}
model = PeftModel.from_pretrained(base, str(Path(__file__).parent))
model.eval()
"""
_FRESH_SNIPPET = """\
from pathlib import Path

import fedflat
from peft import PeftModel
from safetensors.torch import load_file

folder = Path(__file__).parent
base = {built}
base.load_state_dict(load_file(folder / "base.safetensors"))
model = PeftModel.from_pretrained(base, str(folder))
model.eval()
"""
