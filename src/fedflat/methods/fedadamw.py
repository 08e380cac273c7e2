from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Annotated, Literal

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.method import Citation, Context, Oracle, Sources, hyper
from ..core.parameter_tensors import mean_of_tensors, per_coordinate
from ..core.records import Delta, Record, Scalar, Vector, in_range, per_round, squared_gradient
from .fedcm import Anchored, MoveAndDirection, SendsDirection


class MomentsServer(Anchored):
    v: Annotated[Tensor, "d", "second_moment=full"]  # the paper's v-bar: mean of the clients' second moments
    block: Annotated[Tensor, "tensors", "second_moment=tensor"]  # the same, one mean for each parameter tensor
    b: Scalar  # what v has gathered: 1 - beta2^(steps so far); v / b is v without its bias
    steps: Annotated[Tensor, "1", "first_moment=run"]  # T, the local steps of all earlier rounds


class MomentsClient(Record):
    m: Vector = per_round()  # first moment, a gradient
    v: Vector = per_round()  # what this round's gradients add to the second moment, a squared gradient


class MomentsUp(Delta):
    v: Annotated[Tensor, "d", "second_moment=full"] = squared_gradient()  # v_i after the last step
    block: Annotated[Tensor, "tensors", "second_moment=tensor"] = squared_gradient()  # its mean in each tensor


class MomentsMean(MoveAndDirection):
    v: Annotated[Tensor, "d", "second_moment=full"] = squared_gradient()
    block: Annotated[Tensor, "tensors", "second_moment=tensor"] = squared_gradient()
    gathered: Scalar = in_range(0, 1)  # 1 - beta2^K_i; the server makes it from K_i


