"""Run by test_gpu_entry_points.py in separate processes, on the stand-in driver: the entry points that bring tensors
to a GPU. Torch cannot use that driver, so a test double receives the tensors, as its `from_dlpack` would: on a
separate stream.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
import torch.utils.dlpack
from safetensors import safe_open as their_safe_open

import max_weights
from gpu_loading_program import BLOCKS, large
from gpu_program import PIECE, copied_on_a_stream, counters, driver, nothing_is_left, same
from gpu_streaming_program import settles
from max_weights import Buffer, DeviceError, DType, UnsupportedError, load_weights, patched
from max_weights.driver import accelerator_count
from max_weights.graph import DeviceRef
from max_weights.sharding import ShardingStrategy

FILE = "minilm.safetensors"
SMALL = "derived/layer0.f8e4m3.safetensors"
TORCHS = (AssertionError, RuntimeError)
SAYS = "NVIDIA driver|not compiled with CUDA"
"""The GPU that torch reports, by its build."""
arrived: list[str] = []
"""The devices of the tensors that the double received."""


def take_the_place_of_torchs_cuda(current: int = 0) -> None:
    """Make torch report the stand-in's devices, and receive tensors from there as its stream sees them."""
    own = torch.utils.dlpack.from_dlpack

    def from_dlpack(tensor: Any) -> torch.Tensor:
        if not isinstance(tensor, Buffer) or tensor.is_host:
            return own(tensor)
        arrived.append(str(tensor.device))
        if str(tensor.device) == "gpu:0" and tensor.nbytes:
            found, violations = copied_on_a_stream(tensor, lambda stream: stream)
            assert violations == 0
            assert found == bytes(tensor.to("cpu").view("uint8", [tensor.nbytes]).to_numpy())
        return own(tensor.to("cpu"))

    torch.utils.dlpack.from_dlpack = from_dlpack
    torch.cuda.is_available = torch.cuda.is_initialized = lambda: True
    torch.cuda.device_count = lambda: 2
    torch.cuda.current_device = lambda: current
    assert accelerator_count() == 2


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor."""
    return tensor.reshape(-1).view(torch.uint8)


class Producer:
    """A tensor of another library on a GPU, as DLPack shows it."""

    def __init__(self, tensor: Buffer, read_only: bool = False) -> None:
        self._tensor, self._read_only = tensor, read_only

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None) -> Any:
        capsule = self._tensor.__dlpack__(stream=stream, max_version=max_version)
        if self._read_only:
            get = ctypes.pythonapi.PyCapsule_GetPointer
            get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            # The flags follow the version, the context and the deleter; the first one means "read-only".
            ctypes.c_uint64.from_address(get(capsule, b"dltensor_versioned") + 24).value |= 1
        return capsule


def equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Whether tensors have the same names, in the same order, and the same bits."""
    same = [
        tensor.dtype == other.dtype and torch.equal(bits(tensor), bits(other))
        for tensor, other in zip(found.values(), expected.values(), strict=True)
    ]
    return list(found) == list(expected) and all(same)


def came_from(device: str, count: int) -> bool:
    """Whether `count` tensors came from this device, and none from another, since the previous call."""
    came = arrived == [device] * count
    arrived.clear()
    return came


def tensors_of_safetensors_files_arrive(_: Path, models: Path) -> None:
    from max_weights.safetensors import safe_open
    from max_weights.safetensors.torch import load_file

    take_the_place_of_torchs_cuda()
    expected = safetensors.torch.load_file(models / SMALL)
    for backend, places in (
        ("mmap", [("cuda", "gpu:0"), ("cuda:1", "gpu:1")]),
        ("pread", [(1, "gpu:1")]),
    ):
        for device, place in places:
            assert equal(load_file(models / SMALL, device, backend=backend), expected)
            assert came_from(place, len(expected))
            with safe_open(models / SMALL, "pt", device, backend=backend) as file:
                assert equal({name: file.get_tensor(name) for name in expected}, expected)
                assert equal(file.get_tensors(), expected)
            assert came_from(place, 2 * len(expected))
    assert nothing_is_left()


