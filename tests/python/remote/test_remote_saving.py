"""Checkpoints are written to URLs: the same bytes as on a disk, and failed saves leave nothing."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
from conftest import ROOT
from fault_server import FaultServer
from max_weights import SafetensorsWriter, load_weights, save_file, save_gguf, save_sharded
from max_weights.remote import Remote
from refusals import refuses

KEYS = {"key_id": "AKIDEXAMPLE", "secret": "very-secret-key"}
MODELS = Path(os.environ.get("MAX_WEIGHTS_MODELS", ROOT / ".models"))
MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    (folder / "bucket").mkdir(parents=True)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[FaultServer]:
    with FaultServer(folder, "part-too-small") as server:
        yield server


def s3(server: FaultServer, **options: Any) -> Remote:
    return Remote(endpoint=server.s3, credentials=KEYS, **options)


def tensors(mib: int = 30, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors of several dtypes and sizes, `mib` MiB in total."""
    generator = np.random.default_rng(seed)
    matrices = {
        f"model.layers.{i}.weight": generator.integers(0, 255, (MIB,), np.uint8).view(np.float32) for i in range(mib)
    }
    norms = {f"model.layers.{i}.norm": generator.random(77 + i, np.float32) for i in range(mib)}
    return matrices | norms | {"scale": np.float64(1.5).reshape(()), "empty": np.zeros((0, 3), np.int16)}


