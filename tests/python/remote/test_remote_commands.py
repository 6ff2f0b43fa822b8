"""The commands on URLs: their output equals that for the same files on a disk, and the fetched bytes are counted."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import urllib.parse
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import max_weights
from conftest import ROOT
from fault_server import FaultServer
from refusals import refuses

MODELS = Path(os.environ.get("MAX_WEIGHTS_MODELS", ROOT / ".models"))
FIRST = 128 << 10
INDEX = "model.safetensors.index.json"
# Parts that depend on time and place of a report: the identity of a finding includes its path.
HERE_AND_NOW = ("elapsed", "fingerprint", "seconds")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket and a model of the hub: shards with a configuration, and a malicious pickle in a subfolder."""
    folder = tmp_path_factory.mktemp("served")
    model = folder / "bucket/model"
    shutil.copytree(MODELS / "derived/sharded", model)
    (model / "config.json").write_text('{"model_type": "bert", "hidden_size": 384, "vocab_size": 30522}')
    (model / "sub").mkdir()
    (model / "sub/evil.pkl").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    shutil.copytree(model, folder / "org/model")
    for name in ("minilm.safetensors", "crepe-tiny.pth"):
        shutil.copy(MODELS / name, folder / "bucket" / name)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[FaultServer]:
    with FaultServer(folder) as server:
        yield server


@pytest.fixture
def server(served: FaultServer) -> Iterator[FaultServer]:
    served.set()
    served.reset_counts()
    yield served
    served.set()


def environment(server: FaultServer) -> dict[str, str]:
    return {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_ENDPOINT_URL_S3": server.s3,
        "HF_ENDPOINT": server.hub,
    }


def run(server: FaultServer, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "max_weights", *map(str, arguments)]
    return subprocess.run(command, env=environment(server), capture_output=True, text=True, timeout=120)


def plain(value: Any, base: str) -> Any:
    """The JSON with paths relative to `base`, and without parts that depend on time and place."""
    if isinstance(value, dict):
        return {key: plain(part, base) for key, part in value.items() if key not in HERE_AND_NOW}
    if isinstance(value, list):
        return [plain(part, base) for part in value]
    return value.replace(base, "…") if isinstance(value, str) else value


def message(server: FaultServer, base: str, arguments: list[str]) -> tuple[int, Any]:
    done = run(server, *(argument.replace("@", f"{base}/") for argument in arguments))
    assert done.stdout, done.stderr
    return done.returncode, plain(json.loads(done.stdout), base)


# The arguments; @ is the prefix of a path in the bucket.
OF_FOLDERS = {
    "ls": ["ls", "--json", "@model"],
    "show": ["show", "--json", "@model", "pooler.dense.bias"],
    "diff": ["diff", "--json", "@model", "@model"],
    "globals": ["globals", "--json", "@model"],
    "scan": ["scan", "--json", "@model"],
    "validate": ["validate", "--json", "@model"],
    "validate all": ["validate", "--json", "--level", "content", "@model"],
    "manifest": ["manifest", "create", "@model"],
    "bom": ["bom", "@model"],
}
OF_FILES = {
    "ls of an index": ["ls", "--json", f"@model/{INDEX}"],
    "ls of a file": ["ls", "--json", "@crepe-tiny.pth"],
    "show of a file": ["show", "--json", "@crepe-tiny.pth", "conv1.weight"],
    "diff of files": ["diff", "--json", "@minilm.safetensors", f"@model/{INDEX}"],
    "globals of a file": ["globals", "--json", "@crepe-tiny.pth"],
    "scan of a file": ["scan", "--json", "@crepe-tiny.pth"],
    "validate of files": ["validate", "--json", f"@model/{INDEX}", "@crepe-tiny.pth", "@model/sub/evil.pkl"],
    "validate all of a file": ["validate", "--json", "--level", "content", "@crepe-tiny.pth"],
    "manifest of an index": ["manifest", "create", f"@model/{INDEX}"],
    "bom of a file": ["bom", "@minilm.safetensors"],
}


