"""`renamed("hf")`: names, rows and values equal those of transformers' own loading of GGUF files."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import max_weights
import max_weights.numpy
from max_weights import ClosedError, DType, FormatError, UnsupportedError
from max_weights.graph.quantization import QuantizationEncoding
from max_weights.graph.weights import GGUFWeights, load_weights
from refusals import refuses

SMOLLM2 = "smollm2-135m.Q4_1.gguf"
Write = Callable[..., Path]


@pytest.fixture(scope="module")
def file(models: Path) -> Any:
    return load_weights(models / SMOLLM2)


@pytest.fixture(scope="module")
def hf(file: Any) -> Any:
    return max_weights.renamed(file, "hf")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a small GGUF file of an architecture: {name: array}, and metadata of integers."""

    def make(architecture: str, tensors: dict[str, Any], name: str = "model.gguf", **metadata: int) -> Path:
        writer = gguf.GGUFWriter(tmp_path / name, architecture)
        for key, value in metadata.items():
            writer.add_uint32(f"{architecture}.{key.replace('__', '.')}", value)
        for key, value in tensors.items():
            writer.add_tensor(key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / name

    return make


@pytest.mark.filterwarnings("ignore")
def test_every_tensor_equals_transformers(models: Path, hf: Any) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(models, gguf_file=SMOLLM2)
    with torch.device("meta"):
        dummy = AutoModelForCausalLM.from_config(config)
    expected = load_gguf_checkpoint(str(models / SMOLLM2), return_tensors=True, model_to_load=dummy)["tensors"]
    assert {name for name, _ in hf.items()} == set(expected)
    for name, node in hf.items():
        found = torch.from_dlpack(node.data().astype(DType.float32))
        assert found.shape == expected[name].shape, name
        assert found.numpy().tobytes() == expected[name].float().numpy().tobytes(), name


ARCHITECTURES = {
    "cohere": "command-r",
    "falcon": "falcon",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gpt2": "gpt2",
    "mamba": "mamba",
    "mistral": "llama",
    "nemotron": "nemotron",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", ARCHITECTURES)
def test_names_of_other_architectures_equal_transformers(model: str, write: Write) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 128}
    sizes |= {"num_hidden_layers": 2, "num_key_value_heads": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(model, **sizes)
    with torch.device("meta"):
        dummy = AutoModelForCausalLM.from_config(config)
    architecture = ARCHITECTURES[model]
    expected = get_gguf_hf_weights_map(dummy, TensorProcessor(), model_type=architecture, num_layers=2)
    tree = load_weights(write(architecture, {name: np.zeros(2, np.float32) for name in expected}))
    assert {name for name, _ in max_weights.renamed(tree, "hf").items()} == set(expected.values())


def test_the_tree_shows_the_new_names_and_only_rows_of_queries_and_keys_differ(file: Any, hf: Any) -> None:
    assert isinstance(hf, GGUFWeights)
    query = hf.model.layers[3].self_attn.q_proj.weight
    assert query.exists()
    assert not hf["blk.3.attn_q.weight"].exists()
    assert "q_proj" in str(hf)
    assert "attn_q" not in repr(hf)
    assert {"q_proj", "k_proj", "v_proj", "load"} <= set(dir(hf.model.layers[3].self_attn))
    assert [(info.offset, info.bytes, info.shape) for info in max_weights.infos(hf)] == [
        (info.offset, info.bytes, info.shape) for info in max_weights.infos(file)
    ]
    assert list(hf.metadata) == list(file.metadata)
    for (name, ours), (stored, theirs) in zip(hf.items(), file.items(), strict=True):
        a, b = ours.data(), theirs.data()
        assert (a.name, a.dtype, a.shape, a.quantization_encoding) == (name, b.dtype, b.shape, b.quantization_encoding)
        rotary = ".attn_q." in stored or ".attn_k." in stored
        assert a.data.is_mapped != rotary
        assert (bytes(a.data) == bytes(b.data)) != rotary, stored
    assert query.data().quantization_encoding is QuantizationEncoding.Q4_1


def test_all_ways_to_the_tensors_undo_the_order_of_rows(hf: Any, models: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    stored = bytes(hf[name].data().data)
    assert max_weights._core.buffers(hf[name])[0][0] == name
    assert bytes(max_weights._core.buffers(hf[name])[0][1]) == stored
    assert bytes(max_weights._core.export_dlpack(hf[name], torch.from_dlpack)[name].numpy()) == stored
    read = max_weights.renamed(load_weights(models / SMOLLM2, backend="read"), "hf")
    assert bytes(read[name].data().data) == stored
    weight = hf[name].allocate()
    assert bytes(hf.allocated_weights[weight.name]) == stored


def test_rows_of_matrices_and_of_biases(write: Write) -> None:
    rows = np.arange(12, dtype=np.float32)
    tensors = {"blk.0.attn_q.weight": np.repeat(rows[:, None], 4, 1), "blk.0.attn_k.bias": rows}
    metadata = {"attention__head_count": 2, "attention__head_count_kv": 1}
    hf: Any = max_weights.renamed(load_weights(write("llama", tensors, **metadata)), "hf")
    query = hf.model.layers[0].self_attn.q_proj.weight.data().data.to_numpy()
    assert query[:, 1].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    key = hf.model.layers[0].self_attn.k_proj.bias.data().data.to_numpy()
    assert key.tolist() == [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]


def test_another_architecture_keeps_its_rows(write: Write) -> None:
    rows = np.arange(12, dtype=np.float32)
    path = write("qwen2", {"blk.0.attn_q.bias": rows}, attention__head_count=2)
    assert max_weights.renamed(load_weights(path), "hf").model.layers[
        0
    ].self_attn.q_proj.bias.data().data.to_numpy().tolist() == [*rows]


def test_a_renamed_file_has_the_layouts_of_other_libraries_too(write: Write) -> None:
    rows = np.arange(12, dtype=np.float32)
    tensors = {f"blk.0.attn_{side}.weight": np.repeat(rows[:, None], 4, 1) for side in "qkv"}
    hf = max_weights.renamed(load_weights(write("llama", tensors, attention__head_count=2)), "hf")
    config = {"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 2}
    fused = max_weights.renamed(hf, "vllm", config=config)["model.layers.0.self_attn.qkv_proj.weight"]
    ordered = [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert fused.numpy()[:, 0].tolist() == [*ordered, *ordered, *rows]
    assert fused[10:14].to_numpy()[:, 3].tolist() == [9, 11, 0, 2]


def test_heads_that_do_not_fit_are_an_error_for_that_weight_alone(write: Write) -> None:
    tensors = {"blk.0.attn_q.weight": np.zeros((6, 4), np.float32), "blk.0.attn_v.weight": np.zeros((6, 4), np.float32)}
    hf: Any = max_weights.renamed(load_weights(write("llama", tensors, attention__head_count=4)), "hf")
    assert hf.model.layers[0].self_attn.v_proj.weight.data().shape == [6, 4]
    with refuses(FormatError, "gguf.heads"):
        hf.model.layers[0].self_attn.q_proj.weight.data()


@pytest.mark.parametrize(
    "count",
    [None, -4, 0, float("nan"), 2.0, "two", [2, 2], [-1], [float("nan")], [], ["two"], 1 << 63],
    ids=lambda count: str(count),
)
def test_what_is_no_number_of_heads_is_an_error_for_that_weight_alone(tmp_path: Path, count: Any) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    key = "llama.attention.head_count"
    if isinstance(count, list):
        writer.add_array(key, count or [1])
    elif isinstance(count, float):
        writer.add_float32(key, count)
    elif isinstance(count, str):
        writer.add_string(key, count)
    elif count is not None:
        (writer.add_uint64 if count >= 0 else writer.add_int32)(key, count)
    number = 1 if count in ([], [2, 2]) else 0
    names = [f"blk.{number + 1 if count == [2, 2] else number}.attn_{side}.weight" for side in "qv"]
    for name in names:
        writer.add_tensor(name, np.zeros((8, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    attention: Any = (
        max_weights.renamed(load_weights(tmp_path / "model.gguf"), "hf").model.layers[names[0].split(".")[1]].self_attn
    )
    assert attention.v_proj.weight.data().shape == [8, 4]
    with refuses(FormatError, "gguf.heads") as caught:
        attention.q_proj.weight.data()
    assert caught.value.rule == "gguf.heads"


def test_an_architecture_that_is_no_text_has_no_names(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    del writer.kv_data[0]["general.architecture"]
    writer.add_array("general.architecture", [1, 2])
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((8, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with refuses(UnsupportedError, "unsupported.layout"):
        max_weights.renamed(load_weights(tmp_path / "model.gguf"), "hf")


def test_names_of_bert_and_names_that_nobody_knows(write: Write, models: Path) -> None:
    new = {
        "token_embd.weight": "embeddings.word_embeddings.weight",
        "token_embd_norm.bias": "embeddings.LayerNorm.bias",
        "token_types.weight": "embeddings.token_type_embeddings.weight",
        "position_embd.weight": "embeddings.position_embeddings.weight",
        "blk.0.attn_q.weight": "encoder.layer.0.attention.self.query.weight",
        "blk.0.attn_output.bias": "encoder.layer.0.attention.output.dense.bias",
        "blk.0.attn_output_norm.weight": "encoder.layer.0.attention.output.LayerNorm.weight",
        "blk.12.ffn_up.weight": "encoder.layer.12.intermediate.dense.weight",
        "blk.12.ffn_down.weight": "encoder.layer.12.output.dense.weight",
        "blk.12.layer_output_norm.weight": "encoder.layer.12.output.LayerNorm.weight",
        "blk.99999999999999999999.ffn_up.weight": "encoder.layer.99999999999999999999.intermediate.dense.weight",
        "mine": "mine",
    }
    tree = load_weights(write("bert", {name: np.zeros(2, np.float32) for name in new}))
    assert [name for name, _ in max_weights.renamed(tree, "hf").items()] == [new[name] for name, _ in tree.items()]
    minilm = load_weights(models / "derived/minilm-ffn-allquants.gguf")
    with pytest.warns(UserWarning, match="knows no other name"):
        same = max_weights.renamed(minilm, "hf")
    assert [info.name for info in max_weights.infos(same)] == [info.name for info in max_weights.infos(minilm)]


def test_names_outside_blocks(hf: Any) -> None:
    outside = {name for name, _ in hf.items() if ".layers." not in name}
    assert outside == {"model.embed_tokens.weight", "model.norm.weight"}


def test_the_head_and_what_a_model_does_not_have(write: Write) -> None:
    names = [
        "blk.0.attn_q.weight",
        "blk.0.attn_norm.weight",
        "output.weight",
        "output_norm.weight",
        "rope_freqs.weight",
    ]
    tree = load_weights(write("llama", {name: np.zeros(2, np.float32) for name in names}))
    found = {name for name, _ in max_weights.renamed(tree, "hf").items()}
    assert found >= {"lm_head.weight", "model.norm.weight", "rope_freqs.weight"}


def test_two_weights_of_one_name_are_refused(write: Write) -> None:
    names = ["blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"]
    tree = load_weights(write("llama", {name: np.zeros(2, np.float32) for name in names}))
    with refuses(UnsupportedError, "names.collision"):
        max_weights.renamed(tree, "hf")


def test_what_cannot_be_renamed(file: Any, hf: Any, write: Write, make_file: Callable[..., Path]) -> None:
    assert max_weights.renamed(hf, "hf") is hf
    with refuses(ValueError, "argument.choice"):
        max_weights.renamed(file, "llama.cpp")
    with refuses(ValueError, "argument.part"):
        max_weights.renamed(file.blk[0], "hf")
    with refuses(ValueError, "argument.config"):
        max_weights.renamed(load_weights(make_file({"w": np.zeros(2, np.float32)})), "hf")
    with refuses(UnsupportedError, "unsupported.layout"):
        max_weights.renamed(load_weights(write("nonesuch", {"w": np.zeros(2, np.float32)})), "hf")


def test_without_the_package_gguf(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with refuses(ImportError):
        max_weights.renamed(file, "hf")


def test_pickled_trees_and_nodes_keep_their_names(hf: Any) -> None:
    name = "model.layers.2.self_attn.q_proj.weight"
    again = pickle.loads(pickle.dumps(hf))
    assert [info.name for info in max_weights.infos(again)] == [info.name for info in max_weights.infos(hf)]
    node = pickle.loads(pickle.dumps(hf[name]))
    assert node.name == name
    assert bytes(node.data().data) == bytes(hf[name].data().data)


def test_closing_one_tree_leaves_the_other_open(models: Path) -> None:
    for close_renamed in (True, False):
        file: Any = load_weights(models / SMOLLM2)
        hf = max_weights.renamed(file, "hf")
        (hf if close_renamed else file).close()
        closed, still = (hf, file) if close_renamed else (file, hf)
        name = next(name for name, _ in still.items())
        assert still[name].data().data.nbytes > 0
        with pytest.raises(ClosedError):
            next(node for _, node in closed.items()).data()
        assert len(pickle.loads(pickle.dumps(still))) == len(still)
    with pytest.raises(ClosedError):
        max_weights.renamed(file, "hf")


def test_allocated_weights_are_each_trees_own(models: Path) -> None:
    file: Any = load_weights(models / SMOLLM2)
    hf = max_weights.renamed(file, "hf")
    hf.model.norm.weight.allocate()
    assert list(hf.allocated_weights) == ["model.norm.weight"]
    assert not file.allocated_weights


def test_rows_in_another_order_go_to_memory_of_the_callers_in_the_right_one(models: Path) -> None:
    weights = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
    name = "model.layers.0.self_attn.q_proj.weight"
    expected = np.asarray(max_weights.renamed(weights, "hf")[name].data().astype("float32").to_buffer())
    out = np.zeros_like(expected)
    loaded = weights.load(rename="hf", select=name, dtype="float32", out={name: out})
    assert np.array_equal(out, expected)
    assert np.array_equal(np.asarray(loaded[name]), expected)
    packed = weights.load(rename="hf", select=name, packed="keep")[name]
    assert np.array_equal(np.asarray(packed), np.asarray(max_weights.renamed(weights, "hf")[name].data().to_buffer()))


def test_names_are_the_same_in_every_process(write: Callable[..., Path]) -> None:
    """Python's hashes, which differ between processes, do not affect the result."""
    shapes = {"blk.0.attn_q.weight": (8, 8), "output_norm.weight": (8,), "rope_freqs.weight": (4,)}
    path = write("llama", {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    program = (
        "import sys, max_weights as m; print([n for n, _ in m.renamed(m.load_weights(sys.argv[1]), 'hf').items()])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program, path],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(4)
    }
    assert found == {
        "['model.layers.0.self_attn.q_proj.weight', 'model.norm.weight', 'rope_freqs.weight']\n",
    }