def parts_of_tensors_arrive(_: Path, models: Path) -> None:
    from max_weights.safetensors import safe_open

    take_the_place_of_torchs_cuda()
    name = "embeddings.word_embeddings.weight"
    indices: list[Any] = [
        slice(100, 200), slice(None), ..., 5, (slice(3, 9), slice(None, None, 7)), (slice(None, 50, 3), 2), slice(4, 4),
        (slice(1, 3), None),
    ]  # fmt: skip
    with their_safe_open(models / FILE, "pt") as theirs:
        rows = theirs.get_tensor(name)
    for backend in ("mmap", "pread"):
        with safe_open(models / FILE, "pt", "cuda:0", backend=backend) as file:
            part = file.get_slice(name)
            for index in indices:
                found = part[index]
                assert torch.equal(found, rows[index]), index
                assert found.is_contiguous()
                assert came_from("gpu:0", 1)
            assert torch.equal(part[::-1000], rows[range(len(rows) - 1, -1, -1000)])
            with pytest.raises(IndexError):
                part[10**9]
            # Not a basic index: torch selects the part, and copies it to the GPU itself.
            with pytest.raises(TORCHS, match=SAYS):
                part[[1, 5, 2]]
            arrived.clear()
    assert nothing_is_left()


def prefetched_tensors_arrive(_: Path, models: Path) -> None:
    from max_weights.safetensors import safe_open

    take_the_place_of_torchs_cuda()
    expected = safetensors.torch.load_file(models / FILE)
    with safe_open(models / FILE, "pt") as file:
        assert equal(dict(sorted(file.prefetch(device="cuda"))), dict(sorted(expected.items())))
        assert came_from("gpu:0", len(expected))
        plan = {"pooler.dense.weight": slice(3, 5)}
        assert torch.equal(
            file.prefetch(plan, device=1).take("pooler.dense.weight"), expected["pooler.dense.weight"][3:5]
        )
        assert came_from("gpu:1", 1)
    assert nothing_is_left()


def bare_cuda_may_be_torchs_current_device(_: Path, models: Path) -> None:
    from max_weights.safetensors.torch import load_file

    take_the_place_of_torchs_cuda(current=1)
    count = len(load_file(models / FILE, "cuda"))
    assert came_from("gpu:0", count)
    os.environ["MAX_WEIGHTS_CUDA"] = "current"
    load_file(models / FILE, "cuda")
    assert came_from("gpu:1", count)
    load_file(models / FILE, "cuda:0")
    assert came_from("gpu:0", count)
    max_weights.patch()
    safetensors.torch.load_file(models / FILE, "cuda")
    safetensors.torch.load_file(models / FILE, device="cuda")
    with safetensors.safe_open(models / FILE, "pt", "cuda") as file:
        file.get_tensors()
    assert came_from("gpu:1", 3 * count)
    os.environ["MAX_WEIGHTS_CUDA"] = "2"
    with pytest.raises(ValueError, match="MAX_WEIGHTS_CUDA is 'first' or 'current', not '2'"):
        load_file(models / FILE, "cuda")


def calls_of_a_patched_program_are_served(_: Path, models: Path) -> None:
    expected = safetensors.torch.load_file(models / FILE)
    state = torch.load(models / "crepe-tiny.pth")
    original = safetensors.torch.load_file
    take_the_place_of_torchs_cuda()
    torch.serialization.default_restore_location = lambda storage, _: storage  # type: ignore[assignment]
    max_weights.patch()
    assert safetensors.torch.load_file is not original
    assert equal(safetensors.torch.load_file(models / FILE, device="cuda:1"), expected)
    with safetensors.safe_open(models / FILE, framework="pt", device=1) as file:
        assert equal(file.get_tensors(), expected)
    assert came_from("gpu:1", 2 * len(expected))
    assert equal(torch.load(models / "crepe-tiny.pth", map_location="cuda"), state)
    assert came_from("gpu:0", len(state))
    assert {name: calls.fallback for name, calls in patched().items() if calls.fallback} == {}
    # The original handles other devices, frameworks and indices, and raises their errors.
    for device in ("npu:0", "hpu", "xpu", "mps", "cuda:2", 7, "cuda:x", "disk", -1):
        with pytest.raises(Exception) as theirs:  # noqa: PT011
            original(models / FILE, device)
        with pytest.raises(type(theirs.value)) as ours:
            safetensors.torch.load_file(models / FILE, device)
        assert str(ours.value) == str(theirs.value), device
    with pytest.raises(Exception, match="not supported"):
        safetensors.safe_open(models / FILE, framework="np", device="cuda")
    assert arrived == []
    assert patched()["safetensors.torch.load_file"].fallback == 9
    assert nothing_is_left()


