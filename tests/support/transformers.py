"""Small transformers with random weights in folders, made by `transformers` and `tokenizers` themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
import torch
import transformers

WORDS = ("apple", "bridge", "cloud", "dance", "engine", "forest", "guitar", "harbour")
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def text_folder(folder: Path, classes: int = 4, length: int = 128, hidden: int = 16, tokens: int = 0) -> Path:
    """A BERT with a tokenizer of whole words, whose texts begin with [CLS] and end with [SEP].

    It takes at least `tokens` different tokens.
    """
    torch.manual_seed(0)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    reader = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="[UNK]"))
    reader.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    lines = [" ".join(WORDS)] * 3
    reader.train_from_iterator(lines, tokenizers.trainers.WordLevelTrainer(special_tokens=special))
    ends = [(name, reader.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    reader.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    sizes = {**SIZES, "hidden_size": hidden, "intermediate_size": 2 * hidden}
    config = transformers.BertConfig(
        vocab_size=max(tokens, reader.get_vocab_size()),
        max_position_embeddings=length,
        pad_token_id=0,
        num_labels=classes,
        **sizes,
    )
    saved(transformers.BertForSequenceClassification(config), folder)
    reader.save(str(folder / "tokenizer.json"))
    return folder


def picture_folder(folder: Path, classes: int = 10) -> Path:
    """A ViT for pictures of one channel and 8 x 8 pixels, as the digits are."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=classes, **SIZES)
    return saved(transformers.ViTForImageClassification(config), folder)


def saved(network: torch.nn.Module, folder: Path) -> Path:
    """Save a network without a progress bar."""
    transformers.utils.logging.disable_progress_bar()
    network.save_pretrained(folder)
    return folder


def news_folder(folder: Path, per_class: int = 12) -> Path:
    """Texts of two classes in parquet files, each with words of its own class, and of different lengths."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for part, number in (("train", per_class), ("test", 4)):
        labels = np.repeat([0, 1], number)
        texts = [" ".join(rng.choice(WORDS[4 * y : 4 * y + 4], rng.integers(1, 9))) for y in labels]
        pq.write_table(pa.table({"text": texts, "label": labels}), folder / f"{part}-0.parquet")
    return folder
