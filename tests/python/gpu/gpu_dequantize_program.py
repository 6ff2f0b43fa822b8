"""Run by test_gpu_dequantize.py in separate processes, on the stand-in driver: one function for each promise of
decoding packed blocks on a device.
"""

import ctypes
import gc
import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gguf_models
from gpu_program import copied_on_a_stream, counters, driver, nothing_is_left, random, refused
from max_weights import Buffer, DType, UnsupportedError, WeightData, dequantize, load_weights, quantize
from max_weights.driver import Device
from max_weights.graph.quantization import QuantizationEncoding

Blocks = npt.NDArray[np.uint8]

TARGETS = [DType.float32, DType.float16, DType.bfloat16]
# Offsets of the f16 scales of a block; the default is its first byte. Other encodings have no scale, several places, or
# an f32.
SCALES: dict[str, list[int]] = {"Q2_K": [80, 82], "Q3_K": [108], "Q6_K": [208], "MXFP4": [], "NVFP4": []}
SCALES |= {"IQ1_M": [], "Q8_K": [], "TQ1_0": [52], "TQ2_0": [64]}
SCALES |= {name: [0, 2] for name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K")}
# Zero, denormals, the ends of the range, infinities, quiet and signalling NaN, each of both signs; and ordinary ones.
SPECIAL = [0x0000, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF, 0x3C00, 0x2E66]
SPECIAL = [sign | bits for bits in SPECIAL for sign in (0, 0x8000)]

# The driver calls of decoding that a copy does not make.
CALLS = ["cuCtxPushCurrent_v2", "cuMemAlloc_v2", "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"]
CALLS += ["cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"]


def blocks_of(encoding: QuantizationEncoding, count: int) -> Blocks:
    """`count` blocks of reproducible random bytes."""
    return np.random.default_rng(count).integers(0, 256, (count, encoding.block_size), np.uint8)


def special_blocks(encoding: QuantizationEncoding) -> Blocks:
    """Blocks with every pair of special scales, half of them with zeros elsewhere; or with every scale of a byte."""
    places = SCALES.get(encoding.value, [0])
    scales = list(itertools.product(SPECIAL, repeat=len(places))) if places else []
    blocks = blocks_of(encoding, 2 * max(len(scales), 256))
    blocks[::2] = 0
    if not places:
        blocks[:256, 0] = blocks[256:512, 0] = np.arange(256)
    for row, bits in enumerate(itertools.chain(scales, scales)):
        for place, value in zip(places, bits, strict=True):
            blocks[row, place : place + 2] = np.frombuffer(value.to_bytes(2, "little"), np.uint8)
    return blocks


def equal(found: Buffer, expected: Buffer) -> bool:
    """Whether two tensors have the same bits; the bits of NaN are not promised."""
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    width, infinity = {
        DType.float32: (np.uint32, 0x7F800000),
        DType.float16: (np.uint16, 0x7C00),
        DType.bfloat16: (np.uint16, 0x7F80),
    }[found.dtype]
    one, other = (np.frombuffer(bytes(tensor.view(DType.uint8).to_numpy()), width) for tensor in (found, expected))
    most = np.iinfo(width).max // 2
    return bool(((one == other) | (((one & most) > infinity) & ((other & most) > infinity))).all())


def decodes_equally(blocks: Buffer, encoding: QuantizationEncoding) -> None:
    """Assert that blocks decode to the same values on a device and on the CPU."""
    there = blocks.to("cuda:0")
    for target in TARGETS:
        found = dequantize(there, encoding, target)
        assert found.device == Device("gpu", 0)
        assert equal(found.to("cpu"), dequantize(blocks, encoding, target)), (encoding, target, blocks.shape)


def all_is_freed() -> bool:
    """Whether all memory was freed, after the frames held by errors are gone."""
    gc.collect()
    return nothing_is_left()


def any_blocks_decode_to_the_same_bits(encoding: QuantizationEncoding) -> None:
    for count in (1, 2, 3, 7, 255, 256, 257, 1000):
        decodes_equally(Buffer.from_numpy(blocks_of(encoding, count)), encoding)
    decodes_equally(Buffer.from_numpy(special_blocks(encoding)), encoding)
    assert nothing_is_left()


def blocks_decode_wherever_they_begin(encoding: QuantizationEncoding) -> None:
    blocks = blocks_of(encoding, 33)
    for start in (1, 2, 4, 8, 48):
        whole = Buffer.from_numpy(np.concatenate([np.zeros(start, np.uint8), blocks.reshape(-1)]))
        there = whole.to("cuda")[start:].view(DType.uint8, list(blocks.shape))
        for target in TARGETS:
            found = dequantize(there, encoding, target).to("cpu")
            assert equal(found, dequantize(blocks, encoding, target)), (encoding, target, start)


def a_file_decodes_as_on_the_cpu(path: Path, requested: set[str]) -> None:
    """Assert that packed weights of a file, loaded to a device unchanged, decode there."""
    weights = load_weights(path)
    there, found = weights.load(device="cuda:0", packed="keep"), set()
    for number, (name, weight) in enumerate(weights.items()):
        value, target = weight.data(), TARGETS[number % 3]
        encoding = value.quantization_encoding
        if encoding is None:
            continue
        found.add(encoding.value)
        expected = value.astype(target)
        moved = WeightData(there[name], name, value.dtype, value.shape, encoding).astype(target)
        assert (moved.shape, moved.to_buffer().device) == (value.logical_shape, Device("gpu", 0))
        assert equal(moved.to_buffer().to("cpu"), expected.to_buffer()), (name, target)
    assert found == requested


def weights_of_files_decode_there(folder: Path, models: Path) -> None:
    a_file_decodes_as_on_the_cpu(models / "smollm2-135m.Q4_1.gguf", {"Q4_1", "Q8_0"})
    a_file_decodes_as_on_the_cpu(gguf_models.write(folder / "model.gguf"), {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"})
    assert nothing_is_left()


def rows_decode_without_the_rest() -> None:
    encoding = QuantizationEncoding.Q4_K
    blocks = Buffer.from_numpy(blocks_of(encoding, 600).reshape(200, 432))
    there = blocks.to("cuda:1")
    for rows in (slice(0, 1), slice(7, 100), slice(199, 200), slice(50, 50)):
        found = dequantize(there[rows], encoding)
        assert (found.shape, found.device) == ((len(range(200)[rows]), 768), Device("gpu", 1))
        assert equal(found.to("cpu"), dequantize(blocks[rows], encoding))
    message = refused(lambda: dequantize(there[::2], encoding))
    assert "dequantize on gpu:1 needs contiguous tensors" in message
    assert "[100, 432]" in message


def what_cannot_be_decoded_is_refused_as_on_the_cpu() -> None:
    calls: list[Callable[[Buffer], Any]] = [
        lambda blocks: dequantize(blocks[:, :33], "Q8_0"),
        lambda blocks: dequantize(blocks.view(DType.uint8, [-1])[:67], "Q8_0"),
        lambda blocks: dequantize(blocks, "Q8_0", "int8"),
        lambda blocks: dequantize(blocks, "Q8_0", "float64"),
        lambda blocks: dequantize(blocks, "GPTQ"),
        lambda blocks: dequantize(blocks, "Q9"),
    ]
    blocks = Buffer.from_numpy(np.zeros((3, 34), np.uint8))
    there = blocks.to("cuda")
    assert '.to("cpu")' in refused(lambda: dequantize(there, "Q8_0", out=np.zeros((3, 32), np.float32)))
    for call in calls:
        with pytest.raises((ValueError, UnsupportedError)) as expected:
            call(blocks)
        with pytest.raises(type(expected.value)) as found:
            call(there)
        assert str(found.value) == str(expected.value)


def every_call_that_fails_is_an_error_that_names_it() -> None:
    blocks = random(34 * 1000)
    there = blocks.to("cuda")
    held = counters()
    for number, call in enumerate(CALLS):
        # A kernel is compiled once, so each call uses one that was not used before.
        encoding = list(QuantizationEncoding)[number]
        part = there[: encoding.block_size * 7]
        assert driver().fake_cuda_fail(call.encode(), ctypes.c_uint64(1), 999) == 0
        message = refused(lambda part=part, encoding=encoding: dequantize(part, encoding))
        assert call in message, message
        assert "CUDA_ERROR_UNKNOWN, unknown error" in message
        if "Module" in call or "Launch" in call:
            assert f"dequantize_{encoding.name}_f32" in message, message
        driver().fake_cuda_reset()
        now = counters()
        assert all(now[name] == held[name] for name in ("device_bytes", "events", "violations")), (call, now, held)
        assert equal(dequantize(part, encoding).to("cpu"), dequantize(part.to("cpu"), encoding))
    del there, part
    assert all_is_freed()


def a_kernel_that_fails_while_it_runs_is_an_error() -> None:
    blocks = random(34 * 1000)
    there = blocks.to("cuda")
    assert driver().fake_cuda_fail_later(b"cuLaunchKernel", ctypes.c_uint64(1), 700) == 0
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in refused(lambda: dequantize(there, "Q8_0").to("cpu"))
    other = dequantize(blocks.to("cuda:1"), "Q8_0")  # another device still works
    assert equal(other.to("cpu"), dequantize(blocks, "Q8_0"))


def too_little_memory_names_the_bytes() -> None:
    there = random(34 * 100_000).to("cuda")  # of 10 MiB
    message = refused(lambda there=there: dequantize(there, "Q8_0", "float32"))
    assert message.startswith("cuMemAlloc_v2 of 12800000 bytes on gpu:0 failed: CUDA_ERROR_OUT_OF_MEMORY")
    assert equal(dequantize(there, "Q8_0", "bfloat16").to("cpu"), dequantize(there.to("cpu"), "Q8_0", "bfloat16"))
    del there
    assert all_is_freed()


def a_consumers_stream_waits_for_the_elements() -> None:
    blocks = quantize(np.random.default_rng(7).standard_normal((100, 3200), np.float32), "Q8_0")
    found, violations = copied_on_a_stream(dequantize(blocks.to("cuda"), "Q8_0", "float16"), lambda own: own)
    assert found == bytes(dequantize(blocks, "Q8_0", "float16").view(DType.uint8).to_numpy())
    assert violations == 0


def the_blocks_may_go_while_they_are_decoded() -> None:
    blocks = random(34 * 10_000)
    made = dequantize(blocks.to("cuda"), "Q8_0", "float16")  # no one else holds the blocks there
    assert equal(made.to("cpu"), dequantize(blocks, "Q8_0", "float16"))
    del made
    assert all_is_freed()


def threads_decode_on_two_devices() -> None:
    def work(number: int) -> None:
        encoding = list(QuantizationEncoding)[number % 5]
        for round in range(4):
            blocks = Buffer.from_numpy(blocks_of(encoding, 100 * number + round + 1))
            found = dequantize(blocks.to(f"cuda:{number % 2}"), encoding, "bfloat16").to("cpu")
            equal(found, dequantize(blocks, encoding, "bfloat16")) or wrong.append(number)

    wrong: list[int] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all_is_freed()


def no_blocks_have_no_elements() -> None:
    there = Buffer.zeros([0, 144], DType.uint8, "cuda:0")
    for target in TARGETS:
        found = dequantize(there, "Q4_K", target)
        assert (found.shape, found.dtype, found.device) == ((0, 256), target, Device("gpu", 0))


if __name__ == "__main__":
    if sys.argv[1] in QuantizationEncoding.__members__:
        any_blocks_decode_to_the_same_bits(QuantizationEncoding(sys.argv[1]))
        blocks_decode_wherever_they_begin(QuantizationEncoding(sys.argv[1]))
    else:
        globals()[sys.argv[1]](*map(Path, sys.argv[2:]))
