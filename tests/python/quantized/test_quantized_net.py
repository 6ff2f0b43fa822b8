"""Every scheme of quantized weights by every verb with a dtype: decoded correctly, or refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import max_weights
import max_weights.jax
import max_weights.numpy
import max_weights.torch
from max_weights import lazy_state_dict, load_weights, nn
from max_weights.dtype import DType
from max_weights.errors import ArgumentError, FormatError
from max_weights.graph import DeviceRef
from max_weights.remote import source
from max_weights.sharding import Shard
from quantized_schemes import EXPERTS, NORM, SCHEMES, UP, Checkpoint, fp8_of_rows, gptq_of
from refusals import refuses

Loaded = dict[str, torch.Tensor]
BOTH = ("float32", "bfloat16")


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal bit for bit, except for signs of zeros."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    return torch.equal(found + 0.0, expected + 0.0)


def of_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def by_load(folder: Path, dtype: str) -> Loaded:
    return load_weights(folder).load(dtype=dtype, framework="torch")


def by_load_file(folder: Path, dtype: str) -> Loaded:
    return max_weights.torch.load_file(folder, dtype=dtype)


def by_numpy(folder: Path, dtype: str) -> Loaded:
    return {name: of_numpy(one) for name, one in max_weights.numpy.load_file(folder, dtype=dtype).items()}


def by_jax(folder: Path, dtype: str) -> Loaded:
    return {name: torch.from_dlpack(one) for name, one in max_weights.jax.load_file(folder, dtype=dtype).items()}


def by_stream(folder: Path, dtype: str) -> Loaded:
    return dict(load_weights(folder).stream(dtype=dtype, framework="torch"))


def by_lazy(folder: Path, dtype: str) -> Loaded:
    return {name: one[...] for name, one in lazy_state_dict(load_weights(folder), dtype=dtype).items()}


def by_lazy_rows(folder: Path, dtype: str) -> Loaded:
    lazy = lazy_state_dict(load_weights(folder), dtype=dtype)
    return {name: torch.cat([one[:3], one[3:]]) for name, one in lazy.items()}


def by_out(folder: Path, dtype: str) -> Loaded:
    weights = load_weights(folder)
    shapes = {name: one.shape for name, one in lazy_state_dict(weights, dtype=dtype).items()}
    out = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, shape in shapes.items()}
    weights.load(dtype=dtype, out=out)
    return out


def by_shards(folder: Path, dtype: str) -> Loaded:
    weights = load_weights(folder)
    whole = lazy_state_dict(weights, dtype=dtype)
    parts = [weights.load(dtype=dtype, shard=Shard(rank, 2, "llama"), framework="torch") for rank in range(2)]
    joined: Loaded = {}
    for name, one in parts[0].items():
        axis = next((axis for axis in range(one.ndim) if one.shape[axis] != whole[name].shape[axis]), None)
        joined[name] = one if axis is None else torch.cat([part[name] for part in parts], axis)
    return joined


def by_save(folder: Path, dtype: str) -> Loaded:
    out = folder.with_name("saved.safetensors")
    load_weights(folder).save(out, dtype=dtype)
    return load_file(out)


def by_nodes(folder: Path, dtype: str) -> Loaded:
    weights = load_weights(folder)
    return weights.model.layers.load(dtype=dtype, framework="torch") | weights.model.norm.load(
        dtype=dtype, framework="torch"
    )


def by_plan(folder: Path, dtype: str) -> Loaded:
    """The plan has the names of the results of `load`."""
    planned = max_weights.plan(load_weights(folder), dtype=dtype)
    return {name: one for name, one in by_load(folder, dtype).items() if name in planned.names}


VERBS: dict[str, Callable[[Path, str], Loaded]] = {
    name.removeprefix("by_"): verb for name, verb in list(globals().items()) if name.startswith("by_")
}


# The llama strategy has no rule for these shapes.
WITHOUT_SHARDS = ("mxfp4-gpt-oss", "int8-bitsandbytes")


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize(
    ("scheme", "verb"),
    [(scheme, verb) for scheme in SCHEMES for verb in VERBS if verb != "shards" or scheme not in WITHOUT_SHARDS],
)
def test_a_dtype_gives_what_the_weight_is(scheme: str, verb: str, dtype: str, tmp_path: Path) -> None:
    made = SCHEMES[scheme]()
    folder = made.written(tmp_path / "model")
    found = VERBS[verb](folder, dtype)
    assert set(found) == {*made.decoded, NORM}
    for name, expected in {**made.decoded, NORM: made.tensors[NORM]}.items():
        assert same(found[name], expected.to(getattr(torch, dtype))), name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_kept_tensors_are_those_of_the_file_and_others_get_the_dtype(scheme: str, tmp_path: Path) -> None:
    made = SCHEMES[scheme]()
    folder = made.written(tmp_path / "model")
    found = load_weights(folder).load(dtype="float16", packed="keep", framework="torch")
    assert set(found) == set(made.tensors)
    assert all(bits(found[name]) == bits(made.tensors[name]) for name in made.parts)
    assert same(found[NORM], made.tensors[NORM].half())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_a_dtype_all_is_as_it_is_stored(scheme: str, tmp_path: Path) -> None:
    made = SCHEMES[scheme]()
    found = load_weights(made.written(tmp_path / "model")).load(framework="torch")
    assert {name: bits(one) for name, one in found.items()} == {name: bits(one) for name, one in made.tensors.items()}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_dequantize_gives_bfloat16_and_leaves_the_others(scheme: str, tmp_path: Path) -> None:
    made = SCHEMES[scheme]()
    folder = made.written(tmp_path / "model")
    for found in (
        max_weights.torch.load_file(folder, packed="decode"),
        {name: of_numpy(one) for name, one in max_weights.numpy.load_file(folder, packed="decode").items()},
        {name: torch.from_dlpack(one) for name, one in max_weights.jax.load_file(folder, packed="decode").items()},
        dict(load_weights(folder).stream(packed="decode", framework="torch")),
    ):
        assert set(found) == {*made.decoded, NORM}
        assert same(found[NORM], made.tensors[NORM])
        assert all(same(found[name], one.bfloat16()) for name, one in made.decoded.items())


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def run(*arguments: str | Path, status: int = 0) -> str:
    """Run `max-weights` with these arguments; return its output."""
    command = [sys.executable, "-m", "max_weights", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.mark.parametrize("scheme", SCHEMES)
def test_convert_decodes_to_a_file_and_to_a_folder_without_the_configuration(scheme: str, tmp_path: Path) -> None:
    made = SCHEMES[scheme]()
    folder = made.written(tmp_path / "model")
    (folder / "quantize_config.json").write_text("{}")
    run("convert", folder, tmp_path / "half.safetensors", "--dequantize", "--verify")
    found = load_file(tmp_path / "half.safetensors")
    assert same(found.pop(NORM), made.tensors[NORM])
    assert {name: bits(one + 0.0) for name, one in found.items()} == {
        name: bits(one.bfloat16() + 0.0) for name, one in made.decoded.items()
    }
    run("convert", folder, tmp_path / "whole", "--dtype", "f32")
    found = load_file(tmp_path / "whole/model.safetensors")
    assert set(found) == {*made.decoded, NORM}
    assert all(same(found[name], one) for name, one in made.decoded.items())
    config = json.loads((tmp_path / "whole/config.json").read_text())
    assert "quantization_config" not in config
    assert config["model_type"] == "llama"
    assert not (tmp_path / "whole/quantize_config.json").exists()


def test_convert_keeps_what_is_to_be_kept(tmp_path: Path) -> None:
    made = gptq_of(4)
    folder = made.written(tmp_path / "model")
    run("convert", folder, tmp_path / "kept", "--dtype", "f16", "--packed", "keep")
    found = load_file(tmp_path / "kept/model.safetensors")
    assert all(bits(found[name]) == bits(made.tensors[name]) for name in made.parts)
    assert same(found[NORM], made.tensors[NORM].half())
    assert json.loads((tmp_path / "kept/config.json").read_text())["quantization_config"] == made.message


def test_convert_refuses_what_it_cannot_decode_by_name(tmp_path: Path) -> None:
    folder = gptq_of(4).written(tmp_path / "model")
    reported = run("convert", folder, tmp_path / "a.safetensors", "--dtype", "bf16", "--select", "*.scales", status=2)
    assert f"{UP}.weight" in reported or "no name matches" in reported
    plain = tmp_path / "plain.safetensors"
    save_file({NORM: torch.ones(3)}, plain)
    assert "nothing is quantized" in run("convert", plain, tmp_path / "b.safetensors", "--dequantize", status=2)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "marlin"
    (folder / "config.json").write_text(json.dumps(config))
    reported = run("convert", folder, tmp_path / "c.safetensors", "--dequantize", status=2)
    assert f"{UP}.weight" in reported
    assert "--packed keep" in reported
    gpt_oss = SCHEMES["mxfp4-gpt-oss"]().written(tmp_path / "gpt-oss")
    (gpt_oss / "config.json").write_text(json.dumps({"model_type": "gpt_oss"}))
    assert EXPERTS in run("convert", gpt_oss, tmp_path / "d", "--dequantize", status=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpt-oss", "model", "plain.safetensors"]


def test_reshard_gives_each_rank_its_rows_of_what_is_decoded(tmp_path: Path) -> None:
    made = gptq_of(4)
    folder = made.written(tmp_path / "model")
    run("reshard", folder, tmp_path / "ranks", "--tp", "2", "--dtype", "bf16")
    parts = [load_file(tmp_path / f"ranks/rank-{rank}/model.safetensors") for rank in range(2)]
    name = f"{UP}.weight"
    assert same(torch.cat([part[name] for part in parts]), made.decoded[name].bfloat16())
    assert "quantization_config" not in json.loads((tmp_path / "ranks/rank-0/config.json").read_text())


class Module(torch.nn.Module):
    """A model with the weights of the net."""

    def __init__(self, made: Checkpoint, dtype: torch.dtype, device: str = "cpu") -> None:
        super().__init__()
        for name, one in {**made.decoded, NORM: made.tensors[NORM]}.items():
            owner: torch.nn.Module = self
            *path, last = name.split(".")
            for part in path:
                if not hasattr(owner, part):
                    owner.add_module(part, torch.nn.Module())
                owner = getattr(owner, part)
            owner.register_parameter(last, torch.nn.Parameter(torch.zeros(one.shape, dtype=dtype, device=device)))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_module_of_floats_gets_what_is_decoded_whatever_is_said(scheme: str, tmp_path: Path) -> None:
    made = SCHEMES[scheme]()
    folder = made.written(tmp_path / "model")
    for device in ("cpu", "meta"):
        for strict in (True, False):
            module = Module(made, torch.bfloat16, device)
            if scheme == "mxfp4-gpt-oss":
                with refuses(ArgumentError, "argument.mismatch"):
                    max_weights.torch.load_into(module, folder, strict=strict)
                continue
            max_weights.torch.load_into(module, folder, strict=strict)
            state = module.state_dict()
            assert all(same(state[name], one.bfloat16()) for name, one in made.decoded.items())


def test_a_module_that_is_quantized_itself_gets_the_tensors_as_they_are(tmp_path: Path) -> None:
    made = fp8_of_rows()
    folder = made.written(tmp_path / "model")
    module = Module(made, torch.bfloat16)
    up = module.get_submodule(UP)
    up.weight = torch.nn.Parameter(torch.zeros(96, 128, dtype=torch.float8_e4m3fn), requires_grad=False)
    up.register_buffer("weight_scale", torch.zeros(96, 1, dtype=torch.bfloat16))
    max_weights.torch.load_into(module, folder)
    state = module.state_dict()
    assert all(bits(state[name]) == bits(made.tensors[name]) for name in made.parts)
    with refuses(ArgumentError, "argument.mismatch"):
        max_weights.torch.load_into(module, folder, dtype="bfloat16", strict=False)


def test_a_configuration_that_cannot_be_read_is_an_error_beside_codes_alone(tmp_path: Path) -> None:
    folder = SCHEMES["fp8-block"]().written(tmp_path / "model")
    (folder / "config.json").write_text("{")
    with refuses(FormatError, "set.json"):
        load_weights(folder).load(dtype="bfloat16")
    plain = tmp_path / "plain"
    plain.mkdir()
    max_weights.save_file({"a": torch.ones(3)}, plain / "model.safetensors")
    (plain / "config.json").write_text("{")
    assert load_weights(plain).load(dtype="bfloat16", framework="torch")["a"].dtype is torch.bfloat16


def test_the_configuration_of_the_working_folder_is_not_that_of_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    max_weights.save_file({"a": torch.ones(3, dtype=torch.int8)}, tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "config.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    for name in ("source", str(tmp_path / "model.safetensors")):
        one = source(lambda ranges: [content[start:end] for start, end in ranges], len(content), name=name)
        found = load_weights(one).load(dtype={"a": "float32"}, framework="torch")
        assert found["a"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("scheme", ["fp8-block", "gptq-4", "nf4-nested", "mxfp6"])
def test_a_module_of_max_gets_what_is_decoded(scheme: str, tmp_path: Path) -> None:
    made = SCHEMES[scheme]()
    folder = made.written(tmp_path / "model")
    rows, columns = made.decoded[f"{UP}.weight"].shape[0], made.decoded[f"{UP}.weight"].numel()
    columns //= rows
    module = nn.Linear(columns, rows, DType.bfloat16, DeviceRef.CPU())
    names = {f"{UP}.weight": "weight"}
    module.load(folder, dtype="bfloat16", rename=names.get)
    found = of_numpy(np.asarray(module.state_dict()["weight"]))
    assert same(found, made.decoded[f"{UP}.weight"].bfloat16())


def test_parts_of_quantized_weights_have_no_dtype_of_their_own(tmp_path: Path) -> None:
    folder = gptq_of(4).written(tmp_path / "model")
    weights = load_weights(folder)
    found = weights.load(dtype={NORM: "float16"}, framework="torch")
    assert bits(found[f"{UP}.scales"]) == bits(gptq_of(4).tensors[f"{UP}.scales"])
    assert found[NORM].dtype == torch.float16
    found = weights.load(dtype={f"{UP}.weight": "float32"}, framework="torch")
    assert same(found[f"{UP}.weight"], gptq_of(4).decoded[f"{UP}.weight"])
    assert found[NORM].dtype == torch.float32
    with refuses(ArgumentError, "argument.packed"):
        weights.load(dtype={f"{UP}.scales": "float32"})
    leaf = weights[f"{UP}.scales"]
    with refuses(ArgumentError, "argument.packed"):
        leaf.load(dtype="float32")
    with refuses(ArgumentError, "argument.packed"):
        weights.load(dtype={f"{UP}.weight": "int8"})


def test_a_selection_decodes_what_it_names_alone(tmp_path: Path) -> None:
    made = SCHEMES["mixed"]()
    weights = load_weights(made.written(tmp_path / "model"))
    found = weights.load([f"{UP}.weight"], dtype="float32", framework="torch")
    assert list(found) == [f"{UP}.weight"]
    assert same(found[f"{UP}.weight"], made.decoded[f"{UP}.weight"])
    found = weights.load(lambda name: "norm" in name, dtype="float16", framework="torch")
    assert list(found) == [NORM]


def test_what_cannot_be_decoded_is_refused_by_name_and_others_are_not(tmp_path: Path) -> None:
    torchao = Path(__file__).parents[2] / "data/torchao/model.safetensors"
    weights = load_weights(torchao)
    with refuses(ArgumentError, "argument.value"):
        weights.load(dtype="bfloat16")
    assert set(weights.load(["float8_rows.weight"], dtype="bfloat16")) == {"float8_rows.weight"}
    save_file({"a.weight": torch.ones(4, 4).to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    found = load_weights(tmp_path).load(dtype="bfloat16", framework="torch")
    assert same(found["a.weight"], torch.ones(4, 4).bfloat16())
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    with refuses(ArgumentError, "argument.packed"):
        load_weights(tmp_path).load(dtype="bfloat16")
    with refuses(ArgumentError, "argument.packed"):
        load_weights(tmp_path).load(packed="decode")


@pytest.mark.parametrize("name", ["w_scale", "w.scale_of_it", "w_weight_scale"])
def test_codes_beside_a_scale_that_is_not_known_are_refused(name: str, tmp_path: Path) -> None:
    tensors = {"x.w": torch.ones(4, 4).to(torch.float8_e4m3fn), f"x.{name}": torch.tensor(0.5)}
    save_file(tensors, tmp_path / "model.safetensors")
    with refuses(ArgumentError, "argument.packed"):
        max_weights.torch.load_file(tmp_path, dtype="bfloat16")
    kept = max_weights.torch.load_file(tmp_path, dtype="float16", packed="keep")
    assert bits(kept["x.w"]) == bits(tensors["x.w"])


def test_options_that_say_nothing_or_contradict_each_other_are_errors(tmp_path: Path) -> None:
    save_file({NORM: torch.ones(3)}, tmp_path / "plain.safetensors")
    with refuses(ArgumentError, "argument.no-effect"):
        max_weights.torch.load_file(tmp_path / "plain.safetensors", packed="decode")
    folder = gptq_of(4).written(tmp_path / "model")
    with refuses(ArgumentError, "argument.choice"):
        max_weights.torch.load_file(folder, packed="kept")
    weights = load_weights(folder)
    digests = max_weights.fingerprint(weights, digests=True).digests
    with refuses(ArgumentError, "argument.packed"):
        weights.load(dtype="bfloat16", digests=digests)


@pytest.mark.parametrize("scheme", ["fp8-block", "gptq-3-reordered", "nf4-nested", "pack-3-zeros", "nvfp4-modelopt"])
def test_a_large_weight_is_decoded_in_parts(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read in parts of megabytes: the weight equals that decoded at once."""
    columns = 128 if scheme.startswith("pack") else 512  # groups of 32 inputs, four of a row
    monkeypatch.setattr("quantized_schemes.COLUMNS", columns)
    monkeypatch.setattr("quantized_schemes.ROWS", 6016 * 512 // columns)
    if scheme == "fp8-block":
        weight, scale = torch.randn(6016, 512).to(torch.float8_e4m3fn), torch.rand(47, 4)
        save_file({"a.weight": weight, "a.weight_scale_inv": scale}, tmp_path / "a.safetensors")
        weights = load_weights(tmp_path / "a.safetensors")
    elif scheme == "nf4-nested":
        weights = load_weights(large_nf4(tmp_path / "a.safetensors"))
    else:
        weights = load_weights(SCHEMES[scheme]().written(tmp_path / "model"))
    (weight_of,) = max_weights.quantized(weights).values()
    expected = weight_of.astype("float32").torch()
    name = weight_of.weight_name
    lazy = lazy_state_dict(weights, dtype="float32")[name]
    assert same(lazy[...], expected)
    assert same(lazy[1777:4001], expected[1777:4001])
    assert same(lazy[:, 3:77], expected[:, 3:77])
    streamed = dict(weights.stream(dtype="float32", framework="torch", max_memory="64MB"))
    assert same(streamed[name], expected)


def large_nf4(path: Path) -> Path:
    rows, columns = 6016, 512
    generator = torch.Generator().manual_seed(3)
    reported = {
        "quant_type": "nf4", "blocksize": 64, "shape": [rows, columns], "dtype": "bfloat16",
        "nested_blocksize": 256, "nested_offset": 0.25, "nested_dtype": "float32",
    }  # fmt: skip
    parts = SCHEMES["nf4-nested"]().tensors
    tensors = {name.removeprefix(f"{UP}."): one for name, one in parts.items() if name != NORM}
    count = rows * columns // 64
    tensors["weight"] = torch.randint(0, 256, (rows * columns // 2, 1), dtype=torch.uint8, generator=generator)
    tensors["weight.absmax"] = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    tensors["weight.nested_absmax"] = torch.rand(-(-count // 256), generator=generator)
    state = np.frombuffer(json.dumps(reported).encode(), np.uint8).copy()
    tensors["weight.quant_state.bitsandbytes__nf4"] = torch.from_numpy(state)
    save_file({f"a.{name}": one for name, one in tensors.items()}, path)
    return path


def test_packed_blocks_are_no_values_to_other_libraries_and_bytes_by_another_name(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    blocks = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("w", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = load_weights(tmp_path / "a.gguf")
    takers: list[Callable[[], object]] = [
        weights.w.numpy,
        weights.w.torch,
        lambda: np.asarray(weights.w),
        lambda: torch.from_dlpack(weights.w),
        weights.w.data().numpy,
        weights.w.data().torch,
        lambda: weights.load(),
        lambda: max_weights.torch.load_file(tmp_path / "a.gguf"),
    ]
    for take in takers:
        with refuses(ValueError):
            take()
    for take in takers[:6]:
        with refuses(ArgumentError):
            take()
    assert np.array_equal(weights.w.data().to_buffer().to_numpy(), blocks)
    expected = torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0))
    found = max_weights.torch.load_file(tmp_path / "a.gguf", packed="decode")
    assert same(found["w"], expected.bfloat16())
    assert np.array_equal(weights.load(packed="keep", framework="numpy")["w"], blocks)
    assert np.array_equal(weights.load(packed="keep", dtype="float16", framework="numpy")["w"], blocks)
    run("convert", tmp_path / "a.gguf", tmp_path / "a.safetensors", "--dequantize")
    assert same(load_file(tmp_path / "a.safetensors")["w"], expected.bfloat16())


def test_codes_become_no_values_of_a_graph_or_a_layer(tmp_path: Path) -> None:
    made = fp8_of_rows()
    weights = load_weights(made.written(tmp_path / "model"))
    with refuses(ArgumentError, "argument.packed"):
        weights[f"{UP}.weight"].allocate(DType.bfloat16)
    assert weights[f"{UP}.weight"].allocate().dtype is DType.float8_e4m3fn
    save_file({"bare": torch.ones(4, 4).to(torch.float8_e4m3fn)}, tmp_path / "bare.safetensors")
    assert load_weights(tmp_path / "bare.safetensors").bare.allocate(DType.bfloat16).dtype is DType.bfloat16


def test_a_file_is_replaced_by_what_its_weights_are(tmp_path: Path) -> None:
    made = gptq_of(4)
    file = made.written(tmp_path / "model") / "model.safetensors"
    load_weights(file).save(file, dtype="float32")
    found = load_file(file)
    assert set(found) == {*made.decoded, NORM}
    assert same(found[f"{UP}.weight"], made.decoded[f"{UP}.weight"])
