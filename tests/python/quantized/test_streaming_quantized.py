"""A stream gives a quantized weight and its scales in sequence, at any place in the files."""

import gc
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import max_weights
from max_weights import load_weights
from refusals import refuses
from test_streaming import MEASURE, MIB, least, reading, reading_after

Tensors = dict[str, torch.Tensor]
LAYERS = 6


def fp8(layers: int = LAYERS) -> Tensors:
    """Make layers like DeepSeek's; the file has all scales before all weights."""
    tensors: Tensors = {}
    for i in range(layers):
        tensors[f"model.layers.{i}.mlp.up_proj.weight"] = torch.randn(256, 128).to(torch.float8_e4m3fn)
        tensors[f"model.layers.{i}.mlp.up_proj.weight_scale_inv"] = torch.rand(2, 1)
        tensors[f"model.layers.{i}.input_layernorm.weight"] = torch.rand(128).bfloat16()
    return tensors


def in_file(path: Path) -> list[str]:
    return [info.name for info in max_weights.infos(load_weights(path))]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("options", [{}, {"reuse": True}, {"max_memory": 1 << 18}, {"threads": 3}], ids=str)
def test_scales_follow_their_weight_and_all_else_keeps_the_order_of_the_file(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    tensors = fp8()
    save_file(tensors, tmp_path / "model.safetensors")
    stored = in_file(tmp_path / "model.safetensors")
    assert stored.index(f"model.layers.{LAYERS - 1}.mlp.up_proj.weight_scale_inv") < stored.index(
        "model.layers.0.mlp.up_proj.weight"
    )
    names = []
    for name, tensor in load_weights(tmp_path).stream(framework="torch", **options):
        assert bits(tensor) == bits(tensors[name]), name
        names.append(name)
    expected = [name for name in stored if not name.endswith("_scale_inv")]
    for name in [name for name in expected if "up_proj" in name]:
        expected.insert(expected.index(name) + 1, f"{name}_scale_inv")
    assert names == expected


SCHEMES = {
    "gptq": (("qweight", torch.int32), ("qzeros", torch.int32), ("scales", torch.float16), ("g_idx", torch.int64)),
    "awq": (("qweight", torch.int32), ("qzeros", torch.int32), ("scales", torch.float64)),
    "pack-quantized": (
        ("weight_packed", torch.int32),
        ("weight_scale", torch.float64),
        ("weight_zero_point", torch.int64),
        ("weight_shape", torch.int64),
    ),
    "nvfp4": (
        ("weight", torch.uint8),
        ("weight_scale", torch.float8_e4m3fn),
        ("weight_scale_2", torch.float32),
        ("input_scale", torch.float64),
    ),
    "bitsandbytes": (
        ("weight", torch.uint8),
        ("weight.absmax", torch.float32),
        ("weight.quant_map", torch.float64),
        ("weight.quant_state.bitsandbytes__nf4", torch.uint8),
    ),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_parts_of_a_weight_come_together_the_packed_one_first(tmp_path: Path, scheme: str) -> None:
    parts = SCHEMES[scheme]
    tensors = {f"m.{i}.{part}": torch.ones(8, 8).to(dtype) for i in range(3) for part, dtype in parts}
    tensors |= {f"m.{i}.bias": torch.ones(8, dtype=torch.float64) for i in range(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    names = [name for name, _ in load_weights(tmp_path).stream()]
    assert sorted(names) == sorted(tensors)
    for i in range(3):
        start = names.index(f"m.{i}.{parts[0][0]}")
        found = names[start : start + len(parts)]
        assert set(found) == {f"m.{i}.{part}" for part, _ in parts}, found


def test_parts_in_other_files_come_with_their_weight(tmp_path: Path) -> None:
    tensors = fp8(2)
    scales = {name: tensor for name, tensor in tensors.items() if "scale" in name}
    rest = {name: tensor for name, tensor in tensors.items() if name not in scales}
    files = {"model-00001-of-00002.safetensors": scales, "model-00002-of-00002.safetensors": rest}
    for file, content in files.items():
        save_file(content, tmp_path / file)
    index = {"metadata": {}, "weight_map": {name: file for file, content in files.items() for name in content}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    names = [name for name, _ in load_weights(tmp_path).stream()]
    for i in range(2):
        weight = names.index(f"model.layers.{i}.mlp.up_proj.weight")
        assert names[weight + 1] == f"model.layers.{i}.mlp.up_proj.weight_scale_inv"


def test_names_digests_and_progress_are_those_of_the_tensors_that_come(tmp_path: Path) -> None:
    tensors = fp8()
    save_file(tensors, tmp_path / "model.safetensors")
    weights = load_weights(tmp_path)
    calls: list[tuple[int, int]] = []
    options = {
        "digests": max_weights.fingerprint(weights, digests=True).digests,
        "progress": lambda done, of: calls.append((done, of)),
    }
    found = dict(weights.stream(rename={"model.": "m."}, framework="torch", **options))
    assert sorted(found) == sorted(name.replace("model.", "m.", 1) for name in tensors)
    for name, tensor in found.items():
        assert bits(tensor) == bits(tensors[f"model.{name.removeprefix('m.')}"]), name
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert calls[-1] == (total, total)
    assert calls == sorted(calls)
    wrong = dict(max_weights.fingerprint(weights, digests=True).digests)
    name = "model.layers.3.mlp.up_proj.weight_scale_inv"
    wrong[name] = wrong["model.layers.2.mlp.up_proj.weight_scale_inv"]
    seen = []
    with refuses(max_weights.FormatError, "tensor.digest"):
        seen.extend(name for name, _ in weights.stream(digests=wrong))
    assert name not in seen


def test_scales_alone_and_weights_alone_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    save_file(fp8(), tmp_path / "model.safetensors")
    weights, stored = load_weights(tmp_path), in_file(tmp_path)
    for select in ("*_scale_inv", "*.weight"):
        names = [name for name, _ in weights.stream(select)]
        end = select.removeprefix("*")
        assert names == [name for name in stored if name.endswith(end)]


def test_the_budget_holds_where_all_scales_are_at_the_end_of_the_file(tmp_path: Path) -> None:
    header: dict[str, Any] = {}
    start = 0
    for part, dtype, width, size in (("weight", "F8_E4M3", 1, 5 * MIB), ("weight_scale", "F32", 4, 300 << 10)):
        for i in range(60):
            shape = [size // width]
            header[f"m.{i}.{part}"] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}
            start += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + start)
    for options in ({"slow": 0.02}, {"slow": 0.02, "reuse": True}):
        command = [sys.executable, "-c", MEASURE, path, repr({"max_memory": 32 * MIB, **options})]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) <= (32 + 64) * MIB
    # A weight and the previous one that is still in use; they are never both large.
    needed = least(load_weights(path))
    assert needed < 7 * MIB
    names = [name for name, _ in load_weights(path).stream(max_memory=needed)]
    assert names == [f"m.{i}.{part}" for i in range(60) for part in ("weight", "weight_scale")]


def test_an_end_between_a_weight_and_its_scales_leaves_nothing(tmp_path: Path) -> None:
    tensors = {f"m.{i}.weight": torch.zeros(4 << 20, dtype=torch.uint8).view(torch.float8_e4m3fn) for i in range(24)}
    tensors |= {f"m.{i}.weight_scale": torch.rand(1) for i in range(24)}
    save_file(tensors, tmp_path / "model.safetensors")
    weights = load_weights(tmp_path)
    for name, _ in weights.stream(max_memory=16 * MIB):
        if name == "m.3.weight":
            assert reading() >= 1
            break
    del _
    gc.collect()
    assert not reading_after(0.1)
