"""GGUF files of removed or future types, and headers with excessive claims: the errors that a user sees.

The rules of the headers have a test each in tests/gguf_hostile.
"""

from pathlib import Path

import numpy as np
import pytest

import max_weights
from max_weights import DType, FormatError, UnsupportedError, load_weights
from refusals import refuses

REMOVED = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
# Types of forks: two known by name, one unknown, and two whose number ggml uses for blocks of another size.
FORKS = {142: "PQ2_0 of Prism ML's fork", 143: "PTQ1_0 of Prism ML's fork"}
FORKS |= dict.fromkeys((150, 41, 42), "may come from a fork")


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def text(content: bytes) -> bytes:
    return number(len(content), 8) + content


def write(path: Path, type_id: int) -> Path:
    """A file with a tensor of this type, 64 elements in 96 bytes, between two of floats."""
    header = b"GGUF" + number(3, 4) + number(3, 8) + number(0, 8)
    for name, elements, kind, offset in ((b"before", 8, 0, 0), (b"odd", 64, type_id, 32), (b"after", 8, 0, 128)):
        header += text(name) + number(1, 4) + number(elements, 8) + number(kind, 4) + number(offset, 8)
    floats = np.arange(8, dtype=np.float32).tobytes()
    path.write_bytes(header + bytes(-len(header) % 32) + floats + bytes(range(96)) + floats)
    return path


@pytest.mark.parametrize("type_id", [*REMOVED, *FORKS])
@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_a_removed_or_a_forks_type_spoils_its_tensor_only(tmp_path: Path, type_id: int, backend: str) -> None:
    weights = load_weights(write(tmp_path / "model.gguf", type_id), backend=backend)
    says = (REMOVED | FORKS)[type_id]
    assert any("'odd'" in warning and says in warning for warning in max_weights.infos(weights).warnings)
    assert [info.name for info in max_weights.infos(weights)] == ["before", "odd", "after"]
    assert f"ggml type {type_id}" in str(weights)
    for name in ("before", "after"):
        assert np.array_equal(np.asarray(weights[name].data().astype("float64")), np.arange(8))

    value = weights.odd.data()
    assert (value.dtype, value.quantization_encoding) == (DType.uint8, None)
    assert np.asarray(value).tobytes() == bytes(range(96))
    assert value.astype("uint8") is value
    for convert in (lambda: value.astype("float32"), lambda: weights.odd.allocate(dtype=DType.float32)):
        for _ in range(2):  # new each time
            with refuses(UnsupportedError, "tensor.unknown-type") as caught:
                convert()
            assert (caught.value.rule, caught.value.tensor) == ("tensor.unknown-type", "odd")
            assert caught.value.path == str(tmp_path / "model.gguf")
    assert list(weights.allocated_weights) == []
    assert weights.odd.allocate().dtype == DType.uint8


@pytest.mark.parametrize("element", [0, 8, 9])
def test_65_bytes_that_declare_2_to_the_60_elements_are_refused(tmp_path: Path, element: int) -> None:
    path = tmp_path / "huge.gguf"
    header = b"GGUF" + number(3, 4) + number(0, 8) + number(1, 8) + text(b"tokens") + number(9, 4)
    path.write_bytes((header + number(element, 4) + number(1 << 60, 8)).ljust(65, b"\0"))
    assert path.stat().st_size == 65
    with refuses(FormatError, "gguf.array-length") as caught:
        load_weights(path)
    assert caught.value.rule == "gguf.array-length"
