"""What a local step of federated LoRA costs: against a plain loop of PyTorch and peft, and in memory.

    OMP_NUM_THREADS=1 python -m benchmarks.adapters [--hidden 128] [--layers 2] [--tokens 64] [--batch 16] [--repeats 7]
    OMP_NUM_THREADS=1 python -m benchmarks.adapters --memory

A BERT with random weights; r = 8 on query and value, a trained head. The plain loop trains one model with
torch.optim.SGD on batches that are ready in memory. fedflat trains 10 clients, 5 steps each, rounds and their mean
included; all take turns. With --memory: the peak of a process whose round has 1, or 100 clients, in stacks.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import fedflat as ff
from fedflat.models.blocks.pretrained import quiet

from .measurement import Measurement, ratio
from .timing import Prepared, in_turns

CLIENTS, STEPS, CLASSES, VOCABULARY, LR = 10, 5, 4, 8_000, 0.1
EXECUTORS = ("sequential", "stacked", "auto")


def folder_with_encoder(folder: Path, hidden: int, layers: int, tokens: int, dropout: float) -> Path:
    """A BERT with random weights, as `transformers` saves it."""
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 32,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, max_position_embeddings=tokens,
        pad_token_id=0, num_labels=CLASSES,
    )  # fmt: skip
    with quiet("transformer"):
        transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def samples(number: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random texts (number, tokens), without padding, and their classes."""
    g = torch.Generator().manual_seed(0)
    return torch.randint(1, VOCABULARY, (number, tokens), generator=g), torch.arange(number) % CLASSES


def simulation(folder: Path, given: argparse.Namespace, clients: int, executor: str) -> ff.Simulation:
    """Every client takes `STEPS` steps in a round."""
    parts = [samples(STEPS * given.batch, given.tokens)] * clients
    return ff.Simulation(
        "transformer", ff.FederatedData.from_clients(parts, classes=CLASSES), ff.methods.FedAvg(),
        ff.Client(lr=LR, epochs=1, batch_size=given.batch), rounds=1000, participation=clients, executor=executor,
        model_options={"path": str(folder)},
        adapter=ff.LoRA(targets=("query", "value"), base_dtype=given.base_dtype),
    )  # fmt: skip


def plain_loop(folder: Path, given: argparse.Namespace) -> Prepared:
    """`CLIENTS` x `STEPS` steps of one model by PyTorch, peft and transformers alone."""
    import peft
    import transformers

    with quiet("transformer"):
        network = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=CLASSES, attn_implementation="eager"
        )
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"], modules_to_save=["classifier"])
    model: Any = peft.get_peft_model(network, config).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=LR, fused=True)
    x, y = samples(STEPS * given.batch, given.tokens)
    batches = list(zip(x.split(given.batch), y.split(given.batch), strict=True))

    def run() -> None:
        for _ in range(CLIENTS):
            for some, labels in batches:
                optimiser.zero_grad()
                scores = model(input_ids=some, attention_mask=torch.ones_like(some)).logits
                cross_entropy(scores, labels).backward()  # type: ignore[no-untyped-call]
                optimiser.step()

    return Prepared(run, CLIENTS * STEPS)


def compare(folder: Path, given: argparse.Namespace) -> None:
    """Print milliseconds of the processor per local step, and the ratio to the plain loop."""
    ready = {"plain": plain_loop(folder, given)}
    for executor in EXECUTORS:
        sim = simulation(folder, given, CLIENTS, executor)
        sim.prepare()
        name = executor if executor == sim.executor.name else f"{executor}: {sim.executor.name}"
        ready[name] = Prepared(sim.round, CLIENTS * STEPS)
    times = in_turns({name: one.time for name, one in ready.items()}, given.repeats)
    found = {name: Measurement("adapters", name, cpu=[cpu for cpu, _ in some]) for name, some in times.items()}
    for name, one in found.items():
        if (over := ratio(one, found["plain"], "cpu")) is not None:
            print(f"{name:16} {1e3 * median(one.cpu):8.2f} ms   "
                  f"{over.median:.2f} [{over.low:.2f}, {over.high:.2f}] of the plain loop")  # fmt: skip


def peak(folder: Path, given: argparse.Namespace, clients: int) -> None:
    """Print the peak of this process's memory in MB, and how many clients were trained at once."""
    sim = simulation(folder, given, clients, "stacked")
    sim.round()
    status = Path("/proc/self/status").read_text().splitlines()
    peak_bytes = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
    print(f"{clients:4} clients, {sim.executor.chunk} at once: {peak_bytes / 1e6:,.0f} MB")


def main() -> None:
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden", 128), ("layers", 2), ("tokens", 64), ("batch", 16), ("repeats", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.1, help="of BERT; its masks are hashes in fedflat")
    parser.add_argument("--base-dtype", choices=("same", "bfloat16"), default="same")
    parser.add_argument("--memory", action="store_true", help="peaks of memory in place of times")
    parser.add_argument("--peak-of", type=int, help="used by --memory itself")
    parser.add_argument("--folder", type=Path, help="used by --memory itself")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        sizes = given.hidden, given.layers, given.tokens, given.dropout
        folder = given.folder or folder_with_encoder(Path(made), *sizes)
        if given.peak_of:
            return peak(folder, given, given.peak_of)
        if not given.memory:
            return compare(folder, given)
        for clients in (1, 100):
            words = [*sys.argv[1:], "--peak-of", str(clients), "--folder", str(folder)]
            subprocess.run([sys.executable, "-m", "benchmarks.adapters", *words], check=True)  # noqa: S603


if __name__ == "__main__":
    main()
