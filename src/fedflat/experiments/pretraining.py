"""A small text encoder as a base for adapters, trained on one half of the classes of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError, MissingPackageError
from ..core.progress import Progress, no_progress
from ..data import load
from ..data.conversion import PADDING, UNKNOWN, WORD
from ..files import make_folder, temporary_folder, write_text
from ..models.blocks.pretrained import library, quiet
from ..models.transformer import NAME, TOKENIZER, TextScores

FIRST = "<first>"  # the token that every text begins with; its class is predicted from it
WORDS = 8_000  # number of the most frequent words, which have a token each
SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
LONGEST, TRAINED_LENGTH = 512, 64  # most tokens of a text: in the model, and in training
EPOCHS, BATCH_SIZE, LR = 5, 32, 5e-4  # of training with AdamW


@dataclass(frozen=True)
class PretrainedEncoder:
    """The training classes of an encoder, its number of training texts, its test accuracy and its size."""

    classes: tuple[int, ...]
    samples: int  # training texts of these classes
    accuracy: float | None  # on the test texts of these classes; None without such texts
    parameters: int


def pretrain(
    name: str,
    folder: Path,
    data_dir: str | None = None,
    partial: bool = False,
    seed: int = 0,
    progress: Progress = no_progress,
) -> PretrainedEncoder:
    """Train a BERT of two layers on the first half of a text data set's classes, and write it into a new `folder`.

    The folder has config.json, model.safetensors and tokenizer.json, which the model `transformer` reads. Calls
    `progress` after every step. Raises InputError if the data set has no texts or fewer than four classes, or if the
    folder is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already; give a new folder")
    words = load(name, 1, data_dir=data_dir, partial=partial)
    if not words.vocabulary:
        raise InputError(f"data.name = {name!r} has no texts to train an encoder on")
    if words.classes < 4:
        raise InputError(f"data.name = {name!r} has {words.classes} classes, and a half needs at least two")
    make_folder(folder.parent)
    with temporary_folder(".tmp-encoder-", folder.parent) as made, torch.random.fork_rng(devices=[]), quiet(NAME):
        unfinished = made / "encoder"  # renamed at the end, so that an interruption leaves nothing behind
        make_folder(unfinished)
        torch.manual_seed(seed)
        network = _fresh(len(words.vocabulary[:WORDS]) + 1, words.classes // 2)
        network.config.save_pretrained(unfinished)
        _write_tokenizer(words.vocabulary[:WORDS], unfinished / TOKENIZER)
        data = load(name, 1, data_dir=data_dir, partial=partial, tokenizer=str(unfinished), text_length=TRAINED_LENGTH)
        scores = TextScores(network, padding=0)
        x, y = _half(data.x, data.y, data.classes)
        _train(scores, x, y, name, progress)
        network.save_pretrained(unfinished)
        unfinished.replace(folder)
    accuracy = None if data.test is None else _accuracy(scores, *_half(*data.test, data.classes))
    return PretrainedEncoder(
        tuple(range(data.classes // 2)), len(y), accuracy, sum(p.numel() for p in network.parameters())
    )


def _fresh(tokens: int, classes: int) -> Any:
    """Build a BERT with random weights."""
    transformers = library(NAME)
    config = transformers.BertConfig(
        vocab_size=tokens, max_position_embeddings=LONGEST, pad_token_id=0, num_labels=classes,
        attn_implementation="eager", **SIZES,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def _write_tokenizer(words: tuple[str, ...], path: Path) -> None:
    """Write a tokenizer that encodes each word as its index in `words`, like fedflat's own vocabularies."""
    try:
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
    except ImportError as error:
        raise MissingPackageError(
            "an encoder needs the package tokenizers: pip install fedflat[transformers]"
        ) from error
    numbers = {word: i for i, word in enumerate((*words, FIRST))}
    made = Tokenizer(models.WordLevel(numbers, unk_token=UNKNOWN))
    made.add_special_tokens([PADDING, UNKNOWN, FIRST])
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Split(Regex(WORD.pattern), behavior="removed", invert=True)
    made.post_processor = processors.TemplateProcessing(single=f"{FIRST} $A", special_tokens=[(FIRST, numbers[FIRST])])
    write_text(path, made.to_str())


def _half(x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the samples of the first half of the classes."""
    chosen = y < classes // 2
    return x[chosen], y[chosen]


def _train(scores: nn.Module, x: Tensor, y: Tensor, name: str, progress: Progress) -> None:
    """Train with AdamW, whose step size falls linearly to zero; report the progress under `name`."""
    optimiser = torch.optim.AdamW(scores.parameters(), lr=LR)
    orders = [torch.randperm(len(y)) for _ in range(EPOCHS)]
    batches = [order[i : i + BATCH_SIZE] for order in orders for i in range(0, len(y), BATCH_SIZE)]
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=len(batches))
    scores.train()
    for done, batch in enumerate(batches, start=1):
        optimiser.zero_grad()
        nn.functional.cross_entropy(scores(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        progress(name, done, len(batches))


@torch.no_grad()
def _accuracy(scores: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of texts whose class has the highest score."""
    scores.eval()
    right = sum(int((scores(x[i : i + 256]).argmax(1) == y[i : i + 256]).sum()) for i in range(0, len(y), 256))
    return right / len(y)
