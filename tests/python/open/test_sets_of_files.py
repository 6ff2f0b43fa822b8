"""Directories, indices, lists of shards, and the Hugging Face cache."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import max_weights
from conftest import safetensors_bytes
from max_weights import FormatError, MissingFileError, load_weights
from refusals import refuses

Make = Callable[..., Path]


@pytest.fixture
def sharded(make_file: Make) -> Path:
    """Two shards of two tensors each, and their index."""
    first = make_file(
        {"a": np.arange(4, dtype=np.float32), "b": np.ones(2, np.float32)}, "model-00001-of-00002.safetensors"
    )
    make_file({"c": np.zeros(3, np.float32), "d": np.full(1, 7, np.float32)}, "model-00002-of-00002.safetensors")
    write_index(first.parent)
    return first.parent


def write_index(folder: Path, size: int | None = 40, **changes: str | None) -> Path:
    weight_map: dict[str, Any] = {name: f"model-0000{1 + (name > 'b')}-of-00002.safetensors" for name in "abcd"}
    weight_map |= changes
    weight_map = {name: shard for name, shard in weight_map.items() if shard}
    path = folder / "model.safetensors.index.json"
    path.write_text(
        json.dumps({"metadata": {"total_size": size} if size is not None else {}, "weight_map": weight_map})
    )
    return path


def values(weights: Any) -> dict[str, list[float]]:
    return {name: np.asarray(weight.data()).tolist() for name, weight in weights.items()}


def test_the_real_sharded_model_equals_the_single_file(models: Path) -> None:
    single = models / "minilm.safetensors"
    for path in (models / "derived/sharded", models / "derived/sharded/model.safetensors.index.json"):
        weights = load_weights(path)
        with safe_open(single, "np") as theirs:
            assert {info.name for info in max_weights.infos(weights)} == set(theirs.keys())
            for name, weight in weights.items():
                assert np.array_equal(np.asarray(weight.data()), theirs.get_tensor(name)), name
        assert max_weights.infos(weights).warnings == []
        assert len({info.file for info in max_weights.infos(weights)}) == 4


def test_a_directory_an_index_and_a_list_of_shards_are_the_same_checkpoint(sharded: Path) -> None:
    shards = sorted(sharded.glob("*.safetensors"))
    expected = {"a": [0, 1, 2, 3], "b": [1, 1], "c": [0, 0, 0], "d": [7]}
    for paths in (sharded, str(sharded), sharded / "model.safetensors.index.json", shards, map(str, shards)):
        assert values(load_weights(paths)) == expected
    (sharded / "model.safetensors.index.json").unlink()
    assert values(load_weights(sharded)) == expected, "a complete set of shards needs no index"


def test_one_shard_opened_alone_says_so(sharded: Path) -> None:
    weights = load_weights(sharded / "model-00002-of-00002.safetensors")
    assert "shard 2 of 2, opened alone" in max_weights.infos(weights).warnings[0]
    with refuses(KeyError, "weight.not-found"):
        weights.a.data()


# The six findings: the change of the folder, the rule, the names that strict=False still opens.
FINDINGS: dict[str, tuple[Callable[[Path, Make], Any], str, str]] = {
    "missing shard": (
        lambda folder, _: (folder / "model-00002-of-00002.safetensors").unlink(),
        "index.missing-shard",
        "ab",
    ),
    "tensor missing from its shard": (
        lambda folder, _: write_index(folder, e="model-00001-of-00002.safetensors"),
        "index.missing-tensor",
        "abcd",
    ),
    "tensor in another shard": (
        lambda folder, _: write_index(folder, a="model-00002-of-00002.safetensors"),
        "index.other-shard",
        "abcd",
    ),
    "unindexed tensor": (lambda folder, _: write_index(folder, size=24, a=None), "index.unindexed-tensor", "bcd"),
    "tensor in two shards": (
        lambda _, make: make(
            {"c": np.zeros(3, np.float32), "a": np.zeros(4, np.float32), "d": np.full(1, 7, np.float32)},
            "model-00002-of-00002.safetensors",
        ),
        "index.duplicate-tensor",
        "abcd",
    ),
    "total size": (lambda folder, _: write_index(folder, size=41), "index.total-size", "abcd"),
}


@pytest.mark.parametrize("case", FINDINGS)
def test_an_index_that_disagrees_is_refused_and_with_strict_false_listed(
    sharded: Path, make_file: Make, case: str
) -> None:
    change, rule, remaining = FINDINGS[case]
    change(sharded, make_file)
    with refuses(FormatError) as caught:
        load_weights(sharded)
    assert caught.value.rule == rule
    assert caught.value.path is not None
    weights = load_weights(sharded, strict=False)
    assert [warning for warning in max_weights.infos(weights).warnings if rule in warning]
    found = values(weights)
    assert sorted(found) == list(remaining)
    assert found.get("a", [0, 1, 2, 3]) == [0, 1, 2, 3], "of a tensor in two shards the indexed one counts"


@pytest.mark.parametrize(
    "shard",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "a/../../b.safetensors",
        "C:\\windows\\x.safetensors",
        "C:x.safetensors",
        "..\\x.safetensors",
        "./x.safetensors",
        "a//b.safetensors",
        "",
        "x\0.safetensors",
        "~\n",
    ],
)
def test_a_shard_name_that_leaves_the_folder_is_refused_on_its_text(sharded: Path, shard: str) -> None:
    path = write_index(sharded)
    path.write_text(json.dumps({"weight_map": {"a": shard}}))
    for strict in (True, False):
        with pytest.raises(FormatError) as caught:
            load_weights(sharded, strict=strict)
        assert caught.value.rule == "index.shard-name"
        assert caught.value.tensor == "a"


def test_a_shard_in_a_folder_below_the_index_opens(sharded: Path, make_file: Make) -> None:
    (sharded / "parts").mkdir()
    make_file({"x": np.ones(1, np.float32)}, "parts/one.safetensors")
    write_index(sharded, None).write_text(json.dumps({"weight_map": {"x": "parts/one.safetensors"}}))
    assert values(load_weights(sharded)) == {"x": [1]}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{", "index.json"),
        ("[]", "index.json"),
        ('{"metadata": {}}', "index.weight-map"),
        ('{"weight_map": {}, "weight_map": {}}', "index.weight-map"),
        ('{"weight_map": {"a": 1}}', "index.json"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "index.duplicate-name"),
        ('{"weight_map": {}, "metadata": {"total_size": -1}}', "index.json"),
        ('{"weight_map": {}, "metadata": {"total_size": 1.5}}', "index.json"),
        ('{"weight_map": {}} x', "index.json"),
        ("{" * 200, "index.json"),
        ("", "index.json"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, text: str, rule: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    with pytest.raises(FormatError) as caught:
        load_weights(path)
    assert caught.value.rule == rule
    assert str(path) in str(caught.value)


def test_an_index_size_written_as_a_float_is_understood(sharded: Path) -> None:
    path = write_index(sharded)
    path.write_text(path.read_text().replace("40", "40.0"))
    assert len(load_weights(sharded)) == 4


def test_directories_that_cannot_be_opened_say_what_they_hold(tmp_path: Path, make_file: Make) -> None:
    with refuses(FormatError, "directory.empty"):
        load_weights(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"x")
    with refuses(NotImplementedError, "directory.other-format"):
        load_weights(tmp_path)
    make_file({"a": np.zeros(1, np.float32)}, "x.safetensors")
    assert len(load_weights(tmp_path)) == 1
    make_file({"a": np.zeros(1, np.float32)}, "y.safetensors")
    with refuses(FormatError, "directory.ambiguous"):
        load_weights(tmp_path)
    make_file({"a": np.zeros(1, np.float32)}, "model-00001-of-00003.safetensors")
    with refuses(FormatError, "directory.missing-shards"):
        load_weights(tmp_path)


@pytest.fixture
def cache(tmp_path: Path, sharded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face cache with one model, with links like those of the hub's own library."""
    commit, model = "0" * 39 + "1", tmp_path / "hub" / "models--org--tiny"
    for folder in ("blobs", "refs", f"snapshots/{commit}"):
        (model / folder).mkdir(parents=True)
    for number, file in enumerate([*sharded.glob("*.safetensors"), *sharded.glob("*.json")]):
        (model / "blobs" / str(number)).write_bytes(file.read_bytes())
        (model / "snapshots" / commit / file.name).symlink_to(f"../../blobs/{number}")
    (model / "refs" / "main").write_text(commit)
    (model / "refs" / "v1").write_text(commit)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_model_of_the_cache_opens_by_name_and_its_links_work(cache: Path) -> None:
    commit = "0" * 39 + "1"
    for name in ("org/tiny", "org/tiny@main", "org/tiny@v1", f"org/tiny@{commit}"):
        assert len(load_weights(name)) == 4
    assert len(load_weights(cache / "models--org--tiny/snapshots" / commit)) == 4