def torch_files_arrive(folder: Path, models: Path) -> None:
    take_the_place_of_torchs_cuda(current=1)
    torch.serialization.default_restore_location = lambda storage, _: storage  # type: ignore[assignment]
    from max_weights.torch import load, load_file

    whole = torch.arange(3 << 20, dtype=torch.float32)
    tied = {"whole": whole, "turned": whole[:6].view(2, 3).T, "empty": torch.empty(0), "bytes": torch.arange(7).byte()}
    torch.save(tied, folder / "tied.pt")
    for mmap in (True, False):
        for where, place in (("cuda", "gpu:1"), ("cuda:0", "gpu:0"), (torch.device("cuda", 0), "gpu:0")):
            found = load(folder / "tied.pt", where, mmap=mmap)
            assert all(torch.equal(found[name], tensor) for name, tensor in tied.items())
            assert found["turned"].untyped_storage().data_ptr() == found["whole"].untyped_storage().data_ptr()
            assert came_from(place, 2)
    state = load_file(models / "crepe-tiny.pth", "cpu")
    assert equal(load_file(models / "crepe-tiny.pth", "cuda:1"), state)
    assert came_from("gpu:1", len(state))
    del found
    assert nothing_is_left()


def what_the_gpu_refuses_us_is_left_to_torch(folder: Path, models: Path) -> None:
    from max_weights.safetensors import safe_open
    from max_weights.safetensors.torch import load_file
    from max_weights.torch import load

    take_the_place_of_torchs_cuda()
    path = large(folder, 60)  # the devices have less
    calls: list[Callable[[], Any]] = [
        lambda: load_file(path, "cuda"),
        lambda: safe_open(path, "pt", "cuda").get_tensor("layer.000.weight"),
        lambda: safe_open(path, "pt", "cuda").get_slice("layer.000.weight")[:],
        lambda: safe_open(path, "pt", "cuda").prefetch().take("layer.000.weight"),
    ]
    for call in calls:
        with pytest.raises(TORCHS, match=SAYS):
            call()
        assert settles()
    whole = torch.arange(6 << 20, dtype=torch.float32)
    torch.save({"whole": whole}, folder / "large.pt")
    with pytest.raises(UnsupportedError, match="a storage cannot be put on 'cuda'"):
        load(folder / "large.pt", "cuda")
    assert arrived == []
    assert driver().fake_cuda_fail(b"cuMemAlloc_v2", 1, 2) == 0
    with pytest.raises(TORCHS, match=SAYS):
        load_file(models / FILE, "cuda")
    assert nothing_is_left()


def allocated_weights_arrive_when_they_are_used(_: Path, models: Path) -> None:
    weights = load_weights(models / FILE)
    node, name = weights.pooler.dense.weight, "pooler.dense.weight"
    expected = node.data().to_buffer()
    weight = node.allocate(device=DeviceRef.GPU(1))
    assert (weight.device, weight.dtype, weight.align) == (DeviceRef.GPU(1), DType.float32, 64)
    value = weights.allocated_weights[name]
    assert (tuple(value.shape), value.dtype) == (expected.shape, DType.float32)
    assert np.array_equal(np.asarray(value), expected.to_numpy())  # in host memory, for consumers that request it
    assert counters()["contexts"] == 0
    there = value.to_buffer()
    assert str(there.device) == "gpu:1"
    assert value.to_buffer() is there
    assert value.__dlpack_device__() == (2, 1)
    assert Buffer.from_dlpack(value)._data_ptr() == there._data_ptr()
    assert same(there.to("cpu"), expected)
    assert np.array_equal(np.asarray(value), expected.to_numpy())
    weight.sharding_strategy = ShardingStrategy.rowwise(2)
    rows = weight.shard([DeviceRef.GPU(0), DeviceRef.GPU(1)])[1].data_of(value)
    assert same(rows, expected[192:].copy())
    for dtype in ("bfloat16", "float16", "int32", "float8_e4m3fn"):
        node.allocate(dtype, device="gpu")
        value = weights.allocated_weights[name]
        assert str(value.to_buffer().device) == "gpu:0"
        assert same(value.to_buffer().to("cpu"), expected.astype(dtype)), dtype
    node.allocate(device=DeviceRef.GPU(7))
    with pytest.raises(DeviceError, match="no device gpu:7: there are 2, gpu:0 to gpu:1"):
        weights.allocated_weights[name].to_buffer()
    packed = load_weights(models / "smollm2-135m.Q4_1.gguf").blk[0].attn_q.weight
    for dtype in (None, "float32", "bfloat16", "float64"):
        packed.allocate(dtype, device=DeviceRef.GPU())
        value = packed.allocated_weights[packed.name]
        data = packed.data() if dtype is None else packed.data().astype(dtype)
        assert tuple(value.shape) == tuple(data.shape)
        assert same(value.to_buffer().to("cpu"), data.to_buffer())
        assert "gpu:0, converted" in repr(value)
    del there, value
    for tree in (weights, packed):
        tree.allocated_weights.clear()
    assert nothing_is_left()


