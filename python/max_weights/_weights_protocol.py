"""`Weights`: the methods of a node of a tree of weights, for annotations and `isinstance`, as in MAX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from max_weights._buffer import DLPackArray
    from max_weights._devices import DeviceRef
    from max_weights._dim import Dim
    from max_weights._dtype import DType
    from max_weights._quantization import QuantizationEncoding
    from max_weights._weight_data import WeightData
    from max_weights.graph._weight import Weight

__all__ = ["Weights"]


@runtime_checkable
class Weights(Protocol):
    """One node of a tree of weights.

    `weights.model.layers[0].weight` is the node named `model.layers.0.weight`: each attribute or index adds a
    component, and nothing is looked up before a method is called. A node may be a weight, a prefix of others, both, or
    neither.
    """

    @property
    def name(self) -> str:
        """The full name of this node; empty at the root."""
        ...

    @property
    def allocated_weights(self) -> dict[str, DLPackArray]:
        """The values of all weights that `allocate` created, by full name; shared by all nodes of one tree."""
        ...

    if TYPE_CHECKING:  # not a member at run time, because isinstance() would look for a method of that name

        def __getattr__(self, attr: str, /) -> Weights:
            """Return the child with that name."""
            ...

    def __getitem__(self, key: int | str, /) -> Weights:
        """Return the child with that index or name; a name may contain dots."""
        ...

    def exists(self) -> bool:
        """Return whether there is a weight with exactly this name.

        Example:
            >>> weights.model.norm.weight.exists(), weights.model.norm.exists()
            (True, False)
        """
        ...

    def items(self) -> Iterator[tuple[str, Weights]]:
        """Iterate over this weight, if it is one, and all below it, as (full name, node), in file order.

        Example:
            >>> [name for name, _ in weights.model.norm.items()]
            ['model.norm.weight']
        """
        ...

    def data(self) -> WeightData:
        """Return the weight's tensor, without a copy where the file allows it.

        Raises:
            WeightNotFoundError: there is no such weight (a KeyError); the message suggests up to three similar names.

        Example:
            >>> weights.model.norm.weight.data().shape
            [Dim(8)]
        """
        ...

    def allocate(
        self,
        dtype: DType | None = None,
        shape: Iterable[int | str | Dim] | None = None,
        quantization_encoding: QuantizationEncoding | None = None,
        device: DeviceRef | None = None,
    ) -> Weight:
        """Return a `Weight` of this name for a graph, and record its value in `allocated_weights`.

        Args:
            dtype: Converts the value to this dtype; default: the dtype in the file.
            shape: Must equal the weight's shape, except where a dimension is symbolic.
            quantization_encoding: The encoding in the file. If a file has several, a weight keeps its own, and a
                warning says so.
            device: The target device; default: the CPU.

        Raises:
            WeightNotFoundError: there is no such weight.
            ValueError: the shape differs, or an encoding is given for a weight that is not quantized.

        Example:
            >>> weights.model.norm.weight.allocate("float16").dtype
            float16
        """
        ...
