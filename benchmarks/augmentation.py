"""What it costs to augment a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from fedflat.data.preparation import Augmentation
from fedflat.rounds.randomness import Purpose, words

from .implementations import Implementation
from .timing import Prepared
from .workloads import Workload

BATCHES = 100  # in one time


@dataclass(frozen=True)
class Augmented(Implementation):
    """From sample numbers to augmented, normalised pictures, random decisions included: seconds per batch."""

    work: Workload
    name = "augmentation"
    per = "batch"

    def prepare(self) -> Prepared:
        data = self.work.data()
        augmentation = cast(Augmentation, data.augmentation)
        batches = torch.randint(len(data.y), (BATCHES, self.work.batch))
        place = np.arange(self.work.batch)

        def run() -> None:
            for k, samples in enumerate(batches):
                augmentation(data.stored(samples), words(0, Purpose.AUGMENTATION, 0, 0, k, place), data.preparation)

        return Prepared(run, BATCHES, {"batch": self.work.batch, "augmentation": repr(augmentation)})
