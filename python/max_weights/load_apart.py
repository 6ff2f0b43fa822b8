"""Weights of a load that are cut along several axes at once, which the engine does not do: they are cut one by one.

They count as the others do: in the memory that a load may take, in its progress, and in its plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from max_weights._core import Buffer, shown
from max_weights.dtype import DType
from max_weights.errors import ArgumentError
from max_weights.sharding.by_name import NOTHING, Cut
from max_weights.sharding.data import read, take
from max_weights.sharding.pieces import Pieces
from max_weights.weight_data import WeightData

if TYPE_CHECKING:
    from max_weights._core import WeightInfo, WeightsNode
    from max_weights.progress import Progress

__all__ = ["Apart"]


class Apart:
    """The weights of a load that are cut along several axes at once.

    Args:
        node: Any node of the tree.
        parts: The part of each weight of the load.
        infos: The weights.
        dtypes: The dtype wanted for each; `None` for the dtype in the file.
        outs: {position: memory to write to}; that of these weights is taken out.
        whole: Whether the engine reads them as a whole, because their digests are compared.
        copy: False, if only views are wanted.

    Raises:
        ArgumentError: only views are wanted, and a part of several axes cannot be one (a ValueError).
    """

    def __init__(
        self,
        node: WeightsNode,
        parts: Sequence[Cut | Pieces | None],
        infos: Sequence[WeightInfo],
        dtypes: Sequence[DType | None],
        outs: dict[int, Any],
        *,
        whole: bool,
        copy: bool | None,
    ) -> None:
        self._node = node
        self._infos = infos
        self._wanted = dtypes
        self._whole = whole
        self._pieces = {position: part for position, part in enumerate(parts) if isinstance(part, Pieces)}
        if self._pieces and copy is False:
            name = infos[next(iter(self._pieces))].name
            raise ArgumentError(
                f"copy=False asks for views of the files, and '{shown(name)}' cannot be one: "
                "it is cut along several axes"
            )
        self._outs = {position: outs.pop(position) for position in self._pieces if position in outs}
        engine = None if whole else NOTHING
        self.cuts: list[Cut | None] = [engine if isinstance(part, Pieces) else part for part in parts]
        """What the engine loads of each weight: nothing, or all, of one that is cut here."""
        self.dtypes = [None if position in self._pieces else dtype for position, dtype in enumerate(dtypes)]
        """The dtypes that the engine converts to."""

    def __contains__(self, position: int) -> bool:
        """Whether the weight at a position is one of them."""
        return position in self._pieces

    def sizes(self) -> dict[int, tuple[int, int]]:
        """Return {position: (bytes that are read of the file, bytes of memory that the result takes)}."""
        return {position: self._sizes(position, pieces) for position, pieces in self._pieces.items()}

    def _sizes(self, position: int, pieces: Pieces) -> tuple[int, int]:
        info, dtype = self._infos[position], self._wanted[position]
        part, all_of_it = math.prod(pieces.shape.static_dims), math.prod(map(int, pieces.whole))
        stored = info.bytes * part // max(all_of_it, 1)
        if dtype is None:
            return stored, stored
        return stored, -(-math.prod(info.logical_shape) * part // max(all_of_it, 1) * dtype.size_in_bits // 8)

    def rest_of(self, max_host_bytes: int | None) -> int | None:
        """Return what the weights leave of the host memory that a load may take.

        Raises:
            ArgumentError: they take more (a ValueError).
        """
        sizes = self.sizes()
        if not sizes or max_host_bytes is None:
            return max_host_bytes
        results = sum(result for position, (_, result) in sizes.items() if position not in self._outs)
        needed = results + max(stored for stored, _ in sizes.values())  # a part waits for its conversion
        if needed > max_host_bytes:
            name = self._infos[next(iter(sizes))].name
            raise ArgumentError(
                f"the weights that are cut along several axes at once, such as '{shown(name)}', take {needed} bytes, "
                f"and max_host_bytes is {max_host_bytes}: select fewer of them, or split one axis"
            )
        return max_host_bytes - needed

    def progress(self, told: Progress | None) -> tuple[Progress | None, Callable[[int], None]]:
        """Return what the engine tells its progress, and a function that is told the bytes that were read here."""
        total = 0 if self._whole else sum(stored for stored, _ in self.sizes().values())
        if told is None or not total:
            return told, lambda _: None
        done = [0, 0]  # by the engine, and here

        def engine(bytes_done: int, bytes_of_all: int) -> None:
            done[0] = bytes_of_all
            told(bytes_done, bytes_of_all + total)

        def here(count: int) -> None:
            done[1] += count
            told(done[0] + done[1], done[0] + total)

        return engine, here

    def load_into(self, loaded: list[Buffer], tell: Callable[[int], None]) -> None:
        """Put each weight in its place among the tensors that the engine loaded."""
        root = self._node._root
        for position, pieces in self._pieces.items():
            info, there = self._infos[position], loaded[position].device
            out = self._outs.get(position)
            whole = loaded[position].to("cpu") if self._whole else None
            part: Buffer = read(root[info.name], pieces) if whole is None else take(whole, pieces, info.name)
            part = self._converted(part, position, out)
            loaded[position] = part if out is not None else part.to(there)
            tell(self._sizes(position, pieces)[0])

    def _converted(self, part: Buffer, position: int, out: Any) -> Buffer:
        info, dtype = self._infos[position], self._wanted[position]
        if dtype is None and out is None:
            return part
        data = WeightData(part, info.name, part.dtype, part.shape, None if dtype is None else info.encoding)
        return data.astype(data.dtype if dtype is None else dtype, out=out).to_buffer()
