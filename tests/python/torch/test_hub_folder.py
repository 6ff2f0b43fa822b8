"""`hub_folder`: transformers opens the folder made from a GGUF file, and its own conversion gives the same."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import gguf_models
import max_weights
from max_weights import load_weights, save_file
from max_weights._hub_folder import names_of, write_hub_files
from max_weights.errors import ArgumentError, UnsupportedError
from refusals import refuses

SMOLLM2 = "smollm2-135m.Q4_1.gguf"
pytestmark = pytest.mark.filterwarnings("ignore")
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a small model with a tokenizer: {name: shape} of random weights, and given weights."""

    def make(architecture: str, shapes: dict[str, tuple[int, ...]], split: int = 0, **arrays: np.ndarray) -> Path:
        path = tmp_path / f"{architecture}.gguf"
        writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
        writer.add_block_count(2)
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(48)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_rope_dimension_count(shapes.get("blk.0.attn_q.weight", (32,))[0] // 4)
        writer.add_rope_freq_base(10_000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(gguf_models.TOKENS)
        writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(gguf_models.TOKENS) - 1))
        writer.add_token_merges(gguf_models.MERGES)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)
        random = np.random.default_rng(0)
        for name, shape in shapes.items():
            writer.add_tensor(name, random.standard_normal(shape, dtype=np.float32))
        for name, array in arrays.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


def shapes_of_blocks(
    *, bias: bool = False, head: bool = True, head_size: int = 8, norms: bool = False, post: bool = False
) -> dict[str, tuple[int, ...]]:
    """Four heads, two of keys, optionally with norms, as in Qwen 3; `post`: with norms after each half."""
    wide, narrow = 4 * head_size, 2 * head_size
    vocabulary = len(gguf_models.TOKENS)
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, 32), "output_norm.weight": (32,)}
    if head:
        found["output.weight"] = (vocabulary, 32)
    for i in range(2):
        found |= {
            f"blk.{i}.attn_norm.weight": (32,),
            f"blk.{i}.ffn_norm.weight": (32,),
            f"blk.{i}.attn_q.weight": (wide, 32),
            f"blk.{i}.attn_k.weight": (narrow, 32),
            f"blk.{i}.attn_v.weight": (narrow, 32),
            f"blk.{i}.attn_output.weight": (32, wide),
            f"blk.{i}.ffn_gate.weight": (48, 32),
            f"blk.{i}.ffn_up.weight": (48, 32),
            f"blk.{i}.ffn_down.weight": (32, 48),
        }
        if bias:
            found |= {f"blk.{i}.attn_{side}.bias": (wide if side == "q" else narrow,) for side in "qkv"}
        if norms:
            found |= {f"blk.{i}.attn_{side}_norm.weight": (head_size,) for side in "qk"}
        if post:
            found |= {f"blk.{i}.post_{half}_norm.weight": (32,) for half in ("attention", "ffw")}
    return found


def shapes_of_nemotron() -> dict[str, tuple[int, ...]]:
    """Norms have biases, and there is no gate."""
    found = {name: shape for name, shape in shapes_of_blocks().items() if "gate" not in name}
    return found | {name.replace(".weight", ".bias"): shape for name, shape in found.items() if "_norm" in name}


def opened(folder: Path, **options: Any) -> Any:
    """The model opened by transformers, without missing or unexpected weights."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, local_files_only=True, **options
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    return model.eval()


def check_model(path: Path, folder: Path) -> None:
    """Assert that the folder equals transformers' own conversion of the file, by weights and by results."""
    found, expected = opened(folder), opened(path.parent, gguf_file=path.name)
    assert type(found) is type(expected)
    ours, theirs = found.state_dict(), expected.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].numpy().tobytes() == tensor.numpy().tobytes(), name
    tokens = torch.tensor([[1, 5, 3, 20, 7]])
    with torch.no_grad():
        assert torch.equal(found(tokens).logits, expected(tokens).logits)


