"""The client of flower.py: a module of its own, which Flower's worker processes import once."""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from tasks import Task
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the local training of one client, written as Flower's guide for PyTorch does."""
    config = message.content["config"]
    torch.set_num_threads(config["threads"])
    task = prepared(config["work"])
    module = task.build()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    steps = epochs(task, module, context.node_config["partition-id"])
    metrics = MetricRecord({"num-examples": task.work.samples, "steps": steps})
    content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@cache
def prepared(work: str) -> Task:
    """Return the samples of all clients, made once in a process."""
    return Task.of(work)


def epochs(task: Task, module: nn.Module, client: int) -> int:
    """Train `module` in place; the number of steps."""
    loader = DataLoader(TensorDataset(*task.client(client)), batch_size=task.work.batch, shuffle=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=task.work.client().lr)
    steps = 0
    for _ in range(task.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(module(x), y).backward()
            optimizer.step()
            steps += 1
    return steps