def test_the_cache_is_where_the_environment_says(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(cache.parent))
    assert len(load_weights("org/tiny")) == 4
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent / "xdg"))
    with refuses(FileNotFoundError, "file.missing"):
        load_weights("org/tiny")


@pytest.mark.usefixtures("cache")
def test_a_miss_names_the_command_that_downloads_it() -> None:
    with refuses(MissingFileError, "file.missing") as caught:
        load_weights("org/other")
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ValueError)
    with refuses(FileNotFoundError, "file.missing"):
        load_weights("org/tiny@v2")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "name", ["missing.safetensors", "a/b/c", "../x", "org/../tiny", "org/tiny@../../x", "/org/tiny"]
)
def test_what_cannot_be_a_models_name_is_a_missing_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"  # in an empty folder, so that no file near it has a similar name
    folder.mkdir()
    monkeypatch.chdir(folder)
    with refuses(MissingFileError, "file.missing"):
        load_weights(name)
    assert not os.path.lexists(name)


def test_no_paths_is_an_error() -> None:
    with refuses(ValueError, "argument.type"):
        load_weights([])
    with pytest.raises(max_weights.MissingFileError):
        load_weights(["/nonexistent/a.safetensors", "/nonexistent/b.safetensors"])


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
def test_folders_and_sets_whose_names_are_not_utf8_open(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)
    content = safetensors_bytes({"w": ("F32", [1], bytes(4))})
    for number, name in ((1, "a"), (2, "b")):
        with open(folder + b"/m\xfe-%05d-of-00002.safetensors" % number, "wb") as shard:
            shard.write(safetensors_bytes({name: ("F32", [1], bytes(4))}))
    weights = max_weights.load_weights(os.fsdecode(folder))
    assert sorted(info.name for info in max_weights.infos(weights)) == ["a", "b"]
    for info in max_weights.infos(weights):
        assert os.path.exists(info.file)
        assert weights[info.name].data().shape == [1]

    alone = folder + b"/alone"
    os.mkdir(alone)
    with open(alone + b"/m\xfe.safetensors", "wb") as single:
        single.write(content)
    assert max_weights.load_weights(os.fsdecode(alone)).w.exists()
    with open(alone + b"/n\xfe.safetensors", "wb") as other:
        other.write(content[:-1])
    with refuses(max_weights.FormatError, "directory.ambiguous"):
        max_weights.load_weights(os.fsdecode(alone))
    with refuses(max_weights.FormatError, "safetensors.truncated") as caught:
        max_weights.load_weights(os.fsdecode(alone + b"/n\xfe.safetensors"))
    assert caught.value.path is not None
    assert os.path.exists(caught.value.path)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
