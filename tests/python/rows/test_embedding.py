"""`max_weights.torch.embedding` in place of `nn.Embedding`: the same bits, in every dtype that a module gets."""

import copy
import warnings
from pathlib import Path

import pytest
import safetensors.torch
import torch

import max_weights
import max_weights.torch
from max_weights.errors import ArgumentError
from refusals import refuses


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    tensors = {"wte.weight": torch.randn(100, 24), "half": torch.randn(50, 8).half(), "cube": torch.zeros(2, 2, 2)}
    safetensors.torch.save_file(tensors, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
@pytest.mark.parametrize("padding", [None, 0, -1])
@pytest.mark.parametrize("name", ["wte.weight", "half"])
def test_the_output_is_that_of_torch(path: Path, name: str, padding: int | None, kind: torch.dtype) -> None:
    weight = safetensors.torch.load_file(path)[name]
    theirs = torch.nn.Embedding.from_pretrained(weight, padding_idx=padding)
    ours = max_weights.torch.embedding(path, name, padding_idx=padding)
    assert (ours.num_embeddings, ours.embedding_dim) == (theirs.num_embeddings, theirs.embedding_dim)
    assert ours.padding_idx == theirs.padding_idx
    for shape in ((), (0,), (7,), (3, 5)):
        ids = torch.randint(0, len(weight), shape).to(kind)
        assert torch.equal(ours(ids), theirs(ids))
        for move in (torch.nn.Module.half, torch.nn.Module.bfloat16, torch.nn.Module.double):
            ours_moved, theirs_moved = move(copy.deepcopy(ours)), move(copy.deepcopy(theirs))
            assert torch.equal(ours_moved(ids), theirs_moved(ids))
            assert torch.equal(ours_moved.float()(ids), theirs_moved.float()(ids)), "rounded twice"
            ours_moved, theirs_moved = move(ours_moved), move(theirs_moved)
            assert ours_moved(ids).dtype == theirs_moved(ids).dtype


def test_it_takes_the_place_of_an_embedding_in_a_model(path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(100, 24), torch.nn.Linear(24, 3))
    weight = safetensors.torch.load_file(path)["wte.weight"]
    with torch.no_grad():
        model[0].weight.copy_(weight)
    ids = torch.randint(0, 100, (4, 6))
    expected = model(ids)
    model[0] = max_weights.torch.embedding(path, "wte.weight", padding_idx=1)
    assert torch.equal(model(ids), expected)
    assert list(model.state_dict()) == ["1.weight", "1.bias"]
    assert repr(model[0]) == "DiskEmbedding(100, 24, padding_idx=1, dtype=torch.float32)"
    model.eval().to("cpu", torch.bfloat16)
    assert torch.equal(model[0](ids), weight.bfloat16()[ids])
    torch.save(model, path.with_name("model.pt"))
    again = torch.load(path.with_name("model.pt"), weights_only=False)
    assert torch.equal(again(ids), model(ids))


def test_bad_input_is_refused(path: Path) -> None:
    with refuses(ArgumentError, "argument.shape"):
        max_weights.torch.embedding(path, "cube")
    with refuses(ArgumentError, "argument.number"):
        max_weights.torch.embedding(path, "half", padding_idx=50)
    with refuses(max_weights.WeightNotFoundError):
        max_weights.torch.embedding(path, "wte")
    module = max_weights.torch.embedding(path, "half")
    with refuses(IndexError):
        module(torch.tensor([3, 50, -1]))
    with refuses(ArgumentError):
        module(torch.tensor([0.5]))
    with refuses(AttributeError):
        _ = module.weight
    with refuses(AttributeError):
        _ = module.nothing
    with refuses(AttributeError):
        module.weight = torch.nn.Parameter(torch.zeros(50, 8))
    with warnings.catch_warnings(action="ignore"), refuses(max_weights.UnsupportedError, "unsupported.request"):
        torch.jit.trace(module, torch.tensor([1]))  # type: ignore[no-untyped-call]
