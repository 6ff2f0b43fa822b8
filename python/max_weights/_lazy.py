"""Lazy tensors: a state dict whose values are read when they are used, in the form that transformers uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from max_weights._checkpoints import tree_of
from max_weights._core import Prefetcher, load_tensors
from max_weights._dtype import DType
from max_weights._load_request import LoadRequest
from max_weights._loading import restore_torch_dtype
from max_weights._memory_source import SAFETENSORS_DTYPES
from max_weights._rows import is_array, rows_of
from max_weights.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    import torch

    from max_weights._checkpoints import Checkpoint
    from max_weights._core import WeightInfo, WeightsNode
    from max_weights._load_request import DTypeOption, PackedOption, Rename
    from max_weights._selection import Select

__all__ = ["LazyTensor", "lazy_state_dict"]


def lazy_state_dict(
    checkpoint: Checkpoint,
    select: Select | None = None,
    *,
    rename: Rename | str | None = None,
    dtype: DTypeOption | None = None,
    packed: PackedOption = None,
    copy: bool | None = None,
) -> dict[str, LazyTensor]:
    """Return what `load` returns, as torch tensors that are read when they are indexed, with `[...]` or otherwise.

    `from_pretrained(None, config=…, state_dict=…)` of transformers accepts it. `get_shape()` and `get_dtype()` read
    nothing. To convert for the model, set `dtype` here, so that memory does not hold each weight twice.

    Args:
        checkpoint: A tree or a branch; or anything that `load_weights` opens, which stays open for the tensors.
        select: Which weights, as for `load`.
        rename: New names, as for `load`.
        dtype: The dtype for floats, as for `load`.
        packed: `keep` leaves packed blocks and quantized weights unchanged, `decode` decodes all.
        copy: True: each read returns a copy. False: views of the file.

    Returns:
        {name: lazy tensor}, in file order.

    Raises:
        WeightNotFoundError: `select`, `rename` or `dtype` names a weight that does not exist.
        ArgumentError: as for `load` (a ValueError).

    Example:
        >>> max_weights.lazy_state_dict("model.safetensors")["model.norm.weight"][:2].shape
        torch.Size([2])
    """
    weights = tree_of(checkpoint, "lazy_state_dict")
    request = LoadRequest(select, rename, dtype, packed).resolve(weights)
    nodes = dict(request.node.items())
    prefetcher = Prefetcher(request.node, request.names, request.dtypes, bool(copy))
    rows = zip(request.names, request.new_names, request.infos, request.dtypes, strict=True)
    return {
        new: LazyTensor(nodes[name], info, to, copy, (prefetcher, position))
        for position, (name, new, info, to) in enumerate(rows)
    }


class LazyTensor:
    """A weight of a checkpoint that is read when it is indexed: `lazy[...]` is all of it, `lazy[:8]` its first rows.

    The results are torch tensors. Nothing is kept here: indexing twice reads twice.
    """

    __slots__ = ("_copy", "_info", "_node", "_readahead", "_target_dtype")

    def __init__(
        self,
        node: WeightsNode,
        info: WeightInfo,
        dtype: DType | None,
        copy: bool | None,
        prefetcher: tuple[Prefetcher, int],
    ) -> None:
        self._node = node
        self._info = info
        self._target_dtype = dtype
        self._copy = copy
        self._readahead = prefetcher

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read the tensor, or the part of it that the index selects.

        Raises:
            IndexError: there is no such part.
            ClosedError: the checkpoint was closed.
        """
        from torch.utils.dlpack import from_dlpack

        info = self._info
        if info.encoding is not None and is_array(index):
            return from_dlpack(rows_of(self._node, index, self._target_dtype))
        if index is not Ellipsis and (info.encoding is not None or isinstance(info.dtype, str)):
            whole: torch.Tensor = self[...]
            return whole[index]
        if index is not Ellipsis:
            part = self._node[index if isinstance(index, tuple) else (index,)]
            converted = part if self._target_dtype is None else part.astype(self._target_dtype)
            return from_dlpack(converted.copy() if self._copy and converted is part else converted)
        prefetcher, position = self._readahead
        prefetcher.take(position)  # the other tensors will probably be needed, too
        (buffer,), _ = load_tensors(self._node, [info.name], [self._target_dtype], own=self._copy, outs={})
        tensor: torch.Tensor = restore_torch_dtype(from_dlpack(buffer), info)
        return tensor

    def get_shape(self) -> list[int]:
        """Return the shape, slowest dimension first.

        Example:
            >>> max_weights.lazy_state_dict(weights)["model.norm.weight"].get_shape()
            [8]
        """
        return list(self._info.shape if self._target_dtype is None else self._info.logical_shape)

    def get_dtype(self) -> str:
        """Return the dtype by its name in safetensors files, such as `BF16`.

        Raises:
            UnsupportedError: a dtype that they do not have.

        Example:
            >>> max_weights.lazy_state_dict(weights)["model.norm.weight"].get_dtype()
            'F32'
        """
        dtype = self._dtype()
        name = SAFETENSORS_DTYPES.get(dtype)
        if name is None:
            raise UnsupportedError(
                f"safetensors files have no name for the dtype {dtype!r}; `dtype` is torch's", rule="unsupported.dtype"
            )
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
        torch_dtype = getattr(torch, dtype, None)
        if not isinstance(torch_dtype, torch.dtype):
            raise ArgumentError(f"torch has no dtype {dtype!r}", rule="argument.dtype")
        return torch_dtype

    def is_floating_point(self) -> bool:
        """Return whether the elements are floats.

        Example:
            >>> max_weights.lazy_state_dict(weights)["model.norm.weight"].is_floating_point()
            True
        """
        return self.dtype.is_floating_point

    def _dtype(self) -> DType | str:
        return self._info.dtype if self._target_dtype is None else self._target_dtype

    def __repr__(self) -> str:
        return f"LazyTensor({self._dtype()!r}, {tuple(self.get_shape())})"