def kept(folder: Path) -> dict[str, str]:
    """Digests of the files in the bucket."""
    files = [path for path in (folder / "bucket").rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def open_uploads(server: FaultServer) -> int:
    # An upload that is abandoned while its first request is in flight ends when the server notices.
    for _ in range(50):
        if server.counts()["open_uploads"] == 0:
            break
        time.sleep(0.02)
    uploads: int = server.counts()["open_uploads"]
    return uploads


@pytest.mark.parametrize("mib", [1, 30])
def test_a_file_has_the_bytes_that_it_has_on_a_disk(
    server: FaultServer, folder: Path, tmp_path: Path, mib: int
) -> None:
    data = tensors(mib)
    save_file(data, tmp_path / "local.safetensors", {"step": "1"})
    save_file(data, "s3://bucket/deep/in/one.safetensors", {"step": "1"}, remote=s3(server))
    assert (folder / "bucket/deep/in/one.safetensors").read_bytes() == (tmp_path / "local.safetensors").read_bytes()
    methods = [request["method"] for request in server.log()]
    parts = -(-(tmp_path / "local.safetensors").stat().st_size // (8 * MIB))
    # A short file needs one request; a long one needs its parts, and requests to create, check and complete it.
    assert len(methods) == (1 if mib == 1 else parts + 3)
    assert open_uploads(server) == 0


def test_a_folder_has_the_bytes_that_it_has_on_a_disk_and_its_index_comes_last(
    server: FaultServer, folder: Path, tmp_path: Path
) -> None:
    data = tensors()
    local = save_sharded(data, tmp_path / "local", max_shard_size="12MB")
    files = save_sharded(data, "s3://bucket/model", max_shard_size="12MB", remote=s3(server))
    assert [file.name for file in files] == [file.name for file in local]
    assert str(files[-1]) == "s3://bucket/model/model.safetensors.index.json"
    for file in local:
        assert (folder / "bucket/model" / file.name).read_bytes() == file.read_bytes(), file.name
    named = [
        request["path"]
        for request in server.log()
        if request["status"] == 200
        and (
            (request["method"] == "PUT" and "partNumber" not in request["path"])
            or (request["method"] == "POST" and "uploadId" in request["path"])
        )
    ]
    assert len(named) == len(files)
    assert named[-1].endswith("model.safetensors.index.json")
    loaded = load_weights(os.fspath(files[-1].parent), remote=s3(server)).load(framework="numpy")
    assert all(array.tobytes() == loaded[name].tobytes() for name, array in data.items())


def test_what_an_older_save_left_is_removed(server: FaultServer, folder: Path) -> None:
    (folder / "bucket/model").mkdir()
    (folder / "bucket/model/config.json").write_text("{}")
    save_sharded(tensors(), "s3://bucket/model", max_shard_size="12MB", remote=s3(server))
    save_sharded({"one": np.ones(3)}, "s3://bucket/model", remote=s3(server))
    assert set(kept(folder)) == {"bucket/model/config.json", "bucket/model/model.safetensors"}
    assert set(load_weights("s3://bucket/model", remote=s3(server)).load(framework="numpy")) == {"one"}


def test_a_tree_by_url_is_saved_to_another_url_and_over_itself(
    server: FaultServer, folder: Path, tmp_path: Path
) -> None:
    save_file(tensors(), folder / "bucket/from.safetensors")
    weights = load_weights("s3://bucket/from.safetensors", remote=s3(server))
    weights.save("s3://bucket/half.safetensors", dtype="float16", remote=s3(server))
    with load_weights(folder / "bucket/from.safetensors") as local:
        local.save(tmp_path / "half.safetensors", dtype="float16")
    expected = (tmp_path / "half.safetensors").read_bytes()
    assert (folder / "bucket/half.safetensors").read_bytes() == expected
    weights.save("s3://bucket/from.safetensors", dtype="float16", remote=s3(server))
    assert (folder / "bucket/from.safetensors").read_bytes() == expected


def test_gguf_files_and_sets_are_saved_with_the_zeros_between_their_tensors(
    server: FaultServer, folder: Path, tmp_path: Path
) -> None:
    gguf = MODELS / "smollm2-135m.Q4_1.gguf"
    with load_weights(gguf) as weights:
        local = save_gguf(weights, tmp_path / "set.gguf", max_shard_size="50MB")
        files = save_gguf(weights, "s3://bucket/set.gguf", max_shard_size="50MB", remote=s3(server))
    assert [str(file) for file in files] == [f"s3://bucket/{file.name}" for file in local]
    for file in local:
        assert (folder / "bucket" / file.name).read_bytes() == file.read_bytes()
    data = {f"blk.{i}.weight": np.random.default_rng(i).random((999, 1024), np.float32) for i in range(8)}
    data |= {f"blk.{i}.norm": np.ones(33 + i, np.float16) for i in range(8)}
    save_gguf(data, tmp_path / "packed.gguf", quantize="q8_0")
    save_gguf(data, "s3://bucket/packed.gguf", quantize="q8_0", remote=s3(server))
    assert (folder / "bucket/packed.gguf").read_bytes() == (tmp_path / "packed.gguf").read_bytes()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("part-fails times=3", None),
        ("part-fails percent=20 seed=3", None),
        ("slow-down times=4", None),
        ("reset-before-head times=3 method=PUT", None),
        ("complete-fails times=1", None),
        ("complete-error-in-200 times=1", None),
        ("500-in-200 times=2 method=PUT", None),
        ("part-fails", "cannot upload part .* 500 InternalError"),
        ("complete-fails", "cannot complete the upload: 500"),
        ("complete-error-in-200", "cannot complete the upload: 200 InternalError"),
        ("precondition-fails", "cannot complete the upload: 412 PreconditionFailed"),
        ("denied method=PUT", "403 AccessDenied.*s3:PutObject"),
        ("denied method=POST", "403 AccessDenied.*s3:PutObject"),
        ("expired-token", "ExpiredToken"),
    ],
)
def test_faults_leave_the_object_or_one_error_and_nothing(
    server: FaultServer, folder: Path, fault: str, cause: str | None
) -> None:
    data = tensors(20)
    before = kept(folder)
    server.set("part-too-small", fault)
    remote = s3(server, retries=2 if cause else 10)
    if cause is None:
        save_file(data, "s3://bucket/a.safetensors", remote=remote)
        loaded = load_weights(folder / "bucket/a.safetensors").load(framework="numpy")
        assert all(array.tobytes() == loaded[name].tobytes() for name, array in data.items())
    else:
        with pytest.raises(OSError, match=cause) as raised:
            save_file(data, "s3://bucket/a.safetensors", remote=remote)
        assert "s3://bucket/a.safetensors" in str(raised.value)
        assert KEYS["secret"] not in str(raised.value)
        assert kept(folder) == before
    assert open_uploads(server) == 0


