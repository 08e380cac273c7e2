"""Tables of three hospitals, one folder each, with missing values and a diagnosis that one site has never seen.

    python examples/csv_sites.py

The program writes sites/SITE/train.csv and test.csv, and trains on them; put your own tables in their place.
"""

import csv
from pathlib import Path

import numpy as np

import fedflat as ff

NUMBERS = ["age", "pulse", "pressure", "glucose", "sodium", "lactate", "weight", "height"]
TEXTS = {"sex": ["f", "m"], "smoker": ["no", "yes", "former"], "ward": ["A", "B"]}
DIAGNOSES = ["cold", "flu", "sepsis"]
rng = np.random.default_rng(0)


def row(diagnosis):
    """Return the values of one patient; one number in twenty is missing."""
    numbers = rng.normal(50 + 6 * diagnosis * np.arange(8) / 8, 5)
    written = ["" if rng.random() < 0.05 else f"{number:.1f}" for number in numbers]
    return [*written, *(rng.choice(values) for values in TEXTS.values()), DIAGNOSES[diagnosis]]


for site, shares in {"north": [5, 4, 1], "south": [3, 5, 2], "west": [6, 4, 0]}.items():
    for part, patients in (("train", 300), ("test", 100)):
        path = Path("sites") / site / f"{part}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            chosen = rng.choice(3, patients, p=np.array(shares) / 10)
            csv.writer(file).writerows([[*NUMBERS, *TEXTS, "diagnosis"], *map(row, chosen)])

sites = ff.data.load(
    "csv", clients=3, partition=ff.Natural(), data_dir="sites", label_columns="diagnosis", missing="fill"
)
client = ff.Client(lr=0.1, epochs=2, batch_size=20)
sim = ff.Simulation("mlp", sites, ff.methods.FedSAM(rho=0.05), client, rounds=10, last=1, metrics=["recall"])
for name, value in sim.run().summary.items():
    if "accuracy" in name or "recall" in name:
        print(name, value)
