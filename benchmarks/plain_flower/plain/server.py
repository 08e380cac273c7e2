"""Flower's FedAvg on one vector; the time of day at the end of each round is written to a file."""

from pathlib import Path
from time import time

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the rounds."""
    config = context.run_config
    clients = int(config["clients"])
    vector = ArrayRecord({"w": torch.randn(int(config["parameters"]))})
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)

    def note_time(number: int, arrays: ArrayRecord) -> None:
        with Path(str(config["times"])).open("a") as file:
            file.write(f"{time()}\n")

    strategy.start(grid, vector, num_rounds=int(config["rounds"]), evaluate_fn=note_time)
