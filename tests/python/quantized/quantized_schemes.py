"""Small checkpoints of every quantization scheme, and the value of each weight by the scheme's formula."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from test_quantized_integers import awq_packed, gptq, modelopt_packed, packed

DATA = Path(__file__).parents[2] / "data"
UP = "model.layers.0.mlp.up_proj"
EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"
NORM = "model.norm.weight"
ROWS, COLUMNS = 96, 128
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 128}
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])

Tensors = dict[str, torch.Tensor]


class Checkpoint(NamedTuple):
    """The tensors by name, the configuration, and the decoded weights in float32."""

    tensors: Tensors
    message: dict[str, Any] | None
    decoded: Tensors

    @property
    def parts(self) -> set[str]:
        """The tensors from which a weight is decoded."""
        return set(self.tensors) - {NORM}

    def written(self, folder: Path) -> Path:
        """Write it as a model's folder."""
        folder.mkdir()
        save_file({name: one.contiguous().clone() for name, one in self.tensors.items()}, folder / "model.safetensors")
        config: dict[str, Any] = {"model_type": "llama", "torch_dtype": "bfloat16", **HEADS}
        if self.message is not None:
            config["quantization_config"] = self.message
        (folder / "config.json").write_text(json.dumps(config))
        return folder


def _made(parts: dict[str, Any], decoded: Any, message: dict[str, Any] | None = None) -> Checkpoint:
    tensors = {f"{UP}.{part}": torch.as_tensor(value) for part, value in parts.items()}
    tensors[NORM] = torch.linspace(0.1, 3, COLUMNS)
    return Checkpoint(tensors, message, {f"{UP}.weight": torch.as_tensor(decoded, dtype=torch.float32)})


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _bytes(*shape: int, low: int = 0, high: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=generator)


def _scales(*shape: int) -> torch.Tensor:
    return _random(*shape).abs() / 50 + 0.01


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    return torch.stack([FP4[(codes & 15).long()], FP4[(codes >> 4).long()]], -1).flatten(-2)


