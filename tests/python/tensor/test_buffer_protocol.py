"""The buffer protocol of `Buffer`: unsatisfiable requests are refused, and all other answers are those of NumPy."""

import itertools
import os
import random
from typing import Any

import numpy as np
import pytest

from max_weights import DType
from max_weights.driver import Buffer
from random_entry_points import FLAGS, REQUESTS, answer, check_requests, layouts
from refusals import refuses

SIZES = (0, 1, 2, 3)
ORDERS = ("C", "F", "reversed", "stepped", "transposed", "broadcast", "read-only", "one more axis")


def laid_out(shape: tuple[int, ...], order: str) -> np.ndarray:
    """An array of this shape whose elements lie in some order."""
    dims = [dim * 2 for dim in shape] if order == "stepped" else list(shape)
    if order == "transposed":
        dims.reverse()
    array = np.arange(int(np.prod(dims)), dtype=np.float32).reshape(dims, order="F" if order == "F" else "C")
    if order == "reversed":
        return array[(*(slice(None, None, -1),) * array.ndim, ...)]
    if order == "stepped":
        return array[(*(slice(None, None, 2),) * array.ndim, ...)]
    if order == "transposed":
        return array.T
    if order == "broadcast":
        return np.lib.stride_tricks.as_strided(array, shape, [0, *array.strides[1:]] if shape else None)
    if order == "one more axis":
        return array[..., None, :] if array.ndim else array[None]
    array = array[...]
    array.flags.writeable = order != "read-only"
    return array


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_every_combination_of_flags_is_answered_as_numpy_does(rank: int, order: str) -> None:
    for shape in itertools.product(SIZES, repeat=rank):
        flags = REQUESTS if rank < 3 or 0 not in shape else (0x0, 0x18, 0x38, 0x58, 0x98, 0x11C)
        check_requests(laid_out(shape, order), flags)


@pytest.mark.parametrize("flag", ["C", "F", "ANY"])
def test_a_reversed_vector_is_not_contiguous_in_any_order(flag: str) -> None:
    """Otherwise the consumer would read foreign memory past its end."""
    buffer = Buffer.from_numpy(np.arange(8, dtype=np.float32))[::-1]
    strided = FLAGS["ND"] | FLAGS["STRIDES"]
    assert answer(buffer, strided) is not None
    assert answer(buffer, strided | FLAGS[flag]) is None
    for refused in (0, FLAGS["WRITABLE"], FLAGS["ND"], FLAGS["ND"] | FLAGS["FORMAT"]):
        assert answer(buffer, refused) is None


def test_random_requests_are_answered_as_numpy_does() -> None:
    generator = random.Random(11)
    for _ in range(int(os.environ.get("MAX_WEIGHTS_RANDOM_CASES", "300"))):
        check_requests(layouts(generator), generator.choices(REQUESTS, k=20))


def test_packed_elements_and_those_without_a_word_go_as_bytes_without_a_format() -> None:
    raw = Buffer.from_numpy(np.arange(6, dtype=np.uint8))
    for dtype, item in ((DType.float4_e2m1fn, 1), (DType.float6_e2m3fn, 1), (DType.bfloat16, 2)):
        buffer = raw.view(dtype)
        for flags in REQUESTS:
            found: Any = answer(buffer, flags)
            if flags & FLAGS["FORMAT"]:
                assert found is None
            else:
                assert found[1:4] == (6, item, 0)
                assert found[6] in (None, (6 // item,))


def test_a_tensor_of_more_dimensions_than_the_protocol_has_is_refused() -> None:
    buffer = Buffer.zeros([1] * 65, "float32")
    assert answer(buffer, FLAGS["ND"]) is None
    assert answer(buffer, 0) is not None
    with refuses(BufferError):
        memoryview(buffer)
    assert answer(Buffer.zeros([1] * 64, "float32"), FLAGS["ND"]) is not None


def test_memory_reached_through_pointers_is_no_tensor() -> None:
    testbuffer = pytest.importorskip("_testbuffer", reason="Python was built without its own test modules")
    indirect = testbuffer.ndarray(list(range(12)), shape=[3, 4], format="L", flags=testbuffer.ND_PIL)
    with refuses(BufferError):
        Buffer._from_memory(indirect, DType.uint64)
