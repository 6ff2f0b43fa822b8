"""Random DLPack capsules and buffer requests, made with ctypes, against the entry points of `Buffer`.

The answer is always a documented error, or the right tensor, which Python's integers or NumPy compute. The tests try a
few thousand cases, a multiple of `MAX_WEIGHTS_RANDOM_CASES` (300). `python
tests/python/tensor/random_entry_points.py SECONDS [SEED]` runs for any time, for builds with a sanitizer.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from max_weights.driver import Buffer
from max_weights.dtype import DType

INT64 = (-(2**63), 2**63 - 1)
MAX_RANK = 64
HOST = (1, 3)
READ_ONLY, COPIED, PADDED = 1, 2, 4
NAMES = (b"dltensor", b"dltensor_versioned", b"used_dltensor", b"something else")

# (code, bits) of DLPack -> dtype
DTYPES = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (4, 16): "bfloat16",
    (5, 64): "complex64",
    (6, 8): "bool",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
    (17, 4): "float4_e2m1fn",
}


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Legacy(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, (ctypes.py_object,)


@dataclass
class Producer:
    """A foreign tensor, as its producer describes it."""

    data: int
    shape: list[int] | None = field(default_factory=lambda: [4])
    strides: list[int] | None = None
    code: int = 2
    bits: int = 32
    lanes: int = 1
    rank: int | None = None
    byte_offset: int = 0
    device: tuple[int, int] = (1, 0)
    device_text: tuple[int, int] = (1, 0)
    versioned: bool = True
    version: tuple[int, int] = (1, 1)
    flags: int = 0
    name: bytes | None = None
    deleted: int = 0

    def __post_init__(self) -> None:
        def array(values: list[int] | None) -> Any:
            return None if values is None else (ctypes.c_int64 * max(len(values), 1))(*values)

        def delete(_: int) -> None:
            self.deleted += 1

        self._kept = array(self.shape), array(self.strides), DELETER(delete)
        shape, strides, deleter = self._kept
        struct = self._struct = Versioned() if self.versioned else Legacy()
        tensor = struct.tensor
        tensor.data, tensor.byte_offset = self.data, self.byte_offset
        tensor.device_type, tensor.device_id = self.device
        tensor.code, tensor.bits, tensor.lanes = self.code, self.bits, self.lanes
        tensor.ndim = len(self.shape or []) if self.rank is None else self.rank
        pointer = ctypes.POINTER(ctypes.c_int64)
        tensor.shape = ctypes.cast(shape, pointer) if shape is not None else None
        tensor.strides = ctypes.cast(strides, pointer) if strides is not None else None
        struct.deleter = deleter
        if self.versioned:
            struct.major, struct.minor = self.version
            struct.flags = self.flags
        self.capsule: Any = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_text

    def __dlpack__(self, **_: Any) -> Any:
        name = self.name or NAMES[self.versioned]
        self.capsule = _new(ctypes.addressof(self._struct), name, None)
        return self.capsule

    @property
    def taken(self) -> bool:
        """Whether the consumer is responsible for calling the deleter."""
        return self.name is None and self.capsule is not None and _name_of(self.capsule).startswith(b"used_")

    def meaning(self) -> tuple[str, list[int], list[int], int, int, int] | None:
        """dtype, shape, strides, item size, first and last byte from `data`; None if no tensor is meant."""
        rank = len(self.shape or []) if self.rank is None else self.rank
        dtype = DTYPES.get((self.code, self.bits))
        pairs = dtype == "float4_e2m1fn"
        shape = self.shape if self.shape is not None else []
        if (
            self.name is not None
            or dtype is None
            or self.lanes != (2 if pairs else 1)
            or self.device[0] not in HOST
            or self.device_text[0] not in HOST
            or (self.versioned and (self.version[0] != 1 or self.flags & PADDED))
            or not 0 <= rank <= MAX_RANK
            or rank != len(shape)
            or any(dim < 0 for dim in shape)
        ):
            return None
        item = max(self.bits // 8, 1)
        contiguous = [
            *itertools.accumulate(reversed([max(dim, 1) for dim in shape[1:]]), lambda a, b: a * b, initial=1)
        ]
        contiguous = contiguous[::-1][: len(shape)]
        strides = contiguous if self.strides is None else self.strides[:rank]
        elements = [*shape[:-1], *(dim * self.lanes for dim in shape[-1:])]
        # An empty dimension does not make the others valid.
        if math.prod(max(dim, 1) for dim in elements) > INT64[1] or math.prod(shape) * item >= 2**61:
            return None
        first = last = 0
        if 0 not in shape:
            for dim, stride in zip(shape, strides, strict=True):
                reach = (dim - 1) * stride * item
                first, last = first + min(reach, 0), last + max(reach, 0)
            last += item
            if last - first > INT64[1] or -first > INT64[1] or not self.data:
                return None
            if not 0 < self.data + self.byte_offset + first < self.data + self.byte_offset + last < 2**64:
                return None
        if pairs and (not shape or strides != contiguous):
            return None
        return dtype, shape, strides, item, self.byte_offset + first, self.byte_offset + last


MEMORY = 1 << 12


class Capsules:
    """Random producers, over memory of known content."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.content = self.random.randbytes(MEMORY)
        self.memory = ctypes.create_string_buffer(self.content, MEMORY)
        self.address = ctypes.addressof(self.memory)

    def often(self, usual: Any, *others: Any) -> Any:
        """Mostly the usual, else one of the others."""
        return usual if self.random.random() < 0.9 else self.random.choice(others)

    def one(self) -> Producer:
        choose, often = self.random, self.often
        code, bits = often(choose.choice([*DTYPES]), (choose.randrange(256), choose.randrange(256)), (2, 128), (1, 1))
        rank = choose.choice((0, 1, 1, 2, 2, 3, 4))
        if choose.random() < 0.02:
            rank = choose.choice((MAX_RANK, MAX_RANK + 1))
        dims = (1, 2, 3, 4, 5) if rank < 10 else (1,)
        shape = [often(choose.choice(dims), 0, -1, 2**31, 2**62, INT64[0]) for _ in range(rank)]
        strides = [often(choose.randint(-12, 12), *INT64, 2**61, 0) for _ in range(rank)]
        versioned = choose.random() < 0.7
        message = often((1, 0), (3, 0), (2, 0), (1, 5), (-1, 0))
        return Producer(
            data=often(self.address, 0, 2**64 - 8, 1),
            shape=often(shape, None),
            strides=often(None if choose.random() < 0.4 else strides, None),
            code=code,
            bits=bits,
            lanes=often(2 if (code, bits) == (17, 4) else 1, 0, 2, 65535),
            rank=often(None, -1, INT64[0] >> 32, None if rank else 0),
            byte_offset=often(choose.randrange(0, MEMORY, 8), 1, 2**63, 2**64 - 1),
            device=often(message, (2, 0), (1, 0), (0, 0), (13, 0)),
            device_text=message,
            versioned=versioned,
            version=often((1, 1), (1, 0), (1, 3), (0, 8), (2, 0)),
            flags=often(0, READ_ONLY, COPIED, PADDED, READ_ONLY | COPIED, 1 << 40),
            name=often(None, NAMES[2], NAMES[3]),
        )

    def check(self, producer: Producer) -> bool:
        """Try one producer; true if it was accepted."""
        expected = producer.meaning()
        refusal = None
        try:
            buffer = Buffer.from_dlpack(producer)
        except BufferError as error:
            refusal = str(error)
        if refusal is not None:
            assert expected is None, (producer, refusal)
            assert producer.deleted == int(producer.taken), producer
            return False
        assert expected is not None, producer
        dtype, shape, strides, item, first, last = expected
        pairs = dtype == "float4_e2m1fn"
        assert buffer.dtype is DType[dtype]
        assert buffer.is_writable == (producer.versioned and not producer.flags & READ_ONLY)
        if pairs:
            shape = [*shape[:-1], shape[-1] * 2]
        else:
            assert list(buffer.strides) == strides
        assert list(buffer.shape) == shape
        inside = first >= 0 and last <= MEMORY and producer.data == self.address
        if inside and 0 < math.prod(shape) <= MEMORY:
            assert buffer._data_ptr() == producer.data + producer.byte_offset
            found = bytes(memoryview(buffer.copy().view(DType.uint8, [buffer.nbytes])))
            assert found == (self.content[first:last] if pairs else self.elements(producer, shape, strides, item))
            self.check_export(buffer, pairs)
        del buffer
        assert producer.deleted == 1, producer
        return True

    def elements(self, producer: Producer, shape: list[int], strides: list[int], item: int) -> bytes:
        found = bytearray()
        for index in itertools.product(*map(range, shape)):
            at = producer.byte_offset + item * sum(i * stride for i, stride in zip(index, strides, strict=True))
            found += self.content[at : at + item]
        return bytes(found)

    def check_export(self, buffer: Buffer, pairs: bool) -> None:
        """Out again, to NumPy."""
        backward = any(dim > 1 and stride < 0 for dim, stride in zip(buffer.shape, buffer.strides, strict=True))
        try:
            capsule = buffer.__dlpack__(max_version=self.random.choice((None, (1, 0), (2, 1))))
            assert not backward or buffer.is_contiguous
        except BufferError:
            assert backward or pairs or not buffer.is_writable
            return
        del capsule
        if buffer.dtype in _NUMPYS and (buffer.is_writable or np.lib.NumpyVersion(np.__version__) >= "2.1.0"):
            assert np.from_dlpack(buffer).tobytes() == buffer.to_numpy().tobytes()


