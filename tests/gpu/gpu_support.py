"""What all tests of this folder share: the device, what they skip and why, and one test for each of many values.

They are written with unittest, so that a machine with a GPU needs no more than Python, torch and the wheel. Where the
driver is the stand-in of tests/fake_cuda, all run that need no CUDA of torch's, and each leaves nothing behind there.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import re
import unittest
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from max_weights import Buffer, DeviceError, DType, release_memory
from max_weights.driver import Accelerator, accelerator_count

DEVICE = "cuda:0"
PIECE = 4 << 20  # the bytes of a staging buffer


def _stand_in() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libcuda.so")  # as the extension finds it
    except OSError:
        return None
    return library if hasattr(library, "fake_cuda_counters") else None


STAND_IN = _stand_in()


def counters() -> dict[str, int]:
    """What is alive in the stand-in."""
    assert STAND_IN is not None
    names = "device_bytes pinned_bytes ranges streams events contexts bytes_to_device copy_nanoseconds violations"
    values = (ctypes.c_uint64 * len(names.split()))()
    assert STAND_IN.fake_cuda_counters(values) == 0
    return dict(zip(names.split(), values, strict=True))


@functools.cache
def no_device() -> str:
    """Why there is no device to test, or ""."""
    try:
        Accelerator(0)
    except DeviceError as error:
        return str(error)
    return ""


@functools.cache
def no_torch() -> str:
    """Why torch cannot use the device, or ""."""
    if STAND_IN is not None:
        return "torch does not run on the stand-in driver"
    try:
        import torch
    except ImportError as error:
        return f"torch is not installed: {error}"
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} has no CUDA on this machine"


def not_yet(what: str, call: Callable[[], object]) -> None:
    """Skip the test where a build cannot do this yet: the call is refused.

    tests/python/gpu/test_gpu_folder.py names all that may be skipped so.
    """
    try:
        call()
    except (DeviceError, TypeError) as error:
        raise unittest.SkipTest(f"not yet: {what} ({error})") from None


def each(values: Iterable[Any], named: Callable[[Any], str] = str) -> Callable[[Any], Any]:
    """Make a test of one parameter into one test for each of the values, named for it."""

    def mark(test: Any) -> Any:
        test.each = {re.sub(r"\W+", "_", named(value)).strip("_"): value for value in values}
        return test

    return mark


def _of(test: Any, value: Any) -> Callable[[Any], None]:
    def run(self: Any) -> None:
        test(self, value)

    return run


class OnDevice(unittest.TestCase):
    """Tests that need a device; on the stand-in, each leaves nothing behind."""

    needs_torch: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        for name, test in list(vars(cls).items()):
            for label, value in getattr(test, "each", {}).items():
                setattr(cls, f"{name}_{label}", _of(test, value))
            if hasattr(test, "each"):
                delattr(cls, name)

    @classmethod
    def setUpClass(cls) -> None:
        if reason := no_device() or (no_torch() if cls.needs_torch else ""):
            raise unittest.SkipTest(reason)

    def doCleanups(self) -> Any:
        done = super().doCleanups()
        gc.collect()
        release_memory()
        if STAND_IN is not None:
            found = counters()
            left = {
                name: found[name] for name in ("device_bytes", "pinned_bytes", "events", "violations") if found[name]
            }
            assert not left, left
        return done

    def refused(self, call: Callable[[], object]) -> str:
        """The message of the DeviceError that a call ends with."""
        with self.assertRaises(DeviceError) as caught:
            call()
        return str(caught.exception)

    def assert_same(self, found: Buffer, expected: Buffer, about: object = "") -> None:
        """Two tensors have the same dtype, shape and bits, wherever they are."""
        self.assertEqual((found.dtype, found.shape), (expected.dtype, expected.shape), about)
        np.testing.assert_array_equal(bits(found), bits(expected), str(about))

    def assert_equal_but_for_nans(self, found: Buffer, expected: Buffer, about: object) -> None:
        """The same bits, and where one has no number the other has none: random scales make some, of unlike bits."""
        self.assertEqual((found.dtype, found.shape), (expected.dtype, expected.shape), about)
        one, other = _bits_without_nans(found), _bits_without_nans(expected)
        np.testing.assert_array_equal(one, other, str(about))

    def second_device(self) -> str:
        """Another device, where there is one."""
        if accelerator_count() < 2:
            self.skipTest("there is one GPU, and this needs two")
        return "cuda:1"


def bits(tensor: Buffer) -> Any:
    """The bytes of a tensor, as an array of the host."""
    return tensor.to("cpu").contiguous().view(DType.uint8, [tensor.nbytes]).to_numpy()


def _bits_without_nans(tensor: Buffer) -> Any:
    kind, infinity = {DType.float32: ("u4", 0x7F800000), DType.float16: ("u2", 0x7C00), DType.bfloat16: ("u2", 0x7F80)}[
        tensor.dtype
    ]
    found = bits(tensor).view(kind).copy()
    magnitude = found & ((1 << (8 * found.itemsize - 1)) - 1)
    found[magnitude > infinity] = infinity + 1
    return found


def random(size: int) -> Buffer:
    """Return `size` bytes, the same each time."""
    return Buffer.from_numpy(np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8))


def random_of(dtype: DType, elements: int) -> Buffer:
    """Return `elements` elements with random bits; eight of a packed dtype share as many bytes as it has bits."""
    values = random(elements * dtype.size_in_bits // 8)
    if dtype is DType.bool:
        values = Buffer.from_numpy(values.to_numpy() & 1)
    return values.view(dtype, [elements])


DTYPES = [dtype for dtype in DType if dtype.name != "_unknown"]
