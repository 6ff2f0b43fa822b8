"""`max-weights diff`: equal to NumPy and PyTorch on random tensors, across dtypes and formats, in bounded memory."""

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

import max_weights
from command_line import measured, run

Arrays = dict[str, NDArray[Any]]
FLOATS = [np.dtype(kind) for kind in ("float16", "float32", "float64")]
SMALL_FLOATS = [np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
SPECIAL = [0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 1e-30]


def diff(a: object, b: object, *options: object, status: int = 1) -> dict[str, Any]:
    """The differences as JSON."""
    done = run("diff", a, b, "--json", *options)
    assert (done.status, done.stderr) == (status, "")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["different"] == (status == 1)
    return found


def expected(a: NDArray[Any], b: NDArray[Any], rtol: float, atol: float) -> dict[str, Any]:
    """The difference of two arrays by NumPy."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        # Python's integers are exact.
        exact = [abs(int(x) - int(y)) for x, y in zip(a.flat, b.flat, strict=True)]
        distance = np.array(exact, np.float64).reshape(a.shape)
        same = distance <= atol + rtol * np.abs(b.astype(np.float64))
    else:
        with np.errstate(invalid="ignore"):
            distance = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, np.abs(x - y))
        same = np.isclose(x, y, rtol, atol, equal_nan=True)
    one_nan = np.isnan(x) != np.isnan(y)
    known = np.where(one_nan, -1, distance)
    finite = np.isfinite(x) & np.isfinite(y)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(~one_nan & (np.abs(y) > 0) & (distance > 0), distance / np.abs(y), 0)
    relative = np.nan_to_num(relative, nan=0, posinf=np.inf)
    largest = max(known.max(initial=0), 0)
    return {
        "differing": int(np.logical_not(same).sum()),
        "nan": int(one_nan.sum()),
        "largest": largest,
        "index": [int(i) for i in np.unravel_index(np.argmax(known), a.shape)] if largest > 0 else None,
        "relative": relative.max(initial=0),
        "dot": float((x[finite] * y[finite]).sum()),
        "lengths": float(np.sqrt((x[finite] ** 2).sum()) * np.sqrt((y[finite] ** 2).sum())),
    }


def check(values: dict[str, Any], a: NDArray[Any], b: NDArray[Any], rtol: float = 0, atol: float = 0) -> None:
    """Assert that the result is that of NumPy."""
    requested = expected(a, b, rtol, atol)
    assert values["elements"] == a.size
    for key in ("differing", "nan", "index"):
        assert values[key] == requested[key], key
    for key in ("largest", "relative"):
        found = np.inf if values[key] is None else values[key]
        assert found == pytest.approx(requested[key], rel=1e-12), key
    if requested["lengths"] > 0:
        assert values["cosine"] == pytest.approx(requested["dot"] / requested["lengths"], abs=1e-9)
    else:
        assert values["cosine"] is None
    if values["index"] is not None and np.isfinite(requested["largest"]):
        place = tuple(values["index"])
        assert values["at"] == [float(a[place]), float(b[place])]


def random_pairs(seed: int) -> tuple[Arrays, Arrays]:
    """Two hundred pairs of arrays of all dtypes; some are equal, some have non-finite numbers."""
    numbers = np.random.default_rng(seed)
    a, b = {}, {}
    for i in range(200):
        dtype = [*FLOATS, *SMALL_FLOATS, *INTEGERS][i % (6 + len(INTEGERS))]
        shape = tuple(numbers.integers(0, 9, size=numbers.integers(0, 4)))
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            x: NDArray[Any] = np.asarray(numbers.integers(info.min, info.max, shape, dtype, endpoint=True))
            y = np.where(np.asarray(numbers.random(shape)) < 0.5, x, numbers.integers(0, 100, shape)).astype(dtype)
        else:
            x = np.array(numbers.standard_normal(shape), dtype)
            y = np.array(x.astype(np.float64) * (1 + 0.01 * numbers.standard_normal(shape)), dtype)
            for side in (x, y):
                odd = np.asarray(numbers.random(shape) < 0.1)
                side[odd] = numbers.choice(SPECIAL, int(odd.sum())).astype(dtype)
        a[f"{i}.{dtype.name}"], b[f"{i}.{dtype.name}"] = x, y if i % 10 else x.copy()
    return a, b


@pytest.mark.parametrize(("rtol", "atol"), [(0, 0), (0.01, 0), (0, 0.02), (0.005, 0.01)])
def test_random_tensors_differ_as_numpy_says(tmp_path: Path, rtol: float, atol: float) -> None:
    a, b = random_pairs(seed=7)
    save_file(a, tmp_path / "a.safetensors")
    save_file(b, tmp_path / "b.safetensors")
    found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--rtol", rtol, "--atol", atol)
    changed = {entry["name"]: entry for entry in found["changed"]}
    for name in a:
        if expected(a[name], b[name], rtol, atol)["differing"] == 0:
            assert name not in changed
        else:
            assert changed[name]["dtypes"] is None
            check(changed[name]["values"], a[name], b[name], rtol, atol)
    assert found["same"] + found["close"] + len(changed) == len(a)
    assert 20 < len(changed) < len(a)
    order = [
        np.inf if (of := entry["values"])["nan"] or of["largest"] is None else of["largest"]
        for entry in found["changed"]
    ]
    assert order == sorted(order, reverse=True)


def test_exactly_as_many_elements_differ_as_have_other_bytes(tmp_path: Path) -> None:
    a, b = random_pairs(seed=8)
    save_file(a, tmp_path / "a.safetensors")
    save_file(b, tmp_path / "b.safetensors")
    found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--exact")
    differing = {}
    for name, array in a.items():
        width = array.dtype.itemsize
        x, y = (np.frombuffer(side[name].tobytes(), np.uint8).reshape(-1, width) for side in (a, b))
        if count := int((x != y).any(axis=1).sum()):
            differing[name] = count
    assert {entry["name"]: entry["values"]["differing"] for entry in found["changed"]} == differing
    assert found["close"] == 0


def test_tensors_of_other_dtypes_are_compared_by_their_values(tmp_path: Path) -> None:
    numbers = np.random.default_rng(9)
    dtypes = [*FLOATS, *SMALL_FLOATS, np.dtype("int8"), np.dtype("int32"), np.dtype("int64"), np.dtype("uint64")]
    a, b = {}, {}
    for x in dtypes:
        for y in dtypes:
            values = np.round(numbers.standard_normal(50) * 10)
            if "u" in x.kind + y.kind:
                values = np.abs(values)
            name = f"{x.name}-{y.name}"
            a[name] = values.astype(x)
            b[name] = (values + (numbers.random(50) < 0.2)).astype(y)
    save_file(a, tmp_path / "a.safetensors")
    save_file(b, tmp_path / "b.safetensors")
    found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    changed = {entry["name"]: entry for entry in found["changed"]}
    for name, array in a.items():
        x, y = array.dtype.name, b[name].dtype.name
        assert changed[name]["dtypes"] == (None if x == y else [x, y])
        check(changed[name]["values"], array, b[name])


def test_what_is_rounded_is_told_from_what_differs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    values = torch.randn(1000)
    pairs = {
        "same": (values.bfloat16().float(), values.bfloat16()),
        "rounded": (values, values.bfloat16()),
        "back": (values.half(), values.clone()),
        "other": (values.clone(), (values + 0.1).bfloat16()),
    }
    save_torch_file({name: pair[0] for name, pair in pairs.items()}, tmp_path / "a.safetensors")
    save_torch_file({name: pair[1] for name, pair in pairs.items()}, tmp_path / "b.safetensors")
    found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    seen = {entry["name"]: (entry["values"]["differing"] > 0, entry["values"]["rounded"]) for entry in found["changed"]}
    assert seen == {"same": (False, False), "rounded": (True, True), "back": (True, True), "other": (True, False)}


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pytorch_file_is_the_same_as_a_safetensors_file_whatever_its_strides(tmp_path: Path, legacy: bool) -> None:
    torch.manual_seed(0)
    base = torch.randn(64, 96, 5)
    weights = {
        "transposed": base.permute(2, 0, 1),
        "every_second": base[::2, 1::3],
        "repeated": base[:1].expand(7, 96, 5),
        "whole": base,
        "scalar": torch.tensor(3),
        "half": base.half().t() if base.dim() == 2 else base.half(),
        "empty": torch.zeros(0, 3),
    }
    torch.save(weights, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    save_torch_file({name: weight.contiguous().clone() for name, weight in weights.items()}, tmp_path / "b.safetensors")
    assert diff(tmp_path / "a.pt", tmp_path / "b.safetensors", status=0)["same"] == len(weights)
    changed = {name: weight.contiguous().clone() for name, weight in weights.items()}
    changed["transposed"][3, 60, 70] += 1
    changed["every_second"][31, 31, 4] -= 2
    save_torch_file(changed, tmp_path / "c.safetensors")
    found = diff(tmp_path / "a.pt", tmp_path / "c.safetensors")
    places = [(entry["name"], entry["values"]["index"]) for entry in found["changed"]]
    assert places == [("every_second", [31, 31, 4]), ("transposed", [3, 60, 70])]
    for entry in found["changed"]:
        check(entry["values"], weights[entry["name"]].numpy(), changed[entry["name"]].numpy())


def test_a_compressed_archive_is_read_as_any_other(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = {"a": torch.randn(300, 70), "b": torch.randn(70, 300).t(), "c": torch.arange(5)}
    torch.save(weights, tmp_path / "stored.pt")
    with zipfile.ZipFile(tmp_path / "stored.pt") as stored, zipfile.ZipFile(tmp_path / "a.pt", "w") as deflated:
        for member in stored.infolist():
            deflated.writestr(member.filename, stored.read(member), zipfile.ZIP_DEFLATED)
    changed = {name: weight.contiguous().clone() for name, weight in weights.items()}
    save_torch_file(changed, tmp_path / "b.safetensors")
    assert diff(tmp_path / "a.pt", tmp_path / "b.safetensors", status=0)["same"] == 3
    changed["b"][299, 69] += 1
    save_torch_file(changed, tmp_path / "c.safetensors")
    [entry] = diff(tmp_path / "a.pt", tmp_path / "c.safetensors")["changed"]
    check(entry["values"], weights["b"].numpy(), changed["b"].numpy())


def test_what_only_pytorch_has_is_compared_by_bytes_or_by_its_parts(tmp_path: Path) -> None:
    wide = torch.randn(4, 3, dtype=torch.complex128)
    sparse_weight = torch.eye(3).to_sparse()
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    torch.save({"wide": wide, "sparse": sparse_weight, "conjugate": conjugate}, tmp_path / "a.pt")
    other = wide.clone()
    other[1, 2] += 1
    sparse_other = (torch.eye(3) * 2).to_sparse()
    torch.save({"wide": other, "sparse": sparse_other, "conjugate": conjugate}, tmp_path / "b.pt")
    found = diff(tmp_path / "a.pt", tmp_path / "b.pt")
    values, entry = found["changed"]
    assert (values["name"], values["values"]["largest"]) == ("sparse.values", 1)
    assert (entry["name"], entry["values"]["elements"], entry["values"]["differing"]) == ("wide", 12, 1)
    assert entry["values"]["cosine"] is None
    assert found["not_compared"] == []  # the arrays of a sparse tensor have separate names


def test_packed_blocks_are_compared_by_what_gguf_decodes_them_to(tmp_path: Path) -> None:
    values = np.random.default_rng(3).standard_normal((8, 512), dtype=np.float32)
    types = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q5_1, Type.Q4_0]
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    decoded = {}
    for kind in types:
        packed = gguf.quantize(values, kind)
        writer.add_tensor(kind.name, packed, raw_dtype=kind)
        decoded[kind.name] = gguf.dequantize(packed, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(decoded, tmp_path / "same.safetensors")
    assert diff(tmp_path / "a.gguf", tmp_path / "same.safetensors", "--no-dtype", status=0)["different"] is False
    save_file({kind.name: values for kind in types}, tmp_path / "b.safetensors")
    found = diff(tmp_path / "a.gguf", tmp_path / "b.safetensors")
    assert found["metadata"] == []
    changed = {entry["name"]: entry for entry in found["changed"]}
    assert set(changed) == {kind.name for kind in types} - {"F32"}
    for name, entry in changed.items():
        check(entry["values"], decoded[name], values)
        assert entry["dtypes"][1] == "float32"
    assert diff(tmp_path / "a.gguf", tmp_path / "b.safetensors", "--no-dtype", "--atol", 0.6, status=0)["close"] == 5


def test_a_gguf_file_meets_another_scheme_by_patterns(models: Path, tmp_path: Path) -> None:
    file = models / "smollm2-135m.Q4_1.gguf"
    reader = gguf.GGUFReader(file)
    norms = {
        tensor.name.replace("blk.", "model.layers.").replace("attn_norm", "input_layernorm"): np.array(tensor.data)
        for tensor in reader.tensors
        if tensor.name.endswith("attn_norm.weight")
    }
    save_file(norms, tmp_path / "norms.safetensors")
    rename = "blk.*.attn_norm.weight=model.layers.*.input_layernorm.weight"
    found = diff(file, tmp_path / "norms.safetensors", "--rename", rename)
    assert (found["same"], found["added"], found["changed"]) == (len(norms), [], [])
    assert len(found["removed"]) == len(reader.tensors) - len(norms)
    without = diff(file, tmp_path / "norms.safetensors")
    assert {entry["name"]: entry["new_name"] for entry in without["renamed"]} == {
        name.replace("model.layers.", "blk.").replace("input_layernorm", "attn_norm"): name for name in norms
    }


def test_a_gguf_file_meets_the_names_and_rows_of_transformers(models: Path, tmp_path: Path) -> None:
    layers, kept = 30, 3
    parts = [f"mlp.{part}_proj" for part in ("gate", "up", "down")] + [f"self_attn.{part}_proj" for part in "qkvo"]
    parts += ["input_layernorm", "post_attention_layernorm"]
    names = ["model.embed_tokens", "model.norm"]
    names += [f"model.layers.{layer}.{part}" for layer in range(layers) for part in parts]
    file = models / "smollm2-135m.Q4_1.gguf"
    reader = gguf.GGUFReader(file)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    of_gguf = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    heads = {"q": reader.fields["llama.attention.head_count"].contents()}
    heads["k"] = reader.fields["llama.attention.head_count_kv"].contents()
    weights = {}
    for name in names[1 : 2 + kept * len(parts)]:
        tensor = tensors[f"{of_gguf.get_name(name)}.weight"]
        array = gguf.dequantize(tensor.data, tensor.tensor_type)
        if name.endswith(("q_proj", "k_proj")):
            # llama.cpp interleaves the two halves of a head, transformers concatenates them.
            rows = array.reshape(heads[name[-6]], -1, 2, array.shape[-1]).swapaxes(1, 2)
            array = np.ascontiguousarray(rows).reshape(array.shape)
        weights[f"{name}.weight"] = np.array(array)  # those of the file cannot be written to
    save_file(weights, tmp_path / "model.safetensors")
    tree = max_weights.renamed(max_weights.load_weights(file), "hf")

    found = max_weights.diff(tree, tmp_path / "model.safetensors", dtypes=False)
    assert (found.same + found.close, found.by_kind("changed", "added", "renamed")) == (len(weights), ())
    assert {weight.name for weight in found.by_kind("removed")} == {f"{name}.weight" for name in names} - set(weights)
    packed = max_weights.diff(tree, tmp_path / "model.safetensors").by_kind("changed")
    assert {weight.dtypes for weight in packed} == {("Q4_1", "float32")}
    assert {weight.values["differing"] for weight in packed if weight.values} == {0}

    changes = {
        "model.layers.1.self_attn.q_proj.weight": ((70, 5), 1.0),
        "model.layers.0.mlp.up_proj.weight": ((8, 575), -0.5),
        "model.layers.2.self_attn.k_proj.weight": ((191, 0), 0.25),
        "model.norm.weight": ((3,), 0.125),
    }
    reported = []
    for name, (index, change) in changes.items():
        before = float(weights[name][index])
        weights[name][index] += change
        after = float(weights[name][index])
        reported.append((name, list(index), abs(after - before), [before, after]))
    save_file(weights, tmp_path / "model.safetensors")
    changed = max_weights.diff(tree, tmp_path / "model.safetensors", dtypes=False).by_kind("changed")
    values = [(weight.name, weight.values) for weight in changed]
    assert [(name, of["index"], of["largest"], of["at"]) for name, of in values if of] == reported
    assert {of["differing"] for _, of in values if of} == {1}


def test_tolerances_are_those_of_torch_allclose(tmp_path: Path) -> None:
    torch.manual_seed(1)
    a = {f"{i}": torch.randn(20, dtype=torch.float64) for i in range(100)}
    b = {name: weight + 1e-3 * torch.randn(20, dtype=torch.float64) * weight for name, weight in a.items()}
    save_torch_file(a, tmp_path / "a.safetensors")
    save_torch_file(b, tmp_path / "b.safetensors")
    found = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--rtol", 2e-3, "--atol", 1e-4)
    other = {name for name in a if not torch.allclose(a[name], b[name], rtol=2e-3, atol=1e-4, equal_nan=True)}
    assert 0 < len(other) < len(a)
    assert {entry["name"] for entry in found["changed"]} == other


def sparse(path: Path, bytes_of_data: int, at: int, value: float) -> Path:
    """A sparse file of one weight that is zero except for one value."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [bytes_of_data // 4], "data_offsets": [0, bytes_of_data]}})
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header.encode())
        file.truncate(8 + len(header) + bytes_of_data)
        file.seek(8 + len(header) + 4 * at)
        file.write(struct.pack("<f", value))
    return path


def test_the_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    peaks = []
    for megabytes in (16, 400):
        a = sparse(tmp_path / "a.safetensors", megabytes << 20, at=5, value=1)
        b = sparse(tmp_path / "b.safetensors", megabytes << 20, at=(megabytes << 18) - 1, value=2)
        done, peak = measured("diff", a, b, "--json")
        assert done.status == 1
        values = json.loads(done.stdout)["changed"][0]["values"]
        assert (values["differing"], values["largest"], values["index"]) == (2, 2, [(megabytes << 18) - 1])
        peaks.append(peak)
    assert peaks[1] < peaks[0] + 30, peaks
