"""What a model consists of, counted once, for printing: modules, weights, parameters, bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from max_weights.graph.weight import Weight
from max_weights.nn.walk import ModuleNode, Walk
from max_weights.shape import Shape


@dataclass
class Count:
    """Sums over weights."""

    parameters: int = 0
    """Elements of the weights whose shapes are static."""
    symbolic: int = 0
    """How many weights have other shapes."""
    bytes: int = 0
    weights: int = 0
    loaded: int = 0
    """How many weights have values."""
    dtypes: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)

    def add(self, weight: Weight) -> None:
        """Count a weight."""
        shape = elements_shape(weight)
        self.weights += 1
        self.loaded += weight.value is not None
        encoding = weight.quantization_encoding
        self.dtypes.add(weight.dtype.name if encoding is None else encoding.value)
        self.devices.add(str(weight.device))
        if shape.is_static:
            self.parameters += math.prod(shape.static_dims)
        else:
            self.symbolic += 1
        if weight.shape.is_static:
            self.bytes += -(-weight.dtype.size_in_bits * math.prod(weight.shape.static_dims) // 8)

    @property
    def text(self) -> str:
        """The number of parameters as people read it."""
        unknown = f" + {self.symbolic} of symbolic shape" if self.symbolic else ""
        return f"{self.parameters:,}{unknown}"


class Census:
    """The modules and weights of a model; each weight counts where it stands first.

    Two weights of one name are no error here, so that a model that is half built can be printed.
    """

    def __init__(self, root: ModuleNode) -> None:
        found = Walk(root)
        self.modules = list(zip(found.paths, found.modules, strict=True))
        self.paths = {id(module): path for path, module in self.modules}
        self.own: dict[str, dict[str, Weight]] = {}
        counted: set[int] = set()
        for full_name, weight in zip(found.names, found.weights, strict=True):
            if id(weight) not in counted:
                counted.add(id(weight))
                name = weight.local_name
                weights = self.own.setdefault(full_name[: -len(name)].removesuffix("."), {})
                while name in weights:
                    name += "'"
                weights[name] = weight

    def below(self, depth: int | None = None) -> dict[str, Count]:
        """Counts by paths, those below included; of paths of at most `depth` components."""
        counts = {path: Count() for path, _ in self.modules if depth is None or _depth(path) <= depth}
        parents = self._parents()
        for path, weights in self.own.items():
            at: str | None = path
            while at is not None:
                if at in counts:
                    for weight in weights.values():
                        counts[at].add(weight)
                at = parents[at]
        return counts

    def _parents(self) -> dict[str, str | None]:
        """The path of the module around each module; indices and keys of plain containers are no modules."""
        known = {path for path, _ in self.modules}
        parents: dict[str, str | None] = {}
        for path in known:
            up, parent = path, None
            while up:
                up = up.rpartition(".")[0]
                if up in known:
                    parent = up
                    break
            parents[path] = parent
        return parents


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def elements_shape(weight: Weight) -> Shape:
    """The shape in elements: the declared one of a packed weight."""
    return weight.shape if weight.quantization_encoding is None else weight.original_dtype_and_shape[1]
