from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Annotated, Literal

import torch
from torch import Tensor

from ..core.method import Citation, Context, Oracle, Sources, hyper
from ..core.parameter_tensors import in_tensors
from ..core.records import Delta, Record, gradient_scale, per_round
from .fedcm import Anchored, Momentum, MoveAndDirection

COEFFICIENTS = (3.4445, -4.775, 2.0315)  # of the quintic of Newton and Schulz
VECTOR_BETA1, VECTOR_BETA2, VECTOR_EPS = 0.9, 0.95, 1e-10  # of Adam, which moves all but matrices
LEAST_SINGULAR = 1e-6  # of the largest singular value: smaller ones count as zero


class MuonServer(Anchored):
    M: Annotated[Tensor, "matrix_width"]  # mean of the clients' momenta of matrices, a gradient


class MuonClient(Record):
    M: Annotated[Tensor, "matrix_width"] = per_round()  # what this round's gradients add to the momentum
    first: Annotated[Tensor, "vector_width"] = per_round()  # Adam's first moment of vectors, a gradient
    second: Annotated[Tensor, "vector_width"] = per_round()  # Adam's second moment of vectors, a squared gradient


class MuonUp(Delta):
    M: Annotated[Tensor, "matrix_width"] = gradient_scale()  # M_i after the last step


class MuonMean(MoveAndDirection):
    M: Annotated[Tensor, "matrix_width"] = gradient_scale()