@pytest.mark.parametrize("kind", ["s3", "web"])
@pytest.mark.parametrize("arguments", [*OF_FOLDERS.values(), *OF_FILES.values()], ids=[*OF_FOLDERS, *OF_FILES])
def test_commands_say_of_urls_what_they_say_of_files(
    server: FaultServer, folder: Path, arguments: list[str], kind: str
) -> None:
    if kind == "web" and arguments in OF_FOLDERS.values():
        # A web server has no listings: the index defines the folder.
        expected = [argument.replace("@model", f"@model/{INDEX}") for argument in arguments]
    else:
        expected = arguments
    base = "s3://bucket" if kind == "s3" else server.file("bucket")
    here, there = message(server, str(folder / "bucket"), expected), message(server, base, arguments)
    if arguments[0] == "bom" and expected != arguments:
        # It has the name of the argument.
        here[1]["metadata"]["component"]["name"] = "model"
    assert there == here


@pytest.mark.parametrize("command", ["scan", "validate", "ls"])
def test_commands_say_of_the_hub_what_they_say_of_files(server: FaultServer, folder: Path, command: str) -> None:
    here = message(server, str(folder / "org"), [command, "--json", "@model"])
    done = run(server, command, "--json", "hf://org/model")
    # The branch is pinned to its commit at the time of the listing.
    there = re.sub(r"hf://org/model@\w+", "…/model", done.stdout)
    assert (done.returncode, plain(json.loads(there), "\0")) == here


def test_python_looks_at_urls_too(server: FaultServer, folder: Path) -> None:
    url = server.file("bucket/crepe-tiny.pth")
    assert max_weights.validate(url).ok
    max_weights.assert_checkpoint_ok(url)
    assert not max_weights.validate(server.file("bucket/model/sub/evil.pkl")).ok
    with refuses(max_weights.InvalidCheckpointError, "checkpoint.invalid"):
        max_weights.assert_checkpoint_ok(server.file("bucket/model/sub/evil.pkl"))
    weights, local = max_weights.load_weights(url), max_weights.load_weights(folder / "bucket/crepe-tiny.pth")
    assert (
        max_weights.fingerprint(weights, checksums=True).checksums
        == max_weights.fingerprint(local, checksums=True).checksums
    )
    assert max_weights.diff(weights, local)
    with refuses(max_weights.MissingFileError, "file.missing"):
        max_weights.validate(server.file("bucket/nope.pth?signature=hidden"))


def test_ls_fetches_headers_and_a_conversion_each_byte_once(server: FaultServer, folder: Path, tmp_path: Path) -> None:
    shards = len(list((folder / "bucket/model").glob("*.safetensors")))
    assert run(server, "ls", "s3://bucket/model").returncode == 0
    counts = server.counts()
    assert counts["requests"] <= shards + 2
    assert counts["bytes"] <= (shards + 1) * FIRST + 64_000
    server.reset_counts()
    assert run(server, "convert", server.file("bucket/minilm.safetensors"), tmp_path / "a.safetensors").returncode == 0
    assert server.counts()["bytes"] <= 1.02 * (MODELS / "minilm.safetensors").stat().st_size
    assert run(server, "convert", MODELS / "minilm.safetensors", tmp_path / "b.safetensors").returncode == 0
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    done = run(server, "convert", f"s3://bucket/model/{INDEX}", tmp_path / "c.safetensors")
    assert done.returncode == 0, done.stderr


def test_a_validation_of_shards_fetches_headers_and_opens_each_file_once(server: FaultServer, folder: Path) -> None:
    files = [path for path in (folder / "bucket/model").rglob("*") if path.is_file()]
    shards = [path for path in files if path.suffix == ".safetensors"]
    assert run(server, "validate", "s3://bucket/model").returncode == 5
    counts = server.counts()
    # In addition to the listing and the first bytes: the possible offsets of HDF5, and the end.
    assert counts["requests"] <= 1 + len(files) + 16 * len(shards)
    assert counts["bytes"] <= len(files) * FIRST + len(shards) * FIRST