def out_is_written_where_it_lies(folder: Path, models: Path) -> None:
    path = large(folder, 60)
    for name, options in ((path, {}), (path, {"dtype": "float32"}), (models / BLOCKS, {"dtype": "float32"})):
        weights = load_weights(name)
        expected = weights.load(**({"copy": True} | options))
        own = {name: Buffer.zeros(tensor.shape, tensor.dtype, "cuda:1") for name, tensor in expected.items()}
        others = {name: Producer(tensor) for name, tensor in own.items()}
        for out in (own, others):
            found = weights.load(out=out, **options)
            assert all(same(own[name].to("cpu"), tensor) for name, tensor in expected.items())
            assert all(found[name]._data_ptr() == own[name]._data_ptr() for name in expected)
            for tensor in own.values():
                tensor.view("uint8", [tensor.nbytes])  # a view of the same memory, which the next load overwrites
        assert "out" in {part.to for part in max_weights.plan(weights, out=own, **options).ranges}
    del found, out, own, others, tensor
    assert nothing_is_left()


def what_lies_between_two_outs_stays(folder: Path, _: Path) -> None:
    values = {f"w{number:02}": np.full(7 + number, number, np.uint8) for number in range(40)}
    safetensors.numpy.save_file(values, folder / "small.safetensors")
    whole = Buffer.from_numpy(np.full(4000, 99, np.uint8)).to("cuda")
    places = {name: slice(100 * number + 3, 100 * number + 3 + values[name].size) for number, name in enumerate(values)}
    out = {name: whole[place] for name, place in places.items()}
    load_weights(folder / "small.safetensors").load(device="cuda:0", out=out)
    expected = np.full(4000, 99, np.uint8)
    for name, place in places.items():
        expected[place] = values[name]
    assert np.array_equal(whole.to("cpu").to_numpy(), expected)
    del whole, out
    assert nothing_is_left()


def out_that_is_inflated_or_swapped_arrives_too(folder: Path, models: Path) -> None:
    with ZipFile(models / "crepe-tiny.pth") as stored, ZipFile(folder / "deflated.pth", "w", ZIP_DEFLATED) as deflated:
        for entry in stored.namelist():
            deflated.writestr(entry, stored.read(entry))
    weights = load_weights(folder / "deflated.pth")
    expected = weights.load()
    for options in ({}, {"dtype": "float16"}):
        expected = weights.load(**options)
        out = {name: Buffer.zeros(tensor.shape, tensor.dtype, "cuda") for name, tensor in expected.items()}
        weights.load(out={name: Producer(tensor) for name, tensor in out.items()}, **options)
        assert all(same(out[name].to("cpu"), tensor) for name, tensor in expected.items())


def out_waits_for_what_its_library_asked_before_and_is_there_on_return(folder: Path, _: Path) -> None:
    # The double's stream still writes to the memory long after the call, and synchronizes as the protocol demands.
    value = np.arange(3 << 20, dtype=np.uint8)
    safetensors.numpy.save_file({"w": value}, folder / "one.safetensors")
    there = Buffer.zeros([value.size], "uint8", "cuda")
    load_weights(folder / "one.safetensors").load(out={"w": Producer(there)})
    found, violations = copied_on_a_stream(there, lambda _: -1)  # no stream order is requested: the host has waited
    assert found == value.tobytes()
    assert violations == 0


