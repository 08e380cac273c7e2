"""Low-rank adapters (LoRA) of a transformer: FedAvg and FedSAM train and send the factors and the head alone.

    pip install '.[adapters]'  # in the clone
    python examples/lora.py

The program makes up a tiny encoder, its tokenizer and labelled texts in the folders encoder and news; put the folders
of a pretrained model and of your own texts in their place.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertConfig, BertForSequenceClassification

import fedflat as ff

words = ["apple", "bridge", "cloud", "dance", "engine", "forest", "guitar", "harbour"]
reader = Tokenizer(models.WordLevel(unk_token="[UNK]"))  # noqa: S106 (no password)
reader.pre_tokenizer = pre_tokenizers.Whitespace()
reader.train_from_iterator(words, trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"]))
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
config = BertConfig(vocab_size=10, max_position_embeddings=128, pad_token_id=0, **sizes)
BertForSequenceClassification(config).save_pretrained("encoder")
reader.save("encoder/tokenizer.json")

rng = np.random.default_rng(0)
Path("news").mkdir(exist_ok=True)
for part, number in (("train", 40), ("test", 20)):
    labels = np.repeat([0, 1], number)
    texts = [" ".join(rng.choice(words[4 * y : 4 * y + 4], rng.integers(2, 9))) for y in labels]
    pq.write_table(pa.table({"text": texts, "label": labels}), f"news/{part}-0.parquet")

split = {"clients": 4, "partition": ff.Dirichlet(0.5), "data_dir": "news"}
news = ff.data.load("parquet", **split, tokenizer="encoder", text_length=8)
settings = {
    "model": "transformer",
    "model_options": {"path": "encoder"},
    "data": news,
    "client": ff.Client(lr=1.0, epochs=2, batch_size=8),
    "adapter": ff.LoRA(r=4, alpha=8, targets=["query", "value"]),
}
methods = [ff.methods.FedAvg(), ff.methods.FedSAM(rho=0.05)]
runs = [ff.Simulation(method=method, rounds=3, last=1, **settings).run() for method in methods]
print(ff.compare(runs))
print(f"{runs[0].summary['parameters']:,} numbers are trained and sent")