_NUMPYS = [DType[name] for name in DTYPES.values() if not name.startswith(("bfloat", "float4", "float8"))]


class View(ctypes.Structure):
    """`Py_buffer`."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get, _release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
_get.restype, _get.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_release.restype, _release.argtypes = None, (ctypes.c_void_p,)

FLAGS = {
    "WRITABLE": 0x1,
    "FORMAT": 0x4,
    "ND": 0x8,
    "STRIDES": 0x10,
    "C": 0x20,
    "F": 0x40,
    "ANY": 0x80,
    "INDIRECT": 0x100,
}
# All combinations; 0x100 alone is `PyBUF_READ`, which Python treats as an error of the caller.
REQUESTS = [flags for flags in range(0x200) if flags != 0x100]


def answer(exporter: Any, flags: int) -> tuple[Any, ...] | None:
    """The answer of an exporter to a request: all fields of its view; None for a refusal."""
    view = View()
    refusals = (BufferError, ValueError) if isinstance(exporter, np.ndarray) else BufferError
    try:
        _get(exporter, ctypes.byref(view), flags)
    except refusals:
        assert view.obj is None
        return None
    nd = bool(flags & FLAGS["ND"])
    shape = tuple(view.shape[: view.ndim]) if view.shape else None
    strides = tuple(view.strides[: view.ndim]) if view.strides else None
    assert view.obj
    assert not view.suboffsets
    named = {b"l": b"q"}.get(view.format, view.format)  # both are int64
    # Without ND, the number of dimensions is meaningless: NumPy has 0, Python's own exporters 1.
    found = (view.buf, view.len, view.itemsize, view.readonly, view.ndim if nd else None, named, shape, strides)
    _release(ctypes.byref(view))
    return found


def layouts(generator: random.Random) -> Any:
    """An array of any rank, strides and sizes, zero included, over memory that may be read-only."""
    rank = generator.choice((0, 1, 1, 2, 2, 3, 4))
    dims = [generator.choice((0, 1, 1, 2, 3, 4)) for _ in range(rank)]
    base = np.arange(int(np.prod([dim * 2 + 1 for dim in dims]))).astype(
        generator.choice(("f4", "i8", "u1", "c8", "?"))
    )
    whole = base.reshape([dim * 2 + 1 for dim in dims], order=generator.choice("CF"))
    key = []
    for dim in dims:
        start, step = generator.randint(0, 1), generator.choice((1, 1, 2))
        part = slice(start, start + dim * step, step)
        key.append(slice(None, None, None) if generator.random() < 0.4 else part)
    array = whole[tuple(key)]
    if generator.random() < 0.4:
        array = np.copy(array, order=generator.choice("CF"))
    for axis in range(array.ndim):
        if generator.random() < 0.25:
            array = np.flip(array, axis)
    if generator.random() < 0.3:
        array = array.transpose(generator.sample(range(array.ndim), array.ndim))
    if generator.random() < 0.2:
        array = np.broadcast_to(array, (3, *array.shape))
    if generator.random() < 0.2:
        array = array[..., None]
    array = array[...]
    if generator.random() < 0.2:
        array.flags.writeable = False
    return array


def check_requests(array: Any, requests: Any) -> None:
    """A tensor over the array's memory answers each request as the array does."""
    buffer = Buffer.from_numpy(array)
    for flags in requests:
        expected, found = answer(array, flags), answer(buffer, flags)
        if array.size == 0 and expected is not None and found is not None:
            expected, found = expected[1:], found[1:]  # there are no bytes
        assert found == expected, (hex(flags), array.shape, array.strides, array.flags)


def run(seconds: float, seed: int) -> int:
    """Random cases for some time; how many came in or were granted."""
    end, generator, capsules = time.monotonic() + seconds, random.Random(seed), Capsules(seed)
    count = 0
    while time.monotonic() < end:
        for _ in range(100):
            count += capsules.check(capsules.one())
        for _ in range(5):
            check_requests(layouts(generator), generator.choices(REQUESTS, k=20))
    return count


if __name__ == "__main__":
    chosen = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(2**32)
    print(f"seed {chosen}: {run(float(sys.argv[1]), chosen)} tensors came in")
