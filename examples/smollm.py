#!/usr/bin/env python3
"""Text by SmolLM2 135M: the real GGUF file as a Llama of `max_weights.nn` layers, its blocks decoded to float32.

smollm.py MODEL.gguf [PROMPT]

Decoding is greedy, and recomputes the whole sequence for each token: there is no cache of keys and values. Sizes and
tokens come from the file. Needs the packages `max-weights[graph]` and `tokenizers`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import max_weights
from max_weights import DeviceRef
from max_weights.engine import Model
from max_weights.graph import TensorType, TensorValue, ops
from max_weights.nn import MLP, Attention, Embedding, LayerList, Module, RMSNorm, RotaryEmbedding

CPU = DeviceRef.CPU()
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"

# Names of the model's parts in the file and here.
NAMES = {
    "token_embd.": "words.",
    "output_norm.": "norm.",
    "blk.": "layers.",
    "attn_q.": "attention.q_proj.",
    "attn_k.": "attention.k_proj.",
    "attn_v.": "attention.v_proj.",
    "attn_output.": "attention.o_proj.",
    "ffn_gate.": "mlp.gate_proj.",
    "ffn_up.": "mlp.up_proj.",
    "ffn_down.": "mlp.down_proj.",
}


def renamed(name: str) -> str:
    """Return the name here of a weight of the file."""
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


class Layer(Module):
    """One layer of a Llama: attention and a gated block, each after a norm and with a residual connection."""

    def __init__(self, metadata: Mapping[str, Any], rope: RotaryEmbedding) -> None:
        hidden, epsilon = rope.dim, metadata["llama.attention.layer_norm_rms_epsilon"]
        self.attn_norm = RMSNorm(hidden, "float32", epsilon)
        self.attention = Attention(
            num_attention_heads=rope.n_heads,
            num_key_value_heads=metadata["llama.attention.head_count_kv"],
            hidden_size=hidden,
            rope=rope,
        )
        self.ffn_norm = RMSNorm(hidden, "float32", epsilon)
        self.mlp = MLP("float32", None, hidden, metadata["llama.feed_forward_length"], [CPU])

    def __call__(self, hidden: TensorValue) -> TensorValue:
        """`[batch, tokens, hidden]` to the same."""
        hidden = hidden + self.attention(self.attn_norm(hidden))
        return hidden + self.mlp(self.ffn_norm(hidden))


class Llama(Module):
    """The model: token numbers to the logits of the next token."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        hidden = metadata["llama.embedding_length"]
        rope = RotaryEmbedding(
            hidden,
            metadata["llama.attention.head_count"],
            metadata["llama.rope.freq_base"],
            metadata["llama.context_length"],
            interleaved=True,  # GGUF files of this architecture interleave the two features of a pair
        )
        self.words = Embedding(metadata["llama.vocab_size"], hidden, "float32", CPU)
        self.layers = LayerList(Layer(metadata, rope) for _ in range(metadata["llama.block_count"]))
        self.norm = RMSNorm(hidden, "float32", metadata["llama.attention.layer_norm_rms_epsilon"])

    def __call__(self, tokens: TensorValue) -> TensorValue:
        """`[batch, tokens]`, int64, to `[batch, vocabulary]`."""
        hidden = self.words(tokens)
        layer = self.layers[0].build_subgraph("layer", [hidden], weight_prefix="layers.0.")
        for index in range(len(self.layers)):
            (hidden,) = ops.call(layer, hidden, prefix=f"layers.{index}.")
        return self.norm(hidden[:, -1]) @ self.words.weight.T  # the embedding is tied to the last matrix


def load(path: str | Path) -> tuple[Model, Mapping[str, Any]]:
    """Return the model of a file, ready to run, and the file's metadata."""
    with max_weights.load_weights(path) as weights:
        metadata: Any = weights.metadata
    model = Llama(metadata)
    model.load(path, dtype="float32", rename=renamed)
    return model.compile(TensorType("int64", ["batch", "tokens"], CPU)), metadata


def tokenizer_of(metadata: Mapping[str, Any]) -> Any:
    """Return the tokenizer that the metadata of a GGUF file describes: byte pairs, digits one by one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [word for word, kind in zip(words, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in control])
    return tokenizer


def continued(model: Model, tokens: Sequence[int], count: int, end: int | None = None) -> Iterator[int]:
    """Give the most likely next tokens, `count` of them, or fewer if the text ends."""
    sequence = list(tokens)
    for _ in range(count):
        logits = model(np.array([sequence]))[0].to_numpy()
        sequence.append(int(logits[0].argmax()))
        if sequence[-1] == end:
            return
        yield sequence[-1]


def main(path: Path, prompt: str, count: int = 20) -> None:
    """Print the text that follows a prompt."""
    began = time.perf_counter()
    model, metadata = load(path)
    print(f"model ready in {time.perf_counter() - began:.1f} s")
    tokenizer = tokenizer_of(metadata)
    tokens = tokenizer.encode(prompt).ids
    began = time.perf_counter()
    made = list(continued(model, tokens, count, metadata["tokenizer.ggml.eos_token_id"]))
    print(tokenizer.decode(made))
    print(f"{len(made)} tokens in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else PROMPT)
