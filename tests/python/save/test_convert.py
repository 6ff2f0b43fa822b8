"""`max-weights convert`, `merge`, `split` and `meta` on real files, read back by the libraries that others use."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
import transformers

import max_weights
from max_weights import load_weights
from warm import Parent


def run(*arguments: str | Path, status: int = 0) -> str:
    command = [sys.executable, "-m", "max_weights", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model as transformers saves it, in shards."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(20)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=320, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).float()
    model.save_pretrained(folder, max_shard_size="200KB")
    return folder


def test_a_folder_becomes_bfloat16_as_torch_casts_it_and_transformers_opens_it(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "half"
    run("convert", llama, out, "--dtype", "bf16", "--max-shard-size", "100KB", "--verify")
    model, source = (transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto") for path in (out, llama))
    assert model.dtype == torch.bfloat16
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    assert (out / "generation_config.json").read_bytes() == (llama / "generation_config.json").read_bytes()
    found = model.state_dict()
    assert all(torch.equal(found[name], tensor.bfloat16()) for name, tensor in source.state_dict().items())


def test_merged_and_split_again_all_bytes_are_the_same(llama: Path, tmp_path: Path) -> None:
    run("merge", llama, tmp_path / "whole.safetensors")
    run("split", tmp_path / "whole.safetensors", tmp_path / "parts", "--max-shard-size", "150KB")
    index = json.loads((tmp_path / "parts" / "model.safetensors.index.json").read_text())
    whole = safetensors.torch.load_file(tmp_path / "whole.safetensors")
    parts = {}
    for name in sorted(set(index["weight_map"].values())):
        parts.update(safetensors.torch.load_file(tmp_path / "parts" / name))
    source = transformers.AutoModelForCausalLM.from_pretrained(llama).state_dict()
    assert whole.keys() == parts.keys() == source.keys()
    assert all(torch.equal(whole[name], tensor) and torch.equal(parts[name], tensor) for name, tensor in source.items())
    itself = [tmp_path / "whole.safetensors"] * 2
    run("convert", *itself, "--dtype", "fp16", "--if-exists", "replace")
    again = safetensors.torch.load_file(tmp_path / "whole.safetensors")
    assert all(torch.equal(again[name], tensor.half()) for name, tensor in source.items())


def test_from_another_filesystem_where_the_system_cannot_copy(llama: Path, tmp_path: Path) -> None:
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir() or shared_memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one filesystem only")
    source = shared_memory / f"max-weights-test-{os.getpid()}.safetensors"
    try:
        run("merge", llama, source)
        run("convert", source, tmp_path / "copy.safetensors")
        run("meta", "set", source, "note=" + "x" * 5000)
        found, kept = safetensors.torch.load_file(tmp_path / "copy.safetensors"), safetensors.torch.load_file(source)
        assert all(torch.equal(found[name], tensor) for name, tensor in kept.items())
    finally:
        source.unlink(missing_ok=True)


# In a separate process, because the two models take more than a gigabyte.
OPENED_BY_TRANSFORMERS = """
from pathlib import Path
import torch, transformers
source = Path({source!r})
model, info = transformers.AutoModelForCausalLM.from_pretrained({out!r}, output_loading_info=True)
assert not info["missing_keys"]
assert not info["unexpected_keys"]
theirs = transformers.AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name).state_dict()
assert all(torch.equal(tensor, theirs[name]) for name, tensor in model.state_dict().items())
tokenizer = transformers.AutoTokenizer.from_pretrained({out!r})
assert tokenizer.decode(tokenizer("max weights")["input_ids"]) == "max weights"
"""


def test_a_gguf_file_becomes_a_folder_that_transformers_opens(
    models: Path, tmp_path: Path, warm_transformers: Parent
) -> None:
    source = models / "smollm2-135m.Q4_1.gguf"
    out = tmp_path / "smollm2"
    assert "config.json" in run(
        "convert", source, out, "--rename", "hf", "--dtype", "float32", "--max-shard-size", "300MB"
    )
    ended = warm_transformers.run(OPENED_BY_TRANSFORMERS.format(out=str(out), source=str(source)), tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_files_of_torch_become_safetensors(models: Path, tmp_path: Path) -> None:
    for path in sorted(models.glob("*.pth")):
        run("convert", path, tmp_path / "out.safetensors", "--verify")
        found = safetensors.torch.load_file(tmp_path / "out.safetensors")
        source = torch.load(path, weights_only=True, map_location="cpu")
        assert found.keys() == source.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in source.items())


def test_a_checkpoint_of_hugging_face_is_quantized_as_gguf_py_quantizes(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.gguf"
    run("convert", llama, out, "--quantize", "q8_0", "--metadata", "general.architecture=llama")
    source = transformers.AutoModelForCausalLM.from_pretrained(llama).state_dict()
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(out).tensors}
    assert found.keys() == source.keys()
    for name, tensor in source.items():
        if tensor.ndim == 2:
            expected = gguf.quants.quantize(tensor.numpy(), gguf.GGMLQuantizationType.Q8_0)
            assert np.array_equal(found[name].data, expected)


def test_a_link_into_a_cache_is_replaced_and_what_it_leads_to_stays(models: Path, tmp_path: Path) -> None:
    blob, link = tmp_path / "blob", tmp_path / "model.safetensors"
    shutil.copy(models / "minilm.safetensors", blob)
    link.symlink_to(blob)
    before = blob.read_bytes()
    assert "rewritten" in run("meta", "set", link, "note=é")
    assert not link.is_symlink()
    assert blob.read_bytes() == before
    with safetensors.safe_open(link, "pt") as file:
        assert file.metadata()["note"] == "é"
    source, found = safetensors.torch.load_file(blob), safetensors.torch.load_file(link)
    assert all(torch.equal(found[name], tensor) for name, tensor in source.items())
    assert "in place" in run("meta", "set", link, "note=e")
    assert "in place" in run("meta", "unset", link, "note")
    os.link(link, tmp_path / "second")
    assert "rewritten" in run("meta", "set", link, "note=x")
    with safetensors.safe_open(tmp_path / "second", "pt") as file:
        assert "note" not in file.metadata()


def test_metadata_of_a_real_gguf_file_change_and_nothing_else_does(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    source = gguf.GGUFReader(models / "smollm2-135m.Q4_1.gguf")
    shutil.copy(models / "smollm2-135m.Q4_1.gguf", path)
    assert "in place" in run("meta", "set", path, "llama.context_length=4096")
    assert "rewritten" in run("meta", "set", path, "general.description=" + "long " * 30)
    found = gguf.GGUFReader(path)
    assert found.fields["llama.context_length"].contents() == 4096
    changed = {"llama.context_length", "general.description"}
    for key, field in source.fields.items():
        if key not in changed and not key.startswith("GGUF."):
            assert found.fields[key].contents() == field.contents()
    for mine, theirs in zip(found.tensors, source.tensors, strict=True):
        assert mine.name == theirs.name
        assert np.array_equal(mine.data, theirs.data)


def test_ctrl_c_leaves_what_was_there_and_the_next_run_removes_the_rest(models: Path, tmp_path: Path) -> None:
    big = tmp_path / "big.safetensors"
    with open(big, "wb") as file:
        header = b'{"a":{"dtype":"F32","shape":[268435456],"data_offsets":[0,1073741824]}}'
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (1 << 30))
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"old")
    command = [sys.executable, "-m", "max_weights", "convert", str(big), str(out), "--dtype", "fp16"]
    running = subprocess.Popen(command)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob(".out*unfinished")) and time.monotonic() < deadline:
        time.sleep(0.005)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=30) in (-signal.SIGINT, 130)
    assert out.read_bytes() == b"old"
    run("convert", models / "crepe-tiny.pth", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.safetensors", "out.safetensors"]
    assert len(max_weights.infos(load_weights(out))) == 44


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "MODELS/silero_vad.jit", "OUT/a.safetensors"], "TorchScript"),
        (["convert", "MODELS/minilm.safetensors", "OUT/a.pth"], "PyTorch files can be read, but not written"),
        (
            ["convert", "MODELS/minilm.safetensors", "OUT/a.safetensors", "--rename", "hf"],
            "are already the model's own",
        ),
        (["convert", "MODELS/smollm2-135m.Q4_1.gguf", "OUT/a.gguf", "--quantize", "q4_k"], "no such encoding"),
        (
            ["convert", "MODELS/minilm.safetensors", "OUT/a.gguf", "--dtype", "fp8"],
            "a GGUF file cannot hold float8_e4m3fn",
        ),
        (["meta", "set", "MODELS/crepe-tiny.pth", "a=b"], "convert it first"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_written(
    arguments: list[str], message: str, models: Path, tmp_path: Path
) -> None:
    given = [text.replace("MODELS", str(models)).replace("OUT", str(tmp_path)) for text in arguments]
    command = [sys.executable, "-m", "max_weights", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (2, 3)
    assert message in done.stderr
    assert not list(tmp_path.iterdir())
