"""How elements are packed in blocks: the encodings, and functions that pack and unpack on all cores."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from max_weights import _core
from max_weights._buffer import Buffer
from max_weights._dtype import DType, DTypeLike
from max_weights._shape import Shape, ShapeLike

if TYPE_CHECKING:
    from max_weights._buffer import DLPackArray

__all__ = [
    "BlockParameters",
    "QuantizationConfig",
    "QuantizationEncoding",
    "dequantize",
    "dequantize_groups",
    "quantize",
    "scale_blocks",
]


@dataclass(frozen=True)
class BlockParameters:
    """The size of one block of a quantized weight."""

    elements_per_block: int
    """The number of elements in a block."""
    block_size: int
    """The number of bytes in a block."""


class QuantizationEncoding(enum.Enum):
    """How the elements of a weight are packed: one of ggml's block formats, or GPTQ.

    `QuantizationEncoding("q4_k")` finds `QuantizationEncoding.Q4_K`, in upper or lower case. `name` is in lower case
    (`q4_k`), `value` in upper case (`Q4_K`).
    """

    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"
    Q8_0 = "Q8_0"
    Q8_1 = "Q8_1"
    Q2_K = "Q2_K"
    Q3_K = "Q3_K"
    Q4_K = "Q4_K"
    Q5_K = "Q5_K"
    Q6_K = "Q6_K"
    Q8_K = "Q8_K"
    IQ2_XXS = "IQ2_XXS"
    IQ2_XS = "IQ2_XS"
    IQ3_XXS = "IQ3_XXS"
    IQ1_S = "IQ1_S"
    IQ4_NL = "IQ4_NL"
    IQ3_S = "IQ3_S"
    IQ2_S = "IQ2_S"
    IQ4_XS = "IQ4_XS"
    IQ1_M = "IQ1_M"
    TQ1_0 = "TQ1_0"
    TQ2_0 = "TQ2_0"
    MXFP4 = "MXFP4"
    NVFP4 = "NVFP4"
    Q1_0 = "Q1_0"
    Q2_0 = "Q2_0"
    GPTQ = "GPTQ"

    @classmethod
    def _missing_(cls, value: object) -> QuantizationEncoding:
        if isinstance(value, str):
            member = cls._value2member_map_.get(value.upper())
            if isinstance(member, cls):
                return member
        raise ValueError(f"{value!r} is not a quantization encoding; choose one of {', '.join(cls._member_map_)}")

    @enum.property
    def name(self) -> str:
        """The name in lower case, such as `q4_k`."""
        return self._value_.lower()

    @property
    def is_gguf(self) -> bool:
        """Whether this is one of ggml's block formats."""
        return self._value_ in _GGML

    @property
    def ggml_type(self) -> int:
        """The number of the type in GGUF files. ValueError for GPTQ."""
        return self._row()[0]

    @property
    def block_parameters(self) -> BlockParameters:
        """The elements and bytes of a block. ValueError for GPTQ, which stores whole tensors and has no blocks."""
        return self._row()[1]

    @property
    def elements_per_block(self) -> int:
        """The number of elements in a block. ValueError for GPTQ."""
        return self.block_parameters.elements_per_block

    @property
    def block_size(self) -> int:
        """The number of bytes in a block. ValueError for GPTQ."""
        return self.block_parameters.block_size

    def logical_shape(self, shape: ShapeLike) -> Shape:
        """Convert the shape of packed blocks, which counts bytes, to elements; GPTQ's shape stays unchanged.

        Args:
            shape: The shape in bytes: [..., bytes].

        Returns:
            The shape in elements.

        Raises:
            ValueError: A dimension is negative.

        Example:
            >>> max_weights.graph.quantization.QuantizationEncoding.Q4_0.logical_shape([2, 36])
            [Dim(2), Dim(64)]
        """
        logical = Shape(shape)
        if self.is_gguf and logical:
            logical[-1] = logical[-1] // self.block_size * self.elements_per_block
        return logical

    def _row(self) -> tuple[int, BlockParameters]:
        row = _GGML.get(self._value_)
        if row is None:
            raise ValueError(
                f"{self._value_} is none of ggml's block formats: its scales and zero points are separate tensors, "
                "so it has no blocks and no ggml type"
            )
        return row


