"""`DeclaredWeights`: the names of weights that no file has, created while a graph is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn

from max_weights._core import escape
from max_weights._devices import DeviceRef
from max_weights._fork_lock import ForkLock
from max_weights._shape import listed
from max_weights.errors import WeightNotFoundError
from max_weights.graph._stack import graph_error
from max_weights.graph._weight import Weight

if TYPE_CHECKING:
    from typing import Self

    from max_weights._buffer import DLPackArray
    from max_weights._dim import Dim
    from max_weights._dtype import DTypeLike
    from max_weights._quantization import QuantizationEncoding

__all__ = ["Declarations", "DeclaredWeights"]

# A repr stays readable, however many weights there are.
_LISTED = 40
_adding = ForkLock()


class Declarations:
    """The weights that the nodes of one tree share, by the names of the nodes that they are at or below."""

    def __init__(self, graph: str) -> None:
        """Start without weights, for the graph of this name."""
        self.graph = graph
        self._below: dict[str, dict[str, Weight]] = {}

    def at_and_below(self, name: str) -> Mapping[str, Weight]:
        """Return the weight of this name, if there is one, and all below it, in the order of allocation."""
        return self._below.get(name, {})

    def add(self, weight: Weight) -> None:
        """Declare a weight."""
        name, parts = weight.name, weight.name.split(".")
        with _adding:
            if name in self.at_and_below(name):
                raise graph_error("allocate", f"weight '{escape(name)}' already exists in graph {self.graph!r}")
            for node in ("", *(".".join(parts[:length]) for length in range(1, len(parts) + 1))):
                self._below.setdefault(node, {})[name] = weight


class DeclaredWeights:
    """One node of a tree of names; see `Weights`. A weight exists once it is allocated, and has no data."""

    __slots__ = ("_declarations", "_name")

    def __init__(self, declarations: Declarations, name: str) -> None:
        """Create the node with this full name."""
        self._declarations = declarations
        self._name = name

    @property
    def name(self) -> str:
        """The full name of this node; empty at the root."""
        return self._name

    @property
    def allocated_weights(self) -> dict[str, DLPackArray]:
        """The weights that `allocate` created, by full name, in that order.

        Each is a `Weight`, which exports the value that `load_state_dict` or `load` gave it, and raises ValueError
        before that.
        """
        return dict(self._declarations.at_and_below(""))

    def __getattr__(self, key: str) -> DeclaredWeights:
        if key.startswith("_") and not self[key]._below():  # names that copy, pickle and notebooks look for
            raise AttributeError(f"weights have no attribute {key!r}; use w[{key!r}] for a child of that name")
        return self[key]

    def __getitem__(self, key: int | str) -> DeclaredWeights:
        if isinstance(key, bool) or not isinstance(key, int | str):
            raise TypeError(f"the key of a child must be an int or a string, not {key!r}")
        if isinstance(key, int) and key < 0:
            raise IndexError(f"a tree of names still to be declared has no last child, and so no child [{key}]")
        part = str(key)
        return DeclaredWeights(self._declarations, f"{self._name}.{part}" if self._name else part)

    def exists(self) -> bool:
        """Whether a weight of exactly this name has been allocated."""
        return self._name in self._below()

    def items(self) -> Iterator[tuple[str, DeclaredWeights]]:
        """Iterate over this weight, if allocated, and all below it, as (full name, node), in allocation order."""
        for name in list(self._below()):
            yield name, DeclaredWeights(self._declarations, name)

    def _child_keys(self) -> list[str]:
        start = len(self._name) + 1 if self._name else 0
        return list(dict.fromkeys(name[start:].partition(".")[0] for name in self._below() if name != self._name))

    def children(self) -> list[DeclaredWeights]:
        """Return the children that have weights, in the order of allocation."""
        return [self[key] for key in self._child_keys()]

    def data(self) -> NoReturn:
        """Raise an error, because there is no data.

        Raises:
            WeightNotFoundError: always (a KeyError).
        """
        error = WeightNotFoundError(
            f"weight '{escape(self._name)}' of graph {self._declarations.graph!r} has no data: it is declared, not "
            "loaded; open a checkpoint with load_weights for data",
            rule="weight.no-data",
        )
        error.tensor = self._name
        raise error

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        self.data()

    def __dlpack__(self, **_: object) -> NoReturn:
        self.data()

    def __dlpack_device__(self) -> NoReturn:
        self.data()

    def allocate(
        self,
        dtype: DTypeLike | None = None,
        shape: Iterable[int | str | Dim] | None = None,
        quantization_encoding: QuantizationEncoding | str | None = None,
        device: DeviceRef | str | None = None,
    ) -> Weight:
        """Create a new `Weight` of this name.

        Args:
            dtype: The type of the elements; required, because there is no file to take it from.
            shape: The shape; required, too.
            quantization_encoding: How the elements are packed.
            device: The device of the weight; default: the CPU.

        Raises:
            ValueError: dtype or shape is missing, or there is a weight of this name.
        """
        if dtype is None or shape is None:
            missing = " and ".join(name for name, value in (("dtype", dtype), ("shape", shape)) if value is None)
            raise graph_error(
                "allocate", f"weight '{escape(self._name)}' needs a {missing}: there is no file to take it from"
            )
        weight = Weight(self._name, dtype, shape, DeviceRef.CPU() if device is None else device, quantization_encoding)
        self._declarations.add(weight)
        return weight

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self[name].exists()

    def __len__(self) -> int:
        return len(self._below())

    def __bool__(self) -> bool:
        return True

    __iter__ = None

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._child_keys()})

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        return self  # a node is a name in the tree of its graph, and a copy would be the same name in the same tree

    def __repr__(self) -> str:
        title = f"'{escape(self._name)}'" if self._name else "the root"
        below = self._below()
        lines = [f"DeclaredWeights({title} of graph {self._declarations.graph!r}, {len(below)} allocated)"]
        for name, weight in list(below.items())[:_LISTED]:
            lines.append(f"  {escape(name)}  {weight.dtype!r} {listed(weight.shape)} {weight.device}")
        if len(below) > _LISTED:
            lines.append(f"  and {len(below) - _LISTED:,} more")
        return "\n".join(lines)

    def _below(self) -> Mapping[str, Weight]:
        return self._declarations.at_and_below(self._name)
