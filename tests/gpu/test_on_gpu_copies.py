"""Tensors that go to a device and come back."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import numpy as np

from gpu_support import DEVICE, DTYPES, PIECE, OnDevice, each, random, random_of
from max_weights import Buffer, DType, release_memory, save_file
from max_weights.driver import Accelerator, Device, accelerator_count
from max_weights.graph import DeviceRef

SIZES = (0, 1, 5, 4095, PIECE - 1, PIECE, PIECE + 1, 9 * PIECE + 3, 40 * PIECE + 5)


class Copies(OnDevice):
    """`Buffer.to`, and what makes a tensor on a device."""

    @each(DTYPES, lambda dtype: dtype.name)
    def test_every_dtype(self, dtype: DType) -> None:
        for elements in (8, 8 * 1001, 8 * (1 << 18)):
            value = random_of(dtype, elements)
            there = value.to(DEVICE)
            self.assertEqual((there.device, there.is_host), (Device("gpu", 0), False))
            self.assert_same(there.to("cpu"), value, elements)

    @each(SIZES)
    def test_every_size(self, size: int) -> None:
        value = random(size)
        self.assert_same(value.to(DEVICE).to("cpu"), value)

    def test_views_arrive_contiguous_and_views_of_them_come_back(self) -> None:
        whole = random(3000 * 1001 * 8).view(DType.int64, [3000, 1001])
        for view in (whole[::2, ::-3], whole[7:, 5], whole[3], whole[::-1]):
            there = view.to(DEVICE)
            self.assertTrue(there.is_contiguous)
            self.assert_same(there.to("cpu"), view.contiguous())
        there = whole.to(DEVICE)
        for index in ((slice(5, 100, 3), slice(7, None)), (2999,), (slice(None), -1), (slice(None, None, -1000),)):
            self.assert_same(there[index].to("cpu"), whole[index].contiguous(), index)

    def test_one_device_has_many_names(self) -> None:
        value = random(10)
        for name in ("cuda:0", "gpu", "gpu:0", Accelerator(0), DeviceRef.GPU(0), Device("gpu", 0)):
            self.assertEqual(value.to(name).device, Device("gpu", 0), name)

    def test_a_device_that_is_not_there_is_named(self) -> None:
        count = accelerator_count()
        self.assertIn(f"no device gpu:{count}", self.refused(lambda: random(1).to(f"cuda:{count}")))

    def test_zeros_and_scalars_are_made_there(self) -> None:
        self.assertFalse(Buffer.zeros([PIECE + 1], DType.uint8, Accelerator(0)).to("cpu").to_numpy().any())
        self.assertEqual(Buffer.scalar(3, "int64", DeviceRef.GPU()).to("cpu").item(), 3)

    def test_what_is_there_is_saved(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            value, files = random(3 * PIECE + 8), [Path(folder) / name for name in ("here", "there")]
            save_file({"whole": value, "cut": value[::-3]}, files[0])
            there = value.to(DEVICE)
            save_file({"whole": there, "cut": there[::-3]}, files[1])
            self.assertEqual(files[0].read_bytes(), files[1].read_bytes())

    def test_a_view_of_a_file_arrives(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            value, path = random(3 * PIECE + 8), Path(folder) / "values"
            path.write_bytes(value.to_numpy().tobytes())
            mapped = Buffer.mmap(path, DType.int64, [value.nbytes // 8])
            self.assert_same(mapped.to(DEVICE).to("cpu"), value.view(DType.int64))
            self.assert_same(mapped[1000:-1:7].to(DEVICE).to("cpu"), value.view(DType.int64)[1000:-1:7].contiguous())
            del mapped

    def test_memory_that_was_used_before_is_written_anew(self) -> None:
        for byte in (0xFF, 0x00, 0xA5):
            value = Buffer.from_numpy(np.full(8 * PIECE + 7, byte, np.uint8))
            self.assert_same(value.to(DEVICE).to("cpu"), value)

    def test_pinned_memory_is_bounded(self) -> None:
        random(40 * PIECE).to(DEVICE)
        self.assertLessEqual(release_memory(), 16 * PIECE)

    def test_between_two_devices(self) -> None:
        other, value = self.second_device(), random(5 * PIECE + 1)
        there = value.to(DEVICE).to(other)
        self.assertEqual(there.device, Device("gpu", 1))
        self.assert_same(there.to(DEVICE).to("cpu"), value)

    def test_threads_copy_at_a_time(self) -> None:
        found: list[bool] = []

        def work(number: int) -> None:
            for turn in range(5):
                value = random(PIECE * (number % 3) + number + turn)
                found.append(np.array_equal(value.to(DEVICE).to("cpu").to_numpy(), value.to_numpy()))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [True] * 40)

    def test_dlpack_says_the_device_and_gives_the_host_a_copy(self) -> None:
        value = random(1001)
        there = value.to(DEVICE)
        self.assertEqual(there.__dlpack_device__(), (2, 0))
        np.testing.assert_array_equal(np.from_dlpack(there, device="cpu"), value.to_numpy())
        with self.assertRaises(BufferError):
            there.__dlpack__(dl_device=(1, 0), copy=False)