# For each encoding of ggml: the type's number in GGUF files, and the elements and bytes of a block.
_ROWS = """
    Q4_0 2 32 18, Q4_1 3 32 20, Q5_0 6 32 22, Q5_1 7 32 24, Q8_0 8 32 34, Q8_1 9 32 36, Q2_K 10 256 84, Q3_K
    11 256 110, Q4_K 12 256 144, Q5_K 13 256 176, Q6_K 14 256 210, Q8_K 15 256 292, IQ2_XXS 16 256 66, IQ2_XS
    17 256 74, IQ3_XXS 18 256 98, IQ1_S 19 256 50, IQ4_NL 20 32 18, IQ3_S 21 256 110, IQ2_S 22 256 82, IQ4_XS
    23 256 136, IQ1_M 29 256 56, TQ1_0 34 256 54, TQ2_0 35 256 66, MXFP4 39 32 17, NVFP4 40 64 36, Q1_0 41 128
    18, Q2_0 42 64 18
"""
_GGML = {
    name: (int(number), BlockParameters(int(elements), int(size)))
    for name, number, elements, size in (row.split() for row in _ROWS.split(","))
}


@dataclass(frozen=True)
class QuantizationConfig:
    """The quantization of a whole checkpoint, by its configuration file."""

    quant_method: str
    """The method, such as `gptq`."""
    bits: int
    """The number of bits of one packed element."""
    group_size: int
    """The number of elements that share a scale; -1 for a whole column."""
    desc_act: bool = False
    """Whether columns were quantized in the order of falling activation (`act-order`)."""
    sym: bool = False
    """Whether the quantization is symmetric around zero."""


def scale_blocks(
    data: DLPackArray,
    scales: DLPackArray,
    block: tuple[int, int] = (128, 128),
    *,
    dtype: DTypeLike = DType.bfloat16,
    saturate: bool = False,
    out: DLPackArray | None = None,
) -> Buffer:
    """Compute `data × scale of its block`, in float32, rounded once.

    This works for fp8 with float32 scales for 128 x 128 blocks, MXFP4 (fp4 pairs, float8_e8m0fnu scales, `block=(1,
    32)`), NVFP4 (float8_e4m3fn scales, `block=(1, 16)`), and int8 with a scale for each row. It runs on all cores; if
    both inputs are on a GPU, it runs there, and the result stays there.

    Args:
        data: The elements, shape [..., rows, cols]: a Buffer, a weight, an array, or any DLPack tensor.
        scales: One scale for each block, shape [..., ceil(rows / block[0]), ceil(cols / block[1])]; the last blocks of
            a row or column may be smaller than the others.
        block: The rows and columns of a block.
        dtype: The dtype of the result: a floating-point type.
        saturate: Give the largest finite value instead of infinity or NaN.
        out: A contiguous Buffer, array or DLPack tensor of the shape of `data` and the dtype, to write to.

    Returns:
        The products, of the shape of `data` and the dtype; `out` if it is given.

    Raises:
        ValueError: the shapes of data and scales do not fit together, or `out` does not fit.
        UnsupportedError: a dtype whose values float32 cannot represent exactly.
        DeviceError: data and scales are on different devices, or are strided on a GPU, or `out` is given for them, or
            there is too little memory there.

    Example:
        >>> max_weights.scale_blocks(np.ones((1, 2), "i1"), np.full((1, 1), 0.5, "f4"), (1, 2), dtype="float32").numpy()
        array([[0.5, 0.5]], dtype=float32)
    """
    data, scales = Buffer.of(data), Buffer.of(scales)
    return _core.scale_blocks(data, scales, block=block, dtype=dtype, saturate=saturate, out=out)


def quantize(data: DLPackArray, encoding: QuantizationEncoding | str) -> Buffer:
    """Pack values into blocks, byte for byte as gguf-py packs them.

    Args:
        data: The values, of any dtype that converts to float32, shape [..., cols]; cols is a multiple of the encoding's
            elements per block. A Buffer, a weight, an array, or any DLPack tensor.
        encoding: Q8_0, Q5_1, Q5_0, Q4_1 or Q4_0: those that need no search.

    Returns:
        The blocks: uint8, shape [..., cols / elements per block * bytes per block].

    Raises:
        UnsupportedError: an encoding that can be decoded but not written.
        ValueError: a row does not fill whole blocks.

    Example:
        >>> max_weights.quantize(np.ones((2, 64), "f4"), "q8_0").shape
        (2, 68)
    """
    return _core.quantize(Buffer.of(data).astype(DType.float32), QuantizationEncoding(encoding))


