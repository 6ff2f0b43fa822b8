"""What every tree of weights can do, whatever the format of its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from max_weights.driver.tensor import DLPackArray
    from max_weights.dtype import DType
    from max_weights.graph.device import DeviceRef
    from max_weights.graph.dim import Dim
    from max_weights.graph.quantization import QuantizationEncoding
    from max_weights.graph.weight import Weight
    from max_weights.graph.weights.weight_data import WeightData

__all__ = ["Weights", "WeightsAdapter"]


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
        """The values of all weights that `allocate` made, by full name; shared by all nodes of one tree."""
        ...

    if TYPE_CHECKING:  # not a member at run time: isinstance() would look for a method of that name

        def __getattr__(self, attr: str) -> Weights:
            """The child of that name."""
            ...

    def __getitem__(self, key: int | str) -> Weights:
        """The child of that index or name; dots are allowed."""
        ...

    def exists(self) -> bool:
        """True if there is a weight of exactly this name."""
        ...

    def items(self) -> Iterator[tuple[str, Weights]]:
        """This weight, if it is one, and all below it, as (full name, node), in file order."""
        ...

    def data(self) -> WeightData:
        """The weight's tensor, without a copy where the file allows it.

        Raises:
            WeightNotFoundError: a KeyError; there is no such weight. Names up to three near ones.
        """
        ...

    def allocate(
        self,
        dtype: DType | None = None,
        shape: Iterable[int | str | Dim] | None = None,
        quantization_encoding: QuantizationEncoding | None = None,
        device: DeviceRef | None = None,
    ) -> Weight:
        """A `Weight` of this name for a graph; its value is recorded in `allocated_weights`.

        Args:
            dtype: Converts the value to this dtype; default: the dtype of the file.
            shape: Must equal the weight's shape, except where a dimension is symbolic.
            quantization_encoding: Must be the encoding of the file.
            device: Where the weight is wanted; default: the CPU.

        Raises:
            WeightNotFoundError: there is no such weight.
            ValueError: the shape or the encoding is another one.
        """
        ...


WeightsAdapter = Callable[..., "Mapping[str, Any]"]
"""Turns the weights of a checkpoint into a state dict: called with a mapping of names to weights, and keyword
arguments of its own.
"""