def check_tokenizer(path: Path, folder: Path, *texts: str) -> None:
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    expected = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    assert type(found) is type(expected)
    assert found.special_tokens_map == expected.special_tokens_map
    assert found.get_vocab() == expected.get_vocab()
    assert found.chat_template == expected.chat_template
    for text in texts:
        ids = expected(text)["input_ids"]
        assert found(text)["input_ids"] == ids
        assert found.decode(ids) == expected.decode(ids)


def convert(path: Path, folder: Path) -> dict[str, Any]:
    with load_weights(path) as weights:
        weights.save(folder, dtype="float32", rename="hf", max_shard_size="200MB")
    return write_hub_files(path, folder, "float32")


# test_convert.py does the same by the command with this file, and the tests here with small ones.
@pytest.mark.nightly
def test_a_real_file_becomes_a_folder_that_transformers_opens_as_the_same_model(tmp_path: Path, models: Path) -> None:
    path, folder = models / SMOLLM2, tmp_path / "smollm2"
    made = convert(path, folder)
    assert made["excluded"] == made["not_loaded"] == []
    assert {file.name for file in folder.iterdir() if ".safetensors" not in file.name} == set(made["files"])
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= set(made["files"])
    assert (folder / "model.safetensors.index.json").is_file()
    check_model(path, folder)
    check_tokenizer(path, folder, "Hello, world!  Ünï\n\n\tdef f(x):", "<|im_start|>user\nHi<|im_end|>\n")
    config = json.loads((folder / "config.json").read_bytes())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "float32")
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    assert not any("local" in key or "path" in key for key in settings)
    shutil.rmtree(folder)


def test_a_small_file_with_every_simple_quantized_type_becomes_the_same_model(tmp_path: Path) -> None:
    path = gguf_models.write(tmp_path / "small.gguf")
    convert(path, tmp_path / "out")
    check_model(path, tmp_path / "out")
    check_tokenizer(path, tmp_path / "out", "the thin man", "<|end|>and")


@pytest.mark.parametrize("head", [True, False], ids=["head", "tied"])
@pytest.mark.parametrize(
    ("architecture", "options"), [("qwen2", {"bias": True}), ("qwen3", {"head_size": 128, "norms": True})]
)
def test_other_architectures_become_the_same_model(
    tmp_path: Path, write: Write, architecture: str, options: dict[str, Any], head: bool
) -> None:
    path = write(architecture, shapes_of_blocks(head=head, **options))
    made = convert(path, tmp_path / "out")
    assert "generation_config.json" in made["files"]
    check_model(path, tmp_path / "out")
    check_tokenizer(path, tmp_path / "out", "in an inn")


