"""Casts, block scales and packed blocks on a device: bit for bit what the CPU makes of the same bytes."""

from __future__ import annotations

import functools
import importlib
import itertools
from typing import Any

import numpy as np

import gpu_files
from gpu_support import DEVICE, OnDevice, each, no_torch, not_yet, random, random_of
from max_weights import Buffer, DeviceError, DType, UnsupportedError, dequantize, scale_blocks
from max_weights.graph.quantization import QuantizationEncoding

F32, F16, BF16 = DType.float32, DType.float16, DType.bfloat16
E4M3, E5M2 = DType.float8_e4m3fn, DType.float8_e5m2
HOT = {
    *itertools.permutations((F32, F16, BF16), 2),
    *itertools.product((E4M3, E5M2), (F32, F16, BF16)),
    *itertools.product((F32, F16, BF16), (E4M3, E5M2)),
}
"""The pairs that a device converts; any other is converted or refused with a sentence."""
NUMBERS = [
    dtype
    for dtype in DType
    if dtype.name.startswith(("int", "uint", "float16", "float32", "float64", "float8", "bfloat"))
    and dtype not in (DType.float8_e8m0fnu,)
]
PAIRS = [(one, other) for one, other in itertools.product(NUMBERS, NUMBERS) if one is not other]
COUNTS = (0, 1, 7, 255, 1025, 100_003)


def values(dtype: DType) -> Buffer:
    """All bits of a small dtype; of a large one those near every power of two, the special ones, and random ones."""
    if dtype.size_in_bits <= 16:
        every = np.arange(1 << dtype.size_in_bits, dtype=f"u{dtype.size_in_bits // 8}")
        return Buffer.from_numpy(every).view(dtype)
    drawn = random_of(dtype, 1 << 20)
    if not dtype.name.startswith("float"):
        return drawn
    kind = dtype.to_numpy()
    with np.errstate(over="ignore"):
        near = np.ldexp(np.ones(600, kind), np.arange(-300, 300)).astype(kind)
    steps = np.concatenate([np.nextafter(near, kind.type(0)), near, np.nextafter(near, kind.type(np.inf)), near * 1.5])
    halves = np.arange(-70_000, 70_000, dtype=kind) / 2
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 448, 464, 57344, 61440, 65504, 65520], kind)
    return Buffer.from_numpy(np.concatenate([special, steps, -steps, halves, drawn.to_numpy()]))


class Casts(OnDevice):
    """`Buffer.astype` of a tensor of a device."""

    def require(self, pair: tuple[DType, DType]) -> None:
        """That a hot pair is converted."""
        if pair in HOT:
            not_yet("every hot pair of dtypes", lambda: random_of(pair[0], 8).to(DEVICE).astype(pair[1]))

    @each(PAIRS, lambda pair: f"{pair[0].name} to {pair[1].name}")
    def test_equals_the_cpu(self, pair: tuple[DType, DType]) -> None:
        self.require(pair)
        source, target = pair
        value = values(source)
        there = value.to(DEVICE)
        for saturate in (False, True):
            try:
                expected = value.astype(target, saturate=saturate)
            except UnsupportedError:
                with self.assertRaises(UnsupportedError):
                    there.astype(target, saturate=saturate)
                continue
            try:
                found = there.astype(target, saturate=saturate)
            except DeviceError as error:
                self.assertNotIn(pair, HOT, error)
                self.assertRegex(str(error), rf'{source.name}.*{target.name}.*\.to\("cpu"\)')
                continue
            self.assertEqual(found.device, there.device)
            self.assert_same(found, expected, saturate)

    @each(sorted(HOT, key=str), lambda pair: f"{pair[0].name} to {pair[1].name}")
    def test_every_count_and_place(self, pair: tuple[DType, DType]) -> None:
        self.require(pair)
        source, target = pair
        for count in COUNTS:
            value = random_of(source, count)
            self.assert_same(value.to(DEVICE).astype(target), value.astype(target), count)
        whole, there = values(source), values(source).to(DEVICE)
        for start, end in ((1, 100), (3, 1026), (17, -1), (100, 100)):  # not aligned to what a thread reads at a time
            self.assert_same(there[start:end].astype(target), whole[start:end].astype(target), (start, end))

    def test_a_large_tensor(self) -> None:
        value = random_of(BF16, (48 << 20) + 3)
        self.assert_same(value.to(DEVICE).astype(F32), value.astype(F32))

    def test_what_was_asked_for_first_is_done_first(self) -> None:
        value = random_of(F32, 1 << 22)
        for _ in range(10):  # the copy to the device may still go on when the cast is asked for
            self.assert_same(value.to(DEVICE).astype(BF16).astype(F32), value.astype(BF16).astype(F32))

    def test_the_same_dtype_is_the_same_memory(self) -> None:
        there = random_of(F32, 100).to(DEVICE)
        self.assertEqual(there.astype(F32)._data_ptr(), there._data_ptr())

    @each(sorted(HOT, key=str), lambda pair: f"{pair[0].name} to {pair[1].name}")
    def test_equals_torch(self, pair: tuple[DType, DType]) -> None:
        if reason := no_torch():
            self.skipTest(reason)
        torch: Any = importlib.import_module("torch")

        source, target = pair
        there = values(source).to(DEVICE)
        if target in (E4M3, E5M2):
            there = there[: 1 << 16].astype(F32).astype(source)
        theirs = torch.from_dlpack(there.view(DType.uint8)).view(getattr(torch, source.name))
        theirs = theirs.to(getattr(torch, target.name)).to(torch.float64)
        ours = torch.from_dlpack(there.astype(target).view(DType.uint8)).view(getattr(torch, target.name))
        ours = ours.to(torch.float64)
        finite = theirs.isfinite() & ours.isfinite()  # torch saturates some pairs, and its NaNs have other bits
        self.assertGreater(int(finite.sum()), 200)
        self.assertTrue(torch.equal(ours[finite], theirs[finite]))


