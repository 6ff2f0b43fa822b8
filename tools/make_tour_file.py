#!/usr/bin/env python3
"""Make the small checkpoint of the notebook, `examples/tour.safetensors`.

    make_tour_file.py [OUT]

It resembles a language model of two layers, with a usual mix of dtypes. The bytes are the same on every machine: the
script uses only the standard library, and only the stable parts of `random`.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from math import prod
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "examples" / "tour.safetensors"
WIDTH, HIDDEN, VOCABULARY, LAYERS = 16, 32, 48, 2


def layout() -> dict[str, tuple[str, list[int]]]:
    """Return each tensor's dtype and shape, in file order: wider elements first, so that all are aligned."""
    tensors: dict[str, tuple[str, list[int]]] = {"model.position_ids": ("I64", [1, 64])}
    for i in range(LAYERS):
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"model.layers.{i}.self_attn.{part}.weight"] = "F32", [WIDTH, WIDTH]
        tensors[f"model.layers.{i}.input_layernorm.weight"] = "F32", [WIDTH]
    tensors["model.norm.weight"] = "F32", [WIDTH]
    tensors["model.embed_tokens.weight"] = "BF16", [VOCABULARY, WIDTH]
    for i in range(LAYERS):
        tensors[f"model.layers.{i}.mlp.up_proj.weight"] = "F16", [HIDDEN, WIDTH]
        tensors[f"model.layers.{i}.mlp.down_proj.weight"] = "F16", [WIDTH, HIDDEN]
    tensors["lm_head.weight"] = "F8_E4M3", [VOCABULARY, WIDTH]
    tensors["model.causal_mask"] = "BOOL", [8, 8]
    return tensors


def values(name: str, dtype: str, count: int, numbers: random.Random) -> bytes:
    """Return the bytes of one tensor."""
    if dtype == "I64":
        return struct.pack(f"<{count}q", *range(count))
    if dtype == "BOOL":
        return bytes(row >= column for row in range(8) for column in range(8))
    if dtype == "F8_E4M3":
        # Sign, exponents around 1, and any fraction: no pattern of these is a NaN.
        return bytes(numbers.getrandbits(1) << 7 | (numbers.getrandbits(6) + 16) for _ in range(count))
    # The sum of four uniform numbers looks enough like a normal distribution.
    drawn = [(sum(numbers.random() for _ in range(4)) - 2) / 4 for _ in range(count)]
    if name.endswith("norm.weight"):
        drawn = [1 + number / 8 for number in drawn]
    if dtype == "F16":
        return struct.pack(f"<{count}e", *drawn)
    wide = struct.pack(f"<{count}f", *drawn)
    # bfloat16 is the upper half of a float32.
    return wide if dtype == "F32" else b"".join(wide[i + 2 : i + 4] for i in range(0, len(wide), 4))


def content() -> bytes:
    """Return the file."""
    numbers = random.Random(20)
    header: dict[str, object] = {"__metadata__": {"title": "a toy, made by tools/make_tour_file.py"}}
    data = b""
    for name, (dtype, shape) in layout().items():
        part = values(name, dtype, prod(shape), numbers)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text + data


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.parent.mkdir(exist_ok=True)
    print(f"{out}: {out.write_bytes(content()):,} bytes")