def test_of_a_folder_that_fails_nothing_is_there_and_what_was_there_stays(server: FaultServer, folder: Path) -> None:
    for fault in ("part-fails path=00003", "denied path=00002 method=PUT"):
        server.set(fault)
        with pytest.raises(OSError, match="cannot upload"):
            save_sharded(tensors(), "s3://bucket/model", max_shard_size="12MB", remote=s3(server, retries=1))
        assert kept(folder) == {}
        assert open_uploads(server) == 0
    server.set()
    save_sharded(tensors(), "s3://bucket/model", max_shard_size="12MB", remote=s3(server))
    before = kept(folder)
    server.set("part-fails path=00003")
    with pytest.raises(OSError, match="cannot upload part"):
        save_sharded(tensors(seed=1), "s3://bucket/model", max_shard_size="12MB", remote=s3(server, retries=1))
    assert kept(folder) == before
    assert open_uploads(server) == 0


def test_a_folder_that_is_half_in_place_is_named(server: FaultServer) -> None:
    save = lambda seed: save_sharded(  # noqa: E731
        tensors(seed=seed), "s3://bucket/model", max_shard_size="12MB", remote=s3(server, retries=0)
    )
    save(0)
    server.set("complete-fails from=2")
    with refuses(OSError):
        save(1)
    assert open_uploads(server) == 0


def test_an_upload_that_cannot_be_aborted_is_named(server: FaultServer) -> None:
    server.set("complete-fails", "denied method=DELETE")
    with refuses(OSError):
        save_file(tensors(), "s3://bucket/a.safetensors", remote=s3(server, retries=0))


def test_an_object_that_is_there_stays_if_that_is_wanted(server: FaultServer, folder: Path) -> None:
    for data in (tensors(1), tensors(30)):
        url = f"s3://bucket/{len(data)}.safetensors"
        save_file(data, url, remote=s3(server), if_exists="fail")
        before = kept(folder)
        server.reset_counts()
        with refuses(FileExistsError):
            save_file({"other": np.ones(3)}, url, remote=s3(server), if_exists="fail")
        assert kept(folder) == before
        assert server.counts()["uploaded"] == 0
    save_sharded(tensors(), "s3://bucket/model", max_shard_size="12MB", remote=s3(server), if_exists="fail")
    before = kept(folder)
    with refuses(FileExistsError):
        save_sharded({"other": np.ones(3)}, "s3://bucket/model", remote=s3(server), if_exists="fail")
    assert kept(folder) == before


@pytest.mark.parametrize("mib", [1, 30])
def test_an_object_that_comes_meanwhile_stays_if_that_is_wanted(server: FaultServer, folder: Path, mib: int) -> None:
    place = folder / "bucket/a.safetensors"

    def another(_done: int, _total: int) -> None:
        """Another program writes the object after the check for it."""
        if not place.exists() and any(request["status"] == 404 for request in server.log()):
            place.write_bytes(b"of another")

    server.set("latency_ms=150")
    with pytest.raises(FileExistsError):
        save_file(tensors(mib), "s3://bucket/a.safetensors", remote=s3(server), if_exists="fail", progress=another)
    assert place.read_bytes() == b"of another"
    assert server.counts()["uploaded"] > 0
    assert open_uploads(server) == 0


@pytest.mark.parametrize("mib", [1, 30])
@pytest.mark.parametrize("tags", ["", "md5-tags"])
def test_an_object_with_the_same_bytes_counts_as_saved(server: FaultServer, folder: Path, mib: int, tags: str) -> None:
    server.set("part-too-small", tags)
    url, data = "s3://bucket/a.safetensors", tensors(mib)
    save_file(data, url, remote=s3(server), if_exists="same")
    before = kept(folder)
    server.reset_counts()
    save_file(data, url, remote=s3(server), if_exists="same", read_back=not tags)
    assert kept(folder) == before
    assert server.counts()["uploaded"] == 0
    assert all(request["method"] in {"HEAD", "GET"} for request in server.log())
    # With an ETag of MD5s, nothing is read either.
    assert (server.counts()["bytes"] < 10_000) == bool(tags)
    place = folder / "bucket/a.safetensors"
    changed = bytearray(place.read_bytes())
    changed[-1] ^= 1
    place.write_bytes(changed)
    with refuses(FileExistsError):
        save_file(data, url, remote=s3(server), if_exists="same")
    place.write_bytes(changed[:-1])
    server.reset_counts()
    with refuses(FileExistsError):
        save_file(data, url, remote=s3(server), if_exists="same")
    assert len(server.log()) == 1, "its length says so"
    assert place.read_bytes() == changed[:-1]
    assert open_uploads(server) == 0