def test_a_split_set_whose_name_is_not_utf8_opens_by_any_of_its_files(tmp_path: Path) -> None:
    paths = [os.fsencode(tmp_path) + b"/m\xff-%05d-of-00002.gguf" % number for number in (1, 2)]
    for number, path in enumerate(paths):
        text = [
            struct.pack("<Q", len(key)) + key
            for key in (b"split.no", b"split.count", b"split.tensors.count", b"w%d" % number)
        ]
        header = b"GGUF" + struct.pack("<IQQ", 3, 1, 3)
        header += text[0] + struct.pack("<IH", 2, number) + text[1] + struct.pack("<IH", 2, 2)
        header += text[2] + struct.pack("<Ii", 5, 2) + text[3] + struct.pack("<IQIQ", 1, 8, 0, 0)
        with open(path, "wb") as file:
            file.write(header + bytes(-len(header) % 32) + bytes(32))
    for opened in paths:
        weights = max_weights.load_weights(os.fsdecode(opened))
        assert [info.name for info in max_weights.infos(weights)] == ["w0", "w1"]


def test_a_set_opens_however_few_files_a_process_may_open(make_file: Make, tmp_path: Path) -> None:
    for shard in range(60):
        make_file({f"w{shard}": np.full(4, shard, np.float32)}, f"model-{shard + 1:05}-of-00060.safetensors")
    program = """
import os, resource, sys
import numpy as np
import max_weights
from max_weights import load_weights

few, others = int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(others)]
weights = [load_weights(sys.argv[1]) for _ in range(2)]
for tree in weights:
    loaded = tree.load(framework="numpy", copy=True)
    assert all(loaded[f"w{shard}"][0] == shard for shard in range(60))
"""
    for few, others in ((64, 0), (64, 45)):
        command = [sys.executable, "-c", program, str(tmp_path), str(few), str(others)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
