#!/usr/bin/env python3
"""A Llama block sharded over four devices, each rank taking its part out of one mapped file.

    sharded_llama.py [MODEL.safetensors]

Without a file, one block in the shapes of a small Llama is written to a temporary folder. Each rank is a separate
process, as in real use. It declares the weights with their strategies, takes its shards, and prints their sizes and the
bytes read from the disk. The page cache is emptied before each rank if the system allows it; a RAM disk never has disk
reads.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from math import prod
from multiprocessing import get_context
from pathlib import Path

import max_weights
from max_weights import Buffer, DeviceRef
from max_weights.graph import Weight
from max_weights.sharding import Segment, ShardingStrategy

RANKS = 4
HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM = 2048, 5632, 32, 4, 64
BLOCK = "model.layers.0."

# Queries, keys, values, gate and up are split by outputs; the two output projections take the matching columns. So a
# rank needs nothing from the others before the last sum.
STRATEGIES = {
    "input_layernorm.weight": ShardingStrategy.replicate(RANKS),
    "self_attn.q_proj.weight": ShardingStrategy.segmented(RANKS, 0, [Segment.head_aware(HEADS, HEAD_DIM)]),
    "self_attn.k_proj.weight": ShardingStrategy.rowwise(RANKS),
    "self_attn.v_proj.weight": ShardingStrategy.rowwise(RANKS),
    "self_attn.o_proj.weight": ShardingStrategy.head_aware_columnwise(RANKS, HEADS, HEAD_DIM),
    "post_attention_layernorm.weight": ShardingStrategy.replicate(RANKS),
    "mlp.gate_proj.weight": ShardingStrategy.rowwise(RANKS),
    "mlp.up_proj.weight": ShardingStrategy.rowwise(RANKS),
    "mlp.down_proj.weight": ShardingStrategy.columnwise(RANKS),
}


def write_block(path: Path) -> None:
    """Write one block of random bf16 numbers as a safetensors file, and an embedding that no rank uses."""
    shapes = {
        "input_layernorm.weight": [HIDDEN],
        "self_attn.q_proj.weight": [HEADS * HEAD_DIM, HIDDEN],
        "self_attn.k_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN],
        "self_attn.v_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN],
        "self_attn.o_proj.weight": [HIDDEN, HEADS * HEAD_DIM],
        "post_attention_layernorm.weight": [HIDDEN],
        "mlp.gate_proj.weight": [FEED_FORWARD, HIDDEN],
        "mlp.up_proj.weight": [FEED_FORWARD, HIDDEN],
        "mlp.down_proj.weight": [HIDDEN, FEED_FORWARD],
    }
    named = {"model.embed_tokens.weight": [8192, HIDDEN]} | {BLOCK + name: shape for name, shape in shapes.items()}
    header, end = {}, 0
    for name, shape in named.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end := end + 2 * prod(shape)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        numbers = random.Random(0).randbytes(1 << 20)
        for start in range(0, end, len(numbers)):
            file.write(numbers[: end - start])


def shards_of(path: Path, rank: int) -> dict[str, Buffer]:
    """Return the rank's part of each weight of the block: views of the file for rows, gathered copies for columns."""
    devices = [DeviceRef.GPU(i) for i in range(RANKS)]
    found = {}
    with max_weights.load_weights(path) as weights:
        for name, strategy in STRATEGIES.items():
            data = weights[BLOCK + name].data()
            whole = Weight(data.name, data.dtype, data.shape, "cpu", sharding_strategy=strategy)
            shard = whole.shard(devices)[rank]
            found[shard.name] = shard.data_of(data).to_buffer().prefetch()
    return found


def run_rank(path: Path, rank: int) -> tuple[int, int, list[str]]:
    """Use the shards of a rank; return their bytes, the bytes read from the disk, and a line for each shard."""
    before = disk_bytes()
    shards = shards_of(path, rank)
    used = {name: shard.copy() for name, shard in shards.items()}  # stands for the copy to the device
    read = disk_bytes() - before
    lines = [
        f"  {name:49} {list(shard.shape)!s:13} {'view' if shard.is_mapped else 'gathered'}"
        for name, shard in shards.items()
    ]
    return sum(shard.nbytes for shard in used.values()), read, lines


def disk_bytes() -> int:
    """Return the bytes that this process has had read from disks."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * 512


def forget(path: Path) -> None:
    """Ask the system to drop the file from its page cache."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(path: Path) -> None:
    """Run the ranks sequentially, each in a separate process."""
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes, {RANKS} ranks")
    for rank in range(RANKS):
        forget(path)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            held, read, lines = process.submit(run_rank, path, rank).result()
        if rank == 0:
            print("\n".join(lines))
        print(
            f"rank {rank}: {held:,} bytes of shards ({held / size:.0%} of the file), {read:,} bytes read from the disk"
        )
    print("Columns lie in the pages of their rows, so that more is read than kept for the two that were gathered.")


def main() -> int:
    """Run the example on the file given, or on one that it writes."""
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "block.safetensors"
        write_block(path)
        run(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
