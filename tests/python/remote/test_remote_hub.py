"""Hub models with files in the hub's cache: these are opened there, and offline only these."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import max_weights
from conftest import ROOT
from fault_server import FaultServer
from max_weights.errors import MissingFileError
from max_weights.remote import Remote

MODELS = Path(os.environ.get("MAX_WEIGHTS_MODELS", ROOT / ".models"))
SHARDED = MODELS / "derived/sharded"
# The path that huggingface_hub itself returns for the cache.
DOWNLOAD = """
import sys
from huggingface_hub import snapshot_download
snapshot_download("org/model", allow_patterns=sys.argv[1:] or None)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    return cache


@pytest.fixture
def served(tmp_path: Path) -> Path:
    served = tmp_path / "served"
    shutil.copytree(SHARDED, served / "org/model")
    return served


@pytest.fixture
def server(served: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    with FaultServer(served) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.hub)
        yield server


def download(*patterns: str) -> None:
    subprocess.run([sys.executable, "-c", DOWNLOAD, *patterns], check=True, capture_output=True, timeout=60)


def assert_right(weights: max_weights.Weights) -> None:
    expected = max_weights.load_weights(SHARDED).load(framework="numpy")
    tensors = weights.load(framework="numpy")
    assert tensors.keys() == expected.keys()
    for name, array in expected.items():
        assert tensors[name].tobytes() == array.tobytes(), name


def test_files_in_the_cache_are_opened_there_and_only_the_commit_is_asked_for(server: FaultServer, cache: Path) -> None:
    download()
    server.reset_counts()
    weights = max_weights.load_weights("hf://org/model")
    assert_right(weights)
    assert all(buffer.is_mapped for buffer in weights.load().values())
    assert [request["path"] for request in server.log()] == ["/hub/api/models/org/model/revision/main"]
    # Their names are those of the request; pickles have the place of the bytes.
    commit = (cache / "models--org--model/refs/main").read_text()
    assert str(max_weights.infos(weights)[0].file).startswith(f"hf://org/model@{commit}/model-0000")
    server.reset_counts()
    one = "model-00004-of-00004.safetensors"
    for revision in ("", "@main", f"@{commit}"):
        single = max_weights.load_weights(f"hf://org/model{revision}/{one}").load()
        assert all(buffer.is_mapped for buffer in single.values())
    assert len(server.log()) == 2, "a commit needs no question"


def test_files_that_are_not_in_the_cache_are_fetched(server: FaultServer, cache: Path) -> None:
    download("*.json", "*-00001-of-*")
    before = sorted(cache.rglob("*"))
    server.reset_counts()
    weights = max_weights.load_weights("hf://org/model")
    assert_right(weights)
    resolved = [request["path"].rsplit("/", 1)[1] for request in server.log() if "/resolve/" in request["path"]]
    assert sorted(resolved) == [f"model-0000{number}-of-00004.safetensors" for number in (2, 3, 4)]
    assert sorted(cache.rglob("*")) == before, "nothing is written there"


@pytest.mark.usefixtures("server")
def test_a_revision_that_moved_on_is_not_what_the_cache_has(served: Path) -> None:
    download()
    name = "model-00004-of-00004.safetensors"
    tensors = max_weights.load_weights(served / "org/model" / name).load(framework="numpy")
    max_weights.save_file({name: array + 1 for name, array in tensors.items()}, served / "org/model" / name)
    new = max_weights.load_weights(served / "org/model" / name).load("pooler", framework="numpy")
    for url in ("hf://org/model", f"hf://org/model/{name}"):
        found = max_weights.load_weights(url).load("pooler", framework="numpy")
        assert (found["pooler.dense.bias"] == new["pooler.dense.bias"]).all()


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_without_a_network_what_the_cache_knows_is_opened_without_a_request(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    download()
    monkeypatch.setenv(variable, "1")
    server.reset_counts()
    for url in ("hf://org/model", "hf://org/model@main", "hf://org/model@main/model.safetensors.index.json"):
        assert_right(max_weights.load_weights(url))
    assert server.log() == []


def test_without_a_network_what_is_missing_is_named(
    server: FaultServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download("*.json", "*-00001-of-*")
    commit = (cache / "models--org--model/refs/main").read_text()
    monkeypatch.setenv("HF_HUB_OFFLINE", "yes")
    server.reset_counts()
    for url, name in [
        ("hf://org/model", f"hf://org/model@{commit}/model-00002-of-00004.safetensors"),
        ("hf://org/model/x.gguf", "hf://org/model@main/x.gguf"),
        ("hf://org/model@v2", "hf://org/model@v2"),
        ("hf://org/other", "hf://org/other@main"),
    ]:
        with pytest.raises(MissingFileError) as caught:
            max_weights.load_weights(url)
        assert caught.value.filename == name
        assert f"HF_HUB_OFFLINE is set, and the cache {cache} does not have it" in str(caught.value)
        assert f"download it with `hf download {name[5:].split('@')[0]}" in str(caught.value)
    assert server.log() == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert_right(max_weights.load_weights("hf://org/model"))


def test_a_snapshot_that_names_files_elsewhere_does_not_lead_there(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = cache / "models--org--model/snapshots/0123"
    snapshot.mkdir(parents=True)
    shutil.copy(SHARDED / "model-00004-of-00004.safetensors", tmp_path / "outside.safetensors")
    for name in ("../../../../outside.safetensors", f"{tmp_path}/outside.safetensors"):
        with pytest.raises((MissingFileError, ValueError)):
            max_weights.load_weights(f"hf://org/model@0123/{name}")
    with pytest.raises(MissingFileError):
        max_weights.load_weights("hf://org/model@../model", remote=Remote())
