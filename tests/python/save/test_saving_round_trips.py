"""A saved file has the values that the source's own library reads, bit for bit: real files, random ones, and models."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import max_weights
from max_weights import load_weights, save_file, save_sharded
from test_saving import TORCH_DTYPES, same

# The files of `tools/get_models.py --derive`, and how their libraries read them.
SAFETENSORS = [
    "minilm.safetensors", "silero_vad_16k.safetensors", "derived/sharded", "derived/layer0.bf16.safetensors",
    "derived/layer0.f16.safetensors", "derived/layer0.f8e4m3.safetensors", "derived/layer0.f8e5m2.safetensors",
]  # fmt: skip
TORCH = [
    "crepe-full.pth", "crepe-tiny.pth", "derived/layer0.bf16.pt", "derived/layer0.bf16.legacy.pt",
    "lpips-v0.0-alex.legacy.pth", "lpips-v0.0-squeeze.legacy.pth", "lpips-v0.0-vgg.legacy.pth",
    "lpips-v0.1-alex.legacy.pth", "lpips-v0.1-squeeze.legacy.pth", "lpips-v0.1-vgg.legacy.pth",
    "pretrained/antiberty/pytorch_model.bin", "pretrained/iglm/pytorch_model.bin",
    "pretrained/rxnfp/pytorch_model.bin", "pretrained/rxnmapper/pytorch_model.bin",
]  # fmt: skip
NOT_IN_GGUF_PY = ("Q1_0",)  # decoded here, and compared with ggml by crates/kernels/tests/quant_vectors.rs
GGUF = ["smollm2-135m.Q4_1.gguf", "derived/minilm-ffn-allquants.gguf"]


Named = tuple[str, torch.Tensor]


def of_safetensors(path: Path) -> dict[str, torch.Tensor]:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return {name: tensor for file in files for name, tensor in safetensors.torch.load_file(file).items()}


def of_torch(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return found


def of_gguf(path: Path) -> Iterator[Named]:
    """The values by gguf-py: packed weights as float32."""
    for tensor in gguf.GGUFReader(path).tensors:
        data = tensor.data
        if tensor.tensor_type.name in NOT_IN_GGUF_PY:
            with load_weights(path) as weights:
                data = weights.load(dtype="float32", select=[tensor.name])[tensor.name].to_numpy()
        elif data.dtype not in (np.float32, np.float16):
            data = gguf.dequantize(data, tensor.tensor_type)
        yield tensor.name, torch.from_numpy(np.array(data))


SOURCES: list[tuple[str, Callable[[Path], Iterable[Named]]]] = [
    *((name, lambda path: of_safetensors(path).items()) for name in SAFETENSORS),
    *((name, lambda path: of_torch(path).items()) for name in TORCH),
    *((name, of_gguf) for name in GGUF),
]


def contents(tensors: Iterable[Named]) -> dict[str, tuple[torch.dtype, torch.Size, str]]:
    """Dtype, shape and a digest of the bits of each: two of these are compared in the memory of one model."""
    return {
        name: (tensor.dtype, tensor.shape, hashlib.sha256(tensor.flatten().view(torch.uint8).numpy()).hexdigest())
        for name, tensor in tensors
    }


@pytest.mark.parametrize(("name", "reference"), SOURCES, ids=[name for name, _ in SOURCES])
def test_real_files_are_saved_as_their_own_library_reads_them(
    tmp_path: Path, models: Path, name: str, reference: Callable[[Path], Iterable[Named]]
) -> None:
    expected = contents(reference(models / name))
    assert expected
    options: dict[str, Any] = {"dtype": "float32"} if name.endswith(".gguf") else {}
    with load_weights(models / name) as weights:
        (file,) = weights.save(tmp_path / "one.safetensors", sync=False, **options)
        weights.save(tmp_path / "shards", max_shard_size="20MB", sync=False, **options)
    assert contents(safetensors.torch.load_file(file).items()) == expected
    assert contents(of_safetensors(tmp_path / "shards").items()) == expected


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Assert that names, dtypes, shapes and bits are equal."""
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not same(found[name], tensor)] == []


DTYPES = [*TORCH_DTYPES, torch.float4_e2m1fn_x2]
FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda tensor: tensor,
    "parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point()),
    "transposed": lambda tensor: tensor.mT if tensor.ndim > 1 else tensor,
    "steps": lambda tensor: tensor[::2] if tensor.ndim else tensor,
    "part": lambda tensor: tensor[1:] if tensor.ndim else tensor,
    "expanded": lambda tensor: tensor.expand(3, *tensor.shape),
    "conjugated": lambda tensor: tensor.conj() if tensor.is_complex() else tensor,
    "negated": lambda tensor: tensor.conj().imag if tensor.is_complex() else tensor,
}
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)