@pytest.mark.parametrize(
    ("architecture", "shapes"),
    [
        ("gemma2", shapes_of_blocks(head=False, head_size=256, post=True)),
        ("gemma3", shapes_of_blocks(head=False, head_size=256, norms=True, post=True)),
        ("nemotron", shapes_of_nemotron()),
    ],
)
def test_norms_with_1_added_become_those_of_the_same_model(
    tmp_path: Path, write: Write, architecture: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    path = write(architecture, shapes)
    convert(path, tmp_path / "out")
    check_model(path, tmp_path / "out")
    command = [sys.executable, "-m", "max_weights", "convert", path, tmp_path / "by_command", "--rename", "hf"]
    subprocess.run([*command, "--dtype", "float32"], capture_output=True, check=True)
    check_model(path, tmp_path / "by_command")


def test_what_llama_cpp_computes_is_left_out(tmp_path: Path, write: Write) -> None:
    path = write("llama", shapes_of_blocks() | {"rope_freqs.weight": (4,)})
    found = names_of(path)
    assert found["excluded"] == ["rope_freqs.weight"]
    assert "rope_freqs.weight" not in found["names"]
    made = convert(path, tmp_path / "out")
    assert made["excluded"] == ["rope_freqs.weight"]
    assert ["rope_freqs.weight" in note and "rope_parameters" in note for note in made["notes"]] == [True]
    assert "rope_freqs.weight" not in {info.name for info in max_weights.infos(load_weights(tmp_path / "out"))}
    check_model(path, tmp_path / "out")
    command = [sys.executable, "-m", "max_weights", "convert", path, tmp_path / "again", "--rename", "hf", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["written"]
    assert "rope_freqs.weight" in done.stderr
    assert "rope_parameters" in done.stderr


def test_the_scaling_of_positions_of_llama_3_is_found_again(tmp_path: Path, write: Write) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rule = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    shape = {"hidden_size": 512, "num_attention_heads": 4, "max_position_embeddings": 131072}
    requested = LlamaRotaryEmbedding(LlamaConfig(**shape, rope_parameters=rule)).inv_freq
    plain = LlamaRotaryEmbedding(
        LlamaConfig(**shape, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    ).inv_freq
    divisors = (plain / requested).numpy()
    assert len(np.unique(divisors.round(3))) > 4
    path = write("llama", shapes_of_blocks(head_size=128, norms=False), **{"rope_freqs.weight": divisors})
    made = convert(path, tmp_path / "out")
    assert made["notes"] == []
    config = json.loads((tmp_path / "out" / "config.json").read_bytes())
    assert config["rope_parameters"] == rule
    found = opened(tmp_path / "out").model.rotary_emb.inv_freq
    torch.testing.assert_close(found, requested, rtol=1e-6, atol=0)


def test_a_set_of_files_becomes_what_the_one_file_does(tmp_path: Path, write: Write) -> None:
    shapes = shapes_of_blocks(head=False) | {"output.weight": (len(gguf_models.TOKENS), 32)}  # in the last file
    convert(write("llama", shapes), tmp_path / "one")
    write("llama", shapes, split=6)
    files = sorted(tmp_path.glob("llama-*.gguf"))
    assert len(files) == 4
    with load_weights(files) as weights:
        weights.save(tmp_path / "set", dtype="float32", rename="hf", max_shard_size="200MB")
    write_hub_files(files[0], tmp_path / "set", "float32")
    for file in (tmp_path / "one").iterdir():
        assert (tmp_path / "set" / file.name).read_bytes() == file.read_bytes(), file.name
    assert names_of(files)["names"]["output.weight"] == "lm_head.weight"
    assert not json.loads((tmp_path / "set" / "config.json").read_bytes())["tie_word_embeddings"]


# test_renamed.py has every tensor of this file.
@pytest.mark.nightly
def test_the_names_are_those_of_transformers_and_heads_are_of_queries_and_keys(models: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    config = AutoConfig.from_pretrained(models, gguf_file=SMOLLM2)
    with torch.device("meta"):
        expected = get_gguf_hf_weights_map(AutoModelForCausalLM.from_config(config), TensorProcessor())
    found = names_of(models / SMOLLM2)
    assert found["names"] == {
        info.name: expected[info.name] for info in max_weights.infos(load_weights(models / SMOLLM2))
    }
    rotary = {f"blk.{i}.attn_{side}.weight": heads for i in range(30) for side, heads in (("q", 9), ("k", 3))}
    assert found["heads"] == rotary


def run(*arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "max_weights._hub_folder", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


def test_the_command_prints_one_json_object_and_refuses_in_one_line(tmp_path: Path, write: Write) -> None:
    path = gguf_models.write(tmp_path / "small.gguf")
    names = run("names", path)
    assert json.loads(names.stdout) == names_of(path)
    files = run("files", path, tmp_path / "out", "--dtype", "bfloat16")
    assert files.returncode == 0, files.stderr
    assert set(json.loads(files.stdout)["files"]) == {file.name for file in (tmp_path / "out").iterdir()}
    assert json.loads((tmp_path / "out/config.json").read_bytes())["dtype"] == "bfloat16"

    refused = {
        "No such file": run("names", tmp_path / "none.gguf"),
        "'granite'": run("files", write("granite", shapes_of_blocks()), tmp_path / "other"),
        "--dtype": run("files", path, tmp_path / "other", "--dtype"),
        "not int8": run("files", path, tmp_path / "other", "--dtype", "int8"),
    }
    for text, result in refused.items():
        assert result.returncode != 0
        assert result.stdout == ""
        assert text in result.stderr.strip().splitlines()[-1]
        assert "Traceback" not in result.stderr
    assert not (tmp_path / "other").exists()


def test_without_transformers_it_is_said_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "transformers.py").write_text("raise ImportError('No module named transformers')")
    path = gguf_models.write(tmp_path / "small.gguf")
    search = os.pathsep.join([str(tmp_path / "hidden"), os.environ.get("PYTHONPATH", "")])
    result = run("files", path, tmp_path / "out", PYTHONPATH=search)
    assert result.returncode == 1
    assert "pip install transformers torch gguf" in result.stderr.strip().splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_what_new_names_do_not_make_a_checkpoint_of_is_refused_by_name(tmp_path: Path, write: Write) -> None:
    for architecture in ("gpt2", "bloom", "mamba", "lfm2", "granite", "qwen3next"):
        with refuses(UnsupportedError, "unsupported.architecture"):
            names_of(write(architecture, {"token_embd.weight": (4, 32)}))
    experts = shapes_of_blocks() | {"blk.0.ffn_gate_exps.weight": (2, 48, 32)}
    with refuses(UnsupportedError, "unsupported.architecture"):
        names_of(write("qwen3moe", experts))
    with pytest.raises(UnsupportedError, match="cannot read the architecture 'olmo2'"):
        write_hub_files(write("olmo2", shapes_of_blocks()), tmp_path / "out")
    save_file({"a": np.zeros(2)}, tmp_path / "a.safetensors")
    with refuses(UnsupportedError, "unsupported.architecture"):
        names_of(tmp_path / "a.safetensors")
    with refuses(ArgumentError, "argument.config"):
        write_hub_files(write("llama", {"token_embd.weight": (4, 32)}), tmp_path / "out")
    missing = shapes_of_blocks()
    del missing["blk.1.ffn_up.weight"]
    with refuses(UnsupportedError, "unsupported.architecture"):
        write_hub_files(write("llama", missing), tmp_path / "out")
    path = write("qwen2", shapes_of_blocks(bias=True) | {"blk.0.attn_q.weight": (32, 64)})
    with refuses(UnsupportedError, "unsupported.architecture"):
        write_hub_files(path, tmp_path / "out")
    with refuses(ArgumentError, "argument.dtype"):
        write_hub_files(write("llama", shapes_of_blocks()), tmp_path / "out", "int8")
    assert not (tmp_path / "out").exists()


def test_files_are_replaced_whole_and_keep_their_permissions(tmp_path: Path) -> None:
    path = gguf_models.write(tmp_path / "small.gguf")
    write_hub_files(path, tmp_path / "out")
    config = tmp_path / "out" / "config.json"
    config.chmod(0o640)
    config.write_text("{}")
    made = write_hub_files(path, tmp_path / "out", "float16")
    assert json.loads(config.read_bytes())["dtype"] == "float16"
    assert config.stat().st_mode & 0o777 == 0o640
    assert {file.name for file in (tmp_path / "out").iterdir()} == set(made["files"])


def test_what_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    path = gguf_models.write(tmp_path / "small.gguf")
    (tmp_path / "out" / "config.json").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write_hub_files(path, tmp_path / "out")
    assert not [file.name for file in (tmp_path / "out").iterdir() if file.name.startswith(".")]


def test_a_pipe_in_the_place_of_a_file_is_not_replaced(tmp_path: Path) -> None:
    path = gguf_models.write(tmp_path / "small.gguf")
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / "config.json")
    with refuses(OSError):
        write_hub_files(path, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").is_fifo()
