#!/usr/bin/env python3
"""MiniLM as a tree of modules, loaded from its real file: every name and shape is checked, nothing is read.

minilm_module.py MODEL.safetensors
"""

from __future__ import annotations

import sys
import time

import numpy as np

from max_weights import DeviceRef
from max_weights.graph import Weight
from max_weights.nn import LayerList, Module

HIDDEN = 384
INNER = 1536
LAYERS = 6
WORDS = 30522
POSITIONS = 512


class Embedding(Module):
    """A row for each number."""

    def __init__(self, rows: int) -> None:
        self.table = Weight("weight", "float32", (rows, HIDDEN), DeviceRef.CPU())


class Linear(Module):
    """A matrix and a bias."""

    def __init__(self, in_dims: int, out_dims: int) -> None:
        self.matrix = Weight("weight", "float32", (out_dims, in_dims), DeviceRef.CPU())
        self.bias = Weight("bias", "float32", (out_dims,), DeviceRef.CPU())


class LayerNorm(Module):
    """A scale and a bias."""

    def __init__(self) -> None:
        self.scale = Weight("weight", "float32", (HIDDEN,), DeviceRef.CPU())
        self.bias = Weight("bias", "float32", (HIDDEN,), DeviceRef.CPU())


class Embeddings(Module):
    """Words, positions and segments."""

    def __init__(self) -> None:
        self.position_ids = Weight("position_ids", "int64", (1, POSITIONS), DeviceRef.CPU())
        self.word_embeddings = Embedding(WORDS)
        self.position_embeddings = Embedding(POSITIONS)
        self.token_type_embeddings = Embedding(2)
        self.LayerNorm = LayerNorm()


class SelfAttention(Module):
    """Three projections."""

    def __init__(self) -> None:
        self.query = Linear(HIDDEN, HIDDEN)
        self.key = Linear(HIDDEN, HIDDEN)
        self.value = Linear(HIDDEN, HIDDEN)


class Output(Module):
    """A projection, and the norm behind it."""

    def __init__(self, in_dims: int) -> None:
        self.dense = Linear(in_dims, HIDDEN)
        self.LayerNorm = LayerNorm()


class Attention(Module):
    """Attention with its output."""

    def __init__(self) -> None:
        setattr(self, "self", SelfAttention())  # noqa: B010 (the name is that of the file)
        self.output = Output(HIDDEN)


class Intermediate(Module):
    """The wide projection."""

    def __init__(self) -> None:
        self.dense = Linear(HIDDEN, INNER)


class Layer(Module):
    """One layer of the encoder."""

    def __init__(self) -> None:
        self.attention = Attention()
        self.intermediate = Intermediate()
        self.output = Output(INNER)


class Encoder(Module):
    """All layers."""

    def __init__(self) -> None:
        self.layer = LayerList(Layer() for _ in range(LAYERS))


class Pooler(Module):
    """The last projection."""

    def __init__(self) -> None:
        self.dense = Linear(HIDDEN, HIDDEN)


class MiniLM(Module):
    """all-MiniLM-L6-v2."""

    def __init__(self) -> None:
        self.embeddings = Embeddings()
        self.encoder = Encoder()
        self.pooler = Pooler()


def main(path: str) -> None:
    """Print the tree, load the file, and show a value."""
    model = MiniLM()
    print(model)
    began = time.perf_counter()
    model.load(path)
    spent = time.perf_counter() - began
    values = model.state_dict(auto_initialize=False)
    print(f"{len(values)} weights in {spent * 1e3:.1f} ms, none of them read")
    dense = np.from_dlpack(values["encoder.layer.5.output.dense.weight"])
    print("encoder.layer.5.output.dense.weight:", dense[0, :4])
    model.summary(depth=2)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