def _spread(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return scales.repeat_interleave(rows, -2).repeat_interleave(columns, -1)


def _fp8(*shape: int) -> torch.Tensor:
    return (_random(*shape) * 30).to(torch.float8_e4m3fn)


def fp8_of_one_scale(name: str = "weight_scale", message: dict[str, Any] | None = None) -> Checkpoint:
    """FP8 with one scale."""
    weight, scale = _fp8(ROWS, COLUMNS), torch.tensor(0.0123)
    return _made({"weight": weight, name: scale, "input_scale": torch.tensor(0.5)}, weight.float() * scale, message)


def fp8_of_rows() -> Checkpoint:
    """FP8 with a scale for each row."""
    weight, scale = _fp8(ROWS, COLUMNS), _scales(ROWS, 1).bfloat16()
    return _made({"weight": weight, "weight_scale": scale}, weight.float() * scale.float())


def fp8_of_blocks() -> Checkpoint:
    """The FP8 of DeepSeek."""
    weight, scale = _fp8(ROWS, COLUMNS), _scales(3, 4)
    message = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    return _made({"weight": weight, "weight_scale_inv": scale}, weight.float() * _spread(scale, 32, 32), message)


def mxfp8() -> Checkpoint:
    """FP8 with an exponent for 32 inputs."""
    weight, scale = _fp8(ROWS, COLUMNS), _bytes(ROWS, COLUMNS // 32, low=110, high=130)
    decoded = weight.float() * _spread(torch.exp2(scale.float() - 127), 1, 32)
    return _made({"weight": weight, "weight_scale": scale}, decoded)


def int8_of_rows() -> Checkpoint:
    """Int8 with a scale for each row."""
    weight, scale = _bytes(ROWS, COLUMNS).view(torch.int8), _scales(ROWS, 1)
    return _made({"weight": weight, "weight_scale": scale}, weight.float() * scale)


def int8_with_zero_points() -> Checkpoint:
    """Int8 with zero points, two for each row."""
    weight, scale = _bytes(ROWS, COLUMNS).view(torch.int8), _scales(ROWS, 2)
    zeros = _bytes(ROWS, 2).view(torch.int8)
    decoded = (weight.float() - _spread(zeros.float(), 1, COLUMNS // 2)) * _spread(scale, 1, COLUMNS // 2)
    return _made({"weight": weight, "weight_scale": scale, "weight_zero_point": zeros}, decoded)


def mxfp4() -> Checkpoint:
    """MXFP4 as compressed-tensors writes it."""
    codes, scale = _bytes(ROWS, COLUMNS // 2), _bytes(ROWS, COLUMNS // 32, low=110, high=130)
    decoded = _pairs(codes) * _spread(torch.exp2(scale.float() - 127), 1, 32)
    return _made({"weight_packed": codes, "weight_scale": scale}, decoded)


def mxfp4_of_gpt_oss() -> Checkpoint:
    """The experts of gpt-oss."""
    blocks, scale = _bytes(3, ROWS, 4, 16), _bytes(3, ROWS, 4, low=110, high=130)
    decoded = _pairs(blocks).flatten(-2) * torch.exp2(scale.float() - 127).repeat_interleave(32, -1)
    tensors = {f"{EXPERTS}_blocks": blocks, f"{EXPERTS}_scales": scale, NORM: torch.linspace(0.1, 3, COLUMNS)}
    return Checkpoint(tensors, {"quant_method": "mxfp4"}, {EXPERTS: decoded})


def mxfp6() -> Checkpoint:
    """MXFP6 (E2M3), four in three bytes."""
    codes = torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) * 7 % 64
    exponent, mantissa = codes >> 3 & 3, (codes & 7).float()
    values = torch.where(exponent == 0, mantissa / 8, (1 + mantissa / 8) * torch.exp2(exponent.float() - 1))
    values = torch.where(codes >= 32, -values, values)
    every = (codes.numpy()[..., None] >> np.arange(6)) & 1
    stored = np.packbits(every.reshape(ROWS, -1).astype(np.uint8), axis=1, bitorder="little")
    scale = _bytes(ROWS, COLUMNS // 32, low=110, high=130)
    decoded = values * _spread(torch.exp2(scale.float() - 127), 1, 32)
    return _made({"weight_packed": stored, "weight_scale": scale}, decoded)


def nvfp4(divided: bool) -> Checkpoint:
    """NVFP4 of ModelOpt, or of compressed-tensors, which divides by the scale of all."""
    codes, scale = _bytes(ROWS, COLUMNS // 2), (_random(ROWS, COLUMNS // 16).abs() * 50).to(torch.float8_e4m3fn)
    whole = torch.tensor([313.7]) if divided else torch.tensor(0.0021)
    both = scale.float() / whole if divided else scale.float() * whole
    names = ("weight_packed", "weight_global_scale") if divided else ("weight", "weight_scale_2")
    parts = {names[0]: codes, "weight_scale": scale, names[1]: whole}
    return _made(parts, _pairs(codes) * both.repeat_interleave(16, -1))


def gptq_of(bits: int, *, reordered: bool = False, second: bool = False) -> Checkpoint:
    """GPTQ, of the first version or the second."""
    index = np.arange(COLUMNS) // 32
    if reordered:
        index = np.random.default_rng(1).permutation(index)
    parts, decoded = gptq(bits, COLUMNS, ROWS, index, 0 if second else 1)
    layout = "gptq_v2" if second else "gptq"
    message = {"quant_method": "gptq", "bits": bits, "group_size": 32, "checkpoint_format": layout}
    return _made(parts, decoded, message)


def awq() -> Checkpoint:
    """AWQ."""
    rng = np.random.default_rng(9)
    codes, zeros = rng.integers(0, 16, (COLUMNS, ROWS)), rng.integers(0, 16, (4, ROWS))
    scales = rng.uniform(0, 0.1, (4, ROWS)).astype(np.float16)
    spread = np.arange(COLUMNS) // 32
    parts = {"qweight": awq_packed(codes), "qzeros": awq_packed(zeros), "scales": scales}
    decoded = ((codes - zeros[spread]).astype(np.float32) * scales.astype(np.float32)[spread]).T
    return _made(parts, decoded.copy(), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"})


def pack_quantized(bits: int, *, zeros: bool) -> Checkpoint:
    """`pack-quantized` of compressed-tensors."""
    rng = np.random.default_rng(bits)
    codes, scale = rng.integers(0, 1 << bits, (ROWS, COLUMNS)), rng.uniform(0, 1, (ROWS, 4)).astype(np.float32)
    points = rng.integers(0, 1 << bits, (ROWS, 4)) if zeros else np.full((ROWS, 4), 1 << (bits - 1))
    parts = {"weight_packed": packed(codes, bits), "weight_scale": scale, "weight_shape": np.array([ROWS, COLUMNS])}
    if zeros:
        parts["weight_zero_point"] = packed(points.T, bits).T.copy()
    decoded = (codes - points.repeat(32, 1)).astype(np.float32) * scale.repeat(32, 1)
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 32, "symmetric": not zeros}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return _made(parts, decoded, {"quant_method": "compressed-tensors", "config_groups": groups})


def int4_in_bytes() -> Checkpoint:
    """Signed int4, two inputs in a byte."""
    values = np.random.default_rng(5).integers(-8, 8, (ROWS, COLUMNS)).astype(np.int8)
    halves = (values & 15).astype(np.uint8)
    scale = _scales(ROWS, 2)
    decoded = torch.from_numpy(values).float() * _spread(scale, 1, COLUMNS // 2)
    codes = (halves[:, 0::2] | halves[:, 1::2] << 4).view(np.int8)
    return _made({"weight_packed": codes, "weight_scale": scale}, decoded)


def int4_of_modelopt() -> Checkpoint:
    """Signed int4, two outputs in a byte."""
    values = np.random.default_rng(8).integers(-8, 8, (ROWS, COLUMNS)).astype(np.int8)
    scale = _scales(ROWS, 2)
    decoded = torch.from_numpy(values).float() * _spread(scale, 1, COLUMNS // 2)
    message = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}
    return _made({"weight": modelopt_packed(values), "weight_scale": scale}, decoded, message)


def bitsandbytes(name: str) -> Checkpoint:
    """A vector that bitsandbytes made."""
    file = DATA / "bitsandbytes.safetensors"
    front = f"{name}."
    parts = {key.removeprefix(front): one for key, one in load_file(file).items() if key.startswith(front)}
    with safe_open(file, "pt") as opened:
        decoded = opened.get_tensor(f"expected.float32.{name}")
    return _made(parts, decoded + 0.0)


def torchao(name: str) -> Checkpoint:
    """A vector that torchao made."""
    front = f"{name}."
    tensors = load_file(DATA / "torchao/model.safetensors")
    parts = {key.removeprefix(front): one for key, one in tensors.items() if key.startswith(front)}
    return _made(parts, load_file(DATA / "torchao/values.safetensors")[name])


def mixed() -> Checkpoint:
    """compressed-tensors with one scheme for some layers, and another for others."""
    first, second = fp8_of_rows(), pack_quantized(4, zeros=False)
    down = "model.layers.0.mlp.down_proj"
    renamed = {name.replace(UP, down): one for name, one in second.tensors.items()}
    decoded = {name.replace(UP, down): one for name, one in second.decoded.items()}
    return Checkpoint(first.tensors | renamed, None, first.decoded | decoded)


SCHEMES: dict[str, Callable[[], Checkpoint]] = {
    "fp8-tensor": fp8_of_one_scale,
    "fp8-fp8-config": lambda: fp8_of_one_scale("weight_scale_inv", {"quant_method": "fp8"}),
    "fp8-scale_weight": lambda: fp8_of_one_scale("scale_weight"),
    "fp8-channel": fp8_of_rows,
    "fp8-block": fp8_of_blocks,
    "fp8-torchao": lambda: torchao("float8_rows"),
    "mxfp8": mxfp8,
    "int8": int8_of_rows,
    "int8-zero-points": int8_with_zero_points,
    "int8-bitsandbytes": lambda: bitsandbytes("int8"),
    "mxfp4": mxfp4,
    "mxfp4-gpt-oss": mxfp4_of_gpt_oss,
    "mxfp6": mxfp6,
    "nvfp4-modelopt": lambda: nvfp4(divided=False),
    "nvfp4-compressed-tensors": lambda: nvfp4(divided=True),
    "gptq-2": lambda: gptq_of(2),
    "gptq-3-reordered": lambda: gptq_of(3, reordered=True),
    "gptq-4": lambda: gptq_of(4),
    "gptq-8-v2": lambda: gptq_of(8, second=True),
    "awq": awq,
    "pack-4": lambda: pack_quantized(4, zeros=False),
    "pack-4-zeros": lambda: pack_quantized(4, zeros=True),
    "pack-3-zeros": lambda: pack_quantized(3, zeros=True),
    "pack-8": lambda: pack_quantized(8, zeros=False),
    "int4": int4_in_bytes,
    "int4-modelopt": int4_of_modelopt,
    "nf4": lambda: bitsandbytes("nf4-64"),
    "nf4-nested": lambda: bitsandbytes("nf4-64-nested"),
    "fp4": lambda: bitsandbytes("fp4-64"),
    "fp4-nested": lambda: bitsandbytes("fp4-128-nested"),
    "mixed": mixed,
}
