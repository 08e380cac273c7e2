"""`--track wandb`: runs of Weights & Biases, online or, with WANDB_MODE=offline, in `wandb/` of the folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from .tracker import TrackedRun, Tracker


class WandbTracker(Tracker):
    """A run of Weights & Biases; its variables, such as WANDB_PROJECT and WANDB_MODE, mean what they always mean.

    The run's identifier and the next step are kept in its folder: an offline run does not know what was logged before.
    """

    package = extra = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        import wandb  # an optional package

        super().__init__(run)
        state = run.state("wandb")
        self._id = str(state.get("id") or secrets.token_hex(6))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedflat"),
            group=run.root.name,
            name=run.spec.label,
            id=self._id,
            resume="allow",
            reinit="create_new",  # several runs of a study may be open at the same time
            dir=os.environ.get("WANDB_DIR", str(run.root)),
            config=run.settings(),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._next = max(int(state.get("next") or 0), int(self._run.step))
        run.keep("wandb", {"id": self._id, "next": self._next})

    @property
    def next_step(self) -> int:
        return self._next

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)
        self._next = step + 1
        self.run.keep("wandb", {"id": self._id, "next": self._next})

    def finish(self, summary: Mapping[str, float]) -> None:
        self._run.summary.update({f"summary/{name}": value for name, value in summary.items()})

    def close(self) -> None:
        self._run.finish()
