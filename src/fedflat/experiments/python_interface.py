"""Studies and finished runs for Python: `fedflat.study` and `fedflat.load_run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.object_references import allow_code
from ..core.plain_numbers import takes_numbers
from .config_errors import validated
from .run_directory import StoredRun
from .runner import RunObserver
from .settings_tables import merged
from .spec import Experiment, StudySpec
from .studies import Jobs
from .studies import study as carry_out_study


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
        spec = validated(StudySpec, merged(StudySpec, table, settings))
        return carry_out_study(spec, Path(out), observer, jobs, strict)