class FedMuon(Momentum, server=MuonServer, client=MuonClient, down=MuonServer, up=MuonUp, mean=MuonMean):
    """Local Muon: matrices step along their orthogonalised momentum, and all steps lean on the last direction Delta.

    client  matrix: M <- beta M + (1 - beta) g;   G = (1 - beta) g + beta M;   q = matrix_scale sqrt(max(1, r / c)) O(G)
            vector: q = Adam's step along g
            w_i <- w_i - lr ((1 - alpha) q + alpha Delta)
    server  Delta <- mean (w - w_i) / (lr K_i);   M <- mean M_i;   w <- w + server_lr mean (w_i - w)

    A parameter of two or more dimensions is a matrix of r rows, its first axis, and c columns, all others; O(G) is the
    nearest matrix whose singular values are all 1 or 0. A client's M begins as the server's, which begins at zero;
    Adam's moments begin at zero in each round. Without nesterov, G is M.
    """

    group = "drift correction"
    linear_in_gradient = False
    paper = Citation(
        key="liu2025fedmuon",
        authors="Liu, Junkang and Shang, Fanhua and Zhou, Junchao and Liu, Hongying and Liu, Yuanyuan and Liu, Jin",
        title="FedMuon: Accelerating Federated Learning with Matrix Orthogonalization",
        venue="arXiv",
        year=2025,
        arxiv="2510.27403",
    )
    sources = Sources(
        published={
            "beta": "0.98 (released code)",
            "alpha": "0.5 (commands of the released code)",
            "matrix_scale": "10 for DeiT-Tiny at lr 3e-4, 0.5 for ResNet-18 at lr 3e-2 (released code)",
            "ns_steps": "5 (released code)",
        },
        departures=(
            "The released code iterates in bfloat16; ours in the precision of the model.",
            "The released code's factor of kernels, sqrt(max(1, r / c)), is that of their last two axes, 1 for square "
            "kernels; ours is that of the matrix.",
            "A parameter of three dimensions is in the released code one matrix for each index of its first axis. The "
            "positions of a ViT, (1, positions, channels), are then a matrix; here they are one row.",
            "The released code decays matrices by (1 - alpha) matrix_scale and vectors by 1 - alpha times its weight "
            "decay; ours decays both by `client.weight_decay`.",
            'The released code clips the gradient at norm 10 first (client.clip_scope = "gradient"), and divides by '
            "K = 50 steps also where a client took fewer.",
            "A variant of the released code that sends M at low rank is not in its list of methods, and not here.",
        ),
        readings=(
            "The body of the paper was not at hand. A third party's transcription of it has M <- beta M + g, no "
            'Nesterov step and the SVD: nesterov = false, orthogonal = "svd", since the scale of M does not matter.',
            "With the SVD, directions in which G is zero are left out: the rows of a softmax layer's gradient add up "
            "to zero, and U V^T is not unique there. The iteration leaves zero at zero, too.",
            "Five rounds of the released function, with full batches in double precision, end at the same models up to "
            "rounding once these departures are undone.",
            "Not the FedMuon of arXiv:2509.26337.",
        ),
    )
    beta: float = hyper(0.98, "factor of the momentum of matrices", low=0, high=1)
    alpha: float = hyper(0.5, "weight of the last global direction; 1 keeps the initial model", low=0, high=1)
    matrix_scale: float = hyper(1.0, "length of the step of matrices, for a singular value", low=0)
    nesterov: bool = hyper(True, "look ahead: orthogonalise (1 - beta) g + beta M in place of M")
    orthogonal: Literal["newton_schulz", "svd"] = hyper(
        "newton_schulz", "how a matrix is made orthogonal: an iteration that is not exact, or its decomposition"
    )
    ns_steps: int = hyper(5, "steps of the iteration newton_schulz", low=1)

    @property
    def fresh(self) -> float:
        return 1 - self.alpha

    @property
    def matrix_width(self) -> int:
        """The number of coordinates in matrices."""
        return sum(prod(shape) for shape in self.shapes if len(shape) > 1)

    @property
    def vector_width(self) -> int:
        """The number of coordinates in all other parameters."""
        return sum(prod(shape) for shape in self.shapes if len(shape) < 2)

    def step(
        self, w: Tensor, client: MuonClient, down: MuonServer, grad: Oracle, ctx: Context
    ) -> tuple[Tensor, MuonClient]:
        matrices, vectors = self._split(grad(w))
        own = self.beta * client.M + (1 - self.beta) * matrices
        M = self.beta ** (ctx.steps + 1) * down.M + own
        G = (1 - self.beta) * matrices + self.beta * M if self.nesterov else M
        first = VECTOR_BETA1 * client.first + (1 - VECTOR_BETA1) * vectors
        second = VECTOR_BETA2 * client.second + (1 - VECTOR_BETA2) * vectors.square()
        root = (second / (1 - VECTOR_BETA2 ** (ctx.steps + 1))).sqrt() + VECTOR_EPS
        q = self._joined(self._orthogonalised(G), first / (1 - VECTOR_BETA1 ** (ctx.steps + 1)) / root)
        return (1 - self.alpha) * q + self.alpha * down.direction, MuonClient(own, first, second)

    def finish(self, w: Tensor, client: MuonClient, down: MuonServer, ctx: Context) -> tuple[MuonUp, MuonClient]:
        return MuonUp(w - down.w, self.beta**ctx.steps * down.M + client.M), client

    def public(self, down: MuonServer, ctx: Context) -> MuonUp:
        return MuonUp(super().public(down, ctx).delta, self.beta**ctx.steps * down.M)

    def receive(self, up: MuonUp, ctx: Context) -> MuonMean:
        return MuonMean(up.delta, -up.delta / ctx.lr_sum, up.M)

    def update(self, server: MuonServer, mean: MuonMean, ctx: Context) -> MuonServer:
        after: MuonServer = super().update(server, mean, ctx)
        return replace(after, M=mean.M)

    def _orthogonalised(self, G: Tensor) -> Tensor:
        """Return the steps of all matrices (*clients, matrix_width), from what they are made of."""
        shapes = [(shape[0], prod(shape[1:])) for shape in self.shapes if len(shape) > 1]
        steps = [G[..., :0]]
        for x, (rows, columns) in zip(in_tensors(G, shapes), shapes, strict=True):
            matrix = x.reshape(*x.shape[:-1], rows, columns)
            made = newton_schulz(matrix, self.ns_steps) if self.orthogonal == "newton_schulz" else polar(matrix)
            steps.append(self.matrix_scale * max(1, rows / columns) ** 0.5 * made.reshape(x.shape))
        return torch.cat(steps, dim=-1)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coordinates of `x` (*clients, d) in matrices, and all others."""
        parts = list(zip(self.shapes, in_tensors(x, self.shapes), strict=True))
        matrices, vectors = ([part for shape, part in parts if (len(shape) > 1) == wanted] for wanted in (True, False))
        return torch.cat([x[..., :0], *matrices], dim=-1), torch.cat([x[..., :0], *vectors], dim=-1)

    def _joined(self, matrices: Tensor, vectors: Tensor) -> Tensor:
        """Return the vector (*clients, d) that `_split` divides into these."""
        parts = {
            wanted: iter(in_tensors(x, [shape for shape in self.shapes if (len(shape) > 1) == wanted]))
            for wanted, x in ((True, matrices), (False, vectors))
        }
        return torch.cat([next(parts[len(shape) > 1]) for shape in self.shapes], dim=-1)


def newton_schulz(G: Tensor, steps: int) -> Tensor:
    """Return `G` (*clients, r, c) with singular values near 1, by the iteration of Muon; those at zero stay there."""
    a, b, c = COEFFICIENTS
    wide = G.mT if G.shape[-2] > G.shape[-1] else G
    X = wide / (torch.linalg.matrix_norm(wide, keepdim=True) + 1e-7)
    for _ in range(steps):
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A) @ X
    made: Tensor = X.mT if G.shape[-2] > G.shape[-1] else X
    return made


def polar(G: Tensor) -> Tensor:
    """Return U V^T of `G` (*clients, r, c) over the singular values that are not zero."""
    U, s, Vh = torch.linalg.svd(G, full_matrices=False)
    counts = (s > LEAST_SINGULAR * s[..., :1]).to(G.dtype)
    product: Tensor = (U * counts[..., None, :]) @ Vh
    return product
