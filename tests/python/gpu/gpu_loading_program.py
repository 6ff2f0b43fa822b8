"""Run by test_gpu_loading.py in separate processes, on the stand-in driver: one function for each promise of
`load(device=…)`. Each gets an output folder, and that of the models.
"""

import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
from safetensors.numpy import save_file

import max_weights
from gpu_program import (
    CALLS,
    PIECE,
    copied_on_a_stream,
    counters,
    driver,
    fails,
    more_counters,
    nothing_is_left,
    refused,
    same,
)
from max_weights import DeviceError, DType, FileChangedError, load_ranks, load_weights, release_memory
from max_weights.driver import Buffer, Device
from max_weights.errors import ArgumentError
from max_weights.graph.weights import GGUFWeights
from max_weights.sharding import Shard, ShardingStrategy

MODELS = [
    "minilm.safetensors",
    "derived/sharded",
    "smollm2-135m.Q4_1.gguf",
    "crepe-tiny.pth",
    "derived/layer0.bf16.legacy.pt",
    "derived/layer0.f8e4m3.safetensors",
]
# A tensor of each block type, for tests that do not depend on the size.
BLOCKS = "derived/minilm-ffn-allquants.gguf"
HIDDEN_LIMIT = 512 << 20  # the maximum pinned memory of a load


def loads_equally(path: Path, **options: Any) -> None:
    """Assert that tensors on a device have the names, dtypes, shapes and bits of `load` on the CPU."""
    weights = load_weights(path)
    if isinstance(weights, GGUFWeights) and not options.keys() & {"dtype", "packed"}:
        options = options | {"dtype": "float32"}
    expected = weights.load(**({"copy": True} | options))
    there = weights.load(device="cuda:0", **options)
    assert list(there) == list(expected)
    for name, tensor in expected.items():
        assert there[name].device == Device("gpu", 0)
        assert same(there[name].to("cpu"), tensor), (path, name, options)


