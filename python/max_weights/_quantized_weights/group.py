"""The tensors of one quantized weight, taken with checks: what is missing or does not fit is an error that names it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from max_weights._core import infos, shown
from max_weights.dtype import DType
from max_weights.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    from max_weights._core import Buffer, WeightInfo, WeightsNode
    from max_weights._quantized_weights.declared import Declared

__all__ = ["FLOAT_SCALES", "Group", "Part", "Refused", "blocks_of", "cut"]

FLOAT_SCALES = (DType.float32, DType.bfloat16, DType.float16)
"""The dtypes of scales that are numbers, and not exponents."""


@dataclass(frozen=True)
class Part:
    """One tensor of a group. Nothing of it is read before `buffer`."""

    name: str
    """The full name."""
    dtype: DType | str
    shape: tuple[int, ...]
    node: WeightsNode

    @property
    def info(self) -> WeightInfo:
        """What the file says of it."""
        return next(info for info in infos(self.node) if info.name == self.name)

    def buffer(self) -> Buffer:
        """Return the tensor, a view of the file where it is mapped."""
        return self.node.data().to_buffer()


class Refused(Exception):
    """A scheme that is known, and cannot be decoded here: its name, and the error of whoever asks for more."""

    def __init__(self, scheme: str, error: UnsupportedError) -> None:
        super().__init__(scheme, error)
        self.scheme = scheme
        self.error = error


class Group:
    """The parts of one quantized weight, and what the configuration says.

    Args:
        node: What the names are below.
        name: The full name of the group.
        parts: What the parts are called, relative to the node, by what their names add to that of the group.
        declared: What is said beside the checkpoint.
    """

    def __init__(self, node: WeightsNode, name: str, parts: dict[str, str], declared: Declared) -> None:
        self.name = name
        self.declared = declared
        self._found: dict[str, Part] = {}
        for part, relative in parts.items():
            child = node[relative]
            self._found[part] = Part(child.name, child.dtype, child.shape, child)

    def __contains__(self, part: str) -> bool:
        return part in self._found

    @property
    def parts(self) -> dict[str, Part]:
        """All parts, by what their names add."""
        return self._found

    def get(self, part: str) -> Part | None:
        """Return a part, or `None`."""
        return self._found.get(part)

    def need(self, *parts: str, rule: str = "quantized.scale-missing") -> Part:
        """Return the first of these parts that is there. FormatError if none is."""
        for part in parts:
            if part in self._found:
                return self._found[part]
        of_weight = next((found for found in self._found.values() if found.name != self.name), None)
        missing = " or ".join(f"{self.name}{'' if part.startswith('_') else '.'}{part}" for part in parts)
        raise self.fault(
            rule, of_weight, f"there is no {shown(missing)} for it", "get the missing file of the checkpoint"
        )

    def require_dtype(self, part: Part, *dtypes: DType) -> None:
        """Raise a FormatError if the dtype of a part is none of these."""
        if part.dtype not in dtypes:
            expected = " or ".join(dtype.name for dtype in dtypes)
            raise self.fault("quantized.dtype", part, f"it is {_dtype(part)}; expected {expected}")

    def require_shape(self, part: Part, *shapes: Sequence[int], why: str, rule: str = "quantized.scale-shape") -> None:
        """Raise a FormatError if the shape of a part is none of these."""
        if all(part.shape != tuple(shape) for shape in shapes):
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise self.fault(rule, part, f"it has the shape {list(part.shape)}; expected {expected} {why}")

    def require_rank(self, part: Part, rank: int) -> None:
        """Raise a FormatError if a part has another number of dimensions."""
        if len(part.shape) != rank:
            cause = f"it has the shape {list(part.shape)}; expected {rank} dimensions"
            raise self.fault("quantized.shape", part, cause)

    def fault(self, rule: str, part: Part | None, cause: str, help: str | None = None) -> FormatError:
        """Return the error for a part that breaks a rule of validation."""
        help = help or "the checkpoint was damaged or converted wrongly; `max-weights validate` lists all such tensors"
        path = None if part is None else part.info.file
        name = self.name if part is None else part.name
        error = FormatError(f"{shown(path or '')}: '{shown(name)}': {cause} [{rule}]; {help}")
        error.rule, error.path, error.tensor, error.help = rule, path, name, help
        return error

    def refused(self, part: Part, scheme: str, why: str) -> Refused:
        """Return what is raised where a scheme is known, and cannot be decoded here."""
        path, help = part.info.file, "its tensors are in `parts`: decode them by the library that wrote them"
        error = UnsupportedError(f"{shown(path)}: '{shown(self.name)}': {why}; {help}")
        error.path, error.tensor, error.help = path, self.name, help
        return Refused(scheme, error)


def _dtype(part: Part) -> str:
    return part.dtype.name if isinstance(part.dtype, DType) else shown(part.dtype)


def cut(size: int, parts: int, said: int | None, usual: int) -> int | None:
    """Return the length of equal pieces that a size is cut into, of which the last may be shorter.

    It is what the configuration says if that gives as many pieces; else the exact quotient, or the usual length, or the
    least that gives as many. `None` if there is none.
    """
    if parts < 1 or parts > max(size, 1):
        return None
    if said is not None and said > 0 and -(-size // said) == parts:
        return said
    if size % parts == 0 and size:
        return size // parts
    if -(-size // usual) == parts:
        return usual
    length = max(-(-size // parts), 1)
    return length if max(-(-size // length), 1) == parts else None


def blocks_of(shape: Sequence[int], scales: Sequence[int], said: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the rows and columns of the blocks of a matrix, by the shape of its scales; `None` if there are none."""
    rows, columns = (
        cut(size, parts, None if said is None else said[axis], 128)
        for axis, (size, parts) in enumerate(zip(shape[-2:], scales[-2:], strict=True))
    )
    return None if rows is None or columns is None else (rows, columns)
