"""`embedding`: a torch module in place of `nn.Embedding`, whose weight stays on the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from max_weights._dtype import DType, DTypeLike
from max_weights._rows import Table, table
from max_weights.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from max_weights._checkpoints import Checkpoint

__all__ = ["DiskEmbedding", "embedding"]


class DiskEmbedding(torch.nn.Module):
    """An embedding whose rows are read when they are used. It has no parameters, and an empty state dict.

    `to`, `half` and others convert what it returns, as they would convert the weight of `nn.Embedding`.
    """

    def __init__(
        self, table: Table, dtype: torch.dtype, *, padding_idx: int | None = None, device: torch.device | None = None
    ) -> None:
        super().__init__()
        rows, columns = table.shape
        if padding_idx is not None and not -rows <= padding_idx < rows:
            raise ArgumentError(f"padding_idx must be within {rows} rows, not {padding_idx}", rule="argument.number")
        self.table = table
        """The table of the rows."""
        self._conversions = [dtype]
        self.num_embeddings, self.embedding_dim = rows, columns
        self.padding_idx = None if padding_idx is None else padding_idx % rows
        self.device = torch.device("cpu") if device is None else device
        """The device of the output."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the output."""
        return self._conversions[-1]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the rows of these ids.

        Raises:
            IndexError: ids that no row has; the message names them.
            UnsupportedError: `torch.jit.trace`, which would keep the rows of its example.
        """
        if torch.jit.is_tracing():  # type: ignore[no-untyped-call, attr-defined]
            raise UnsupportedError(
                "torch.jit.trace would keep the rows of its example: rows are read when they are used",
                rule="unsupported.request",
            )
        first, *others = self._conversions
        rows: torch.Tensor = self.table.take(input, DType(first), framework="torch")
        for dtype in others:
            rows = rows.to(dtype)
        return rows.to(self.device)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> DiskEmbedding:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        like = fn(torch.empty(0, dtype=self.dtype, device=self.device))
        self.device = like.device
        if like.dtype != self.dtype:
            self._conversions = [*self._conversions, like.dtype]  # each rounds, as it would round the weight
        return self

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise self._no_weight()
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            raise self._no_weight()
        super().__setattr__(name, value)

    def _no_weight(self) -> AttributeError:
        return AttributeError(
            f"the weight of this embedding stays on the disk: {self.table!r}; its dtype, device, num_embeddings "
            "and embedding_dim are attributes, and a layer that is tied to it needs a separate weight"
        )

    def extra_repr(self) -> str:
        """Return what `nn.Embedding` shows, and the dtype."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, dtype={self.dtype}"


def embedding(
    checkpoint: Checkpoint,
    name: str,
    *,
    dtype: DTypeLike | None = None,
    padding_idx: int | None = None,
    device: torch.device | str | None = None,
    scales: str | None = None,
    cache: int | str = "64MB",
) -> DiskEmbedding:
    """Return a module in place of `nn.Embedding`, whose weight stays on the disk.

    Its output equals that of `nn.Embedding.from_pretrained` with the weight, bit for bit. Nothing is trained.

    Args:
        checkpoint: A tree or a branch; or anything that `load_weights` opens, which stays open for the module.
        name: The weight, or weights with a `*` for a number, as for `max_weights.table`.
        dtype: The dtype of the output; default: that of the table.
        padding_idx: Kept for programs that ask for it, as in a frozen `nn.Embedding`; the row is that of the file.
        device: The device of the output; default: the CPU.
        scales: The tensor of scales, as for `max_weights.table`.
        cache: How many bytes of rows from a disk or a server stay in memory.

    Returns:
        The module.

    Raises:
        WeightNotFoundError: there is no such weight.
        ArgumentError: the weight is no matrix, or `padding_idx` is not one of its rows (a ValueError); and as for
            `max_weights.table`.

    Example:
        >>> from max_weights.torch import embedding
        >>> embedding("model.safetensors", "model.embed_tokens.weight")(torch.tensor([3, 5])).shape
        torch.Size([2, 8])
    """
    rows = table(checkpoint, name, scales=scales, cache=cache)
    if len(rows.shape) != 2:
        raise ArgumentError(f"an embedding is a matrix, not {list(rows.shape)}", rule="argument.shape")
    kind = rows.dtype if dtype is None else DType(dtype)
    place = None if device is None else torch.device(device)
    return DiskEmbedding(rows, kind.to_torch(), padding_idx=padding_idx, device=place)