def large(folder: Path, mebibytes: int) -> Path:
    """A file of tensors of 24 MiB and a rest, with small ones of other dtypes between them."""
    path, count = folder / f"large{mebibytes}.safetensors", 24 << 20
    tensors: dict[str, Any] = {}
    for number in range(mebibytes * (1 << 20) // count + 1):
        size = min(count, (mebibytes << 20) - number * count)
        tensors[f"layer.{number:03}.weight"] = np.arange(size // 2, dtype=np.uint16) * np.uint16(number * 2 + 1)
        tensors[f"layer.{number:03}.scale"] = np.full(3, number, np.float32)
    save_file(tensors, path)
    return path


def every_format_arrives_bit_for_bit(folder: Path, models: Path) -> None:
    for name in MODELS:
        loads_equally(models / name)
    loads_equally(models / BLOCKS, packed="keep")
    loads_equally(models / BLOCKS, dtype="bfloat16")
    with ZipFile(models / MODELS[3]) as stored, ZipFile(folder / "deflated.pth", "w", ZIP_DEFLATED) as deflated:
        for entry in stored.namelist():
            deflated.writestr(entry, stored.read(entry))
    loads_equally(folder / "deflated.pth")
    assert nothing_is_left()


def every_option_gives_what_it_gives_on_the_cpu(folder: Path, models: Path) -> None:
    for options in (
        {"dtype": "float16"},
        {"dtype": "bfloat16", "copy": "per-tensor"},
        {"dtype": "float64", "threads": 3},
        {"dtype": "float8_e4m3fn"},
        {"select": re.compile(r".*[.](2|3)[.].*weight"), "rename": str.upper},
        {"copy": "per-tensor"},
        {"backend": "read", "drop_cache": True},
        {"backend": "direct"},
        {"backend": "direct", "dtype": "float32"},
    ):
        loads_equally(models / "minilm.safetensors", **options)
        loads_equally(models / BLOCKS, **options)
    path = large(folder, 60)
    for options in ({}, {"dtype": "float32"}, {"backend": "direct"}, {"threads": 1}, {"max_memory": 64 << 20}):
        loads_equally(path, **options)
    assert nothing_is_left()


def tensors_lie_in_one_memory_for_each_dtype(folder: Path, _: Path) -> None:
    tensors = {f"{kind}{number}": np.full(number + 1, number, kind) for number in range(2000) for kind in ("i2", "f4")}
    tensors["empty"] = np.zeros((0, 3), np.float32)
    save_file(tensors, folder / "small.safetensors")
    weights = load_weights(folder / "small.safetensors")
    loads_equally(folder / "small.safetensors")
    release_memory()
    events = counters()["events"]
    there = weights.load(device="cuda")
    assert len(there) == 4001
    assert counters()["events"] - events < 16  # one for each memory and each staging buffer
    plan = max_weights.plan(weights, device="cuda")
    assert counters()["device_bytes"] == sum(plan.arenas.values())
    before = {tensor.__dlpack_device__() for tensor in there.values()}
    assert before == {(2, 0)}
    del there
    assert nothing_is_left()


def tensors_that_share_bytes_share_them_there(folder: Path, _: Path) -> None:
    import torch

    whole = torch.arange(300_000, dtype=torch.float32)
    tensors = {"whole": whole, "row": whole[1000:2000], "turned": whole[:6].view(2, 3).T, "tied": whole}
    torch.save(tensors, folder / "tied.pt")
    loads_equally(folder / "tied.pt")
    there = load_weights(folder / "tied.pt").load(device="cuda:1")
    assert counters()["device_bytes"] < 2 * whole.nbytes
    assert there["tied"].device == Device("gpu", 1)
    del there
    assert nothing_is_left()


def a_consumers_stream_waits_for_all_streams_of_the_load(folder: Path, _: Path) -> None:
    path = large(folder, 60)
    expected = load_weights(path).load(copy=True)
    there = load_weights(path).load(device="cuda")
    # Neighbouring staging buffers are copied on two streams, and no copy is complete.
    for name in sorted(there, key=lambda name: -there[name].nbytes)[:2]:
        found, violations = copied_on_a_stream(there[name], lambda own: own)
        assert (found == bytes(expected[name].contiguous().view(DType.uint8).to_numpy()), violations) == (True, 0)


def staging_keeps_to_its_bound_and_is_kept(folder: Path, _: Path) -> None:
    path = large(folder, 100)
    weights = load_weights(path)
    for most in (2 * PIECE, 3 * PIECE + 1, 64 << 20):
        weights.load(device="cuda", max_memory=most, threads=4)
        assert 0 < counters()["pinned_bytes"] <= most
    kept = counters()["pinned_bytes"]
    weights.load(device="cuda", threads=4)
    assert kept <= counters()["pinned_bytes"] <= 12 * PIECE <= HIDDEN_LIMIT  # two for each thread, and four
    weights.load(device="cuda", max_memory=2 * PIECE)
    assert counters()["pinned_bytes"] <= 2 * PIECE
    for most in (1, PIECE):
        with pytest.raises(ValueError, match=f"needs {2 * PIECE} bytes of host memory, but max_memory leaves"):
            weights.load(device="cuda", max_memory=most)
    assert nothing_is_left()


def nothing_is_unpinned_after_a_load(folder: Path, _: Path) -> None:
    path = large(folder, 100)
    there = load_weights(path).load(device="cuda", threads=4)
    kept = counters()["pinned_bytes"]
    assert kept > 4 * PIECE, "more than are kept of themselves"
    for _ in range(3):  # unpinning would wait for all work of the device
        there["layer.000.weight"].to("cpu").to("cuda")
        assert counters()["pinned_bytes"] == kept
    assert release_memory() >= kept
    del there
    path.unlink()
    assert nothing_is_left()


def too_little_memory_names_the_tensor_and_the_bytes(folder: Path, _: Path) -> None:
    path = large(folder, 60)
    weights = load_weights(path)
    message = refused(lambda: weights.load(device="cuda"))
    assert message.startswith(f"no room for 'layer.000.weight' of {24 << 20} bytes and 2 more in the same arena: cuMem")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in message
    message = refused(lambda: weights.load(device="cuda", copy="per-tensor"))  # half-way
    assert message.startswith(f"no room for 'layer.001.weight' of {24 << 20} bytes: cuMemAlloc_v2 of {24 << 20} bytes")
    assert nothing_is_left()
    loads_equally(path, select="layer.002.*")
    assert nothing_is_left()


def every_call_that_fails_is_an_error_that_names_it(folder: Path, _: Path) -> None:
    path = large(folder, 30)
    weights, failed = load_weights(path), 0
    expected = weights.load(copy=True)
    weights.load(device="cuda")
    for name in CALLS:
        # Without its context nothing can be freed, so this fails only if there is something to report.
        for nth in (1, 2) if name == "cuCtxPushCurrent_v2" else (1, 2, 5):
            release_memory()
            fails(name, nth)
            message, there = "", {}
            try:
                there = weights.load(device="cuda")
                assert all(same(there[name].to("cpu"), tensor) for name, tensor in expected.items())
            except DeviceError as error:
                message = str(error)
            del there
            failed += bool(message)
            assert not message or (name in message and "CUDA_ERROR_UNKNOWN, unknown error" in message), message
            driver().fake_cuda_reset()
            assert nothing_is_left(), (name, nth, counters())
    assert failed > len(CALLS), failed


def a_copy_that_fails_later_is_an_error(folder: Path, _: Path) -> None:
    weights = load_weights(large(folder, 100))
    assert driver().fake_cuda_fail_later(b"cuMemcpyHtoDAsync_v2", ctypes.c_uint64(1), 700) == 0
    kept: list[Any] = []
    message = refused(
        lambda: kept.append(weights.load(device="cuda", max_memory=2 * PIECE)) or kept[0].popitem()[1].to("cpu")
    )
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in message
    kept.clear()
    release_memory()
    found = counters()
    assert found["device_bytes"] == found["pinned_bytes"] == found["events"] == 0, found


def a_file_that_is_truncated_during_the_load_is_an_error(folder: Path, _: Path) -> None:
    path = large(folder, 100)
    threading.Timer(0.1, lambda: os.truncate(path, 1 << 20)).start()  # the load takes a second
    with pytest.raises(FileChangedError, match="large100"):
        load_weights(path).load(device="cuda", max_memory=2 * PIECE)
    assert nothing_is_left()


def ctrl_c_ends_a_load_and_frees_what_it_had(folder: Path, _: Path) -> None:
    weights = load_weights(large(folder, 400))
    weights.load(device="cuda", select="*scale")
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for options in ({}, {"dtype": "float32"}, {"backend": "direct"}):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            weights.load(device="cuda", **options)
        took = time.monotonic() - started - 0.1
        print(f"ended {took * 1000:.0f} ms after the signal")
        assert took < 0.5  # 0.1 on an idle machine
        assert nothing_is_left()


def progress_tells_and_ends(folder: Path, _: Path) -> None:
    weights, reported = load_weights(large(folder, 60)), list[tuple[int, int]]()
    weights.load(device="cuda", progress=lambda *at: reported.append(at))
    assert reported[0][0] == 0
    assert reported[-1][0] == reported[-1][1] == sum(info.bytes for info in max_weights.infos(weights))

    def end(*_: int) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        weights.load(device="cuda", progress=end)
    assert nothing_is_left()


def a_rank_has_its_part_on_its_device(folder: Path, models: Path) -> None:
    strategies = {
        "*.query.weight": ShardingStrategy.rowwise(2),
        "*.dense.weight": ShardingStrategy.columnwise(2),
        "*": None,
    }
    weights = load_weights(models / "minilm.safetensors")
    for options in [{}, {"dtype": "float16"}, {"backend": "direct"}, {"copy": "per-tensor"}]:
        expected = [weights.load(shard=Shard(rank, 2, strategies), **({"copy": True} | options)) for rank in range(2)]
        one = weights.load(device="cuda:1", shard=Shard(1, 2, strategies), **options)
        both = load_ranks(weights, [Shard(rank, 2, strategies) for rank in (1, 0)], ["cuda:1", "cuda:0"], **options)
        for there, rank, index in [(one, 1, 1), (both[0], 1, 1), (both[1], 0, 0)]:
            assert list(there) == list(expected[rank])
            for name, tensor in expected[rank].items():
                assert there[name].device == Device("gpu", index)
                assert same(there[name].to("cpu"), tensor), (name, options)
    assert not any(folder.iterdir())
    del one, both, there
    assert nothing_is_left()


def what_is_there_is_saved_as_it_is_from_the_cpu(folder: Path, models: Path) -> None:
    for name in (BLOCKS, *MODELS[3:]):
        weights = load_weights(models / name)
        dtype = "float32" if isinstance(weights, GGUFWeights) else None
        here, there = weights.load(copy=True, dtype=dtype), weights.load(device="cuda:0", dtype=dtype)
        for save, ending in ((max_weights.save_file, "safetensors"), (max_weights.save_gguf, "gguf")):
            if ending == "gguf" and "f8e4m3" in name:
                continue  # GGUF has no type for it
            for tensors, called in ((here, "here"), (there, "there")):
                save(tensors, folder / f"{called}.{ending}")
            assert (folder / f"there.{ending}").read_bytes() == (folder / f"here.{ending}").read_bytes(), (name, ending)
        declared = {key: (tensor.dtype, tensor.shape) for key, tensor in here.items()}
        with max_weights.SafetensorsWriter(folder / "there.safetensors", declared) as writer:
            for key, tensor in there.items():
                writer.write(key, tensor)
        assert (folder / "there.safetensors").read_bytes() == (folder / "here.safetensors").read_bytes(), name
        cut = {key: tensor[::-1] for key, tensor in there.items() if tensor.shape}
        max_weights.save_file(cut, folder / "cut.safetensors")
        found = load_weights(folder / "cut.safetensors").load()
        assert all(same(tensor, here[key][::-1].contiguous()) for key, tensor in found.items())


def what_two_ranks_have_is_read_once(folder: Path, _: Path) -> None:
    path = folder / "wide.safetensors"
    save_file({"w": np.arange(8 << 20, dtype=np.float32).reshape(4096, 2048)}, path)
    weights = load_weights(path)
    shards = [Shard(rank, 2, ShardingStrategy.columnwise(2)) for rank in range(2)]
    expected = [weights.load(copy=True, shard=shard)["w"] for shard in shards]
    before = bytes_read()
    there = load_ranks(weights, shards, ["cuda:0", "cuda:1"], backend="direct")
    assert bytes_read() - before < 1.1 * path.stat().st_size, "each byte of the file is read once"
    for tensors, tensor in zip(there, expected, strict=True):
        assert same(tensors["w"].to("cpu"), tensor)
    for wrong, message in [(["cuda:0"], "2 ranks need"), (["cuda:0", "gpu:0"], "2 ranks need"), ([], "2 ranks need"),
                           (["cuda:0", "cpu"], "several ranks go to separate GPUs")]:  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            load_ranks(weights, shards, wrong)
    with pytest.raises(ArgumentError, match="0 ranks need"):
        load_ranks(weights, [], [])
    with pytest.raises(DeviceError, match="framework='numpy'"):
        load_ranks(weights, shards, ["cuda:0", "cuda:1"], framework="numpy")
    del there, tensors
    assert nothing_is_left()


def bytes_read(how: str = "read_bytes") -> int:
    """Bytes that this process read from disks (zero for files on a RAM disk); or, as `rchar`, by system calls."""
    counted = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counted[how])


def the_bus_carries_the_small_form(folder: Path, models: Path) -> None:
    path = folder / "wide.safetensors"
    save_file({"w": np.arange(4 << 20, dtype=np.float32).reshape(2048, 2048).view(np.float16), "b": np.ones(7)}, path)
    for file, options, widest in [
        (path, {"dtype": "float32"}, path.stat().st_size),
        (path, {"dtype": {"w": "float32"}, "backend": "direct"}, path.stat().st_size),
        (models / "smollm2-135m.Q4_1.gguf", {"dtype": "bfloat16"}, (models / "smollm2-135m.Q4_1.gguf").stat().st_size),
    ]:
        weights = load_weights(file)
        expected = weights.load(**({"copy": True} | options))
        before, ran = counters()["bytes_to_device"], more_counters()["kernels"]
        there = weights.load(device="cuda:0", **options)
        for name, tensor in expected.items():
            assert same(there[name].to("cpu"), tensor), (name, options)
        copied = counters()["bytes_to_device"] - before
        assert copied < 1.05 * widest, f"{copied} of {widest}: the bytes of the file, and small tensors"
        assert more_counters()["kernels"] > ran
        del there
    path.unlink()
    assert nothing_is_left()


def a_kernel_that_fails_is_an_error_and_one_that_cannot_be_compiled_is_not(folder: Path, _: Path) -> None:
    path = folder / "wide.safetensors"
    save_file({"w": np.arange(8 << 20, dtype=np.float16).reshape(4096, 2048)}, path)
    weights = load_weights(path)
    expected = weights.load(dtype="float32")["w"]
    assert driver().fake_cuda_fail(b"cuModuleLoadData", ctypes.c_uint64(1), 222) == 0
    assert same(weights.load(device="cuda", dtype="float32")["w"].to("cpu"), expected)
    assert more_counters()["kernels"] == 0, "this device has no kernels: the CPU converts"
    for at in (1, 3):
        assert driver().fake_cuda_fail(b"cuLaunchKernel", ctypes.c_uint64(at), 701) == 0
        message = refused(lambda: weights.load(device="cuda", dtype="float32"))
        assert message.startswith("kernel cast_f16_f32: cuLaunchKernel on gpu:0 failed: "), message
        assert nothing_is_left()
    assert same(weights.load(device="cuda", dtype="float32")["w"].to("cpu"), expected)
    path.unlink()
    assert nothing_is_left()


def threads_load_to_two_devices(folder: Path, _: Path) -> None:
    path = large(folder, 60)
    expected = load_weights(path).load(copy=True)

    def work(number: int) -> None:
        there = load_weights(path).load(device=f"cuda:{number % 2}")
        if not all(same(there[name].to("cpu"), tensor) for name, tensor in expected.items()):
            wrong.append(number)

    wrong: list[int] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert nothing_is_left()


def what_is_not_done_there_yet_is_refused(folder: Path, models: Path) -> None:
    weights = load_weights(models / "minilm.safetensors")
    requested: dict[str, dict[str, Any]] = {
        "copy=False": {"copy": False},
        "framework='numpy'": {"framework": "numpy"},
    }
    for name, options in requested.items():
        for call in (max_weights.WeightsNode.load, max_weights.plan):
            message = refused(lambda call=call, options=options: call(weights, device="cuda", **options))
            assert message == f'load to cuda has no {name} yet: load to the CPU, and move the tensors with .to("cuda")'
    assert refused(lambda: weights.load(device="cuda:2")) == "no device gpu:2: there are 2, gpu:0 to gpu:1"
    assert "tpu" in refused(lambda: weights.load(device="tpu"))
    assert all(tensor.is_host for tensor in weights.load(device="cpu").values())
    assert not any(folder.iterdir())
    assert nothing_is_left()


def rows_of_a_table_go_to_memory_of_the_device(folder: Path, models: Path) -> None:
    table = max_weights.table(models / "minilm.safetensors", "embeddings.word_embeddings.weight")
    ids = np.array([[101, 7592], [102, 101]])
    for dtype in ("float16", "float32"):
        out = Buffer.zeros([2, 2, 384], dtype, "cuda:1")
        assert table.take(ids, dtype, out=out) is out
        assert same(out.to("cpu"), table.take(ids, dtype))
        pending = table.take(ids[::-1], dtype, out=out, wait=False)
        assert same(pending.result().to("cpu"), table.take(ids[::-1], dtype))
    with pytest.raises(ValueError, match=re.escape("out must be contiguous float16 of shape [2, 2, 384]")):
        table.take(ids, "float16", out=Buffer.zeros([2, 384], "float16", "cuda"))
    del out, pending
    assert not any(folder.iterdir())
    assert nothing_is_left()


def a_forked_child_is_refused(folder: Path, models: Path) -> None:
    weights = load_weights(models / "minilm.safetensors")
    held = [weights.load(device="cuda")]
    child = os.fork()
    if child == 0:
        message = refused(lambda: weights.load(device="cuda"))
        held.clear()
        os._exit(0 if "forked" in message and "spawn" in message else 1)
    assert os.waitpid(child, 0)[1] == 0
    held.clear()
    assert not any(folder.iterdir())
    assert nothing_is_left()


def a_process_may_end_while_a_load_is_copied(folder: Path, _: Path) -> None:
    globals()["kept"] = load_weights(large(folder, 30)).load(device="cuda")


if __name__ == "__main__":
    promise: Callable[[Path, Path], None] = globals()[sys.argv[1]]
    promise(Path(sys.argv[2]), Path(sys.argv[3]))
