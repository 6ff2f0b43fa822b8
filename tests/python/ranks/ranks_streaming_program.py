"""Streams of several processes over gloo, for test_ranks_streaming.py; see ranks_program.py for the arguments."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import torch.distributed as dist

import max_weights
import ranks_program as ranks
from max_weights._ranks import exchange, loading
from max_weights.sharding import Shard, ShardingStrategy
from ranks_program import FOLDER, numbers, raised, slowly, written

SMALL = {f"t{number:02}": (16, 16) for number in range(12)}


def _small_plan(*arguments: Any, unit_bytes: int | None, round_bytes: int | None, **options: Any) -> Any:
    """A plan of small units and rounds, so that small files have many."""
    sizes = {"unit_bytes": unit_bytes or 1200, "round_bytes": round_bytes or 2400}
    return max_weights._core.RankPlan(*arguments, **sizes, **options)


loading.RankPlan = _small_plan  # type: ignore[misc, assignment]


def small(name: str) -> Any:
    return max_weights.load_weights(written(name, {name: numbers(*shape) for name, shape in SMALL.items()}))


def in_group(weights: Any, **options: Any) -> Any:
    return weights.stream(framework="torch", group=dist.group.WORLD, **options)


def streams() -> dict[str, Any]:
    """Two ranks in two replicas, and whole tensors on each: the tensors that each loads alone, in one order."""
    shapes = {"a": (64, 48), "b": (48, 64), "c": (7,), "empty": (0, 4), "scalar": ()}
    weights = max_weights.load_weights(written("streams.safetensors", {n: numbers(*s) for n, s in shapes.items()}))
    table = {"a": ShardingStrategy.rowwise(2), "b": ShardingStrategy.columnwise(2)}
    columns = {"q": ShardingStrategy.columnwise(2)}
    if ranks.RANK == 0:
        _write_packed(FOLDER / "streams.gguf")
    dist.barrier()
    packed = max_weights.load_weights(FOLDER / "streams.gguf")
    wrong, orders = [], []
    for tree, strategies, options in (
        (weights, table, {}),
        (weights, table, {"dtype": "bfloat16"}),
        (weights, table, {"rename": {"a": "z"}}),
        (packed, columns, {"packed": "keep"}),
        (packed, columns, {"dtype": "float32"}),
    ):
        for shard in (Shard(ranks.RANK % 2, 2, strategies), None):
            alone = tree.load(shard=shard, framework="torch", **options)
            streamed = list(in_group(tree, shard=shard, **options))
            orders.append([name for name, _ in streamed])
            together = dict(streamed)
            if together.keys() != alone.keys() or len(streamed) != len(alone):
                wrong.append(f"{shard} {options}: {orders[-1]}")
            wrong += [f"{shard} {options} {name}" for name in alone if not torch.equal(alone[name], together[name])]
    return {"wrong": wrong, "orders": orders}


def _write_packed(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    values = np.arange(8 * 128, dtype=np.float32).reshape(8, 128) / 100
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("q", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("n", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bounded() -> dict[str, Any]:
    """A file that is larger than the memory budget of the stream; exactly one rank reads each byte."""
    names = {f"t{number:02}": numbers(1024, 1024) for number in range(32)}
    weights = max_weights.load_weights(written("bounded.safetensors", names))
    del names
    plans = []

    def kept(*arguments: Any, **options: Any) -> Any:
        plans.append(_small_plan(*arguments, **options))
        return plans[-1]

    loading.RankPlan = kept  # type: ignore[misc, assignment]
    max_weights.release_memory()
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    with in_group(weights, max_memory="32MB", backend="read") as stream:
        count = sum(1 for name, tensor in stream if tensor.shape == (1024, 1024) and name)
        most = stream.max_memory
    peak = _peak() - before
    loading.RankPlan = _small_plan  # type: ignore[misc, assignment]
    return {"count": count, "most": most, "peak": peak, "read": sum(plans[0].costs()[0])}


def _peak() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def left_together() -> dict[str, Any]:
    """All stop at the same weight, at any position; some a moment later."""
    weights = small("together.safetensors")
    found = []
    for stop in range(len(SMALL) + 1):

        def take(stop: int = stop) -> None:
            with in_group(weights) as stream:
                for number, _ in enumerate(stream, 1):
                    if number == stop:
                        time.sleep(0.1 * (ranks.RANK % 2))
                        break

        found.append(raised(take)["kind"])
    return {"errors": [kind for kind in found if kind != "nothing"], "then": len(list(in_group(weights)))}


def _ended(end: Callable[[Any], object]) -> dict[str, Any]:
    """Rank 1 ends its stream with the third weight; the others continue."""
    weights = small("ended.safetensors")

    def take() -> None:
        with in_group(weights) as stream:
            for number, _ in enumerate(stream, 1):
                if ranks.RANK == 1 and number == 3:
                    return end(stream)
        return None

    try:
        found = raised(take)
    except ZeroDivisionError as error:
        found = {"kind": "ZeroDivisionError", "text": str(error), "seconds": 0}
    dist.barrier()
    return found | {"then": len(list(in_group(weights)))}


def left_early() -> dict[str, Any]:
    return _ended(lambda stream: stream.close())


def error_of_the_loop() -> dict[str, Any]:
    return _ended(lambda _: 1 // 0)


def cannot_read() -> dict[str, Any]:
    """The file of one rank is truncated after it was opened."""
    path = written("read.safetensors", {name: numbers(*shape) for name, shape in SMALL.items()})
    own = FOLDER / f"read{ranks.RANK}.safetensors"
    own.write_bytes(path.read_bytes())
    os.utime(own, (1, 1))
    dist.barrier()
    weights = max_weights.load_weights(own)
    seen = []

    def take() -> None:
        stream = in_group(weights)
        if ranks.RANK == 1:
            os.truncate(own, own.stat().st_size - 6000)
        for name, _ in stream:
            seen.append(name)

    return raised(take) | {"given": seen}


def slow_consumer() -> dict[str, Any]:
    """A rank takes longer between two weights than the others' timeout."""
    weights = small("consumer.safetensors")

    def take() -> None:
        with in_group(weights, rank_timeout=1.0) as stream:
            for number, _ in enumerate(stream, 1):
                if ranks.RANK == 3 and number == 2:
                    time.sleep(3)

    found = raised(take)
    dist.barrier()
    return found


def refused() -> dict[str, Any]:
    weights = small("refused.safetensors")
    odd = ranks.RANK == 2
    found = {
        "reuse": raised(lambda: in_group(weights, reuse=True)),
        "digests": raised(lambda: in_group(weights, digests={})),
        "small": raised(lambda: in_group(weights, max_memory=2000)),
        "other": raised(lambda: in_group(weights, max_memory=20_000 if odd else 30_000)),
        "names": raised(lambda: in_group(weights, select="t01" if odd else "t02")),
        "dtype": raised(lambda: in_group(weights, dtype="bfloat16" if odd else "float16")),
    }
    dist.barrier()
    return found


def killed() -> dict[str, Any]:
    weights = small("killed.safetensors")
    read = slowly(2, lambda: os.kill(os.getpid(), signal.SIGKILL))
    found = raised(lambda: list(in_group(weights, rank_timeout=20)))
    exchange._Runner.read = read  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    ranks.main(sys.argv[4:], globals())