class FedAdamW(
    SendsDirection, server=MomentsServer, client=MomentsClient, down=MomentsServer, up=MomentsUp, mean=MomentsMean
):
    """Local AdamW that starts from the clients' mean second moment and leans on the last global direction Delta.

    client  m <- beta1 m + (1 - beta1) g_i(w_i);   v <- beta2 v + (1 - beta2) g_i(w_i)^2;   b <- beta2 b + 1 - beta2
            w_i <- w_i - lr ((m / (1 - beta1^(k+1))) / (sqrt(v / b) + eps) + alpha Delta)
    server  Delta <- mean (w - w_i) / (lr K_i);   v <- mean v_i;   b <- mean b_i;   w <- w + server_lr mean (w_i - w)

    A client begins each round with m = 0 and the server's v and b, which begin at zero; b is what v has gathered so
    far, so that v / b has no bias. k counts the steps of the round. first_moment = "run" corrects m as if k counted
    those of all earlier rounds, too. second_moment = "tensor" sends one mean of v_i for each parameter tensor. The
    weight decay is `client.weight_decay`, which is decoupled as in AdamW.
    """

    group = "drift correction"
    linear_in_gradient = False
    paper = Citation(
        key="liu2026fedadamw",
        authors="Liu, Junkang and Shang, Fanhua and Liu, Hongying and Tian, Yuxuan and Liu, Yuanyuan and Liu, Jin and "
        "Zhu, Kewen and Lin, Zhouchen",
        title="FedAdamW: A Communication-Efficient Optimizer with Convergence and Generalization Guarantees for "
        "Federated Large Models",
        venue="AAAI",
        year=2026,
        arxiv="2510.27486",
    )
    sources = Sources(
        published={
            "alpha": "0.5 (released vision code), 0.9 (commands of the released language code)",
            "beta1": "0.9 (released code)",
            "beta2": "0.999 (released code)",
            "eps": "1e-8 (released code)",
        },
        departures=(
            "The released code has two functions. That for vision sends all of v; that for language sends its mean in "
            'each parameter tensor (second_moment = "tensor"). Both correct m by the steps of all rounds '
            '(first_moment = "run"). From the second round on their first steps are then about 1 - beta1 times as '
            "long.",
            "The language function gives AdamW's step the weight 1 - alpha, but not its weight decay, and adds the "
            "last mean move without the ratio of the two rounds' step sizes. Ours is the sum of the vision function.",
            "The vision function counts samples / batch size times epochs as the steps of a round, also where it stops "
            "before, at K = 50: 312.5 in its command for ViT-B. Its corrected v is then too small, its steps too long.",
            "On a CPU all tensors of the released code share one counter of steps, which from the second round on "
            "grows by their number in each step.",
            "The released code clips the gradient at norm 10 before it enters the moments (client.clip_scope = "
            '"gradient").',
            "The released code divides by K = 50 steps, also where a client took fewer; ours divides by the sum of its "
            "own step sizes.",
            "The vision function sets alpha itself, over the command line.",
        ),
        readings=(
            "The body of the paper was not at hand. A third party's transcription of it sends one mean for each block "
            "of v and corrects m by the steps of the round. Another's summary has blocks follow the Hessian; which "
            'blocks these are is not known to us: "tensor" is those of the released language code.',
            "That transcription subtracts the weight decay within the bracket, which would make weights grow; ours "
            "decays them, as the code.",
            "b is our own: with equal numbers of steps v / b is the code's corrected v; with others it stays right.",
            "Five rounds of each of the two released functions, with full batches in double precision, end at the same "
            "models up to rounding once these departures are undone.",
        ),
    )
    alpha: float = hyper(0.5, "weight of the last global direction; the fixed point's step is 1 / (1 - alpha)", low=0)
    beta1: float = hyper(0.9, "factor of the first moment, less than 1", low=0, high=1)
    beta2: float = hyper(0.999, "factor of the second moment, less than 1", low=0, high=1)
    eps: float = hyper(1e-8, "added to the root of the second moment, in gradient units", low=0, open_low=True)
    second_moment: Literal["full", "tensor"] = hyper(
        "full", "what clients send of v: all of it, or its mean in each parameter tensor"
    )
    first_moment: Literal["round", "run"] = hyper(
        "round", "steps by which m is corrected: those of the round, or of all rounds, though m begins at 0 in each"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            if getattr(self, name) == 1:
                raise InputError(f"FedAdamW.{name} must be less than 1, got 1")

    def step(
        self, w: Tensor, client: MomentsClient, down: MomentsServer, grad: Oracle, ctx: Context
    ) -> tuple[Tensor, MomentsClient]:
        g, after = grad(w), ctx.steps + 1
        m = self.beta1 * client.m + (1 - self.beta1) * g
        v = self.beta2 * client.v + (1 - self.beta2) * g.square()
        kept = self.beta2**after  # of what the server sent
        root = ((kept * self._sent(down) + v) / (kept * down.b + (1 - kept))).sqrt()
        corrected = after + down.steps if self.first_moment == "run" else after
        return m / (1 - self.beta1**corrected) / (root + self.eps) + self.alpha * down.direction, MomentsClient(m, v)

    def finish(
        self, w: Tensor, client: MomentsClient, down: MomentsServer, ctx: Context
    ) -> tuple[MomentsUp, MomentsClient]:
        kept = self.beta2**ctx.steps
        v, block = kept * down.v, kept * down.block
        if self.second_moment == "full":
            v = v + client.v
        else:
            block = block + mean_of_tensors(client.v, self.shapes)
        return MomentsUp(w - down.w, v, block), client

    def public(self, down: MomentsServer, ctx: Context) -> MomentsUp:
        kept = self.beta2**ctx.steps
        return MomentsUp(-self.alpha * ctx.lr_sum * down.direction, kept * down.v, kept * down.block)

    def receive(self, up: MomentsUp, ctx: Context) -> MomentsMean:
        steps = torch.as_tensor(ctx.steps)
        gathered = -torch.expm1(steps * log(self.beta2)) if self.beta2 else torch.ones_like(steps)
        return MomentsMean(up.delta, -up.delta / ctx.lr_sum, up.v, up.block, gathered)

    def update(self, server: MomentsServer, mean: MomentsMean, ctx: Context) -> MomentsServer:
        after: MomentsServer = super().update(server, mean, ctx)
        b = (server.b + mean.gathered * (1 - server.b)).clamp(0, 1)  # within the range also with the noise of privacy
        steps = server.steps + ctx.steps if self.first_moment == "run" else server.steps
        return replace(after, v=mean.v.clamp(min=0), block=mean.block.clamp(min=0), b=b, steps=steps)

    def _sent(self, down: MomentsServer) -> Tensor:
        """Return the server's second moment at each coordinate, (*clients, d)."""
        return down.v if self.second_moment == "full" else per_coordinate(down.block, self.shapes)
