"""The other ways to a device: streams, allocation, and the caller's memory."""

from __future__ import annotations

import re
from typing import Any

import gpu_files
import max_weights
from gpu_support import DEVICE, PIECE, not_yet
from max_weights import Buffer, DType, load_weights, release_memory
from max_weights.driver import Accelerator, Device
from max_weights.graph import DeviceRef
from max_weights.sharding import Shard, ShardingStrategy
from test_on_gpu_loads import Files


class EntryPoints(Files):
    """Entry points other than `load` that give tensors of a device."""

    def setUp(self) -> None:
        self.path = self.file("safetensors")
        self.weights: Any = load_weights(self.path)
        self.expected: dict[str, Buffer] = self.weights.load(copy=True)

    def test_stream(self) -> None:
        not_yet("stream to a device", lambda: list(self.weights.stream("scalar", device=DEVICE)))
        cases: tuple[dict[str, Any], ...] = ({}, {"dtype": "float32"}, {"max_memory": 64 << 20})
        for options in cases:
            expected = load_weights(self.path).load(copy=True, dtype=options.get("dtype"))
            names = []
            for name, tensor in self.weights.stream(device=DEVICE, **options):
                self.assertEqual(tensor.device, Device("gpu", 0))
                self.assert_same(tensor, expected[name], (name, options))
                names.append(name)
                del tensor
            self.assertEqual(names, list(expected))

    def test_a_stream_that_is_left(self) -> None:
        not_yet("stream to a device", lambda: list(self.weights.stream("scalar", device=DEVICE)))
        stream = self.weights.stream(device=DEVICE)
        for _ in range(5):
            next(stream)
        stream.close()

    def test_stream_of_a_large_file_is_bounded(self) -> None:
        path = gpu_files.large(self.folder / "streamed.safetensors", 128)
        weights: Any = load_weights(path)
        not_yet("stream to a device", lambda: list(self.weights.stream("scalar", device=DEVICE)))
        release_memory()
        expected = weights.load(copy=True)
        for name, tensor in weights.stream(device=DEVICE, max_memory=8 * PIECE):
            self.assert_same(tensor, expected[name], name)
        self.assertLessEqual(release_memory(), 8 * PIECE)

    def test_allocate(self) -> None:
        def allocated() -> Any:
            weights: Any = load_weights(self.path)
            weights["large.f32"].allocate(device=DeviceRef.GPU(0))
            return weights.allocated_weights["large.f32"]

        if isinstance(tensor := allocated(), Buffer) and tensor.is_host:
            self.skipTest("not yet: allocate on a device (it gives host memory)")
        self.assert_same(Buffer.from_dlpack(tensor), self.expected["large.f32"])

    def test_out(self) -> None:
        def outs(names: list[str]) -> dict[str, Buffer]:
            make = {name: self.expected[name] for name in names}
            return {name: Buffer.zeros(one.shape, one.dtype, Accelerator(0)) for name, one in make.items()}

        one = outs(["scalar"])
        not_yet("out= on a device", lambda: self.weights.load("scalar", device=DEVICE, out=one))
        given = outs(list(self.expected))
        found = self.weights.load(device=DEVICE, out=given)
        for name, tensor in self.expected.items():
            self.assertEqual(found[name]._data_ptr(), given[name]._data_ptr(), name)
            self.assert_same(given[name], tensor, name)

    def test_a_rank_of_two(self) -> None:
        select = re.compile(r"large|around")
        rank = Shard(1, 2, ShardingStrategy.rowwise(2))
        not_yet("shard to a device", lambda: self.weights.load("large.f32", device=DEVICE, shard=rank))
        expected = self.weights.load(select, copy=True, shard=rank)
        for name, tensor in self.weights.load(select, device=DEVICE, shard=rank).items():
            self.assert_same(tensor, expected[name], name)

    def test_a_plan_says_what_a_load_takes(self) -> None:
        plan = max_weights.plan(self.weights, device=DEVICE)
        self.assertGreaterEqual(sum(plan.arenas.values()), sum(tensor.nbytes for tensor in self.expected.values()))

    def test_bytes_of_a_device_tensor_are_viewed_there(self) -> None:
        there = self.weights.load("large.f32", device=DEVICE)["large.f32"]
        seen = there.view(DType.uint8)
        self.assertEqual((seen.device, seen._data_ptr()), (there.device, there._data_ptr()))
