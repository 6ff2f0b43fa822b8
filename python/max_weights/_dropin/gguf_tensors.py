"""Decodes blocks for the GGUF reader of transformers, which uses torch, in the dtype of the model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from max_weights._dropin.calls import Counter, Refused

if TYPE_CHECKING:
    import torch

__all__ = ["dequantize"]

_PARAMETERS = ("data", "ggml_type", "dtype")
# The seed of the test blocks of a type, and their number: they are decoded by both, and compared.
_SEED, _BLOCKS = 42, 64


def dequantize(original: Callable[..., torch.Tensor], counter: Counter) -> Callable[..., torch.Tensor]:
    """Return the replacement of `transformers.integrations.gguf.dequant.dequantize`.

    The original rounds every product and scale to the requested dtype; our kernels compute in float32, and round once.
    The results are equal for float32, and in float16 for types whose values are one product of a float16 and an
    integer, which float32 holds exactly.
    """
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    from max_weights._dtype import DType
    from max_weights._quantization import QuantizationEncoding
    from max_weights._quantization import dequantize as ours

    if tuple(inspect.signature(original).parameters) != _PARAMETERS:
        raise ValueError("a version of transformers whose function has other parameters")
    encodings = {encoding.ggml_type: encoding for encoding in QuantizationEncoding if encoding.is_gguf}
    dtypes = {torch.float32: DType.float32, torch.float16: DType.float16}
    products = {QuantizationEncoding.Q4_0, QuantizationEncoding.Q8_0, QuantizationEncoding.IQ4_NL}

    def values_of(data: torch.Tensor, encoding: QuantizationEncoding, dtype: torch.dtype) -> torch.Tensor:
        """Return the values in memory that torch allocates, like those of the original."""
        count = data.numel() // encoding.block_size * encoding.elements_per_block
        values = torch.empty(count, dtype=dtype, device="cpu")
        ours(data.detach().reshape(-1), encoding, dtypes[dtype], out=values)
        return values

    @functools.cache
    def is_same(ggml_type: int, dtype: torch.dtype) -> bool:
        """Whether this version of transformers decodes blocks of a type to the same bits."""
        encoding = encodings[ggml_type]
        numbers = torch.Generator().manual_seed(_SEED)
        blocks = torch.randint(256, (_BLOCKS * encoding.block_size,), generator=numbers, dtype=torch.uint8)
        expected, actual = original(blocks, ggml_type, dtype), values_of(blocks, encoding, dtype)
        if expected.dtype != dtype or expected.shape != actual.shape:
            return False
        numeric = ~expected.isnan()
        bits = torch.int32 if dtype == torch.float32 else torch.int16
        return torch.equal(numeric, ~actual.isnan()) and torch.equal(
            expected[numeric].view(bits), actual[numeric].view(bits)
        )

    def decoded(data: torch.Tensor, ggml_type: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the values as the original gives them; calls for which this is not certain are refused."""
        if _get_current_dispatch_mode() is not None:
            raise Refused("a dispatch mode, such as FakeTensorMode, is active")
        if type(data) not in (torch.Tensor, torch.nn.Parameter) or data.dtype != torch.uint8:
            raise Refused("not a tensor of bytes")
        if data.device.type != "cpu":
            raise Refused(f"a tensor on {data.device.type}")
        if not data.is_contiguous() or not data.numel():
            raise Refused("an empty tensor, or one that is not contiguous")
        encoding = encodings.get(ggml_type)
        if encoding is None:
            raise Refused("an unknown type")
        if dtype != torch.float32 and not (dtype == torch.float16 and encoding in products):
            raise Refused(f"{encoding.value} as {dtype}, whose steps the original rounds")
        if not is_same(ggml_type, dtype):
            raise Refused(f"{encoding.value}, which this version of transformers decodes to different values")
        values = values_of(data, encoding, dtype)
        if values.max().isnan():
            raise Refused("NaNs, whose bits depend on how torch computes")
        return values

    @functools.wraps(original)
    def function(data: torch.Tensor, ggml_type: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        # torch has to compile its own operations; and these calls are not counted.
        values = None
        if counter.active and not torch.compiler.is_compiling():
            values = counter.attempt(decoded, data, ggml_type, dtype)
        return original(data, ggml_type, dtype) if values is None else values

    return function