def test_a_scan_of_pytorch_fetches_no_tensors(server: FaultServer, folder: Path) -> None:
    """The headers of 200 members of 1 MB, and the pickle."""
    path = folder / "bucket/large.pt"
    torch.save({f"layer.{number}": torch.zeros(250_000) for number in range(200)}, path)
    done = run(server, "scan", "--json", "s3://bucket/large.pt")
    assert done.returncode == 0, done.stdout
    counts = server.counts()
    assert counts["bytes"] < path.stat().st_size / 100
    here = message(server, str(folder / "bucket"), ["scan", "--json", "@large.pt"])
    assert (done.returncode, plain(json.loads(done.stdout), "s3://bucket")) == here
    path.unlink()


def test_a_compressed_member_of_an_archive_is_unpacked_within_the_limits(server: FaultServer, folder: Path) -> None:
    path = folder / "bucket/bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("evil.pkl", b"cposix\nsystem\n(S'true'\ntR.")
        archive.writestr("zeros.pkl", bytes(300 << 20))
    here = message(server, str(folder / "bucket"), ["scan", "--json", "@bomb.zip"])
    assert message(server, "s3://bucket", ["scan", "--json", "@bomb.zip"]) == here
    assert here[0] == 5
    path.unlink()


def test_a_manifest_of_a_url_is_that_of_the_files_and_is_checked(
    server: FaultServer, folder: Path, tmp_path: Path
) -> None:
    done = run(server, "manifest", "create", "s3://bucket/model", "-o", tmp_path / "m.json")
    assert done.returncode == 0, done.stderr
    for place in (folder / "bucket/model", "s3://bucket/model", "hf://org/model"):
        assert run(server, "manifest", "check", tmp_path / "m.json", place).returncode == 0
    (folder / "bucket/model/config.json").write_text("{}")
    done = run(server, "manifest", "check", "--json", tmp_path / "m.json", "s3://bucket/model")
    assert done.returncode == 1
    found = json.loads(done.stdout)["findings"]
    assert [(one["rule"], one["file"]) for one in found] == [("manifest.changed", "s3://bucket/model/config.json")]
    shutil.copy(folder / "org/model/config.json", folder / "bucket/model/config.json")
    shutil.copy(tmp_path / "m.json", folder / "bucket/m.json")
    assert run(server, "manifest", "check", "s3://bucket/m.json", "s3://bucket/model").returncode == 0


def test_what_a_manifest_names_is_looked_for_below_its_folder_alone(server: FaultServer, folder: Path) -> None:
    done = run(server, "manifest", "create", folder / "bucket/minilm.safetensors")
    manifest = json.loads(done.stdout)
    manifest["files"][0]["path"] = "../../secret"
    (folder / "bucket/n.json").write_text(json.dumps(manifest))
    server.reset_counts()
    done = run(server, "manifest", "check", "--json", "s3://bucket/n.json", "s3://bucket/minilm.safetensors")
    assert done.returncode == 1
    assert not [path for path in server.counts()["by_path"] if "secret" in path]


# Names that are no valid file names, and the resulting requests of a client that follows them.
HOSTILE = [
    "..%2F..%2Fsecret.pkl",
    "..%252F..%252Fsecret.pkl",
    "%252e%252e/secret.pkl",
    "a%00secret.pkl",
    "%2Fsecret.pkl",
    "a//secret.pkl",
    "..%5C..%5Csecret.pkl",
    "secret.pkl%3Fx=y",
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("url", ["s3://bucket/model", "hf://org/model"])
def test_names_that_a_server_lists_lead_nowhere_else(server: FaultServer, url: str, name: str) -> None:
    """The rest of the listing is processed, or the listing is one error; the target of the name is never requested."""
    server.set(f"lists={name}")
    done = run(server, "validate", "--json", url)
    assert done.returncode in {3, 5}, done.stderr
    for request in server.log():
        path = request["path"].partition("?")[0]
        if "secret" in path:
            # It stays one name below the folder: it is decoded once.
            below = urllib.parse.unquote(path)
            assert "/model" in below
            assert request["status"] == 404
            assert "/../" not in below
            assert "\0" not in below


def test_more_files_than_a_checkpoint_has_are_one_error(served: FaultServer, folder: Path) -> None:
    many = folder / "bucket/many"
    many.mkdir()
    for number in range(10_001):
        (many / str(number)).touch()
    done = run(served, "validate", "s3://bucket/many")
    assert done.returncode == 3
    assert "more than 10000 files" in done.stderr
    shutil.rmtree(many)


def test_an_index_is_followed_below_its_folder_alone(server: FaultServer, folder: Path) -> None:
    """A name is no part of a URL: neither its dots nor its query are followed."""
    names = [
        "../secret.safetensors",
        "%2e%2e/secret.safetensors",
        "a.safetensors?x=secret",
        "https://example.org/secret",
    ]
    for number, name in enumerate(names):
        (folder / f"bucket/i{number}").mkdir(exist_ok=True)
        index = folder / f"bucket/i{number}" / INDEX
        index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": name}}))
        server.reset_counts()
        for command in ("validate", "ls"):
            assert run(server, command, server.file(f"bucket/i{number}/{INDEX}")).returncode in {3, 5}
        paths = [request["path"] for request in server.log() if "secret" in request["path"]]
        assert all(f"/bucket/i{number}/" in path and "?" not in path for path in paths), paths


def test_nothing_that_a_file_names_is_fetched(server: FaultServer, folder: Path) -> None:
    base = server.file("bucket/named")
    named = folder / "bucket/named"
    named.mkdir(exist_ok=True)
    config = {"auto_map": {"AutoModel": "modeling.Model"}, "_name_or_path": server.file("bucket/followed")}
    (named / "config.json").write_text(json.dumps(config))
    (named / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": server.file("bucket/followed")}))
    server.reset_counts()
    for url in ("s3://bucket/named", f"{base}/config.json", f"{base}/adapter_config.json"):
        run(server, "validate", url)
    assert server.counts()["requests"] == 1 + 2 + 2
    assert not [path for path in server.counts()["by_path"] if "followed" in path or "modeling" in path]


def test_queries_are_used_and_not_printed(server: FaultServer) -> None:
    for arguments in (
        ["validate", "--json", "bucket/crepe-tiny.pth?signature=hidden"],
        ["ls", "--json", "bucket/crepe-tiny.pth?signature=hidden"],
        ["scan", "bucket/model?signature=hidden"],
        ["scan", "bucket/nope.pth?signature=hidden"],
        ["diff", "bucket/crepe-tiny.pth?signature=hidden", "bucket/crepe-tiny.pth?signature=hidden"],
        ["manifest", "create", "bucket/crepe-tiny.pth?signature=hidden"],
        ["bom", "bucket/crepe-tiny.pth?signature=hidden"],
        ["bench", "bucket/crepe-tiny.pth?signature=hidden"],
    ):
        server.reset_counts()
        done = run(server, *(server.file(word) if word.startswith("bucket") else word for word in arguments))
        assert "hidden" not in done.stdout + done.stderr, arguments
        paths = [request["path"] for request in server.log()]
        assert all(path.endswith("?signature=hidden") for path in paths), paths


@pytest.mark.parametrize("fault", ["denied", "deleted=2"])
def test_files_that_cannot_be_had_are_said_and_do_not_hide_others(server: FaultServer, fault: str) -> None:
    server.set(f"{fault} path=00002-of")
    done = run(server, "validate", "--json", "s3://bucket/model")
    report = json.loads(done.stdout)
    about = {entry["path"].rpartition("/")[2] for entry in report["files"]}
    assert {"config.json", "model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors"} <= about
    assert done.returncode == 5  # for the pickle that is also there


def test_a_validation_in_time_says_what_it_had_no_time_for(server: FaultServer) -> None:
    server.set("stall-before-head=30 path=safetensors")
    done = run(server, "validate", "--json", "--timeout", "2s", "s3://bucket/model")
    assert done.returncode in {3, 5}
    assert "in the given time" in done.stdout


def test_numbers_of_an_array_are_read_at_the_level_of_content(server: FaultServer, folder: Path) -> None:
    np.savez(folder / "bucket/arrays.npz", a=np.arange(1000.0), b=np.array([1.0, np.nan]))
    arguments = ["validate", "--json", "--level", "content", "@arrays.npz"]
    assert message(server, "s3://bucket", arguments) == message(server, str(folder / "bucket"), arguments)
    (folder / "bucket/object.pkl").write_bytes(pickle.dumps({"a": 1}))
    assert run(server, "scan", "s3://bucket/object.pkl").returncode == 0
