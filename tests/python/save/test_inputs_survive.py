"""Inputs are never overwritten: each verb refuses a target that is one of the inputs, or lies in one.

Inputs are identified by device and inode, or by URL, not by name.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
from fault_server import FaultServer
from max_weights import delta, load_weights, reshard, save_file, save_sharded
from max_weights.errors import ArgumentError
from refusals import refuses

BASE = {"model.a.weight": np.arange(40_000, dtype=np.float32), "model.b.weight": np.ones((64, 8), np.float32)}
NEW = {**BASE, "model.a.weight": np.where(np.arange(40_000) == 7, 3, BASE["model.a.weight"]).astype(np.float32)}
REFUSED = (
    r"this is the input|this is inside the input|this folder holds the input|one of several files"
    r"|one of the files of the model|is not "
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two versions, as files and as folders, and a delta."""
    folder = tmp_path / "files"
    folder.mkdir()
    monkeypatch.chdir(folder)
    save_file(BASE, "base.safetensors")
    save_file(NEW, "new.safetensors")
    for name, tensors in (("base", BASE), ("new", NEW)):
        save_sharded(tensors, name, max_shard_size=100_000)
        Path(name, "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 4}))
    Path("deltas").mkdir()
    delta.create("base.safetensors", "new.safetensors", "deltas/one.safetensors", sync=False)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def shell(*arguments: str) -> None:
    """Run a command; a failure is an exception, as in Python."""
    command = [sys.executable, "-m", "max_weights", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        assert done.returncode == 2, done
        raise ArgumentError(done.stderr)


# The action, and its output path.
CALLS: dict[str, tuple[Callable[[str], object], str]] = {
    "delta.create, the base": (lambda to: delta.create("base.safetensors", "new.safetensors", to), "base.safetensors"),
    "delta.create, the new one": (lambda to: delta.create("base.safetensors", NEW, to), "base.safetensors"),
    "delta.create, a tree": (lambda to: delta.create(BASE, load_weights("new.safetensors"), to), "new.safetensors"),
    "delta.create, a shard": (lambda to: delta.create("base", "new", to), "base/model-00001-of-00002.safetensors"),
    "delta.create, into the folder": (lambda to: delta.create("base", "new", to), "new/delta.safetensors"),
    "delta.create, sparse": (
        lambda to: delta.create("base.safetensors", "new.safetensors", to, dialect="sparse", version="1"),
        "new.safetensors",
    ),
    "delta.create, xor": (
        lambda to: delta.create("base", "new", to, dialect="xor", version="1"),
        "base/weight_v000001",
    ),
    "delta.create, xor, around": (
        lambda to: delta.create("base.safetensors", NEW, to, dialect="overwrite", version="1"),
        ".",
    ),
    "delta.fold, the base": (
        lambda to: delta.fold("base.safetensors", "deltas/one.safetensors", path=to),
        "base.safetensors",
    ),
    "delta.fold, a delta": (
        lambda to: delta.fold("base.safetensors", "deltas/one.safetensors", path=to),
        "deltas/one.safetensors",
    ),
    "delta.fold, into the folder": (
        lambda to: delta.fold("base.safetensors", "deltas", path=to),
        "deltas/folded.safetensors",
    ),
    "delta create": (
        lambda to: shell("delta", "create", "base.safetensors", "new.safetensors", to),
        "base.safetensors",
    ),
    "delta fold": (lambda to: shell("delta", "fold", "base.safetensors", "deltas", to), "deltas/folded.safetensors"),
    "convert": (lambda to: shell("convert", "base.safetensors", to, "--dtype", "bf16"), "base.safetensors"),
    "convert, a folder": (lambda to: shell("convert", "base", to, "--dtype", "bf16"), "base"),
    "convert, into the folder": (lambda to: shell("convert", "base", to), "base/model.gguf"),
    "convert, a delta": (
        lambda to: shell("convert", "base.safetensors", "deltas/one.safetensors", to),
        "deltas/one.safetensors",
    ),
    "split": (lambda to: shell("split", "base", to, "--max-shard-size", "1kB"), "base"),
    "split, around": (lambda to: shell("split", "base.safetensors", to, "--max-shard-size", "1kB"), "."),
    "merge": (lambda to: shell("merge", "base", to), "base/model-00001-of-00002.safetensors"),
    "reshard": (lambda to: reshard("base", to, 2, strategies={"model": None}), "base"),
    "reshard in the shell": (lambda to: shell("reshard", "base", to, "--tp", "1"), "base"),
    "manifest create": (lambda to: shell("manifest", "create", "base.safetensors", "-o", to), "base.safetensors"),
    "manifest create, a file of the folder": (
        lambda to: shell("manifest", "create", "base", "-o", to),
        "base/config.json",
    ),
    "bom": (lambda to: shell("bom", "base", "-o", to), "base/model-00001-of-00002.safetensors"),
    "validate": (lambda to: shell("validate", "base.safetensors", "-o", f"json={to}"), "base.safetensors"),
    "validate, the expectation": (
        lambda to: shell("validate", "base.safetensors", "--write-spec", to),
        "base.safetensors",
    ),
    "validate, the baseline": (lambda to: shell("validate", "base", "--write-baseline", to), "base/config.json"),
    "report merge": (lambda to: shell("report", "merge", "report.json", "-o", to), "report.json"),
    "Report.write": (lambda to: max_weights.validate("base").write(to, "json"), "base/config.json"),
    "Fingerprint.write": (
        lambda to: max_weights.fingerprint(load_weights("base.safetensors")).write(to),
        "base.safetensors",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_read_is_not_written_over(files: Path, call: str) -> None:
    Path("report.json").write_text("{}")
    before = contents(files)
    run, target = CALLS[call]
    for path in (target, f"./deltas/../{target}", str(files / target)):
        with pytest.raises(ValueError, match=REFUSED):
            run(path)
        assert contents(files) == before


@pytest.mark.parametrize("call", ["delta.create, the base", "delta fold", "convert", "manifest create", "validate"])
def test_an_input_is_known_by_every_link_to_it(files: Path, call: str) -> None:
    run, target = CALLS[call]
    links = files.parent / "links"
    if not Path(target).exists():  # it would lie in a folder
        links.symlink_to((files / target).parent)
        targets = [links / Path(target).name]
    else:
        links.mkdir()
        targets = [links / "hard", links / "soft.safetensors"]
        os.link(target, targets[0])
        targets[1].symlink_to(files / target)
    before = contents(files)
    for path in targets:
        with pytest.raises(ValueError, match=REFUSED):
            run(str(path))
    assert contents(files) == before


def test_a_delta_does_not_replace_the_file_that_tensors_in_memory_are_views_of(files: Path) -> None:
    views = max_weights.numpy.load_file("base.safetensors")
    before = contents(files)
    for versions in ((views, NEW), (NEW, views)):
        with refuses(ValueError):
            delta.create(*versions, "base.safetensors")
    assert contents(files) == before
    delta.create(max_weights.numpy.load_file("base.safetensors", copy=True), NEW, "base.safetensors")


@pytest.mark.usefixtures("files")
def test_the_shell_replaces_an_input_where_that_is_said() -> None:
    shell("convert", "base.safetensors", "base.safetensors", "--dtype", "bf16", "--if-exists", "replace")
    assert load_weights("base.safetensors")["model.b.weight"].dtype.name == "bfloat16"
    shell("split", "base", "base", "--max-shard-size", "1kB", "--if-exists", "replace")
    weights = load_weights("base")
    assert all(np.array_equal(weights[name].numpy(), tensor) for name, tensor in BASE.items())
    with refuses(ValueError, "argument.value"):
        shell("merge", "new", "new/model-00001-of-00002.safetensors", "--if-exists", "replace")


@pytest.mark.usefixtures("files")
def test_python_saves_a_tree_over_its_own_files() -> None:
    load_weights("base.safetensors").save("base.safetensors", dtype="float16")
    assert load_weights("base.safetensors")["model.b.weight"].dtype.name == "float16"
    load_weights("base").save("base", max_shard_size="1kB")
    assert np.array_equal(load_weights("base")["model.a.weight"].numpy(), BASE["model.a.weight"])
    assert load_weights("new").save("new", max_shard_size="1MB")


def test_the_next_delta_goes_into_the_folder_of_the_deltas_before(files: Path) -> None:
    third = {**NEW, "model.b.weight": np.zeros((64, 8), np.float32)}
    delta.create(["base.safetensors", "deltas"], third, "deltas/two.safetensors", sync=False)
    weights = load_weights(["base.safetensors", "deltas"])
    assert not weights["model.b.weight"].numpy().any()
    assert files.is_dir()


def test_a_report_takes_the_place_of_one_in_the_folder_that_it_is_about(files: Path) -> None:
    for _ in range(2):
        shell("manifest", "create", "base", "-o", "base/manifest.json")
        shell("bom", "base", "-o", "base/bom.json")
        shell("validate", "base", "-o", "text=base/report.txt", "-o", "html=base/report.html")
    assert (files / "base/report.html").exists()


@pytest.mark.parametrize("option", ["--write-spec", "--write-baseline"])
def test_what_is_written_of_a_validation_may_be_written_again(files: Path, option: str) -> None:
    for _ in range(2):
        shell("validate", "base", option, "base/own.json")
    assert (files / "base/own.json").exists()


def test_an_object_that_is_read_is_not_written_over(files: Path) -> None:
    bucket = files.parent / "store" / "bucket"
    shutil.copytree(files, bucket)
    before = contents(bucket)
    with FaultServer(bucket.parent) as server:
        keys = {"AWS_ENDPOINT_URL": server.s3, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        environment = {**os.environ, **keys, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
        for arguments in (
            ["delta", "create", "s3://bucket/base.safetensors", "new.safetensors", "s3://bucket/base.safetensors"],
            ["delta", "create", "base.safetensors", "s3://bucket/new.safetensors", "s3://bucket//new.safetensors"],
            ["delta", "create", "s3://bucket/base", "s3://bucket/new", "s3://bucket/new/d.safetensors"],
            ["convert", "s3://bucket/base.safetensors", "s3://bucket/base.safetensors", "--dtype", "bf16"],
            ["split", "s3://bucket/base", "s3://bucket/base/", "--max-shard-size", "1kB"],
        ):
            command = [sys.executable, "-m", "max_weights", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            assert done.returncode == 2, done
            assert re.search(REFUSED, done.stderr), done.stderr
    assert contents(bucket) == before


def linked(folder: Path) -> tuple[Path, Path]:
    """A file of tensors, and a link to it."""
    other, link = folder / "other.safetensors", folder / "link.safetensors"
    save_file(BASE, other)
    link.symlink_to(other)
    return other, link


WRITERS: dict[str, Callable[[Path, Path], Any]] = {
    "save_file": lambda link, _: save_file(NEW, link),
    "weights.save": lambda link, _: load_weights("new.safetensors").save(link),
    "save_sharded": lambda link, _: save_sharded(NEW, link.parent, name="link"),
    "SafetensorsWriter": lambda link, _: written(link),
    "delta.create": lambda link, _: delta.create("base.safetensors", "new.safetensors", link),
    "delta.apply": lambda link, _: delta.apply(link, "deltas/one.safetensors"),
    "delta apply": lambda link, _: shell("delta", "apply", str(link), "deltas/one.safetensors"),
    "convert": lambda link, _: shell("convert", "new.safetensors", str(link)),
    "merge": lambda link, _: shell("merge", "new", str(link)),
    "meta set": lambda link, _: shell("meta", "set", str(link), "step=1"),
    "manifest create": lambda _, text: shell("manifest", "create", "new", "-o", str(text)),
    "bom": lambda _, text: shell("bom", "new", "-o", str(text)),
    "validate": lambda _, text: shell("validate", "new", "-o", f"json={text}"),
    "validate, the expectation": lambda _, text: shell("validate", "new", "--write-spec", str(text)),
    "Report.write": lambda _, text: max_weights.validate("new").write(text, "json"),
    "Fingerprint.write": lambda _, text: max_weights.fingerprint(load_weights("new")).write(text),
}


def written(path: Path) -> None:
    with max_weights.SafetensorsWriter(path, {"a": ("float32", (4,))}) as writer:
        writer.write("a", np.ones(4, np.float32))


@pytest.mark.parametrize("writer", WRITERS)
def test_whatever_writes_replaces_a_symbolic_link_and_what_it_led_to_stays(
    files: Path, tmp_path: Path, writer: str
) -> None:
    folder = tmp_path / "linked"
    folder.mkdir()
    other, link = linked(folder)
    words, text = folder / "words", folder / "words.json"
    words.write_text("{}")
    text.symlink_to(words)
    before = other.read_bytes()
    WRITERS[writer](link, text)
    assert other.read_bytes() == before
    assert words.read_text() == "{}"
    assert link.is_symlink() != text.is_symlink()
    assert files.is_dir()


def test_what_is_open_already_is_written_to_by_a_report_and_not_replaced(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "max_weights", "manifest", "create", "base", "-o", "/dev/stdout"]
    with out.open("wb") as stdout:
        stdout.write(b"[before]\n")
        stdout.flush()
        assert subprocess.run(command, stdout=stdout, check=False).returncode == 0
    assert out.read_text().startswith("[before]\n{")
    assert Path("/dev/stdout").is_symlink()
    with out.open("wb") as stdout:
        program = "import max_weights, numpy; max_weights.save_file({'a': numpy.ones(4)}, '/dev/stdout')"
        done = subprocess.run([sys.executable, "-c", program], stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert b"what is open already" in done.stderr
    assert Path("/dev/stdout").is_symlink()
    assert files.is_dir()
