"""`QuantizedWeight`: one weight that is stored as several tensors, and `QuantizedWeights`, all of a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, overload

from max_weights._buffer import Buffer
from max_weights._checkpoints import tree_of
from max_weights._core import QuantizedListing, escape, infos, near_names, quantized_record
from max_weights._dtype import DType, DTypeLike
from max_weights._html import count, properties, table, view
from max_weights._quantized_weights.config import config_of
from max_weights._shape import Shape
from max_weights._typing import known
from max_weights._weight_data import WeightData
from max_weights.errors import ArgumentError, UnsupportedError, WeightNotFoundError, WeightsError

if TYPE_CHECKING:
    from max_weights._buffer import DLPackArray
    from max_weights._checkpoints import Checkpoint
    from max_weights._core import QuantizedLayout, QuantizedRecord, WeightsNode

__all__ = ["QuantizedWeight", "QuantizedWeights", "quantized"]

_DECODED = (DType.float32, DType.bfloat16, DType.float16)


class QuantizedWeight:
    """A weight that is stored as packed numbers, scales and other tensors of its scheme.

    Only headers, and a few numbers that give sizes, are read before `astype`. For a known scheme that cannot be decoded
    here, only `scheme`, `parts` and `nbytes` work, and everything else raises an UnsupportedError.
    """

    def __init__(self, record: QuantizedRecord, method: str | None) -> None:
        self._record = record
        self._method = method

    @property
    def _layout(self) -> QuantizedLayout:
        if self._record.refusal is not None:
            raise self._record.refusal.with_traceback(None)
        return known(self._record.layout)

    @property
    def name(self) -> str:
        """The full name: that of the module, or of the weight for experts in one tensor."""
        return self._record.name

    @property
    def weight_name(self) -> str:
        """The name that the weight has in a checkpoint that is not quantized."""
        return self.name if self._record.is_bare else f"{self.name}.weight"

    @property
    def scheme(self) -> str:
        """How numbers are packed and scaled.

        For floats: `fp8`, `mxfp8`, `fp4`, `mxfp4`, `mxfp6`, `nvfp4`, `bitsandbytes-nf4` or `bitsandbytes-fp4`. For
        integers: `int8`, `int4`, `pack-quantized`, `gptq`, `gptq_v2`, `awq`, `modelopt-int4` or `bitsandbytes-int8`.
        Any other is the name of a scheme that cannot be decoded.
        """
        return self._record.scheme

    @property
    def method(self) -> str | None:
        """The name of the method in the configuration, such as `compressed-tensors`; `None` if it has none."""
        return self._method

    @property
    def bits(self) -> int:
        """The bits of one packed number."""
        return self._layout.bits

    @property
    def shape(self) -> Shape:
        """The shape of the decoded weight, as a linear layer has it: [out, in], of experts [experts, out, in]."""
        return Shape(self._layout.shape)

    @property
    def block(self) -> tuple[int, int]:
        """How many rows and columns share a scale: (128, 128), (1, 32); all of a matrix, if it has one scale."""
        return self._layout.block

    @property
    def group_size(self) -> int | None:
        """How many inputs of a row share a scale; `None` where rows share scales, too."""
        rows, columns = self.block
        return columns if rows == 1 else None

    @property
    def symmetric(self) -> bool | None:
        """Whether there are no zero points, or all are the middle; `None` where only their values would tell."""
        return self._layout.symmetric

    @property
    def reordered(self) -> bool:
        """Whether the inputs of a group are spread over a row (act-order), with an index that lists them."""
        return self._layout.reordered

    @property
    def parts(self) -> dict[str, WeightsNode]:
        """The tensors by their roles, such as `packed`, `scales`, `zero_points`; `.data()` of one is its `WeightData`.

        Scales of activations, which decoding does not need, are among them.
        """
        return dict(self._record.parts)

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        return self._record.nbytes

    def decoded_nbytes(self, dtype: DTypeLike = DType.bfloat16) -> int:
        """Return the bytes of the decoded weight.

        Args:
            dtype: The dtype to decode to.

        Raises:
            UnsupportedError: a scheme that cannot be decoded here.

        Example:
            >>> [weight.decoded_nbytes() for weight in max_weights.quantized(weights).values()]
            []
        """
        return math.prod(self._layout.shape) * DType(dtype).size_in_bits // 8

    def astype(self, dtype: DTypeLike = DType.bfloat16, *, out: DLPackArray | None = None) -> WeightData:
        """Return the decoded weight: the values that the library of the scheme computes, in `shape`.

        Products are computed in float32 and rounded once.

        Args:
            dtype: float32, bfloat16 or float16. The default is what the libraries decode to, and most models ran in
                before they were quantized.
            out: A contiguous Buffer, array or DLPack tensor of `shape` and the dtype, to write to.

        Raises:
            UnsupportedError: another dtype, or a scheme that cannot be decoded here.
            ValueError: `out` does not fit, or an index of groups or a zero point is not possible.
            FileChangedError: the file of a mapped weight was truncated.

        Example:
            >>> [weight.astype("bfloat16") for weight in max_weights.quantized(weights).values()]
            []
        """
        dtype, layout = DType(dtype), self._layout
        if dtype not in _DECODED:
            names = ", ".join(one.name for one in _DECODED)
            raise UnsupportedError(
                f"a quantized weight is decoded to {names}, not to {dtype.name}; cast it from these",
                rule="unsupported.dtype",
            )
        if out is not None and layout.matrix != layout.shape:
            given = Buffer.of(out)
            if given.shape != layout.shape:
                raise ArgumentError(
                    f"out must have the shape {list(layout.shape)}; it has {list(given.shape)}", rule="argument.shape"
                )
            out = given.view(given.dtype, layout.matrix)
        return WeightData(self._record.decode(dtype, out), self.weight_name, dtype, layout.shape)

    def __repr__(self) -> str:
        about = "cannot be decoded"
        if self._record.layout is not None:
            about = f"{self.bits} bits, {list(self._record.layout.shape)}, {_block(self)}"
        return f"QuantizedWeight('{escape(self.name)}', {self.scheme}, {about})"

    def _repr_html_(self) -> str:
        facts: list[tuple[str, object]] = [("scheme", self.scheme), ("method", self.method)]
        about = self.scheme
        if self._record.refusal is not None:
            facts.append(("decoding", str(self._record.refusal)))
        else:
            about = f"{self.scheme} {list(self._layout.shape)}"
            facts += [
                ("bits", self.bits),
                ("shape", self._layout.shape),
                ("scales", _block(self)),
                ("symmetric", None if self.symmetric is None else "yes" if self.symmetric else "no"),
                ("reordered", "yes" if self.reordered else None),
                ("bytes as bfloat16", self.decoded_nbytes()),
            ]
        facts.append(("bytes", self.nbytes))
        columns = ("part", "name", "dtype", "shape", "bytes")
        rows = [
            (role, info.name, getattr(info.dtype, "name", info.dtype), info.shape, info.bytes)
            for role, part in self._record.parts.items()
            for info in infos(part)
            if info.name == part.name
        ]
        shown_parts = table(columns, rows, numbers=("bytes",), code=("name", "dtype", "shape"))
        return view(escape(self.name), about, properties(facts), shown_parts)


class QuantizedWeights(Mapping[str, QuantizedWeight]):
    """All quantized weights at and below a node, by full name, in file order. Views are made on demand."""

    def __init__(self, node: WeightsNode) -> None:
        self._node = node
        self._config = config_of(node)
        self._listing = QuantizedListing(node, self._config)
        self._numbers = {name: number for number, name in enumerate(self._listing.names)}

    def __getitem__(self, name: str) -> QuantizedWeight:
        number = self._numbers.get(name)
        if number is None:
            raise _not_found(self._node, name, list(self._numbers))
        return QuantizedWeight(self._listing.record(number), self._config.method)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return f"<QuantizedWeights: {count(len(self), 'weight')}>"

    def _repr_html_(self) -> str:
        columns = ("name", "scheme", "bits", "shape", "scales", "bytes", "bytes as bfloat16")
        shown_weights = table(
            columns, map(self._row, self), total=len(self), numbers=("bits", *columns[5:]), code=("name", "shape")
        )
        return view("quantized weights", count(len(self), "weight"), shown_weights)

    def _row(self, name: str) -> tuple[object, ...]:
        try:
            weight = self[name]
            if weight._record.refusal is not None:
                return name, weight.scheme, None, None, None, weight.nbytes, None
            sizes = weight.nbytes, weight.decoded_nbytes()
            return name, weight.scheme, weight.bits, weight._layout.shape, _block(weight), *sizes
        except WeightsError as error:
            return name, str(error), None, None, None, None, None


@overload
def quantized(checkpoint: Checkpoint) -> QuantizedWeights: ...
@overload
def quantized(checkpoint: Checkpoint, name: str) -> QuantizedWeight: ...
@overload
def quantized(checkpoint: Checkpoint, name: str | None) -> QuantizedWeight | QuantizedWeights: ...
def quantized(checkpoint: Checkpoint, name: str | None = None) -> QuantizedWeight | QuantizedWeights:
    """Return the quantized weights of a checkpoint, or one of them: a view of the tensors that store each.

    Only headers, and a few numbers that give sizes, are read. The packing of a weight is its `scheme`. The `shape` of
    the decoded weight is [out, in], or for experts [experts, out, in]; `astype` decodes it.

    Args:
        checkpoint: A tree or a branch; or anything that `load_weights` opens.
        name: A name below it: that of the module, of its weight or of a packed tensor. Default: all.

    Returns:
        One `QuantizedWeight`; without a name a `QuantizedWeights` mapping of all, by full name.

    Raises:
        WeightNotFoundError: no quantized weight has this name; the message lists similar names.
        FormatError: a tensor is missing or does not fit (a ValueError).

    Example:
        >>> len(max_weights.quantized("model.safetensors"))
        0
    """
    node = tree_of(checkpoint, "quantized")
    len(node)  # an error, if nothing has its name
    if name is None:
        return QuantizedWeights(node)
    config = config_of(node)
    record = quantized_record(node, name, config)
    if record is not None:
        return QuantizedWeight(record, config.method)
    raise _not_found(node, f"{node.name}.{name}" if node.name else name, list(QuantizedWeights(node)))


def _not_found(node: WeightsNode, name: str, names: list[str]) -> WeightNotFoundError:
    """Return the error for a name without a quantized weight; it lists similar names."""
    front = f"{node.name}." if node.name else ""
    relative = name.removeprefix(front)
    (near,) = near_names(names, [name])
    meant = f"; did you mean {' or '.join(repr(escape(one)) for one in near)}?" if near else ""
    plain = next((one for one in (relative, f"{relative}.weight") if one in node), None)
    if plain is not None:
        dtype = node[plain].dtype
        problem = f"'{escape(name)}' is not quantized: it is {getattr(dtype, 'name', dtype)}, without scales"
    else:
        problem = f"no quantized weight is named '{escape(name)}'"
        meant = meant or ("" if names else "; nothing is quantized there")
    error = WeightNotFoundError(f"{problem}{meant}")
    error.tensor = name
    return error


def _block(weight: QuantizedWeight) -> str:
    """Return in words what shares a scale."""
    (rows, columns), shape = weight.block, weight._layout.shape
    matrix = shape[-2:] if len(shape) >= 2 else (1, math.prod(shape))
    if rows >= matrix[0] and columns >= matrix[1] and rows > 1:
        return "one for all" if len(shape) < 3 else "one for each matrix"
    if rows == 1:
        return "one for each row" if columns >= matrix[1] else f"one for each {columns} inputs"
    return f"one for each {rows} x {columns}"