@st.composite
def made(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of any dtype, shape and layout, of any bits."""
    dtype = draw(st.sampled_from(DTYPES))
    packed = dtype is torch.float4_e2m1fn_x2
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=int(packed), max_size=4)))
    count = int(np.prod(shape, dtype=int))
    if dtype is torch.bool:
        return torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=dtype).reshape(shape)
    size = count * dtype.itemsize
    data = bytearray(draw(st.binary(min_size=size, max_size=size)))
    bits = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    tensor = bits.view(dtype).reshape(shape)
    # Elements of four bits, two in a byte, have no strides.
    return tensor if packed else FORMS[draw(st.sampled_from(sorted(FORMS)))](tensor)


@st.composite
def state_dicts(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Tensors by name, some of which are tied."""
    tensors = draw(st.dictionaries(names, made(), max_size=6))
    for name in draw(st.lists(names, max_size=2)):
        if tensors:
            tensors[name] = tensors[draw(st.sampled_from(sorted(tensors)))]
    return tensors


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in C order."""
    if tensor.dtype is torch.float4_e2m1fn_x2:
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the examples of a test, which overwrite each other."""
    return tmp_path_factory.mktemp("saved")


TIED = torch.zeros(1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)


@settings(max_examples=150)
@given(
    tensors=state_dicts(),
    alignment=st.sampled_from([8, 64, 4096]),
    metadata=st.dictionaries(names, names, max_size=2),
)
@example(tensors={"0": TIED, "00": TIED}, alignment=8, metadata={})
def test_any_state_dict_is_read_back_by_safetensors_and_saved_again_with_the_same_bytes(
    folder: Path, tensors: dict[str, torch.Tensor], alignment: int, metadata: dict[str, str]
) -> None:
    path, again = folder / "model.safetensors", folder / "again.safetensors"
    save_file(tensors, path, metadata, alignment=alignment, sync=False)
    expected = {name: plain(tensor) for name, tensor in tensors.items()}
    assert_same(safetensors.torch.load_file(path), expected)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"} | metadata
    header = path.read_bytes()[8:][: int.from_bytes(path.read_bytes()[:8], "little")]
    for name, entry in json.loads(header).items():
        size = 0 if name == "__metadata__" else entry["data_offsets"][1] - entry["data_offsets"][0]
        if size and size % alignment == 0 and alignment > 8:
            assert (8 + len(header) + entry["data_offsets"][0]) % alignment == 0, name
    assert (8 + len(header)) % alignment == 0
    if alignment == 8 and not metadata:  # the format's own order
        apart = {name: tensor.clone() for name, tensor in expected.items()}  # safetensors refuses tied tensors
        safetensors.torch.save_file(apart, again, {"format": "pt"})
        assert again.read_bytes() == path.read_bytes()
    with load_weights(path) as weights:
        save_file(weights, again, metadata, alignment=alignment, sync=False)
        assert again.read_bytes() == path.read_bytes()
        weights.save(path, metadata=metadata, alignment=alignment, sync=False)  # over the file that is loaded
    assert again.read_bytes() == path.read_bytes()


@settings(max_examples=100)
@given(tensors=state_dicts(), most=st.integers(1, 600))
def test_any_state_dict_is_spread_over_shards_none_of_which_is_larger_than_asked(
    folder: Path, tensors: dict[str, torch.Tensor], most: int
) -> None:
    files = save_sharded(tensors, folder / "shards", max_shard_size=most, sync=False)
    assert sorted(files) == sorted((folder / "shards").iterdir())
    expected = {name: plain(tensor) for name, tensor in tensors.items()}
    found = {file.name: safetensors.torch.load_file(file) for file in files if file.suffix == ".safetensors"}
    for part in found.values():
        sized = [tensor for tensor in part.values() if tensor.nbytes]
        assert sum(tensor.nbytes for tensor in sized) <= most or len(sized) == 1
    assert_same({name: tensor for part in found.values() for name, tensor in part.items()}, expected)
    assert sum(map(len, found.values())) == len(expected)
    if len(files) > 1:
        index = json.loads(files[-1].read_text())
        assert index["weight_map"] == {name: file for file, part in found.items() for name in part}
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in expected.values())


@settings(max_examples=80)
@given(tensors=state_dicts())
def test_tied_tensors_of_any_state_dict_are_stored_once_and_named(
    folder: Path, tensors: dict[str, torch.Tensor]
) -> None:
    path = folder / "tied.safetensors"
    save_file(tensors, path, tied="alias", sync=False)
    found = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, "pt") as file:
        aliases = {name: first for name, first in file.metadata().items() if name in tensors and name not in found}
    assert_same(
        found | {name: found[first] for name, first in aliases.items()}, {k: plain(v) for k, v in tensors.items()}
    )
    for name, first in aliases.items():
        assert tensors[name].data_ptr() == tensors[first].data_ptr()
        assert first < name


def language_model(tied: bool) -> Any:
    """A small model of transformers with ordinary values."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def assert_same_model(folder: Path, model: Any) -> None:
    """Assert that transformers loads the same model from a folder."""
    found, message = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(message.values()), message
    assert_same(found.state_dict(), model.state_dict())
    tokens = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        assert torch.equal(found.eval()(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_a_model_that_is_saved_here(tmp_path: Path, tied: bool) -> None:
    model = language_model(tied)
    for name in ("copy", "alias"):
        model.config.save_pretrained(tmp_path / name)
        save_file(model, tmp_path / name / "model.safetensors", tied=name)
        assert_same_model(tmp_path / name, model)
        model.config.save_pretrained(tmp_path / f"{name} sharded")
        files = save_sharded(model, tmp_path / f"{name} sharded", max_shard_size="20KB", tied=name)
        assert len(files) > 3
        assert_same_model(tmp_path / f"{name} sharded", model)
    base = AutoModel.from_pretrained(tmp_path / "copy sharded")
    assert_same(base.state_dict(), model.model.state_dict())


def test_save_pretrained_of_a_patched_transformers_writes_what_both_load(tmp_path: Path) -> None:
    model = language_model(tied=True)
    max_weights.patch()
    try:
        model.save_pretrained(tmp_path / "one")
        model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
        assert_same_model(tmp_path / "one", model)
        assert_same_model(tmp_path / "sharded", model)
    finally:
        max_weights.unpatch()
    model.save_pretrained(tmp_path / "unpatched")
    assert_same(of_safetensors(tmp_path / "one"), of_safetensors(tmp_path / "unpatched"))
    assert_same(of_safetensors(tmp_path / "sharded"), of_safetensors(tmp_path / "unpatched"))
    assert_same_model(tmp_path / "one", model)
    assert_same_model(tmp_path / "sharded", model)
