"""Plans of several ranks that read or write a checkpoint together."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Self, final

from max_weights._core import RemoteStore, _Cuts
from max_weights._core._buffer import Buffer
from max_weights._dtype import DType
from max_weights._node import WeightsNode

_Box = tuple[int, Sequence[tuple[int, int]]]

@final
class RankPlan:
    """Which rank reads what of some weights, and what ranks exchange then. Every rank that passes the same arguments
    gets the same plan.
    """

    def __new__(
        cls, node: WeightsNode, names: Sequence[str], sharings: Sequence[int | _Cuts], *,
        meshes: Sequence[tuple[Sequence[int], Sequence[int], Sequence[tuple[int | None, int]]]],
        part_of: Sequence[int], nodes: Sequence[int], unit_bytes: int | None = None, round_bytes: int | None = None,
    ) -> Self: ...  # fmt: skip
    @property
    def rounds(self) -> int:
        """The number of rounds."""
    def last_rounds(self) -> list[int]:
        """For each tensor, the round after which it is complete on all ranks."""
    def hash(self) -> bytes:
        """A hash of all inputs of the plan."""
    def parts(self, rank: int) -> list[tuple[int, list[list[tuple[int, int]]]] | None]:
        """The local shard of a rank for each tensor: its bytes, and the ranges of every axis that are joined along it;
        None if the rank has none of it.
        """
    def round(self, number: int, rank: int) -> bytes:
        """The actions of a rank in a round, as one array of records of ten little-endian 64-bit integers. They are
        action, rank, unit, tensor, offset and stride of the rows in the source, offset and stride in the destination,
        the number of rows, and the bytes of each. The actions are to read a unit, send, receive and keep rows,
        broadcast a unit, and take rows of that.
        """
    def read(
        self, node: WeightsNode, number: int, rank: int, *, backend: str = "auto", threads: int | None = None,
        drop_cache: bool = False, max_memory: int | None = None,
    ) -> list[list[Buffer]]:  # fmt: skip
        """Reads the units of a rank for a round: the bytes of each, tensor by tensor. If memory is short, it uses fewer
        threads.
        """
    def end(self) -> None:
        """Cancels reads on other threads, which do not see Ctrl-C."""
    def costs(self) -> tuple[list[int], int, int, int, int]:
        """The cost: bytes that each rank reads, requests, bytes that ranks receive, the most that a node receives from
        others, and rounds.
        """

@final
class RankSave:
    """The files of a checkpoint that several ranks write. Every rank that passes the same arguments gets the same
    files.
    """

    def __new__(
        cls, folder: str | PathLike[str], tensors: Sequence[tuple[str, DType | str, Sequence[int]]],
        metadata: Mapping[str, str], *, world: int, sharings: Sequence[int | None] = ...,
        meshes: Sequence[tuple[Sequence[int], Sequence[int], Sequence[tuple[int | None, int]]]] = ...,
        boxes: Sequence[Sequence[_Box]] | None = None,
        alignment: int, sync: bool, stem: str, max_shard_size: int, store: RemoteStore | None = None,
        verify: bool = False,
    ) -> Self: ...  # fmt: skip
    def hash(self) -> bytes:
        """A hash of the layout and of the shards of all ranks."""
    def begin(self) -> list[str]:
        """Makes the unfinished files, or begins uploads; returns the names by which other ranks find them."""
    def open(self, rank: int, unfinished: Sequence[str | PathLike[str]], parts: Sequence[Buffer]) -> int:
        """Opens the unfinished files to write these parts of a rank; returns how many bytes it writes."""
    def write(self, most: int) -> int:
        """Writes about `most` of the remaining bytes that are not exchanged; returns how many, 0 at the end."""
    @property
    def rounds(self) -> int:
        """The number of exchanges; the same on all ranks."""
    def message(self, round: int) -> tuple[Buffer, list[int], list[int]]:
        """The data that this rank sends in a round, ordered by rank; how many bytes go to each, and how many come from
        each.
        """
    def take(self, arrived: Buffer, round: int) -> int:
        """Writes the data of a round, received or local; returns how many bytes."""
    def flush(self) -> None:
        """Waits until they are sent, or on the disk if `sync` is set."""
    def verify(self, is_placed: bool) -> None:
        """Reads back and compares what this rank wrote, if `verify` is set: files on a disk before they are renamed,
        uploads after they are complete.
        """
    def sent(self) -> list[list[tuple[int, str]]]:
        """The parts of uploads that this rank has sent, for each file: their numbers, and the server's names."""
    def finish(self, sent: Sequence[Sequence[tuple[int, str]]] = ...) -> list[str]:
        """Puts the files into their places; returns them, an index last. `sent` are the parts of uploads that other
        ranks have sent, of each file.
        """
    def leave(self) -> None:
        """Leaves uploads that another rank has begun and completed."""
    def discard(self) -> None:
        """Discards: removes what this process has begun, and the leftovers of one that ended."""
