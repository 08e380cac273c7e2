"""A ResNet with BatchNorm: running statistics averaged, kept by each client, or replaced by GroupNorm.

    python examples/batch_norm.py
    fedflat run --model examples/batch_norm.py:build --model.buffers averaged --model.keep 4 --rounds 2 --out runs/head

The first command compares the three; in the second each client keeps layer 4, the head, to itself.
"""

from torch import nn

import fedflat as ff


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.second, self.second_norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        """Return the block's output, of the shape of `x`."""
        inner = self.first_norm(self.first(x)).relu()
        return (x + self.second_norm(self.second(inner))).relu()


def build(classes, shape, width=8):
    """Build a small ResNet for pictures of `shape` (channels, height, width)."""
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1, bias=False), Block(width),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, classes),
    )  # fmt: skip


if __name__ == "__main__":
    split = {"clients": 4, "partition": ff.Dirichlet(alpha=0.5), "validation": 0.2, "train_samples": 800}
    data = ff.data.load("digits", **split)
    client = ff.Client(lr=0.3, epochs=1, batch_size=16)
    network = build(data.classes, data.shape)
    variants = {
        "BatchNorm, averaged": (network, "averaged"),
        "BatchNorm, local": (network, "local"),
        "GroupNorm": (ff.models.to_group_norm(network, groups=4), None),
    }
    for name, (model, buffers) in variants.items():
        run = ff.Simulation(model, data, ff.methods.FedAvg(), client, rounds=3, last=1, buffers=buffers).run()
        of_server, of_clients = run.summary["test_accuracy"], run.summary["validation_accuracy_mean"]
        print(f"{name:20} the server's model {of_server:.3f}, clients' own models {of_clients:.3f}")
