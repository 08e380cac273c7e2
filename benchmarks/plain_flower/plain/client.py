"""A client that changes the vector it receives, and returns it."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Add noise: Flower transfers content that it has already only once."""
    w = message.content.array_records["arrays"].to_torch_state_dict()["w"]
    changed = ArrayRecord({"w": w + 0.01 * torch.randn_like(w)})
    reply = RecordDict({"arrays": changed, "metrics": MetricRecord({"num-examples": 1})})
    return Message(reply, reply_to=message)