def test_of_a_folder_that_is_saved_again_only_what_is_missing_is_sent(server: FaultServer, folder: Path) -> None:
    def save(data: dict[str, np.ndarray[Any, Any]]) -> list[Path]:
        return save_sharded(data, "s3://bucket/model", max_shard_size="12MB", remote=s3(server), if_exists="same")

    files = save(tensors())
    before = kept(folder)
    (folder / "bucket/model" / files[1].name).unlink()
    (folder / "bucket/model" / files[-1].name).unlink()
    server.reset_counts()
    assert save(tensors()) == files
    assert kept(folder) == before
    assert 0 < server.counts()["uploaded"] < 2 * 12 * MIB
    # A different object is found before anything is sent, and is kept.
    other = tensors()
    other["model.layers.29.norm"] += 1
    server.reset_counts()
    with refuses(FileExistsError):
        save(other)
    assert kept(folder) == before
    assert server.counts()["uploaded"] == 0
    with refuses(FileExistsError):
        save(tensors(1))
    # Objects added before it was found are removed again.
    (folder / "bucket/model" / files[0].name).unlink()
    before = kept(folder)
    with pytest.raises(FileExistsError):
        save(other)
    assert kept(folder) == before
    assert open_uploads(server) == 0


def test_what_the_store_holds_is_read_back(server: FaultServer, folder: Path) -> None:
    data = tensors()
    save_file(data, "s3://bucket/a.safetensors", read_back=True, remote=s3(server))
    files = save_sharded(data, "s3://bucket/model", max_shard_size="12MB", read_back=True, remote=s3(server))
    assert len(files) == len(kept(folder)) - 1
    server.set("corrupt path=a.safetensors method=GET")
    with pytest.raises(max_weights.errors.FormatError, match=r"s3://bucket/a\.safetensors.*CRC-32.*save it again"):
        save_file(data, "s3://bucket/a.safetensors", read_back=True, remote=s3(server))
    # The index is written after the other files are verified.
    server.set("corrupt path=00002 method=GET")
    index = folder / "bucket/model" / files[-1].name
    index.unlink()
    with pytest.raises(max_weights.errors.FormatError, match="00002"):
        save_sharded(data, "s3://bucket/model", max_shard_size="12MB", read_back=True, remote=s3(server))
    assert not index.exists()
    assert open_uploads(server) == 0


@pytest.mark.parametrize("mib", [1, 30])
def test_tensors_are_written_one_after_the_other(server: FaultServer, folder: Path, tmp_path: Path, mib: int) -> None:
    data = tensors(mib)
    declared = {name: (str(array.dtype), array.shape) for name, array in data.items()}
    save_file(data, tmp_path / "local.safetensors")
    for number, order in enumerate((list, reversed)):
        url = f"s3://bucket/{number}.safetensors"
        with SafetensorsWriter(url, declared, read_back=True, remote=s3(server)) as writer:
            for name in order(writer.names):
                writer.write(name, data[name])
            assert url.removeprefix("s3://") not in kept(folder)
        assert (folder / "bucket" / f"{number}.safetensors").read_bytes() == (
            tmp_path / "local.safetensors"
        ).read_bytes()
    with pytest.raises(FileExistsError):
        SafetensorsWriter(url, declared, remote=s3(server), if_exists="fail")
    with SafetensorsWriter(url, declared, remote=s3(server), if_exists="same") as writer:
        for name, array in data.items():
            writer.write(name, array)
    before = kept(folder)
    writer = SafetensorsWriter(url, declared, remote=s3(server))
    writer.write(writer.names[0], data[writer.names[0]])
    writer.discard()
    with refuses(ValueError):
        SafetensorsWriter(url, declared, remote=s3(server)).finish()
    assert kept(folder) == before
    assert open_uploads(server) == 0


def test_a_writer_whose_upload_failed_is_closed(server: FaultServer, folder: Path) -> None:
    data = tensors()
    writer = SafetensorsWriter(
        "s3://bucket/a.safetensors",
        {name: (str(array.dtype), array.shape) for name, array in data.items()},
        remote=s3(server, retries=0, requests=1),
    )
    server.set("part-fails")

    def write_all() -> None:
        for name in writer.names:
            writer.write(name, data[name])

    with pytest.raises(OSError, match="cannot upload part"):
        write_all()
    server.set()
    with refuses(ValueError):
        writer.write("model.layers.0.weight", data["model.layers.0.weight"])
    assert kept(folder) == {}
    assert open_uploads(server) == 0


