"""The files the benches run on, written by hand: no library that is measured takes part in making them.

| name | content |
|---|---|
| a | 291 bf16 tensors in the shapes of a 32-layer llama, 1.927 GB |
| b | the tensors of a in 4 shards with an index; a folder |
| c | 50,000 f32 tensors of 64 elements under 64 layers, 17 MB |
| d | 250,000 f32 tensors of 8 elements, 38 MB |
| e | 4 bf16 layers of 60 experts, each three matrices of 704 x 1024, and what all share, 1.06 GB |
| f | 48 bf16 layers of 128 experts, each three matrices of 8 x 8, 18,672 tensors, 5 MB |

They are made in a folder of the caller's and are large: the caller deletes them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

LAYERS_A: Final = 32
LAYERS_C: Final = 64
TENSORS_C: Final = 50_000
TENSORS_D: Final = 250_000
SHARDS_B: Final = 4
EXPERTS_E: Final = 60
_ITEM_SIZE: Final = {"BF16": 2, "F32": 4}
_BLOCK: Final = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One tensor of a file to be written: its name, safetensors dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return _ITEM_SIZE[self.dtype] * prod(self.shape)


def llama(
    layers: int = LAYERS_A, hidden: int = 1536, kv: int = 512, feed_forward: int = 4500, vocabulary: int = 32_000
) -> Iterator[Entry]:
    """Yield the tensors of a llama-like model in bf16: nine per layer, and three outside the layers."""
    per_layer = {
        "input_layernorm.weight": (hidden,),
        "mlp.down_proj.weight": (hidden, feed_forward),
        "mlp.gate_proj.weight": (feed_forward, hidden),
        "mlp.up_proj.weight": (feed_forward, hidden),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, hidden),
        "self_attn.q_proj.weight": (hidden, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
    }
    yield Entry("lm_head.weight", "BF16", (vocabulary, hidden))
    yield Entry("model.embed_tokens.weight", "BF16", (vocabulary, hidden))
    for layer in sorted(range(layers), key=str):  # the order of names, which is how such files are written
        for name, shape in per_layer.items():
            yield Entry(f"model.layers.{layer}.{name}", "BF16", shape)
    yield Entry("model.norm.weight", "BF16", (hidden,))


def many_small(count: int = TENSORS_C, elements: int = 64) -> Iterator[Entry]:
    """Yield `count` small f32 tensors: the experts of 64 layers."""
    projections = ("gate_proj", "up_proj", "down_proj")
    for index in range(count):
        layer, rest = index % LAYERS_C, index // LAYERS_C
        expert, projection = divmod(rest, len(projections))
        yield Entry(f"model.layers.{layer}.mlp.experts.{expert}.{projections[projection]}.weight", "F32", (elements,))


def experts(layers: int = 4, count: int = EXPERTS_E, hidden: int = 1024, feed_forward: int = 704) -> Iterator[Entry]:
    """Yield the tensors of a mixture of experts in bf16, in the order of their names."""
    shapes = {
        "down_proj": (hidden, feed_forward),
        "gate_proj": (feed_forward, hidden),
        "up_proj": (feed_forward, hidden),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for expert in sorted(range(count), key=str):
            for name, shape in shapes.items():
                yield Entry(f"{prefix}.mlp.experts.{expert}.{name}.weight", "BF16", shape)
        yield Entry(f"{prefix}.mlp.gate.weight", "BF16", (count, hidden))
        for name in ("k_proj", "o_proj", "q_proj", "v_proj"):
            yield Entry(f"{prefix}.self_attn.{name}.weight", "BF16", (hidden, hidden))


def write_safetensors(path: Path, entries: Iterator[Entry]) -> int:
    """Write a safetensors file of `entries` in their order and return its bytes.

    The values are ordinary numbers between 0.0078 and 2 of either sign, in bf16 as in f32: no NaN, no denormals.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in entries:
        start, end = end, end + entry.size
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    block = bytearray(random.Random(0).randbytes(_BLOCK))
    # The last byte of a bf16 and of an f32 has the sign and most of the exponent; the loop restricts them to moderate
    # values.
    tame = bytes((0x3C | byte & 0x83) for byte in range(256))
    block[1::2] = block[1::2].translate(tame)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for start in range(0, end, _BLOCK):
            file.write(block[: min(_BLOCK, end - start)])
    return path.stat().st_size


def write_shards(folder: Path, entries: Iterator[Entry]) -> None:
    """Write `entries` as shards of about the same size, with their index."""
    listed = list(entries)
    total = sum(entry.size for entry in listed)
    shards: list[list[Entry]] = [[] for _ in range(SHARDS_B)]
    done = 0
    for entry in listed:
        shards[min(SHARDS_B - 1, done * SHARDS_B // total)].append(entry)
        done += entry.size
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{SHARDS_B:05}.safetensors"
        write_safetensors(folder / name, iter(shard))
        weight_map |= {entry.name: name for entry in shard}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


FILES: Final[dict[str, Callable[[], Iterator[Entry]]]] = {
    "a": llama,
    "b": llama,
    "c": many_small,
    "d": lambda: many_small(TENSORS_D, 8),
    "e": experts,
    "f": lambda: experts(48, 128, 8, 8),
}
SMALL_FILES: Final[dict[str, Callable[[], Iterator[Entry]]]] = {
    "a": lambda: llama(layers=4, hidden=64, kv=32, feed_forward=128),
    "b": lambda: llama(layers=4, hidden=64, kv=32, feed_forward=128),
    "c": lambda: many_small(2_000),
    "d": lambda: many_small(3_000, 8),
    "e": lambda: experts(layers=1, hidden=64, feed_forward=32),
    "f": lambda: experts(2, 16, 8, 8),
}


def make(folder: Path, name: str, *, small: bool = False) -> Path:
    """Return the file `name` of `folder`, written if it is not there yet; a small one only proves the code."""
    path = folder / f"{name}{'-small' if small else ''}{'' if name == 'b' else '.safetensors'}"
    if not path.exists():
        partial = path.with_suffix(".partial")
        entries = (SMALL_FILES if small else FILES)[name]()
        if name == "b":
            partial.mkdir()
            write_shards(partial, entries)
        else:
            write_safetensors(partial, entries)
        partial.rename(path)
    return path
