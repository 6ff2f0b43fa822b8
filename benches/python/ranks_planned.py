"""The cost of plans for many ranks, by the planner used for loading: the files are sparse, and no data is read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import files
from ranks_work import axis_of
from report import markdown_table, number

NODE = 8  # ranks of a machine
PLAN_RANKS = 1024
PLAN_TENSORS = 91_000
ABSENT = 2**32 - 1
Split = tuple[int | None, int]
Mesh = tuple[list[int], list[int], list[Split]]


@dataclass(frozen=True)
class Row:
    """The cost of one layout on a number of ranks: bytes as multiples of the checkpoint's size C."""

    layout: str
    ranks: int
    spread: str
    storage: float
    requests: int
    into_a_node: float
    imbalance: float
    rounds: int
    seconds: float


def model(layers: int) -> Iterator[files.Entry]:
    """Yield the tensors of a llama of 70 billion weights, or of one with more layers."""
    return files.llama(layers, hidden=8192, kv=1024, feed_forward=28_672)


def many(count: int) -> Iterator[files.Entry]:
    """Yield about `count` matrices: a mixture of many experts."""
    for layer in range(max(1, count // 1137)):
        for expert in range(379):
            for name, shape in {"down_proj": (2048, 768), "gate_proj": (768, 2048), "up_proj": (768, 2048)}.items():
                yield files.Entry(f"model.layers.{layer}.mlp.experts.{expert}.{name}.weight", "BF16", shape)


def write_holes(path: Path, entries: Iterator[files.Entry]) -> None:
    """Write the header of a safetensors file, and holes for its tensors."""
    header, end = dict[str, object](), 0
    for entry in entries:
        start, end = end, end + entry.size
        header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def _meshes(layout: str, ranks: int) -> list[Mesh]:
    """Return the meshes of replicated tensors, and of tensors split along axis 0 and along axis 1."""
    splits: list[Split] = [(None, 0), (0, 0), (1, 0)]
    if layout == "FSDP":
        return [(list(range(ranks)), [ranks], [split]) for split in splits]
    sizes = [ranks // NODE, NODE]
    return [(list(range(ranks)), sizes, [(None, 0), split]) for split in splits]


def planned(path: Path, layout: str, ranks: int, spread: str) -> Row:
    """Plan a load of a file by `ranks` ranks."""
    import max_weights
    from max_weights._core import RankPlan

    weights = max_weights.load_weights(path)
    infos = max_weights.infos(weights)
    size = sum(info.bytes for info in infos)
    axes = [0 if layout == "FSDP" else axis_of(info.name) for info in infos]
    sharings = [0 if axis is None else 1 + axis for axis in axes]
    meshes, local, times = _meshes(layout, ranks), ranks, 1
    if spread == "node":  # each plans for its own ranks only
        local, times = min(NODE, ranks), max(1, ranks // NODE)
        meshes = [([rank if rank < local else ABSENT for rank in of], sizes, how) for of, sizes, how in meshes]
    nodes = [rank // NODE for rank in range(local)]
    began = time.perf_counter()
    plan = RankPlan(weights, [info.name for info in infos], sharings, meshes=meshes, part_of=[], nodes=nodes)
    seconds = time.perf_counter() - began
    read, requests, _, fabric, rounds = plan.costs()
    imbalance = max(read) * local / sum(read)
    return Row(
        layout,
        ranks,
        spread,
        sum(read) * times / size,
        requests * times,
        fabric / size,
        imbalance,
        rounds,
        seconds,
    )


def simulate(folder: Path, small: bool) -> tuple[dict[str, list[Row]], Row]:
    """Plan loads of models of 70 and 700 billion weights by 8 to 1,024 ranks, and of very many tensors."""
    models = {"4 layers": 4} if small else {"70B": 80, "700B": 800}
    rows = dict[str, list[Row]]()
    for name, layers in models.items():
        path = folder / f"holes-{layers}.safetensors"
        write_holes(path, model(layers))
        rows[name] = [
            planned(path, layout, ranks, spread)
            for layout in ("TP8 x replicas", "FSDP")
            for ranks in ((8, 64) if small else (8, 64, 256, 1024))
            for spread in (("node", "world") if ranks > NODE else ("node",))
        ]
        path.unlink()
    path = folder / "holes-many.safetensors"
    write_holes(path, many(2000 if small else PLAN_TENSORS))
    most = min((planned(path, "FSDP", PLAN_RANKS, "world") for _ in range(3)), key=lambda row: row.seconds)
    path.unlink()
    return rows, most


def table(rows: dict[str, list[Row]]) -> str:
    """Return the simulation as a table in Markdown."""
    heads = ["model, layout", "ranks", "spread", "from storage, C", "requests", "into a node, C", "imbalance"]
    lines = []
    for name, of_model in rows.items():
        for row in of_model:
            line = [f"{name}, {row.layout}", f"{row.ranks:,}", row.spread, number(row.storage), f"{row.requests:,}"]
            line += [number(row.into_a_node), f"{row.imbalance:.3f}", f"{row.rounds:,}", number(row.seconds * 1e3)]
            lines.append(line)
    return markdown_table([*heads, "rounds", "plan, ms"], lines)
