"""Studies and finished runs for Python: `fedflat.study` and `fedflat.load_run`."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ..adapters.lora import LoRA
from ..core.errors import InputError
from ..core.object_references import allow_code
from ..core.plain_numbers import takes_numbers
from ..methods import all_methods
from .config_errors import validated
from .merging import merged
from .run_directory import StoredRun
from .runner import RunObserver
from .spec import Experiment, StudySpec
from .studies import Jobs
from .studies import study as carry_out_study

UNNAMED = ("attack", "client", "guard")  # settings that are tables without a name


def load_run(folder: str | Path) -> StoredRun:
    """The finished run in a folder of `fedflat run`, of a study (runs/NAME), or of `Run.save`.

    It has `metrics` (a pyarrow table; `to_pandas()`), `summary`, `settings`, `flatness`, `counts`, `model` and `spec`.
    Nothing is unpickled, and code that the folder names, such as my.py:MyModel, is run inside `fedflat.allow_code()`
    only. Raises InputError if there is no finished run, and for a file that is not as it was written.
    """
    return StoredRun.open(Path(folder))


@takes_numbers
def study(
    file: str | Path | None = None,
    *,
    out: str | Path,
    jobs: Jobs = 1,
    strict: bool = False,
    observer: RunObserver | None = None,
    **settings: Any,
) -> list[StoredRun]:
    """Carry out a study as `fedflat compare` does, and return its finished runs, which `fedflat.compare` compares.

    file: a TOML file, which `settings` override. settings: its keys, as values, dictionaries or objects, e.g.
    `methods=["fedavg", ff.methods.FedSAM(rho=0.05)], partition=ff.Dirichlet(alpha=0.1), client=ff.Client(lr=0.1),
    data={"name": "digits", "clients": 20}, rounds=50, seeds=[0, 1, 2], grid={"client.lr": [0.1, 0.3]}`.
    out: the folder, in which finished runs are not computed again. jobs: runs at a time, or "auto"; a script needs no
    main guard for several. observer: its methods are called with the progress.

    Raises InputError as the command does, Interrupted after Ctrl-C (what is done is saved), and NonFiniteError if every
    run diverges. Code that file or settings name is run: they are yours.
    """
    with allow_code():
        table = Experiment.read(Path(file)) if file is not None else {}
        table = merged(StudySpec, table, {key: _as_table(value, key) for key, value in settings.items()})
        return carry_out_study(validated(StudySpec, table), Path(out), observer, jobs, strict)


def _as_table(value: Any, key: str) -> Any:
    """A setting as it is written in TOML: objects of this package become tables with a name."""
    if isinstance(value, list | tuple):
        return [_as_table(one, key) for one in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    table = {f.name: _as_table(getattr(value, f.name), key) for f in fields(value) if f.init}
    return table if key in UNNAMED else {"name": _name(value, key), **table}


def _name(value: Any, key: str) -> str:
    """The name of an object's class as a configuration has it. Raises InputError for one that has none."""
    from ..data.partition import all_partitions
    from ..metrics.flatness import all_measures

    cls, classes = type(value), {**all_methods(), **all_partitions(), **all_measures(), "lora": LoRA}
    for name, known in classes.items():
        if known is cls:
            return name
    raise InputError(
        f'{key}: {cls.__name__} is not in this package; name the file it is in: {key} = "my.py:{cls.__name__}", or a '
        "table with that name and its fields"
    )
