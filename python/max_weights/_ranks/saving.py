"""`save_sharded(group=)` and `dcp.save`: ranks write one checkpoint together, each its parts, to their final places."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from max_weights._core import Buffer, RankSave, __version__, escape
from max_weights._progress import progress_of
from max_weights._ranks.agreement import agreed_plan, digest, require_alike
from max_weights._ranks.placements import Meshes, refusal, splits_of, together
from max_weights._ranks.replicas import require_same_replicas, shared_part
from max_weights._ranks.session import Members, Session
from max_weights._saved_paths import paths_of
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch.distributed as dist

    from max_weights._core import RemoteStore
    from max_weights._dtype import DType
    from max_weights._progress import Progress
    from max_weights._ranks.placements import Mesh

__all__ = ["Files", "save_boxes", "save_in_group"]

ROUND = 256 << 20
"""The bytes that a rank writes before all ranks report success."""


@dataclass(frozen=True)
class Files:
    """The destination of the files, and how they are written."""

    folder: str
    metadata: Mapping[str, str]
    max_shard_size: int
    stem: str
    alignment: int
    sync: bool
    store: RemoteStore | None = None
    read_back: bool = False

    def save(
        self,
        tensors: Sequence[tuple[str, DType | str, Sequence[int]]],
        world: int,
        sharings: Sequence[int | None] = (),
        meshes: Sequence[Mesh] = (),
        boxes: Sequence[Sequence[tuple[int, Sequence[tuple[int, int]]]]] | None = None,
    ) -> RankSave:
        """Return the layout of the files for these tensors: their names, dtypes, shapes.

        Args:
            tensors: The tensors to save.
            world: How many ranks save.
            sharings: The number of the mesh of each tensor.
            meshes: The placements of the tensors.
            boxes: The boxes of each rank, if there are no meshes: numbers of tensors, and a range of each axis.
        """
        return RankSave(
            self.folder,
            tensors,
            self.metadata,
            world=world,
            sharings=sharings,
            meshes=meshes,
            boxes=boxes,
            alignment=self.alignment,
            sync=self.sync,
            stem=self.stem,
            max_shard_size=self.max_shard_size,
            store=self.store,
            verify=self.read_back,
        )


@dataclass(frozen=True)
class _SavedBox:
    """This rank's part of one tensor."""

    name: str
    own: Buffer
    shape: Sequence[int]
    """The shape of the whole tensor."""
    sharing: int | None
    placements: object
    shared: str | None
    """The key of the part, if other ranks may have the same one."""

    @classmethod
    def of(cls, name: str, tensor: object, meshes: Meshes, buffer_of: Callable[[str, object], Buffer]) -> _SavedBox:
        size = len(meshes.ranks)
        if not isinstance(tensor, DTensor):
            own = buffer_of(name, tensor)
            return cls(name, own, list(own.shape), None, None, shared_part(None, None, size))
        if (why := refusal(tensor)) is not None:
            raise ArgumentError(f"tensor '{escape(name)}': {why}", rule="argument.mesh")
        try:
            sharing = meshes.number(tensor)
        except ArgumentError as error:
            raise ArgumentError(f"tensor '{escape(name)}': {error}", rule="argument.mesh") from None
        local: Any = tensor.to_local()
        local = local.wait() if hasattr(local, "wait") else local
        own = buffer_of(name, local)
        if own.num_elements != local.numel():
            raise ArgumentError(
                f"tensor '{escape(name)}': parts of {tensor.dtype}, which packs several numbers, cannot be saved by "
                "several ranks; save what full_tensor() returns",
                rule="argument.dtype",
            )
        shared = shared_part(tensor, sharing, size)
        return cls(name, own, list(tensor.shape), sharing, [sharing, splits_of(tensor)], shared)


def save_in_group(
    items: Callable[[], Sequence[tuple[str, object]]],
    buffer_of: Callable[[str, object], Buffer],
    files: Files,
    group: dist.ProcessGroup | None,
    timeout: float,
    progress: Progress | bool | None,
) -> list[Path]:
    """Save the tensors of a group of ranks, each its part; see `save_sharded`.

    Args:
        items: Returns the tensors of this rank by name.
        buffer_of: Returns the memory of a tensor.
        files: The destination.
        group: The ranks; `None` for all.
        timeout: For how many seconds they wait for each other.
        progress: A function of (bytes done, total bytes) of this rank, or True for a bar.
    """
    with Session(group, timeout, "save_sharded") as session:
        parts: list[_SavedBox] = []

        def own() -> dict[str, Any]:
            meshes = Meshes(session.ranks)
            parts.extend(_SavedBox.of(name, tensor, meshes, buffer_of) for name, tensor in sorted(items()))
            return {
                "tensors": digest([part.name, part.own.dtype.name, part.shape] for part in parts),
                "placements": digest([part.name, part.placements] for part in parts),
                "meshes": meshes.tables,
            }

        def save_of(records: Sequence[Mapping[str, Any]]) -> RankSave:
            return files.save(
                [(part.name, part.own.dtype, part.shape) for part in parts],
                session.size,
                [part.sharing for part in parts],
                together([one["meshes"] for one in records]),
            )

        save = _agreed(session, files, own, save_of)
        require_same_replicas(
            session, [(part.name, part.shared, part.own) for part in parts if part.shared is not None]
        )
        return _saved(session, [part.own for part in parts], save, progress, read_back=files.read_back)


