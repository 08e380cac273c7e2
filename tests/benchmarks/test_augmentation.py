from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.augmentation import BATCHES, Augmented
from benchmarks.workloads import WORKLOADS
from fedflat.data import preparation


def test_every_batch_is_augmented_and_differently(monkeypatch) -> None:
    seen: list[torch.Tensor] = []
    real = preparation.Augmentation.__call__

    def watched(self, *arguments):
        seen.append(real(self, *arguments))
        return seen[-1]

    monkeypatch.setattr(preparation.Augmentation, "__call__", watched)
    work = replace(WORKLOADS["W1a"], pool=4, samples=4, batch=4)
    prepared = Augmented(work).prepare()
    prepared.run()
    assert prepared.share == BATCHES == len(seen)
    assert {x.shape for x in seen} == {(4, 3, 32, 32)}
    assert not torch.equal(seen[0], seen[1])