def test_a_file_of_a_disk_that_is_there_stays_if_that_is_wanted(tmp_path: Path) -> None:
    data, other = tensors(3), tensors(3, seed=1)

    def bytes_present() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    path = tmp_path / "a.safetensors"
    save_file(data, path, if_exists="fail")
    save_file(data, path, if_exists="same")
    files = save_sharded(data, tmp_path / "model", max_shard_size="2MB", if_exists="fail")
    before = bytes_present()
    modified = path.stat().st_mtime_ns
    files[1].unlink()
    assert save_sharded(data, tmp_path / "model", max_shard_size="2MB", if_exists="same") == files
    for save in (
        lambda: save_file(data, path, if_exists="fail"),
        lambda: save_file(other, path, if_exists="same"),
        lambda: save_file({"w": np.ones(3)}, path, if_exists="same"),
        lambda: save_sharded(data, tmp_path / "model", max_shard_size="2MB", if_exists="fail"),
        lambda: save_sharded(other, tmp_path / "model", max_shard_size="2MB", if_exists="same"),
        lambda: save_sharded(data, tmp_path / "model", max_shard_size="1MB", if_exists="same"),
    ):
        with refuses(FileExistsError):
            save()
        assert bytes_present() == before
    assert path.stat().st_mtime_ns == modified
    declared = {name: (str(array.dtype), array.shape) for name, array in data.items()}
    writer = SafetensorsWriter(tmp_path / "b.safetensors", declared, if_exists="same")
    for name, array in data.items():
        writer.write(name, array)
    (tmp_path / "b.safetensors").write_bytes(b"of another")
    with refuses(FileExistsError):
        writer.finish()
    assert bytes_present() == before | {"b.safetensors": b"of another"}


def test_places_that_take_nothing_say_so(server: FaultServer) -> None:
    data = {"w": np.ones(3)}
    for url in ("hf://org/model/a.safetensors", server.file("a.safetensors"), "s3://bucket"):
        with refuses(ValueError):
            save_file(data, url, remote=s3(server))
        with refuses(ValueError):
            SafetensorsWriter(url, {"w": ("float32", (3,))}, remote=s3(server))
    with refuses(ValueError):
        save_file(data, "s3://bucket/a.safetensors", remote=s3(server), if_exists="other")  # type: ignore[arg-type]
    assert server.counts()["uploaded"] == 0


def test_shards_that_were_not_opened_are_not_lost(server: FaultServer, folder: Path) -> None:
    files = save_sharded(tensors(), "s3://bucket/model", max_shard_size="12MB", remote=s3(server))
    before = kept(folder)
    weights = load_weights([os.fspath(files[0])], remote=s3(server), strict=False)
    with refuses(ValueError):
        weights.save("s3://bucket/model", max_shard_size="12MB", remote=s3(server))
    with refuses(ValueError):
        weights.save(os.fspath(files[0]), remote=s3(server))
    assert kept(folder) == before


SETUP = """
import resource, sys, threading, time
import numpy as np
import max_weights
from max_weights.remote import Remote

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

remote = Remote(endpoint=sys.argv[1], credentials={"key_id": "a", "secret": "b"}, requests=4)
weights = max_weights.load_weights("s3://bucket/from.safetensors", remote=remote)
weights.save("s3://bucket/small.safetensors", select="model.layers.1.*", remote=remote)
before = peak()
"""
PROGRAM = (
    SETUP
    + """
print("ready", flush=True)
began = time.perf_counter()
try:
    weights.save("s3://bucket/to.safetensors", dtype="float16", remote=remote)
except KeyboardInterrupt:
    print("interrupted", round(1000 * (time.perf_counter() - began)), flush=True)
    print(time.time(), flush=True)
print("grew", peak() - before, flush=True)
"""
)


def _program(server: FaultServer) -> "subprocess.Popen[str]":
    environment = os.environ | {"MAX_WEIGHTS_THREADS": "2"}
    command = [sys.executable, "-c", PROGRAM, server.s3]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the peak this way")