def save_boxes(
    members: Members,
    tensors: Sequence[tuple[str, DType | str, Sequence[int]]],
    boxes: Callable[[], Iterable[tuple[int, Sequence[tuple[int, int]], Buffer]]],
    files: Files,
    timeout: float,
) -> None:
    """Save boxes of tensors, each from one rank.

    Args:
        members: The ranks.
        tensors: Names, dtypes and shapes.
        boxes: Returns the boxes of this rank: the number of a tensor, a range of each axis, and the elements.
        files: The destination.
        timeout: For how many seconds ranks wait for each other.
    """
    with Session(members, timeout, "dcp.save") as session:
        buffers: list[Buffer] = []

        def own() -> dict[str, Any]:
            placed = []
            for number, ranges, buffer in boxes():
                placed.append((number, ranges))
                buffers.append(buffer)
            return {"boxes": placed}

        def save_of(records: Sequence[Mapping[str, Any]]) -> RankSave:
            of_all = [[(number, list(map(tuple, ranges))) for number, ranges in one["boxes"]] for one in records]
            return files.save(tensors, session.size, boxes=of_all)

        _saved(session, buffers, _agreed(session, files, own, save_of), None)


def _agreed(
    session: Session,
    files: Files,
    own: Callable[[], Mapping[str, Any]],
    save_of: Callable[[Sequence[Mapping[str, Any]]], RankSave],
) -> RankSave:
    """Agree on the tensors to save, of which this rank has `own`, and on the layout of the files."""
    session.note = "the folder is unchanged"

    def record() -> dict[str, Any]:
        return {
            "files": [],
            "weights": "",
            "versions": f"torch {torch.__version__}, max_weights {__version__}",
            "to": digest([files.folder, dict(files.metadata), files.max_shard_size, files.stem, files.alignment]),
            **own(),
        }

    records = session.agreed(record)
    require_alike(
        session,
        records,
        {
            "tensors": "has other names, dtypes or shapes of tensors",
            "placements": "has other placements of tensors",
            "to": "saves to another folder, with other metadata or other sizes",
        },
    )
    return agreed_plan(session, records, lambda: save_of(records), "has other files in its plan")


def _saved(
    session: Session,
    own: Sequence[Buffer],
    save: RankSave,
    progress: Progress | bool | None,
    *,
    read_back: bool = False,
) -> list[Path]:
    """Write the parts of this rank; after an error, remove them."""
    report, finish = progress_of(progress)
    try:
        return _written(session, own, save, report, read_back=read_back)
    except BaseException:
        # Also on ranks that have begun nothing: the rank that has begun may be gone.
        save.discard()
        raise
    finally:
        finish()


def _written(
    session: Session,
    own: Sequence[Buffer],
    save: RankSave,
    report: Callable[[int, int], object] | None,
    *,
    read_back: bool,
) -> list[Path]:
    """Write the parts of this rank, and check that all ranks could."""
    first = session.rank == 0
    begun = session.agreed(lambda: {"paths": save.begin() if first else []})[0]["paths"]
    sizes = [one["bytes"] for one in session.agreed(lambda: {"bytes": save.open(session.rank, begun, own)})]
    own_size, done = sizes[session.rank], 0

    def wrote(count: int) -> None:
        nonlocal done
        done += count
        if report is not None and count:
            report(done, own_size)

    message = arrived = torch.empty(0, dtype=torch.uint8)
    to: list[int] = []
    of: list[int] = []
    late: Exception | None = None

    def take_and_send(number: int) -> dict[str, Any]:
        """Write the parts received in the last round, and make the message for this one."""
        nonlocal message, to, of
        if late is not None:
            raise late
        if number > 0:
            wrote(save.take(Buffer.from_dlpack(arrived), number - 1))
        if number < save.rounds:
            buffer, to, of = save.message(number)
            message = buffer.torch().to(session.device)
        return {}

    rounds = session.agreed(lambda: {"rounds": save.rounds})[0]["rounds"]
    for number in range(rounds + 1 if rounds else 0):
        session.agreed(lambda number=number: take_and_send(number))  # type: ignore[misc]
        if number < rounds and session.size > 1:
            there = torch.empty(sum(of), dtype=torch.uint8, device=session.device)
            work = session.connection.all_to_all(there, message, of, to)
            try:
                wrote(save.write(-(-own_size // rounds)))  # of its own parts, while the others send
            except Exception as failed:
                late = failed
            session.wait(work)
            arrived = there.cpu()

    def write() -> dict[str, Any]:
        count = save.write(ROUND)
        wrote(count)
        return {"count": count}

    while any(one["count"] for one in session.agreed(write)):
        pass

    def flush() -> dict[str, Any]:
        save.flush()
        return {"sent": save.sent()}

    def verify(*, is_placed: bool) -> dict[str, Any]:
        save.verify(is_placed)
        return {}

    sent = [one["sent"] for one in session.agreed(flush)]
    if read_back:
        session.agreed(lambda: verify(is_placed=False))
    of_files = [[tuple(part) for one in sent for part in one[file]] for file in range(len(begun))]
    session.note = ""
    placed = session.agreed(lambda: {"paths": save.finish(of_files) if first else []})
    save.leave()
    if read_back:
        session.agreed(lambda: verify(is_placed=True))
    return paths_of([Path(path) for path in placed[0]["paths"]])