def dequantize(
    blocks: DLPackArray,
    encoding: QuantizationEncoding | str,
    dtype: DTypeLike = DType.float32,
    *,
    out: DLPackArray | None = None,
) -> Buffer:
    """Decode packed blocks, bit for bit as gguf-py computes the values, on all cores.

    You can decode a range of rows without the rest: `dequantize(weight.data().data[10:20], encoding)`. Blocks on a GPU
    are decoded there, and the values stay there.

    Args:
        blocks: Whole blocks, uint8, shape [..., bytes]: a Buffer, a weight, an array, or any DLPack tensor.
        encoding: How they are packed.
        dtype: float32, or float16 or bfloat16, rounded once from float32.
        out: A contiguous Buffer, array or DLPack tensor of the result's shape and dtype, to write to.

    Returns:
        The values, shape [..., bytes / bytes per block * elements per block].

    Raises:
        UnsupportedError: another dtype; decode to float32, then cast.
        ValueError: the bytes are not whole blocks, or `out` does not fit.
        DeviceError: blocks on a GPU are strided, or `out` is given for them, or there is too little memory there.

    Example:
        >>> blocks = max_weights.quantize(np.ones((2, 64), "f4"), "q8_0")
        >>> max_weights.dequantize(blocks, "q8_0").shape
        (2, 64)
    """
    encoding, buffer = QuantizationEncoding(encoding), Buffer.of(blocks)
    return _core.dequantize(buffer, encoding, dtype, encoding.logical_shape(buffer.shape).static_dims, out=out)


def dequantize_groups(
    packed: DLPackArray,
    scales: DLPackArray,
    *,
    layout: Literal["rows", "gptq", "awq"],
    bits: int,
    shape: tuple[int, int],
    zero_points: DLPackArray | None = None,
    group_index: DLPackArray | None = None,
    group_size: int | None = None,
    zero_point_offset: int = 0,
    dtype: DTypeLike = DType.float32,
    out: DLPackArray | None = None,
) -> Buffer:
    """Decode packed integers with a scale for each group of columns, as compressed-tensors, GPTQ and AWQ write them.

    An element is `(code - zero point) × scale`: the difference of the integers is exact, and its product with the scale
    is computed in float32 and rounded once to `dtype`. Libraries that compute in the scales' own dtype round more
    often, and differ by that. It runs on all cores.

    Tensors are Buffers, weights, arrays or any DLPack tensors. How each layout packs is described in
    docs/layouts.md.

    Args:
        packed: The codes, int32: [rows, words] in the layout "rows", [words, rows] in "gptq", [columns, rows / 8] in
            "awq".
        scales: float32, bfloat16 or float16: [rows, groups] in "rows", where [1] is one scale for all; [groups, rows]
            otherwise.
        layout: "rows" (compressed-tensors' pack-quantized), "gptq" or "awq".
        bits: Of a code: 2 to 8; 2, 3, 4 or 8 in "gptq"; 4 in "awq".
        shape: The rows (outputs) and columns (inputs) of the result.
        zero_points: Packed like the codes, int32: [words, groups] in "rows", [groups, words] otherwise. Without them,
            the zero point is the middle of the codes, `2 ** (bits - 1)`.
        group_index: The group of each column, int32; without it, groups are consecutive columns.
        group_size: Columns of a group; default: equal groups. Set it if the last one is smaller.
        zero_point_offset: 1 for GPTQ checkpoints of the format "gptq", which store one less; 0 for "gptq_v2".
        dtype: The dtype of the result: float32, float16 or bfloat16.
        out: A contiguous Buffer, array or DLPack tensor of the result's shape and dtype, to write to.

    Returns:
        The values, of this shape: the weight of a linear layer as torch keeps it, in the layouts that store its
        transpose as well.

    Raises:
        UnsupportedError: another dtype; decode to float32, then cast.
        ValueError: a tensor does not have the shape or dtype that follows from the others, or the group of a column
            does not exist.

    Example:
        >>> packed, scales = np.zeros((2, 1), "i4"), np.ones((2, 1), "f4")
        >>> max_weights.dequantize_groups(packed, scales, layout="rows", bits=4, shape=(2, 8)).shape
        (2, 8)
    """
    return _core.dequantize_groups(
        Buffer.of(packed),
        Buffer.of(scales),
        layout=layout,
        bits=bits,
        shape=shape,
        zero_points=None if zero_points is None else Buffer.of(zero_points),
        group_index=None if group_index is None else Buffer.of(group_index),
        group_size=group_size,
        zero_point_offset=zero_point_offset,
        dtype=dtype,
        out=out,
    )
