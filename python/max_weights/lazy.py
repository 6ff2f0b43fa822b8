"""Lazy tensors: a state dict whose values are read when they are used, as transformers uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from max_weights._core import Ahead, load_tensors
from max_weights.dtype import DType
from max_weights.errors import ArgumentError, UnsupportedError
from max_weights.loading import dtypes_wanted, names_of_tree, own_dtype, renamed_by
from max_weights.selection import selected

if TYPE_CHECKING:
    import torch

    from max_weights._core import WeightInfo, WeightsNode
    from max_weights.loading import Rename
    from max_weights.selection import Select

__all__ = ["LazyTensor", "lazy_state_dict"]


def lazy_state_dict(
    node: WeightsNode,
    select: Select | None = None,
    *,
    rename: Rename | str | None = None,
    dtype: Any = None,
    packed: bool = False,
    copy: bool | None = None,
) -> dict[str, LazyTensor]:
    """Return the weights below a node, to be read later; see `WeightsNode.lazy_state_dict`."""
    if isinstance(rename, str):
        node, rename = node.renamed(rename), None
    infos = {info.name: info for info in node.infos()}
    names = list(infos) if select is None else selected(list(infos), select)
    new_names = {name: name for name in names} if rename is None else renamed_by(names, rename, names_of_tree(node))
    dtypes = dtypes_wanted([infos[name] for name in new_names], dtype, packed, names_of_tree(node))
    nodes = dict(node.items())
    ahead = Ahead(node, list(new_names), dtypes, bool(copy))
    return {
        new: LazyTensor(nodes[name], infos[name], wanted, copy, (ahead, position))
        for position, ((name, new), wanted) in enumerate(zip(new_names.items(), dtypes, strict=True))
    }


class LazyTensor:
    """A weight of a checkpoint that is read when it is indexed: `lazy[...]` is all of it, `lazy[:8]` its first rows.

    The results are torch tensors. Nothing is kept here: indexing twice reads twice.
    """

    __slots__ = ("_ahead", "_copy", "_info", "_node", "_wanted")

    def __init__(
        self, node: WeightsNode, info: WeightInfo, wanted: DType | None, copy: bool | None, ahead: tuple[Ahead, int]
    ) -> None:
        self._node = node
        self._info = info
        self._wanted = wanted
        self._copy = copy
        self._ahead = ahead

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read the tensor, or the part of it that the index selects.

        Raises:
            IndexError: there is no such part.
            ClosedError: the checkpoint was closed.
        """
        from torch.utils.dlpack import from_dlpack

        info = self._info
        if index is not Ellipsis and (info.encoding is not None or isinstance(info.dtype, str)):
            whole: torch.Tensor = self[...]
            return whole[index]
        if index is not Ellipsis:
            part = self._node[index if isinstance(index, tuple) else (index,)]
            converted = part if self._wanted is None else part.astype(self._wanted)
            return from_dlpack(converted.copy() if self._copy and converted is part else converted)
        ahead, position = self._ahead
        ahead.take(position)  # the other tensors will probably be wanted, too
        (buffer,), _ = load_tensors(self._node, [info.name], [self._wanted], own=self._copy, outs={})
        taken: torch.Tensor = own_dtype(from_dlpack(buffer), info)
        return taken

    def get_shape(self) -> list[int]:
        """Return the shape, slowest dimension first."""
        return list(self._info.shape if self._wanted is None else self._info.logical_shape)

    def get_dtype(self) -> str:
        """Return the dtype by its name in safetensors files, such as `BF16`."""
        dtype = self._dtype()
        name = _NAMES.get(dtype)
        if name is None:
            raise UnsupportedError(f"safetensors files have no name for the dtype {dtype!r}; `dtype` is torch's")
        return name

    @property
    def shape(self) -> torch.Size:
        """The shape, slowest dimension first."""
        import torch

        return torch.Size(self.get_shape())

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype."""
        import torch

        dtype = self._dtype()
        if isinstance(dtype, DType):
            return dtype.to_torch()
        found = getattr(torch, dtype, None)
        if not isinstance(found, torch.dtype):
            raise ArgumentError(f"torch has no dtype {dtype!r}")
        return found

    def is_floating_point(self) -> bool:
        """Whether the elements are floats."""
        return self.dtype.is_floating_point

    def _dtype(self) -> DType | str:
        return self._info.dtype if self._wanted is None else self._wanted

    def __repr__(self) -> str:
        return f"LazyTensor({self._dtype()!r}, {tuple(self.get_shape())})"


_NAMES: dict[DType | str, str] = {
    DType.bool: "BOOL",
    DType.uint8: "U8",
    DType.int8: "I8",
    DType.uint16: "U16",
    DType.int16: "I16",
    DType.uint32: "U32",
    DType.int32: "I32",
    DType.uint64: "U64",
    DType.int64: "I64",
    DType.float16: "F16",
    DType.bfloat16: "BF16",
    DType.float32: "F32",
    DType.float64: "F64",
    DType.complex64: "C64",
    DType.float8_e4m3fn: "F8_E4M3",
    DType.float8_e4m3fnuz: "F8_E4M3FNUZ",
    DType.float8_e5m2: "F8_E5M2",
    DType.float8_e5m2fnuz: "F8_E5M2FNUZ",
    DType.float8_e8m0fnu: "F8_E8M0",
}
