"""Weights with wrong values, which only a full read detects."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

from corpora.archives import zipped
from corpora.bad.quantized import FP8, FP8_CONFIG, LAYER
from corpora.bad.sets import Tensors, text, weights
from corpora.formats import npy, onnx
from corpora.item import CAUGHT, Item, one


def _floats(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


NORMAL = [math.sin(number * 1.7) for number in range(64)]


def _one(numbers: Sequence[float], name: str = "layers.0.weight", shape: tuple[int, ...] = (8, 8)) -> dict[str, bytes]:
    data = weights({name: ("F32", shape)}, {name: _floats(numbers)})
    return {"config.json": text({"model_type": "x"}), "model.safetensors": data}


def _fp8(scales: Sequence[float], data: bytes | None = None) -> dict[str, bytes]:
    content = {f"{LAYER}.weight_scale_inv": _floats(scales)}
    if data is not None:
        content[f"{LAYER}.weight"] = data
    config = {"model_type": "llama", "quantization_config": FP8_CONFIG}
    return {"config.json": text(config), "model.safetensors": weights(FP8, content)}


def _bools() -> dict[str, bytes]:
    tensors: Tensors = {"mask": ("BOOL", (4,))}
    return {"model.safetensors": weights(tensors, {"mask": b"\0\1\2\xff"})}


def _duplicate() -> dict[str, bytes]:
    tensors: Tensors = {"a": ("F32", (64, 64)), "b": ("F32", (64, 64))}
    numbers = _floats([math.sin(number * 1.7) for number in range(4096)])
    return {"model.safetensors": weights(tensors, {"a": numbers, "b": numbers})}


FOLDERS = {
    "values.bool": _bools(),
    "values.constant": _one([0.5] * 64),
    "values.dead-rows": _one([*NORMAL[:56], *[0.0] * 8]),
    "values.duplicate": _duplicate(),
    "values.infinity": _one([*NORMAL[:63], math.inf]),
    "values.mask": _one([*NORMAL[:63], -math.inf], "layers.0.attn.mask"),
    "values.nan": _one([*NORMAL[:63], math.nan]),
    "values.saturated": _fp8([0.5, 0.25], bytes([0x7E]) * 16384 + bytes(number % 48 for number in range(16384))),
    "values.scale": _fp8([-1.0, 0.5]),
    "values.scale.nan": _fp8([math.nan, 0.5]),
    "values.scale.zero": _fp8([0.0, 0.0]),
    "values.scale-zero": _fp8([0.0, 0.5]),
    "values.zero": _one([0.0] * 64),
}


FILES = {
    "values.nan.npy": npy("'<f4'", (64,), _floats([*NORMAL[:63], math.nan])),
    "values.constant.npy": npy("'>f8'", (8,), struct.pack(">8d", *[0.5] * 8)),
    "values.infinity.npz": zipped({"a.npy": npy("'<f4'", (64,), _floats([*NORMAL[:63], math.inf]))}),
    "values.constant.onnx": onnx(data=_floats([0.5] * 4)),
    "values.nan.onnx": onnx(data=_floats([*NORMAL[:3], math.nan])),
}


def items() -> Iterator[Item]:
    """All of them."""
    for name, data in FILES.items():
        yield one("values", name, data, CAUGHT, "", [".".join(name.split(".")[:2])])
    for name, files in FOLDERS.items():
        yield Item(name, files, "values", CAUGHT, "", (".".join(name.split(".")[:2]),))
