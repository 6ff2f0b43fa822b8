"""safetensors files of every dtype and of odd shapes, and GGUF files of every type that gguf-py writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.torch
import torch
from gguf.quants import quantize

from corpora import formats
from corpora.good.written import by_folder, by_path, single
from corpora.item import Item

NUMBERS = "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 complex64"
SMALL_FLOATS = "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
# Dtypes of headers that torch lacks, with shape and size: elements of 4 and 6 bits.
SMALL = {"F4": ([4, 2], 4), "F6_E2M3": ([4], 3), "F6_E3M2": ([8], 6)}


def safetensors_files() -> Iterator[Item]:
    """Safetensors."""
    group = "safetensors"
    for name in f"{NUMBERS} {SMALL_FLOATS}".split():
        dtype = getattr(torch, name, None)
        if dtype is None:
            continue
        size = torch.empty(0, dtype=dtype).element_size()
        tensor = torch.zeros(6 * size, dtype=torch.uint8).view(dtype).reshape(2, 3)
        yield single(group, f"{name}.safetensors", safetensors.torch.save({"weight": tensor}))
    for name, (shape, size) in SMALL.items():
        header = {"weight": formats.entry(name, shape, 0, size)}
        yield single(group, f"{name}.safetensors", formats.safetensors(header, bytes(size)))
    shapes: dict[str, dict[str, torch.Tensor]] = {
        "scalar": {"a": torch.tensor(1.0)},
        "empty": {"a": torch.zeros(0)},
        "empty-among-others": {"a": torch.zeros(2), "b": torch.zeros(3, 0), "c": torch.zeros(1)},
        "no-tensors": {},
        "rank-20": {"a": torch.zeros((1,) * 20)},
        "odd-bytes": {"a": torch.zeros(3, dtype=torch.uint8), "b": torch.zeros(5, dtype=torch.float64)},
        "names": {"é": torch.zeros(1), "a/b c\n": torch.zeros(1), "x" * 1000: torch.zeros(1)},
        "many": {f"layers.{number}.w": torch.zeros(1) for number in range(2000)},
    }
    for name, tensors in shapes.items():
        yield single(group, f"{name}.safetensors", safetensors.torch.save(tensors))
    metadata = {"format": "pt", "note": "é {{ not a template }}", "long": "x" * 5000, "json": '{"a": [1]}'}
    yield single(group, "metadata.safetensors", safetensors.torch.save({"a": torch.zeros(1)}, metadata))
    unpadded = formats.safetensors({"a": formats.entry("F32", [4], 0, 16)}, formats.FLOATS, pad=1)
    yield single(group, "header-not-padded.safetensors", unpadded)
    padded = formats.safetensors({"a": formats.entry("F32", [4], 0, 16)}, formats.FLOATS, pad=4096)
    yield single(group, "header-padded-far.safetensors", padded)
    empty = formats.safetensors({"__metadata__": {}, "a": formats.entry("F32", [4], 0, 16)}, formats.FLOATS)
    yield single(group, "metadata-empty.safetensors", empty)


# Q8_1 is no file type: gguf-py and ggml disagree on the size of its block.
TYPES = [kind for kind in gguf.GGMLQuantizationType if kind in gguf.GGML_QUANT_SIZES and kind.name != "Q8_1"]


def _writer(path: Path, **options: Any) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(256)
    writer.add_head_count(4)
    return writer


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_files() -> Iterator[Item]:
    """GGUF."""
    numbers = {"F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}

    def of_type(kind: gguf.GGMLQuantizationType, path: Path) -> None:
        writer = _writer(path)
        rows = np.linspace(-1, 1, 2 * 256, dtype=np.float32).reshape(2, 256)
        if kind.name in numbers:
            writer.add_tensor("blk.0.w", np.zeros((2, 256), numbers[kind.name]))
        else:
            try:
                data = quantize(rows, kind)
            except NotImplementedError:  # gguf-py only decodes this type: any blocks will do
                block, size = gguf.GGML_QUANT_SIZES[kind]
                data = np.zeros((2, 256 // block * size), np.uint8)
            writer.add_tensor("blk.0.w", data, raw_dtype=kind)
        _finish(writer)

    for kind in TYPES:
        yield by_path("gguf", f"{kind.name}.gguf", lambda path, kind=kind: of_type(kind, path))

    def metadata(path: Path) -> None:
        writer = _writer(path)
        writer.add_string("a.text", "é")
        writer.add_array("a.tokens", ["<s>", "</s>", "a"])
        writer.add_array("a.numbers", [1, 2, 3])
        writer.add_array("a.floats", [1.5, 2.5])
        writer.add_array("a.flags", [True, False])
        for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"):
            getattr(writer, f"add_{name}")(f"a.{name}", 1)
        writer.add_bool("a.bool", True)
        writer.add_chat_template("{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}")
        writer.add_tensor("token_embd.weight", np.zeros((3, 256), np.float32))
        writer.add_tensor("norm", np.zeros(256, np.float32))
        _finish(writer)

    yield by_path("gguf", "metadata.gguf", metadata)

    def big_endian(path: Path) -> None:
        writer = _writer(path, endianess=gguf.GGUFEndian.BIG)
        writer.add_tensor("w", np.zeros((3, 256), np.float32))
        _finish(writer)

    yield by_path("gguf", "big-endian.gguf", big_endian)

    def alignment(path: Path) -> None:
        writer = _writer(path)
        writer.add_custom_alignment(4096)
        writer.add_tensor("a", np.zeros(5, np.float32))
        writer.add_tensor("b", np.zeros(7, np.float16))
        _finish(writer)

    yield by_path("gguf", "alignment.gguf", alignment)

    def vocabulary_only(path: Path) -> None:
        writer = _writer(path)
        writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
        _finish(writer)

    yield by_path("gguf", "vocabulary-only.gguf", vocabulary_only)

    def split(folder: Path) -> None:
        writer = _writer(folder / "model.gguf", split_max_tensors=2)
        for number in range(5):
            writer.add_tensor(f"blk.{number}.w", np.zeros(256, np.float32))
        _finish(writer)

    yield by_folder("gguf", "split", split)


def items() -> Iterator[Item]:
    """All of them."""
    yield from safetensors_files()
    yield from gguf_files()
