"""A method of your own: SAM at the clients and momentum at the server, beside FedSAM, with shared seeds.

    python examples/own_method.py
    fedflat check-method examples/own_method.py:FedMine
    fedflat run --method examples/own_method.py:FedMine --method.beta 0.8 --data.clients 5 --rounds 3 --out runs/mine

The class declares what is kept and sent; cost, checkpoints, messages and averages follow from that.
"""

import fedflat as ff
from fedflat.core.method import Citation, Method, hyper, sam
from fedflat.core.records import Delta, Model, Vector


class Server(Model):
    """What the server keeps: the model `w`, and its momentum `m`, in the unit of parameters."""

    m: Vector


class FedMine(Method, server=Server, down=Model, up=Delta):
    """Descend along the gradient at a perturbed point; move the server along its momentum."""

    paper = Citation(key="mine", authors="Me", title="My method", venue="Unpublished", year=2026)
    rho: float = hyper(0.1, "radius of the perturbation", low=0)
    beta: float = hyper(0.5, "weight of the old momentum; 0 is FedSAM", low=0, high=1)

    def step(self, w, client, down, grad, ctx):
        """Return the direction of descent of a local step, and what the client keeps."""
        return sam(grad, self.rho)(w), client

    def finish(self, w, client, down, ctx):
        """Return what the client sends after its last step, and what it keeps."""
        return Delta(w - down.w), client

    def update(self, server, mean, ctx):
        """Return the server's next state from the mean of what clients sent."""
        m = self.beta * server.m + mean.delta
        return Server(server.w + m, m)


if __name__ == "__main__":
    data = ff.data.load("digits", clients=10, partition=ff.Dirichlet(alpha=0.3), seed=0)
    client = ff.Client(epochs=2, batch_size=20)
    methods = [ff.methods.FedSAM(rho=0.1), FedMine(rho=0.1)]
    print(ff.compare([ff.Simulation("mlp", data, method, client, rounds=6, last=1).run() for method in methods]))