class BlockScales(OnDevice):
    """`scale_blocks` of tensors of a device."""

    @each([(E4M3, F32, (128, 128)), (E5M2, F32, (128, 128)), (E4M3, BF16, (1, 128)), (DType.int8, F32, (1, 300))])
    def test_equals_the_cpu(self, case: tuple[DType, DType, tuple[int, int]]) -> None:
        dtype, scale, block = case
        for rows, columns in ((128, 128), (200, 300), (1, 1), (513, 1000)):
            value = random_of(dtype, rows * columns * 8).view(dtype, [8 * rows, columns])[:rows]
            grid = [-(-rows // block[0]), -(-columns // block[1])]
            factors = Buffer.from_numpy(np.random.default_rng(1).normal(size=grid).astype(np.float32)).astype(scale)
            there, scales = value.to(DEVICE), factors.to(DEVICE)
            not_yet("scale_blocks on a device", functools.partial(scale_blocks, there, scales, block))
            for target in (F32, F16, BF16):
                expected = scale_blocks(value, factors, block, dtype=target)
                self.assert_same(scale_blocks(there, scales, block, dtype=target), expected, (rows, columns, target))


class Blocks(OnDevice):
    """`dequantize` of packed blocks that lie on a device."""

    def setUp(self) -> None:
        blocks = random(18 * 8).to(DEVICE)
        not_yet("dequantize on a device", lambda: dequantize(blocks, "Q4_0"))

    @each(gpu_files.BLOCKS)
    def test_equals_the_cpu(self, encoding: str) -> None:
        size = QuantizationEncoding(encoding).block_size
        for rows, width in ((1, 1), (3, 5), (129, 7), (1000, 40)):
            packed = Buffer.from_numpy(
                np.frombuffer(gpu_files.blocks(encoding, rows * width), np.uint8).reshape(rows, width * size)
            )
            there = packed.to(DEVICE)
            for target in (F32, F16, BF16):
                found, expected = dequantize(there, encoding, target), dequantize(packed, encoding, target)
                self.assertEqual(found.device, there.device)
                self.assert_equal_but_for_nans(found, expected, (encoding, rows, width, target))

    @each(gpu_files.BLOCKS)
    def test_a_part_of_the_rows(self, encoding: str) -> None:
        size = QuantizationEncoding(encoding).block_size
        packed = Buffer.from_numpy(np.frombuffer(gpu_files.blocks(encoding, 100), np.uint8).reshape(50, 2 * size))
        found = dequantize(packed.to(DEVICE)[7:23], encoding)
        self.assert_equal_but_for_nans(found, dequantize(packed[7:23], encoding), encoding)
