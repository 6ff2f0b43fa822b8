"""The models of the examples, on their real files, give what transformers gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import minilm
import numpy as np
import pytest
import smollm
import torch

from conftest import ROOT
from max_weights.graph import Graph, TensorType


def run(program: str, *arguments: object) -> str:
    """What an example prints."""
    command = [sys.executable, ROOT / "examples" / program, *arguments]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return done.stdout


def bert_embeddings(models: Path, tokens: np.ndarray, mask: np.ndarray) -> torch.Tensor:
    """The embeddings of sentences by transformers: the mean over what is no padding, of length 1."""
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    config = BertConfig.from_json_file(models / "minilm.config.json")
    theirs = BertModel(config, add_pooling_layer=False).eval()
    weights = load_file(models / "minilm.safetensors")
    rest = theirs.load_state_dict(weights, strict=False)
    assert not rest.missing_keys
    with torch.no_grad():
        hidden = theirs(torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask)).last_hidden_state
    share = torch.from_numpy(mask)[..., None].float()
    return torch.nn.functional.normalize((hidden * share).sum(1) / share.sum(1))


def test_minilm_embeds_sentences_as_transformers_does(models: Path) -> None:
    path = models / "minilm.safetensors"
    tokens, mask = minilm.tokenized(path.with_suffix(".tokenizer.json"), minilm.SENTENCES)
    assert len(tokens) == 8
    assert not mask.all()  # there is padding
    found = minilm.load(path)(tokens, mask)[0].to_numpy()
    expected = bert_embeddings(models, tokens, mask).numpy()
    assert found.shape == (8, 384)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_minilm_is_one_subgraph_called_six_times(models: Path) -> None:
    model = minilm.MiniLM()
    model.load(models / "minilm.safetensors", rename=minilm.renamed)
    kind = TensorType("int64", ["batch", "tokens"], minilm.CPU)
    graph = model.trace(kind, kind)
    assert isinstance(graph, Graph)
    assert list(graph.subgraphs) == ["layer"]
    calls = [node.attributes["prefix"] for node in graph.nodes if node.op == "call"]
    assert calls == [f"layers.{index}." for index in range(6)]
    assert sorted(graph.parameters) == sorted(model.raw_state_dict())
    assert len(graph.nodes) < 250


def test_the_minilm_example_prints_the_nearest_sentences(models: Path) -> None:
    shown = run("minilm.py", models / "minilm.safetensors")
    assert "A man is eating food.  ~  Someone has a meal." in shown
    shown = run("minilm.py", models / "minilm.safetensors", "a cat", "the stock market", "a kitten")
    assert "a cat  ~  a kitten" in shown


@pytest.mark.parametrize("batch", [1, 3])
def test_minilm_takes_batches_and_lengths_of_any_size(models: Path, batch: int) -> None:
    model = minilm.load(models / "minilm.safetensors")
    for length in (1, 7):
        tokens = np.full((batch, length), 2003)
        tokens[:, 0] = 101
        found = model(tokens, np.ones_like(tokens))[0].to_numpy()
        np.testing.assert_allclose(found, bert_embeddings(models, tokens, np.ones_like(tokens)), rtol=0, atol=1e-5)


PROMPTS = {
    "a story": "Once upon a time, in 1987, there was a",
    "a question": "<|im_start|>user\nHow do I make bread, step by step?<|im_end|>\n<|im_start|>assistant\n",
}


@pytest.fixture(scope="module")
def llama(models: Path) -> Any:
    """The model of ours, its metadata, and transformers' model and tokenizer of the same file."""
    import transformers

    file = {"gguf_file": "smollm2-135m.Q4_1.gguf"}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(models, dtype=torch.float32, **file).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models, **file)
    ours, metadata = smollm.load(models / file["gguf_file"])
    return ours, metadata, theirs, tokenizer


@pytest.mark.parametrize(
    "prompt",
    [pytest.param(prompt, marks=[pytest.mark.nightly] if prompt == "a story" else []) for prompt in PROMPTS],
)
def test_smollm_writes_what_transformers_writes(llama: Any, prompt: str) -> None:
    ours, metadata, theirs, tokenizer = llama
    tokens = smollm.tokenizer_of(metadata).encode(PROMPTS[prompt]).ids
    assert tokens == tokenizer(PROMPTS[prompt])["input_ids"]
    with torch.no_grad():
        out = theirs.generate(
            torch.tensor([tokens]), max_new_tokens=20, do_sample=False, pad_token_id=2, repetition_penalty=1.0
        )
    expected = out[0, len(tokens) :].tolist()
    assert len(expected) == 20
    made = list(smollm.continued(ours, tokens, 20))
    assert made == expected
    assert smollm.tokenizer_of(metadata).decode(made) == tokenizer.decode(expected)


def test_smollms_logits_are_those_of_transformers(llama: Any) -> None:
    ours, _, theirs, _ = llama
    tokens = torch.randint(0, 49152, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(tokens).logits[:, -1]
    found = ours(tokens)[0].to_numpy()
    assert found.shape == (2, 49152)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_the_smollm_example_answers(models: Path) -> None:
    assert "The capital of France is Paris." in run("smollm.py", models / "smollm2-135m.Q4_1.gguf")