def out_that_does_not_fit_is_refused_and_nothing_is_written(_: Path, models: Path) -> None:
    weights, name = load_weights(models / FILE), "pooler.dense.bias"
    bias = Buffer.zeros([384], "float32", "cuda:1")

    def refusal(kind: type[Exception], out: Any, **options: Any) -> str:
        with pytest.raises(kind) as caught:
            weights.load(select="pooler.dense.*", out={name: out}, **options)
        return str(caught.value)

    assert refusal(DeviceError, bias, device="cuda:0").startswith(
        f"out of '{name}' is on gpu:1, but the load goes to gpu:0: load to one device at a time"
    )
    assert "is on gpu:1, but the load goes to cpu:0" in refusal(DeviceError, bias, device="cpu")
    assert "is on cpu:0, but the load goes to gpu:0" in refusal(DeviceError, np.zeros(384, "f4"), device="cuda")
    two = {name: bias, "pooler.dense.weight": Buffer.zeros([384, 384], "float32", "cuda:0")}
    with pytest.raises(DeviceError, match=r"out of 'pooler\.dense\.weight' is on gpu:0, but the load goes to gpu:1"):
        weights.load(out=two)
    assert "out must be contiguous" in refusal(ValueError, Buffer.zeros([383], "float32", "cuda:1"))
    assert "out must be contiguous" in refusal(ValueError, Buffer.zeros([384], "float16", "cuda:1"))
    assert "out must be contiguous" in refusal(ValueError, Buffer.zeros([768], "float32", "cuda:1")[::2])
    assert "read-only" in refusal(ValueError, Producer(bias, read_only=True))
    two["pooler.dense.weight"] = bias.view("float32", [384])
    with pytest.raises(ValueError, match=r"same memory for two tensors|out must be contiguous"):
        weights.load(out=two)
    assert bytes(bias.to("cpu").view("uint8").to_numpy()) == bytes(384 * 4)
    # The weight has no out: it goes where the bias is.
    found = weights.load(select="pooler.dense.*", out={name: bias})
    assert {str(tensor.device) for tensor in found.values()} == {"gpu:1"}
    assert same(bias.to("cpu"), weights.pooler.dense.bias.data().to_buffer())
    del bias, two, found
    gc.collect()  # errors that hold their frames
    assert nothing_is_left()


def a_module_on_a_gpu_is_filled_in_place(_: Path, models: Path) -> None:
    from max_weights._transaction import Destination, Transaction
    from max_weights.torch import load_into

    weights = load_weights(models / FILE)
    memory: dict[tuple[int, ...], Buffer] = {}

    class ObjectHead(Producer):
        device, dtype = torch.device("cuda", 1), torch.float32

    def straight(destination: Destination, shape: Sequence[int]) -> Any:
        if len(shape) != 2:
            return destination.local.view(tuple(shape))
        memory[tuple(shape)] = Buffer.zeros(shape, "float32", "cuda:1")
        return ObjectHead(memory[tuple(shape)])

    # torch cannot copy tensors of the stand-in as it copies those of a GPU.
    keep = Transaction.keep
    Transaction.keep = lambda log, out: None if isinstance(out, ObjectHead) else keep(log, out)  # type: ignore[method-assign]
    Destination.straight = straight  # type: ignore[method-assign]
    take_the_place_of_torchs_cuda()
    module = torch.nn.Linear(384, 384)
    report = load_into(module, models / FILE, select="pooler.dense.*", rename={"pooler.dense.": ""})
    assert set(report.loaded) == {"weight", "bias"}
    assert torch.equal(module.bias.detach(), torch.from_dlpack(weights.pooler.dense.bias))
    assert same(memory[384, 384].to("cpu"), weights.pooler.dense.weight.data().to_buffer())
    memory.clear()
    assert nothing_is_left()


def pinned_memory_stays_bounded(folder: Path, _: Path) -> None:
    from max_weights.safetensors.torch import load_file

    take_the_place_of_torchs_cuda()
    path = large(folder, 100)
    expected = load_weights(path).load(framework="torch")
    assert equal(load_file(path, "cuda:1"), expected)
    assert 0 < counters()["pinned_bytes"] <= max(12, 2 * (os.cpu_count() or 1) + 4) * PIECE
    assert np.prod(expected["layer.000.scale"].shape) == 3
    assert nothing_is_left()


if __name__ == "__main__":
    promise: Callable[[Path, Path], None] = globals()[sys.argv[1]]
    promise(Path(sys.argv[2]), Path(sys.argv[3]))
