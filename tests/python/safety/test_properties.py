"""Random files, slices and damage: properties of every file, not only of handwritten ones."""

import ctypes
import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import TensorSpec

import max_weights
import max_weights.numpy
from conftest import safetensors_bytes
from max_weights import DType, load_weights
from max_weights.driver import Buffer
from max_weights.errors import WeightsError

SIZES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
}
"""The dtypes that the safetensors package writes, with the bytes of an element (of two, where they are packed)."""

names = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12),
    st.lists(st.sampled_from(["model", "layers", "0", "10", "weight", "", "é", "模型", "name"]), min_size=1, max_size=5)
    .map(".".join)
    .filter(bool),
).filter(lambda name: name != "__metadata__")
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, tuple[int, ...], bytes]:
    dtype = draw(st.sampled_from(sorted(SIZES)))
    shape = draw(shapes)
    if dtype.endswith("_x2") and not shape:
        shape = (1,)  # the package doubles the last dimension
    size = SIZES[dtype] * int(np.prod(shape, dtype=int))
    return dtype, shape, draw(st.binary(min_size=size, max_size=size))


def raw(buffer: Buffer) -> bytes:
    return buffer.view(DType.uint8, [buffer.nbytes]).to_numpy().tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the examples of a test, which overwrite each other."""
    return tmp_path_factory.mktemp("properties")


@given(
    entries=st.dictionaries(names, tensors(), max_size=6),
    metadata=st.none() | st.dictionaries(st.text(max_size=6), st.text(max_size=12), max_size=3),
    backend=st.sampled_from(["mmap", "read"]),
)
def test_a_file_of_the_safetensors_package_is_read_tensor_by_tensor_as_it_reads_it(
    folder: Path, entries: dict[str, tuple[str, tuple[int, ...], bytes]], metadata: dict[str, str] | None, backend: Any
) -> None:
    # Without tensors and metadata, the package writes a file that it cannot read.
    assume(entries or metadata != {})
    memory = {name: ctypes.create_string_buffer(data, len(data) or 1) for name, (_, _, data) in entries.items()}
    specs = {
        name: TensorSpec(dtype=dtype, shape=list(shape), data_ptr=ctypes.addressof(memory[name]), data_len=len(data))
        for name, (dtype, shape, data) in entries.items()
    }
    content = safetensors.serialize(specs, metadata)
    path = folder / "written.safetensors"
    path.unlink(missing_ok=True)  # a new file: tensors of the last one may still be mapped
    path.write_bytes(content)
    weights = load_weights(path, backend=backend)
    theirs = dict(safetensors.deserialize(content))
    assert {name for name, _ in weights.items()} == set(theirs) == set(entries)
    assert weights.metadata == (metadata or {})
    assert max_weights.infos(weights).warnings == []
    infos = {info.name: info for info in max_weights.infos(weights)}
    for name, their in theirs.items():
        dtype, _, data = entries[name]
        found = weights[name].data()
        assert weights[name].exists()
        assert found.dtype.name == infos[name].dtype.name == dtype.removesuffix("_x2")
        assert tuple(int(dim) for dim in found.shape) == infos[name].shape == tuple(their["shape"])
        assert raw(found.to_buffer()) == bytes(their["data"]) == data
        if not dtype.endswith("_x2"):
            array = np.asarray(found)
            assert array.tobytes() == data
            assert array.dtype == (getattr(ml_dtypes, dtype) if hasattr(ml_dtypes, dtype) else np.dtype(dtype))
    assert str(weights)
    assert "<script" not in weights._repr_html_()


bounds = st.none() | st.integers(-7, 7) | st.sampled_from([2**63, -(2**63), 10**20, -(10**20)])
steps = st.none() | st.integers(-4, 4).filter(bool) | st.sampled_from([2**62, -(2**63), 10**20, -(10**20)])
index_parts = st.one_of(
    st.integers(-5, 5), st.builds(slice, bounds, bounds, steps), st.just(Ellipsis), st.none(), st.just(2**70)
)


@given(
    array=hnp.arrays(
        st.sampled_from([np.int16, np.float32, np.complex64, np.bool_, np.uint8, ml_dtypes.bfloat16]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
        elements=st.integers(0, 1),
        fill=st.nothing(),
    ),
    keys=st.lists(st.lists(index_parts, max_size=5).map(tuple), min_size=1, max_size=3),
    pad=st.sampled_from([1, 8]),
)
def test_slices_of_a_mapped_tensor_equal_numpys(
    folder: Path, array: np.ndarray[Any, Any], keys: list[tuple[Any, ...]], pad: int
) -> None:
    array = array + np.arange(array.size).reshape(array.shape).astype(array.dtype)
    dtypes = {"int16": "I16", "float32": "F32", "complex64": "C64", "bool": "BOOL", "uint8": "U8", "bfloat16": "BF16"}
    entry = (dtypes[array.dtype.name], list(array.shape), array.tobytes())
    path = folder / "sliced.safetensors"
    path.unlink(missing_ok=True)
    path.write_bytes(safetensors_bytes({"w": entry}, pad=pad))
    found = load_weights(path)["w"].data().to_buffer()
    if pad == 8:
        assert found.is_mapped
    expected: Any = array
    for key in keys:  # a slice of a slice, too
        try:
            expected = np.asarray(expected[key])  # a scalar, where no axis is left
        except IndexError:
            with pytest.raises((IndexError, ValueError)):
                found[key]
            return
        found = found[key]
        assert found.shape == expected.shape
        assert np.array_equal(found.to_numpy(), expected)
        assert np.array_equal(found.copy().to_numpy(), expected)


def small_file() -> bytes:
    return safetensors_bytes(
        {
            "model.layers.0.weight": ("F32", [2, 2], bytes(range(16))),
            "model.layers.1.weight": ("BF16", [2, 2], bytes(range(8))),
            "model.norm": ("F8_E4M3", [3], bytes(3)),
            "packed": ("F4", [4], bytes(2)),
            "scalar": ("I64", [], bytes(8)),
            "empty": ("F16", [0, 3], b""),
            "later": ("F5", [3], bytes(5)),
        },
        metadata={"format": "pt"},
    )


changes = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 700), st.integers(0, 255)),
        st.tuples(st.just("flip"), st.integers(0, 700), st.integers(0, 7)),
        st.tuples(
            st.just("insert"), st.integers(0, 700), st.sampled_from([b"0", b"-", b'"', b"{", b"]", b",", b"\\u0000"])
        ),
        st.tuples(st.just("remove"), st.integers(0, 700), st.integers(1, 30)),
        st.tuples(st.just("cut"), st.integers(0, 700), st.none()),
    ),
    min_size=1,
    max_size=2,  # more would rarely leave a file that opens
)


def damage(content: bytes, todo: list[tuple[str, int, Any]], mend: bool) -> bytes:
    """Change bytes; with `mend`, only in the header, whose length is then corrected."""
    header = bytearray(content if not mend else content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    rest = b"" if not mend else content[8 + len(header) :]
    for kind, place, value in todo:
        at = place % len(header) if header else 0
        if kind == "set" and header:
            header[at] = value
        elif kind == "flip" and header:
            header[at] ^= 1 << value
        elif kind == "insert":
            header[at:at] = value
        elif kind == "remove":
            del header[at : at + value]
        elif kind == "cut":
            del header[at:]
    return bytes(header) if not mend else struct.pack("<Q", len(header)) + bytes(header) + rest


def use(path: Path, **options: Any) -> None:
    """Open a checkpoint and read everything; every refusal is a documented error."""

    def attempt(call: Any) -> Any:
        try:
            return call()
        except (WeightsError, OSError, ValueError, KeyError):
            return None

    weights = attempt(lambda: load_weights(path, **options))
    if weights is None:
        return
    for call in (
        repr,
        str,
        len,
        dir,
        lambda w: w._repr_html_(),
        lambda w: w.metadata,
        lambda w: max_weights.infos(w).warnings,
    ):
        attempt(lambda call=call: call(weights))
    attempt(lambda: weights["model.layers.0.wieght"].data())
    attempt(lambda: weights.model.layers[0].weight.data())
    for name, node in weights.items():
        data = attempt(node.data)
        attempt(node.allocate)
        for call in (
            lambda data=data: np.asarray(data),
            lambda data=data: data.to_buffer().copy(),
            lambda data=data: raw(data.to_buffer()),
            lambda data=data: repr(data),
            lambda node=node: node["x"].exists(),
        ):
            attempt(call)
        assert weights[name].exists()
    for info in max_weights.infos(weights):
        assert len(tuple(info)) == 7
    attempt(lambda: max_weights.numpy.load_file(path))


@settings(max_examples=300)
@given(todo=changes, mend=st.booleans(), strict=st.booleans(), backend=st.sampled_from(["mmap", "read"]))
def test_a_damaged_file_is_refused_or_read_and_nothing_else(
    folder: Path, todo: list[tuple[str, int, Any]], mend: bool, strict: bool, backend: str
) -> None:
    path = folder / "damaged.safetensors"
    path.unlink(missing_ok=True)
    path.write_bytes(damage(small_file(), todo, mend))
    use(path, strict=strict, backend=backend)


@given(todo=changes, strict=st.booleans())
def test_a_damaged_index_is_refused_or_read_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, todo: list[tuple[str, int, Any]], strict: bool
) -> None:
    folder = tmp_path_factory.mktemp("indexed")
    (folder / "a.safetensors").write_bytes(small_file())
    entries = json.loads(small_file()[8 : 8 + struct.unpack("<Q", small_file()[:8])[0]])
    index = {
        "metadata": {"total_size": 42},
        "weight_map": {name: "a.safetensors" for name in entries if name[0] != "_"},
    }
    path = folder / "model.safetensors.index.json"
    path.write_bytes(damage(json.dumps(index).encode(), todo, mend=False))
    use(folder, strict=strict)
    use(path, strict=strict)
