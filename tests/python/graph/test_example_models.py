"""The models of the examples, on their real files, give the results of transformers."""

from __future__ import annotations

import json
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
from warm import Parent


def run(program: str, *arguments: object) -> str:
    """The output of an example."""
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


SMOLLM = "smollm2-135m.Q4_1.gguf"
PROMPTS = {
    "a story": "Once upon a time, in 1987, there was a",
    "a question": "<|im_start|>user\nHow do I make bread, step by step?<|im_end|>\n<|im_start|>assistant\n",
}


# The results of transformers for the prompts and some tokens, in a separate process: its model takes a gigabyte.
TRANSFORMERS = """
import json
import numpy as np
import torch
import transformers
file = {{"gguf_file": {file!r}}}
model = transformers.AutoModelForCausalLM.from_pretrained({folder!r}, dtype=torch.float32, **file).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained({folder!r}, **file)
answers = {{}}
with torch.no_grad():
    for name, prompt in {prompts!r}.items():
        tokens = tokenizer(prompt)["input_ids"]
        out = model.generate(
            torch.tensor([tokens]), max_new_tokens=20, do_sample=False, pad_token_id=2, repetition_penalty=1.0
        )[0, len(tokens):].tolist()
        answers[name] = [tokens, out, tokenizer.decode(out)]
    tokens = torch.randint(0, 49152, (2, 12), generator=torch.Generator().manual_seed(0))
    np.savez("logits.npz", tokens=tokens, logits=model(tokens).logits[:, -1])
with open("answers.json", "w") as file:
    json.dump(answers, file)
"""


@pytest.fixture(scope="module")
def transformers_says(
    models: Path, tmp_path_factory: pytest.TempPathFactory, warm_transformers: Parent
) -> tuple[dict[str, Any], Any]:
    """The tokens of each prompt, its continuation, and the text; and tokens with the logits of the next one."""
    folder = tmp_path_factory.mktemp("transformers")
    code = TRANSFORMERS.format(file=SMOLLM, folder=str(models), prompts=PROMPTS)
    ended = warm_transformers.run(code, folder, timeout=600)
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "answers.json").read_text()), np.load(folder / "logits.npz")


@pytest.fixture(scope="module")
def ours(models: Path) -> Any:
    """The model and the metadata of the file."""
    return smollm.load(models / SMOLLM)


@pytest.mark.parametrize(
    "prompt",
    [pytest.param(prompt, marks=[pytest.mark.nightly] if prompt == "a story" else []) for prompt in PROMPTS],
)
def test_smollm_writes_what_transformers_writes(ours: Any, transformers_says: Any, prompt: str) -> None:
    model, metadata = ours
    tokens, expected, text = transformers_says[0][prompt]
    assert smollm.tokenizer_of(metadata).encode(PROMPTS[prompt]).ids == tokens
    assert len(expected) == 20
    made = list(smollm.continued(model, tokens, 20))
    assert made == expected
    assert smollm.tokenizer_of(metadata).decode(made) == text


def test_smollms_logits_are_those_of_transformers(ours: Any, transformers_says: Any) -> None:
    expected = transformers_says[1]["logits"]
    found = ours[0](transformers_says[1]["tokens"])[0].to_numpy()
    assert found.shape == (2, 49152)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


def test_the_smollm_example_answers(models: Path) -> None:
    assert "The capital of France is Paris." in run("smollm.py", models / SMOLLM)
