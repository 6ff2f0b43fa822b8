"""Write the test vectors for weights of torchao: the flattened parts, and their decoded values.

    python -m pip install --no-deps --target /tmp/torchao torchao==0.18.0
    PYTHONPATH=/tmp/torchao python tools/make_torchao_vectors.py

The tests do not install the package. Each weight `NAME.weight` has its parts and its metadata entry as
`flatten_tensor_state_dict` writes them; a second file has the float32 values of the decoded weights.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (
    Float8Tensor,
    Int4PlainInt32Tensor,
    Int8Tensor,
    IntxUnpackedToInt8Tensor,
    PerGroup,
    PerRow,
    PerTensor,
)
from torchao.quantization.quant_primitives import MappingType

FOLDER = Path(__file__).parents[1] / "tests/data/torchao"


def weight(rows: int = 24, columns: int = 64) -> torch.Tensor:
    return torch.randn(rows, columns) * torch.logspace(-2, 1, columns)


def main() -> None:
    torch.manual_seed(0)
    asymmetric = MappingType.ASYMMETRIC
    four_bits: torch.dtype = torch.int4  # type: ignore[attr-defined]
    decoded = {
        "float8_rows": Float8Tensor.from_hp(weight(), granularity=PerRow()),
        "float8_whole": Float8Tensor.from_hp(weight(), granularity=PerTensor()),
        "int8_rows": Int8Tensor.from_hp(weight(), PerRow()),
        "int8_groups": Int8Tensor.from_hp(weight(), PerGroup(32)),
        "int8_shifted": Int8Tensor.from_hp(weight() + 1, PerRow(), mapping_type=asymmetric),
        "int4_unpacked": IntxUnpackedToInt8Tensor.from_hp(weight() + 1, (1, 32), four_bits, mapping_type=asymmetric),
    }
    words = torch.randint(-(2**31), 2**31 - 1, (24, 8), dtype=torch.int32)
    described = {
        "int4_words": Int4PlainInt32Tensor(
            words, torch.rand(2, 24), torch.zeros(2, 24, dtype=torch.int8), [1, 32], torch.Size((24, 64))
        ),
        "mx": MXTensor.to_mx(weight().bfloat16(), torch.float8_e4m3fn, 32),
        "nvfp4": NVFP4Tensor.to_nvfp4(weight().bfloat16()),
    }
    state = {f"{name}.weight": tensor for name, tensor in (decoded | described).items()}
    tensors, metadata = flatten_tensor_state_dict(state | {"int8_rows.bias": torch.zeros(24)})
    FOLDER.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, FOLDER / "model.safetensors", metadata)
    values = {name: tensor.dequantize().contiguous() for name, tensor in decoded.items()}
    save_file(values, FOLDER / "values.safetensors")


if __name__ == "__main__":
    main()
