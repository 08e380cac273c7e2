from __future__ import annotations

from math import prod
from typing import Annotated

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.method import ALONG_GRADIENT, Citation, Context, Oracle, Sources, hyper, sam
from ..core.parameter_tensors import per_coordinate
from ..core.records import Delta, Record, in_range
from .fedcm import Anchored, Momentum


class FsaClient(Record):
    sensitive: Annotated[Tensor, "tensors"] = in_range(0, 1)  # 1 for the tensors of T_i, 0 for the others


class FedFSA(Momentum, client=FsaClient):
    """MoFedSAM with a larger radius in the few weight tensors that changed most, by shape, in the client's last round.

    client  e = r unit(g_i(w_i)), where r is rho_larger in the tensors of T_i and rho in the others
            w_i <- w_i - lr (alpha g_i(w_i + e) + (1 - alpha) Delta)
            s_l = mean (N(w_i,l) - N(w_l))^2, where N(x) = (x - min x) / (max x - min x);   T_i <- the top_c largest s_l
    server  Delta <- mean (w - w_i) / (lr K_i);   w <- w + server_lr mean (w_i - w)

    The norm in unit is that of the whole vector. T_i is empty in a client's first round. Weight tensors are those of
    two or more dimensions; one whose values are all equal is never in T_i. Of equal s_l the first in the model counts.
    """

    group = "flat"
    paper = Citation(
        key="xing2025fedfsa",
        authors="Xing, Xinda and Zhan, Qiugang and Xie, Xiurui and Yang, Yuning and Wang, Qiang and Liu, Guisong",
        title="Flexible Sharpness-Aware Personalized Federated Learning",
        venue="AAAI",
        year=2025,
    )
    sources = Sources(
        grids={"rho": (0.05, 0.1), "rho_larger": (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0), "top_c": (1, 2, 4)},
        published={
            "rho": "0.05; 0.1 for FMNIST and CIFAR-10 (FedFSA)",
            "rho_larger": "0.9; 0.2 for FMNIST and CIFAR-10; 1 for ResNet-18 (FedFSA)",
            "top_c": "2; 5 for ResNet-18 (FedFSA)",
            "alpha": "0.1 (FedFSA)",
        },
        departures=(
            "In a last, additional round the released code trains the head alone at every client, by plain SGD, and "
            "evaluates that model; the paper is about clients' own models. Here the method is the training before.",
            "The released code takes weight tensors by name: none whose name contains bias, bn, norm, downsample or "
            "shortcut; ours takes those of two or more dimensions, so the kernels of shortcuts are among them.",
            "If a weight tensor is constant, or there are fewer of them than top_c, the released code also takes "
            "biases, the first of the model first; ours never does, and refuses a model with too few.",
            "The released code lowers the step size per local epoch and per client, and divides by the first one: "
            "right for a constant step size, which the paper has on all data but Tiny-ImageNet.",
            "The appendix reports rho_larger = 0.2 for FMNIST and CIFAR-10, which is not among the values that it says "
            "were searched.",
        ),
        readings=(
            "The body of the paper was not at hand: the method is that of its released code, the values are those of "
            "its appendix.",
            "The defaults are the appendix's for networks with five weight tensors. Where top_c covers all of a small "
            "network, rho_larger = 0.9 is the radius in all of it: the digits of examples/digits.toml are then not "
            "learnt.",
        ),
    )
    rho: float = hyper(0.05, "radius of the perturbation in all other tensors, in parameter units", low=0)
    rho_larger: float = hyper(0.9, "radius in the tensors that changed most; rho is MoFedSAM", low=0)
    top_c: int = hyper(2, "tensors that take rho_larger; 0 is MoFedSAM", low=0)
    alpha: float = hyper(0.1, "weight of the fresh gradient", low=0, high=1, open_low=True)

    @property
    def fresh(self) -> float:
        return self.alpha

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_GRADIENT

    def check_model(self) -> None:
        if self.top_c > (found := sum(map(_is_weight, self.shapes))):
            raise InputError(
                f"FedFSA.top_c must be at most {found}, the number of the model's weight tensors (two or more "
                f"dimensions) that are trained; got {self.top_c}"
            )

    def step(
        self, w: Tensor, client: FsaClient, down: Anchored, grad: Oracle, ctx: Context
    ) -> tuple[Tensor, FsaClient]:
        return super().step(w, client, down, sam(grad, self._radius(client.sensitive)), ctx)

    def finish(self, w: Tensor, client: FsaClient, down: Anchored, ctx: Context) -> tuple[Delta, FsaClient]:
        changes = [
            _change_of_shape(w[..., layer], down.w[..., layer]) if _is_weight(shape) else w.new_full(w.shape[:-1], -1)
            for layer, shape in zip(ctx.layers, self.shapes, strict=True)
        ]
        return Delta(w - down.w), FsaClient(self._largest(torch.stack(changes, -1)))

    def _radius(self, sensitive: Tensor) -> Tensor | float:
        """Return the radius at each coordinate (*clients, d), or the one number that all have."""
        if self.rho == self.rho_larger:
            return self.rho
        return per_coordinate(self.rho * (1 - sensitive) + self.rho_larger * sensitive, self.shapes)

    def _largest(self, changes: Tensor) -> Tensor:
        """Return 1 at the `top_c` largest numbers that are not negative, and 0 elsewhere, (*clients, tensors)."""
        order = torch.argsort(changes, dim=-1, descending=True, stable=True)
        return torch.zeros_like(changes).scatter(-1, order[..., : self.top_c], 1) * (changes >= 0)


def _is_weight(shape: tuple[int, ...]) -> bool:
    """Tell whether a tensor of this shape has two or more dimensions, and numbers that can differ."""
    return len(shape) > 1 and prod(shape) > 1


def _change_of_shape(x: Tensor, before: Tensor) -> Tensor:
    """Return the mean squared change of a tensor's values between its smallest, 0, and its largest, 1, (*clients,).

    The result is -1 where all values of one of both are equal.
    """
    return (_between_0_and_1(x) - _between_0_and_1(before)).square().mean(-1).nan_to_num(nan=-1.0)


def _between_0_and_1(x: Tensor) -> Tensor:
    low, high = x.aminmax(dim=-1, keepdim=True)
    return (x - low) / (high - low)
