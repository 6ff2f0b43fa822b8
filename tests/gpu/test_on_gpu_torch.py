"""torch.cuda in the same process: shared memory, streams on both sides, lifetimes, and how torch reads the files."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import gpu_files
import max_weights
from gpu_support import DEVICE, PIECE, OnDevice, bits, each, random, random_of
from max_weights import Buffer, DType, load_weights, release_memory
from max_weights._benching.cuda import Driver
from max_weights.driver import Device, accelerator_count
from test_on_gpu_loads import FILES, LARGE, Files

TORCH_DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    *("complex64", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"),
)
BUSY = 400_000_000  # clock cycles: about 0.2 s on a GPU of 2 GHz


def _torch() -> Any:
    import torch

    return torch


def host_bits(tensor: Any) -> Any:
    """The bytes of a torch tensor, as an array of the host."""
    torch = _torch()
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


class Sharing(OnDevice):
    """DLPack both ways."""

    needs_torch = True

    @each(TORCH_DTYPES)
    def test_every_dtype_both_ways(self, name: str) -> None:
        torch, value = _torch(), random_of(DType(name), 8 * 1001)
        try:
            Buffer.from_dlpack(torch.from_dlpack(value).clone())
        except (BufferError, RuntimeError, TypeError) as error:
            self.skipTest(f"torch {torch.__version__} shares no {name} by DLPack on the CPU either: {error}")
        theirs = torch.from_dlpack(value.to(DEVICE))
        self.assertEqual((theirs.dtype, theirs.device), (getattr(torch, name), torch.device(DEVICE)))
        self.assertTrue((host_bits(theirs) == bits(value)).all())
        ours = Buffer.from_dlpack(theirs.clone())
        self.assert_same(ours, value)

    def test_it_is_the_same_memory(self) -> None:
        torch, there = _torch(), random_of(DType.float32, 1 << 20).to(DEVICE)
        theirs = torch.from_dlpack(there)
        self.assertEqual(theirs.data_ptr(), there._data_ptr())
        theirs.fill_(7)
        torch.cuda.synchronize()
        self.assertTrue((there.to("cpu").to_numpy() == 7).all())
        ours = Buffer.from_dlpack(theirs[10:])
        self.assertEqual(ours._data_ptr(), theirs[10:].data_ptr())

    def test_strided_tensors_are_shared(self) -> None:
        torch = _torch()
        whole = torch.arange(3000 * 1001, device=DEVICE).view(3000, 1001)
        for view in (whole[::2, 3:], whole.T, whole[5:, 7], whole[:0]):
            ours = Buffer.from_dlpack(view)
            self.assertTrue((ours.to("cpu").contiguous().to_numpy() == view.cpu().numpy()).all())

    def test_either_keeps_the_memory_alive(self) -> None:
        torch, value = _torch(), random(9 * PIECE)
        theirs = torch.from_dlpack(value.to(DEVICE))
        gc.collect()
        torch.empty(64 * PIECE, dtype=torch.uint8, device=DEVICE).fill_(1)
        self.assertTrue((host_bits(theirs) == bits(value)).all())
        ours = Buffer.from_dlpack(theirs.clone())
        del theirs
        gc.collect()
        torch.empty(9 * PIECE, dtype=torch.uint8, device=DEVICE).fill_(2)  # what torch's allocator would give again
        self.assert_same(ours, value)

    def test_a_consumer_on_a_side_stream_waits_for_the_copies(self) -> None:
        torch = _torch()
        for size in (100, PIECE, 64 * PIECE):
            value = random(size)
            for _ in range(5):
                side = torch.cuda.Stream()
                there = value.to(DEVICE)
                with torch.cuda.stream(side):
                    copied = torch.from_dlpack(there).clone()
                side.synchronize()
                self.assertTrue((host_bits(copied) == bits(value)).all(), size)

    def test_a_tensor_that_a_side_stream_still_makes(self) -> None:
        torch = _torch()
        side, expected = torch.cuda.Stream(), random_of(DType.int32, 4 << 20)
        source = torch.from_dlpack(expected.to(DEVICE)).clone()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            made = torch.zeros_like(source)
            torch.cuda._sleep(BUSY)
            made.copy_(source)
            ours = Buffer.from_dlpack(made)  # torch has our stream wait for its current one
        self.assertFalse(side.query(), "the stream was done before it was looked at: nothing was tested")
        self.assert_same(ours, expected)

    def test_what_torch_asked_of_the_default_stream_is_done_first(self) -> None:
        torch = _torch()
        there = random_of(DType.float32, 1 << 20).to(DEVICE)
        theirs = torch.from_dlpack(there)
        torch.cuda._sleep(BUSY)
        theirs.fill_(3)
        self.assertTrue((there.to("cpu").to_numpy() == 3).all())

    def test_a_graph_of_torch_uses_our_memory(self) -> None:
        torch = _torch()
        weight = torch.from_dlpack(random_of(DType.int32, 1 << 20).to(DEVICE))
        graph, result = torch.cuda.CUDAGraph(), torch.empty_like(weight)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            result.copy_(weight * 2)
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(result, weight * 2))

    def test_cuda_is_torchs_current_device(self) -> None:
        torch, value = _torch(), random(10)
        self.assertEqual(value.to("cuda").device, Device("gpu", torch.cuda.current_device()))
        if accelerator_count() < 2:
            self.skipTest("there is one GPU, and this needs two")
        with torch.cuda.device(1):
            self.assertEqual(value.to("cuda").device, Device("gpu", 1))


class Loading(Files):
    """Loads, seen by torch."""

    needs_torch = True

    @each(FILES)
    def test_load_file_gives_what_the_cpu_gives(self, file: str) -> None:
        import max_weights.torch

        path = self.file(file)
        dtype = "float32" if file == "gguf" else None
        expected = max_weights.torch.load_file(path, dtype=dtype)
        for device in ("cuda", 0, DEVICE, _torch().device(DEVICE)):
            there = max_weights.torch.load_file(path, device=device, dtype=dtype)
            self.assertEqual(list(there), list(expected))
            for name, tensor in expected.items():
                self.assertEqual((there[name].dtype, there[name].shape), (tensor.dtype, tensor.shape), name)
                self.assertEqual(there[name].device, _torch().device(DEVICE))
                # The blocks of the GGUF file have scales of random bits.
                same = host_bits(there[name]) == host_bits(tensor)
                if tensor.is_floating_point() and file == "gguf":
                    same |= (there[name].isnan().cpu() & tensor.isnan()).numpy().ravel().repeat(tensor.element_size())
                self.assertTrue(same.all(), name)

    def test_equals_torchs_own_load(self) -> None:
        import max_weights.torch

        torch, path = _torch(), self.file("torch")
        theirs = torch.load(path, map_location=DEVICE, weights_only=True)
        for name, tensor in max_weights.torch.load_file(path, device=DEVICE).items():
            self.assertTrue(torch.equal(tensor, theirs[name]), name)

    def test_equals_safetensors_and_so_does_the_drop_in(self) -> None:
        try:
            import safetensors.torch as theirs
        except ImportError as error:
            self.skipTest(f"safetensors is not installed: {error}")
        import max_weights.safetensors.torch as ours
        from max_weights.safetensors import safe_open

        path = self.file("safetensors")
        expected = theirs.load_file(path, device=DEVICE)
        opened: dict[str, Any] = {}
        with safe_open(path, framework="pt", device=DEVICE) as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                opened[name] = file.get_tensor(name)
        for found in (ours.load_file(path, device=DEVICE), ours.load_file(path, device=0), opened):
            self.assertEqual(set(found), set(expected))
            for name, tensor in expected.items():
                about = (found[name].dtype, found[name].shape, found[name].device)
                self.assertEqual(about, (tensor.dtype, tensor.shape, tensor.device), name)
                self.assertTrue((host_bits(found[name]) == host_bits(tensor)).all(), name)

    def test_a_side_stream_uses_the_last_tensor_at_once(self) -> None:
        torch, weights = _torch(), load_weights(self.large(LARGE))
        last = max_weights.infos(weights)[-1].name
        expected = bits(weights.load(last, copy=True)[last])
        for _ in range(10):
            side = torch.cuda.Stream()
            there = weights.load(device=DEVICE)
            with torch.cuda.stream(side):
                copied = torch.from_dlpack(there[last]).clone()
            side.synchronize()
            self.assertTrue((host_bits(copied) == expected).all())

    def test_a_busy_device_is_not_waited_for(self) -> None:
        torch, weights = _torch(), load_weights(self.file("safetensors"))
        weights.load(device=DEVICE)
        busy = torch.cuda.Stream()
        with torch.cuda.stream(busy):
            torch.cuda._sleep(10 * BUSY)
        there = weights.load(device=DEVICE)
        bits(there["large"])
        self.assertFalse(busy.query(), "loading waited for a stream that it has nothing to do with")
        torch.cuda.synchronize()

    def test_too_little_memory_beside_torch(self) -> None:
        torch, path = _torch(), self.large(LARGE)
        driver = Driver(0)
        kept = torch.empty(driver.memory()[0] - (LARGE << 19), dtype=torch.uint8, device=DEVICE)
        before = driver.memory()[0]
        message = self.refused(lambda: load_weights(path).load(device=DEVICE))
        self.assertRegex(message, r"no room for 'layer\.0\.weight' of 8388608 bytes .*OUT_OF_MEMORY")
        message = self.refused(lambda: load_weights(path).load(device=DEVICE, copy="per-tensor"))
        self.assertRegex(message, r"no room for 'layer\.\d+\.weight' of 8388608 bytes: .*OUT_OF_MEMORY")
        self.assertRegex(
            self.refused(lambda: random(LARGE << 20).to(DEVICE)), f"of {LARGE << 20} bytes .*OUT_OF_MEMORY"
        )
        release_memory()
        self.assertGreaterEqual(driver.memory()[0], before - (32 << 20))
        del kept
        torch.cuda.empty_cache()
        self.assert_loads_equally(path)

    def test_device_memory_is_given_back(self) -> None:
        torch, path = _torch(), self.large(LARGE)
        load_weights(path).load(device=DEVICE)
        torch.cuda.synchronize()
        driver = Driver(0)
        before = driver.memory()[0]
        held = load_weights(path).load(device=DEVICE)
        self.assertLess(driver.memory()[0], before - (LARGE << 20) // 2)
        theirs = torch.from_dlpack(held["layer.3.weight"])
        del held
        gc.collect()
        self.assertEqual(theirs.shape, (4096, 1024))
        del theirs
        gc.collect()
        self.assertGreaterEqual(driver.memory()[0], before - (32 << 20))

    def test_dtypes_are_what_torch_would_make(self) -> None:
        import max_weights.torch

        torch, path = _torch(), gpu_files.large(self.folder / "cast.safetensors", 16)
        plain = max_weights.torch.load_file(path, device=DEVICE)
        to: Callable[[Any], Any]
        for name, to in (("float32", torch.Tensor.float), ("float16", torch.Tensor.half)):
            for key, tensor in max_weights.torch.load_file(path, device=DEVICE, dtype=name).items():
                theirs = to(plain[key])
                self.assertTrue(torch.equal(tensor.isnan(), theirs.isnan()), (name, key))
                self.assertTrue(torch.equal(tensor.nan_to_num(0.5), theirs.nan_to_num(0.5)), (name, key))
