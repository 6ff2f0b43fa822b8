"""The compiled part of `max_weights`: the quantization of a checkpoint."""

from os import PathLike
from typing import Self, final

from max_weights._buffer import DLPackArray
from max_weights._core._buffer import Buffer
from max_weights._dtype import DType
from max_weights._node import WeightsNode
from max_weights.errors import UnsupportedError

@final
class QuantizationConfig:
    """The quantization of a checkpoint, from the configuration files in its folder."""

    @property
    def method(self) -> str | None:
        """The name of the method; None if it is not stated."""

@final
class QuantizedLayout:
    """How one weight is quantized, and how its values are computed from its parts."""

    @property
    def scheme(self) -> str:
        """The name of the scheme."""
    @property
    def bits(self) -> int:
        """The bits of one element."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns that share a scale."""
    @property
    def symmetric(self) -> bool | None:
        """Whether there are no zero points; None if the scheme does not state it."""
    @property
    def reordered(self) -> bool:
        """Whether columns are ordered by how much they matter."""
    @property
    def matrix(self) -> tuple[int, ...]:
        """The shape that the weight is decoded in."""

@final
class QuantizedRecord:
    """The tensors of one quantized weight, and how it is decoded."""

    @property
    def name(self) -> str:
        """The full name of the group."""
    @property
    def is_bare(self) -> bool:
        """Whether the weight has that name, too."""
    @property
    def parts(self) -> dict[str, WeightsNode]:
        """The nodes of the tensors by their roles."""
    @property
    def nbytes(self) -> int:
        """The bytes of all of them."""
    @property
    def scheme(self) -> str:
        """The name of the scheme."""
    @property
    def layout(self) -> QuantizedLayout | None:
        """None where the scheme cannot be decoded."""
    @property
    def refusal(self) -> UnsupportedError | None:
        """The error to raise then."""
    def decode(self, dtype: DType, out: DLPackArray | None = None) -> Buffer:
        """Decode the weight to a dtype, into `out`, which has the decoded shape, if it is not None."""

@final
class QuantizedListing:
    """The quantized weights at and below a node, with a record for each."""

    def __new__(cls, node: WeightsNode, config: QuantizationConfig) -> Self: ...
    @property
    def names(self) -> list[str]:
        """Their full names, in file order."""
    def record(self, number: int) -> QuantizedRecord:
        """The weight of this number."""

@final
class QuantizedNames:
    """The quantized weights of a whole tree, as needed by a request with a dtype."""

    @property
    def weights(self) -> list[tuple[str, str, list[str]]]:
        """Of each weight, its decoded name, the name of its packed numbers, and those of all its tensors."""
    @property
    def unknown(self) -> list[str]:
        """Tensors with unknown scales."""
    @property
    def turned(self) -> list[str]:
        """Weights that are decoded with outputs before inputs, in contrast to their model."""
    @property
    def is_converted(self) -> bool:
        """Whether the tree has other weights than its files, which have quantized ones."""

def _decode_weights(node: WeightsNode, config: QuantizationConfig, dtypes: dict[str, DType], cure: str) -> WeightsNode:
    """A tree over the same files with these weights decoded, by their names after that."""

def may_be_quantized(node: WeightsNode) -> bool: ...
def quantized_names(node: WeightsNode, config: QuantizationConfig) -> QuantizedNames: ...
def quantized_record(node: WeightsNode, name: str, config: QuantizationConfig) -> QuantizedRecord | None: ...
def read_quantization_config(folder: str | PathLike[str]) -> QuantizationConfig: ...
