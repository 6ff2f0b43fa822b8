#!/usr/bin/env python3
"""Sentence embeddings by all-MiniLM-L6-v2: the real model, built from layers of `max_weights.nn`, on its mapped file.

minilm.py MODEL.safetensors [SENTENCE ...]

The tokenizer is MODEL.tokenizer.json in the same folder. Needs the packages `max-weights[graph]` and `tokenizers`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from max_weights import DeviceRef
from max_weights.engine import Model
from max_weights.graph import TensorType, TensorValue, ops
from max_weights.nn import Embedding, LayerList, LayerNorm, Linear, Module, MultiheadAttention

HIDDEN, INNER, HEADS, LAYERS = 384, 1536, 12, 6
WORDS, POSITIONS, SEGMENTS = 30522, 512, 2
EPSILON = 1e-12
CPU = DeviceRef.CPU()

SENTENCES = [
    "A man is eating food.",
    "Someone has a meal.",
    "The girl carries a baby.",
    "A woman plays the violin on a quiet evening in front of a small audience.",
    "A musician gives a concert.",
    "Checkpoints are mapped, not read.",
    "The file's pages are used where they lie.",
    "Rain.",
]

# Names of the model's parts in the file and here; weights without a part are skipped.
NAMES = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "segments",
    "embeddings.LayerNorm": "norm",
    "encoder.layer": "layers",
    "attention.self.query": "attention.q_proj",
    "attention.self.key": "attention.k_proj",
    "attention.self.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "norm",
}


def renamed(name: str) -> str | None:
    """Return the name here of a weight of the file, None for one that sentence embeddings do not need."""
    if name.startswith("pooler.") or name == "embeddings.position_ids":
        return None
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


class Layer(Module):
    """One layer of the encoder: attention and two products, each with its sum and norm."""

    def __init__(self) -> None:
        self.attention = MultiheadAttention(HEADS, HIDDEN, [CPU], qkv_has_bias=True, o_proj_has_bias=True)
        self.attention_norm = LayerNorm(HIDDEN, [CPU], "float32", EPSILON)
        self.up = Linear(HIDDEN, INNER, "float32", CPU, has_bias=True)
        self.down = Linear(INNER, HIDDEN, "float32", CPU, has_bias=True)
        self.norm = LayerNorm(HIDDEN, [CPU], "float32", EPSILON)

    def __call__(self, hidden: TensorValue, seen: TensorValue) -> TensorValue:
        """`[batch, tokens, 384]` to the same."""
        hidden = self.attention_norm(hidden + self.attention(hidden, seen))
        return self.norm(hidden + self.down(ops.gelu(self.up(hidden))))


class MiniLM(Module):
    """The model: token numbers to one embedding per sentence."""

    def __init__(self) -> None:
        self.words = Embedding(WORDS, HIDDEN, "float32", CPU)
        self.positions = Embedding(POSITIONS, HIDDEN, "float32", CPU)
        self.segments = Embedding(SEGMENTS, HIDDEN, "float32", CPU)
        self.norm = LayerNorm(HIDDEN, [CPU], "float32", EPSILON)
        self.layers = LayerList(Layer() for _ in range(LAYERS))

    def __call__(self, tokens: TensorValue, mask: TensorValue) -> TensorValue:
        """Embed sentences.

        Args:
            tokens: `[batch, tokens]`, int64.
            mask: The same shape; 0 for padding.

        Returns:
            `[batch, 384]`, each of length 1.
        """
        batch, count = tokens.shape
        hidden = self.words(tokens) + self.positions(ops.range(0, count)) + self.segments.weight[0]
        hidden = self.norm(hidden)
        seen = ops.not_equal(mask, 0).reshape([batch, 1, 1, count])
        # One layer is recorded, and called with the weights of each.
        layer = self.layers[0].build_subgraph("layer", [hidden, seen], weight_prefix="layers.0.")
        for index in range(LAYERS):
            (hidden,) = ops.call(layer, hidden, seen, prefix=f"layers.{index}.")
        share = mask.cast("float32").reshape([batch, 1, count])  # the mean without padding
        summed = (share @ hidden).reshape([batch, HIDDEN])
        mean = summed / ops.sum(mask.cast("float32"))
        return mean * ops.rsqrt(ops.sum(mean * mean))


def load(path: str | Path) -> Model:
    """Return the model of a file, ready to run; the weights stay in the mapped file."""
    model = MiniLM()
    model.load(path, rename=renamed)
    return model.compile(*[TensorType("int64", ["batch", "tokens"], CPU)] * 2)


def tokenized(path: str | Path, sentences: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the tokens of sentences, padded to the longest, and the mask that is 0 for padding."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(POSITIONS)
    encoded = tokenizer.encode_batch(list(sentences))
    return np.array([one.ids for one in encoded]), np.array([one.attention_mask for one in encoded])


def main(path: Path, sentences: Sequence[str]) -> None:
    """Print each sentence with the one that is nearest to it."""
    tokens, mask = tokenized(path.with_suffix(".tokenizer.json"), sentences)
    began = time.perf_counter()
    model = load(path)
    ready = time.perf_counter()
    embeddings = model(tokens, mask)[0].to_numpy()
    done = time.perf_counter()
    print(f"model ready in {(ready - began) * 1e3:.0f} ms, {len(sentences)} sentences in {(done - ready) * 1e3:.0f} ms")
    alike = embeddings @ embeddings.T - 2 * np.eye(len(sentences))
    for sentence, row in zip(sentences, alike, strict=True):
        print(f"{row.max():5.2f}  {sentence}  ~  {sentences[row.argmax()]}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:] or SENTENCES)
