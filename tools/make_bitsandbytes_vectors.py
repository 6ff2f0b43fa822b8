"""Write the test vectors for NF4, FP4 and int8 of bitsandbytes: the quantized parts, and their decoded values.

    python -m pip install --no-deps --target /tmp/bitsandbytes bitsandbytes==0.50.2
    PYTHONPATH=/tmp/bitsandbytes python tools/make_bitsandbytes_vectors.py

The tests do not install the package because of its 125 MB of GPU kernels; its CPU code made the vectors. Each weight
`NAME` has its parts under their usual names, and its values as `expected.DTYPE.NAME`.
"""

from __future__ import annotations

from pathlib import Path

import bitsandbytes
import torch
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant, int8_vectorwise_quant, quantize_4bit
from safetensors.torch import save_file

TARGET = Path(__file__).parents[1] / "tests/data/bitsandbytes.safetensors"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Whole blocks, blocks that end within rows, a partial last block, a block larger than the weight, other ranks, and odd
# numbers of elements.
SHAPES = {64: (24, 40), 32: (5, 7), 128: (3, 4, 50), 4096: (40,), 256: (17, 19)}


def four_bits(name: str, kind: str, block: int, nested: bool) -> dict[str, torch.Tensor]:
    weight = torch.randn(SHAPES[block]) * torch.logspace(-3, 1, SHAPES[block][-1])
    packed, state = quantize_4bit(weight, blocksize=block, quant_type=kind, compress_statistics=nested)
    tensors = {f"{name}.weight": packed}
    for dtype in DTYPES:
        state.dtype = dtype
        tensors[expected(name, dtype)] = dequantize_4bit(packed, state)
    return tensors | {f"{name}.weight.{part}": tensor for part, tensor in state.as_dict(packed=True).items()}


def expected(name: str, dtype: torch.dtype) -> str:
    return f"expected.{str(dtype).removeprefix('torch.')}.{name}"


def int8(name: str) -> dict[str, torch.Tensor]:
    weight = torch.randn(12, 70) * torch.logspace(-3, 1, 12)[:, None]
    codes, scales, _ = int8_vectorwise_quant(weight.to(torch.float16))
    values = int8_vectorwise_dequant(codes, scales)
    parts = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    tensors = {f"{name}.{part}": tensor for part, tensor in parts.items()}
    return tensors | {expected(name, dtype): values.to(dtype) for dtype in DTYPES}


def main() -> None:
    torch.manual_seed(0)
    tensors = int8("int8")
    for kind in ("nf4", "fp4"):
        for block in SHAPES:
            for nested in (False, True):
                tensors |= four_bits(f"{kind}-{block}{'-nested' if nested else ''}", kind, block, nested)
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(tensors, TARGET, {"made_with": f"bitsandbytes {bitsandbytes.__version__}"})


if __name__ == "__main__":
    main()