def test_memory_is_that_of_a_few_parts(server: FaultServer, folder: Path, tmp_path: Path) -> None:
    save_file(tensors(400), folder / "bucket/from.safetensors")
    output, _ = _program(server).communicate(timeout=120)
    grew = int(output.split("grew")[1])
    # Four requests at a time: two parts of 8 MiB each, the buffers of two reading threads, and data that arrives
    # meanwhile.
    assert grew < 4 * 3 * 8 + 48, output
    with load_weights(folder / "bucket/from.safetensors") as weights:
        weights.save(tmp_path / "to.safetensors", dtype="float16")
    assert (folder / "bucket/to.safetensors").read_bytes() == (tmp_path / "to.safetensors").read_bytes()


SHORT_FILES = """
weights.save("s3://bucket/short", max_shard_size="8MB", remote=remote)
"""
ALL_PARTS_OPEN = """
half = np.ones((4 << 20,), np.uint8)
declared = {f"t{i:02}": ("uint8", (8 << 20,)) for i in range(50)}
with max_weights.SafetensorsWriter("s3://bucket/open.safetensors", declared, remote=remote) as writer:
    for start in (0, 4 << 20):
        for i in range(50):
            writer.write_part(f"t{i:02}", start, half * i)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the peak this way")
@pytest.mark.parametrize("work", [SHORT_FILES, ALL_PARTS_OPEN], ids=["short_files", "all_parts_open"])
def test_memory_of_what_cannot_be_sent_yet_is_bounded(server: FaultServer, folder: Path, work: str) -> None:
    save_file(tensors(400), folder / "bucket/from.safetensors")
    program = f'{SETUP}{work}print("grew", peak() - before, flush=True)'
    command = [sys.executable, "-c", program, server.s3]
    output = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"MAX_WEIGHTS_THREADS": "2"},
    ).stdout
    # Two parts of 8 MiB for each of four requests, the buffers of two threads, and the runtime's own memory.
    assert int(output.split("grew")[1]) < 4 * 3 * 8 + 48, output
    if work == SHORT_FILES:
        assert len(list((folder / "bucket/short").iterdir())) > 40
        with load_weights(folder / "bucket/short") as found, load_weights(folder / "bucket/from.safetensors") as meant:
            assert max_weights.diff(found, meant).ok
    else:
        with load_weights(folder / "bucket/open.safetensors") as weights:
            loaded = weights.load(framework="numpy")
        assert all((loaded[f"t{i:02}"] == i).all() for i in range(50))
    assert open_uploads(server) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_ends_it_and_aborts(server: FaultServer, folder: Path) -> None:
    save_file(tensors(100), folder / "bucket/from.safetensors")
    process = _program(server)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    server.set("rate=2000000", "latency_ms=10")
    before = kept(folder)
    time.sleep(1.0)
    pressed = time.time()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    lines = output.split("\n")
    assert lines[0].startswith("interrupted"), output
    assert float(lines[1]) - pressed < 0.5, output
    assert open_uploads(server) == 0
    assert kept(folder) == before


def test_the_command_line_writes_to_urls(server: FaultServer, folder: Path, tmp_path: Path) -> None:
    data = tensors()
    save_file(data, tmp_path / "one.safetensors")
    environment = os.environ | {
        "AWS_ENDPOINT_URL_S3": server.s3,
        "AWS_ACCESS_KEY_ID": KEYS["key_id"],
        "AWS_SECRET_ACCESS_KEY": KEYS["secret"],
    }

    def run(*command: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "max_weights", *command], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr

    one = str(tmp_path / "one.safetensors")
    run("convert", one, "s3://bucket/half.safetensors", "--dtype", "float16")
    run("convert", one, str(tmp_path / "half.safetensors"), "--dtype", "float16")
    assert (folder / "bucket/half.safetensors").read_bytes() == (tmp_path / "half.safetensors").read_bytes()
    run("split", one, "s3://bucket/model", "--max-shard-size", "12MB")
    run("split", one, str(tmp_path / "model"), "--max-shard-size", "12MB")
    for file in (tmp_path / "model").iterdir():
        assert (folder / "bucket/model" / file.name).read_bytes() == file.read_bytes()
    run("merge", "s3://bucket/model", "s3://bucket/merged.safetensors")
    loaded = max_weights.load_weights(folder / "bucket/merged.safetensors").load(framework="numpy")
    assert all(array.tobytes() == loaded[name].tobytes() for name, array in data.items())
