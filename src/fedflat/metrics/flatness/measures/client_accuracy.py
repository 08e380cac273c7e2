from __future__ import annotations

from ....core.progress import Steps
from ...accuracy import per_client, score, spread
from ..measure import Finding, Measure, Measured
from ..subject import Subject


class ClientAccuracy(Measure):
    """Accuracy of the model on each client's training samples: mean, spread, worst ones, best.

    Accuracies are in [0, 1]; every client has the same weight. Mean and standard deviation are the "mean (std)" of
    FedSAM (Qu et al., 2022, Table 1). All samples of every client are used.
    """

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        data = subject.data
        scores = score(subject.objective, subject.w, data.x, data.y, data.preparation)
        progress(1, 1)
        statistics = spread(per_client(scores, data))
        values = {f"client_accuracy_{name}": Measured(value) for name, value in statistics.items()}
        return self.finding(subject, values, samples=subject.part(subject.total))
