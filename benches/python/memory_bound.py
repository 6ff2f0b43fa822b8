"""The memory of work with `max_memory="256MB"` on checkpoints that are several times as large.

Each case is a fresh process, in a cgroup that kills it above the bound if this user may create one. The figures are
sampled anonymous memory (RssAnon) above that after the imports; pages of files do not count. MEMORY_GB is the size of
each checkpoint, MEMORY_CASES a pattern of cases such as "dcp*/stream", and MEMORY_S3 an endpoint to use instead of
SeaweedFS.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import dcp
import deltas
import harness
import servers
from report import Column, Report, Target

TITLE = "Memory within max_memory"
MAX = "256MB"
BOUND = 256e6 + 32e6
RANKS = 2
ROWS = 4096  # and as many columns: 34 MB in bfloat16
BUCKET = 134e6  # bytes of tensors that are loaded at once
THREADS = "16"
BUCKET_NAME = "bench"
WAIT = 600.0

_FORMS = {
    "file": ["base.safetensors"],
    "torch, deflated": ["deflated.pt"],
    "dcp": ["pieces"],
    "dcp, zstd": ["compressed"],
    "20 deltas": ["base.safetensors", *(f"delta-{step:02}.safetensors" for step in range(1, deltas.CHAIN + 1))],
    "xor deltas": ["base.safetensors", "xor-1", "xor-2"],
    "sparse deltas": ["base.safetensors", "sparse-1.safetensors", "sparse-2.safetensors"],
}


def make(folder: Path, gigabytes: float) -> None:
    """Write every form of about the same tensors."""
    import numpy as np
    import torch

    import max_weights

    if (folder / "made").exists():
        return
    deltas.make(folder, gigabytes)
    pieces = dcp.make(folder / "pieces", max(1, round(gigabytes * 1e9 / ROWS / ROWS / 2)), ROWS, ROWS)
    _compress(pieces, folder / "compressed")
    with max_weights.load_weights(folder / "base.safetensors") as weights:
        state = weights.load(framework="torch")
        torch.save(state, folder / "plain.pt")
        target = folder / "deflated.pt"
        with (
            zipfile.ZipFile(folder / "plain.pt") as plain,
            zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as deflated,
        ):
            for entry in plain.infolist():
                deflated.writestr(entry.filename, plain.read(entry))
        (folder / "plain.pt").unlink()
        before: list[str | Path] = [folder / "base.safetensors"]
        dialects: tuple[tuple[Literal["xor", "sparse"], str], ...] = (("xor", ""), ("sparse", ".safetensors"))
        for dialect, ending in dialects:
            version = before
            for step in (1, 2):
                new = {name: tensor.clone() for name, tensor in state.items()}
                random = np.random.default_rng(step)
                for tensor in new.values():
                    places = torch.from_numpy(random.integers(0, tensor.numel(), tensor.numel() // 100))
                    tensor.view(torch.int16).view(-1)[places] += step
                path = folder / f"{dialect}-{step}{ending}"
                max_weights.delta.create(
                    version, new, path, dialect=dialect, sync=False, version=str(step), base_version=str(step - 1)
                )
                version = [*version, path]
                state = new
            state = weights.load(framework="torch")
    (folder / "made").touch()


def _compress(pieces: Path, folder: Path) -> None:
    """Rewrite a DCP folder with compressed items, as torch's extension for zstd does."""
    import pickle
    from dataclasses import replace

    folder.mkdir(exist_ok=True)
    with (pieces / ".metadata").open("rb") as file:
        metadata = pickle.load(file)
    files: dict[str, Any] = {}
    for index, info in sorted(metadata.storage_data.items(), key=lambda one: (one[1].relative_path, one[1].offset)):
        out = files.get(info.relative_path) or (folder / info.relative_path).open("wb")
        files[info.relative_path] = out
        with (pieces / info.relative_path).open("rb") as file:
            file.seek(info.offset)
            packed = subprocess.run(["zstd", "-1", "-c", "-q"], input=file.read(info.length), capture_output=True)
        start = out.tell()
        out.write(packed.stdout)
        metadata.storage_data[index] = replace(
            info, offset=start, length=len(packed.stdout), transform_descriptors=["stream.zstd/1"]
        )
    for out in files.values():
        out.close()
    with (folder / ".metadata").open("wb") as file:
        pickle.dump(metadata, file)


def _paths(form: str, where: str) -> str | list[str]:
    names = _FORMS[form]
    if where.startswith("http"):
        names = [name if "." in name else f"{name}/{_index(name)}" for name in names]
    paths = [f"{where}/{name}" for name in names]
    return paths[0] if len(paths) == 1 else paths


def _index(name: str) -> str:
    return "model.safetensors.index.json" if "-" in name else ".metadata"


def _bucket(weights: Any) -> list[str]:
    import max_weights

    names, bytes_of = list[str](), 0
    for info in max_weights.infos(weights):
        if bytes_of + info.bytes > BUCKET:
            break
        names.append(info.name)
        bytes_of += info.bytes
    return names


# What each case does with the path of a checkpoint and an output folder. If it returns a function, only that is
# measured.


def load(paths: Any, _to: Path) -> object:
    """Some tensors at once."""
    import max_weights

    weights = max_weights.load_weights(paths)
    return weights.load(_bucket(weights), copy=True, max_memory=MAX)


def stream(paths: Any, _to: Path) -> None:
    """All tensors, sequentially."""
    import max_weights

    for _ in max_weights.load_weights(paths).stream(max_memory=MAX):
        pass


def verified(paths: Any, _to: Path) -> Callable[[], None]:
    """All tensors, compared with known digests."""
    import max_weights

    weights = max_weights.load_weights(paths)
    digests = max_weights.fingerprint(weights, digests=True)

    def run() -> None:
        for _ in weights.stream(max_memory=MAX, digests=digests):
            pass

    return run


def save(paths: Any, to: Path) -> None:
    """To one safetensors file."""
    import max_weights

    max_weights.load_weights(paths).save(to / "saved.safetensors", sync=False)


def convert(paths: Any, to: Path) -> None:
    """To float16."""
    import max_weights

    max_weights.load_weights(paths).save(to / "saved.safetensors", dtype="float16", sync=False)


def fingerprint(paths: Any, _to: Path) -> None:
    """Sums and SHA-256."""
    import max_weights

    max_weights.fingerprint(max_weights.load_weights(paths), digests=True)


def validate(paths: Any, _to: Path) -> None:
    """All elements."""
    import max_weights

    max_weights.validate(paths, level="content")


def create(paths: Any, to: Path) -> None:
    """A delta to the last version of the chain of 20."""
    import max_weights

    with contextlib.suppress(FileNotFoundError):
        (to / "created.safetensors").unlink()
    base = paths[0] if isinstance(paths, list) else paths
    new = str(base).replace("base.safetensors", "new.safetensors")
    max_weights.delta.create(base, new, to / "created.safetensors", sync=False)


def _remote() -> Any:
    from max_weights.remote import Remote

    key, secret = servers.KEYS
    endpoint = os.environ["MEMORY_S3"]
    return Remote(endpoint=endpoint, credentials={"key_id": key, "secret": secret}, region="us-east-1")


def save_to_store(paths: Any, _to: Path) -> None:
    """To one object."""
    import max_weights

    max_weights.load_weights(paths).save(f"s3://{BUCKET_NAME}/saved.safetensors", remote=_remote())


def convert_to_store(paths: Any, _to: Path) -> None:
    """To one object, in float16."""
    import max_weights

    to = f"s3://{BUCKET_NAME}/saved.safetensors"
    max_weights.load_weights(paths).save(to, remote=_remote(), dtype="float16")


def _ranks() -> Any:
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["MEMORY_RENDEZVOUS"], rank=rank, world_size=world)
    return dist.group.WORLD


def _rows(paths: Any, *, count: int | None = None, axis: int = 0) -> dict[str, Any]:
    """DTensors that are split along an axis, in memory that is already touched."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    import max_weights

    mesh, tensors = init_device_mesh("cpu", (RANKS,)), {}
    for info in list(max_weights.infos(max_weights.load_weights(paths)))[:count]:
        shape = list(info.shape)
        shape[axis] //= RANKS
        own = torch.ones(shape, dtype=torch.bfloat16)
        tensors[info.name] = DTensor.from_local(own, mesh, [Shard(axis)], run_check=False)
    return tensors


def ranks_load(paths: Any, _to: Path) -> Callable[[], object]:
    """Into the rows that each rank has."""
    from max_weights.torch import load_into
    from ranks_work import module_of

    group = _ranks()
    module = module_of(_rows(paths))
    return lambda: load_into(module, paths, group=group, undo=False, max_memory=MAX)


def ranks_bucket(paths: Any, _to: Path) -> Callable[[], object]:
    """Some tensors on all ranks."""
    import max_weights

    group = _ranks()

    def run() -> object:
        weights = max_weights.load_weights(paths)
        return weights.load(_bucket(weights), group=group, max_memory=MAX)

    return run


def ranks_stream(paths: Any, _to: Path) -> Callable[[], object]:
    """All tensors on all ranks, sequentially."""
    import max_weights

    group = _ranks()

    def run() -> None:
        for _ in max_weights.load_weights(paths).stream(group=group, max_memory=MAX):
            pass

    return run


def _ranks_save(paths: Any, to: str | Path, axis: int, **options: Any) -> Callable[[], object]:
    import max_weights

    group = _ranks()
    tensors = _rows(paths, axis=axis)
    return lambda: max_weights.save_sharded(tensors, to, group=group, **options)


def ranks_save(paths: Any, to: Path) -> Callable[[], object]:
    """Rows that each rank has."""
    return _ranks_save(paths, to / "ranks", 0, sync=False)


def ranks_save_columns(paths: Any, to: Path) -> Callable[[], object]:
    """Columns, which are exchanged."""
    return _ranks_save(paths, to / "ranks", 1, sync=False)


def ranks_save_to_store(paths: Any, _to: Path) -> Callable[[], object]:
    """Columns, to a store."""
    return _ranks_save(paths, f"s3://{BUCKET_NAME}/ranks", 1, remote=_remote())


READS = (load, stream, verified, save, convert, fingerprint, validate)
OF_RANKS = (ranks_load, ranks_bucket, ranks_stream)
WRITES_OF_RANKS = (ranks_save, ranks_save_columns)
TO_STORES = (save_to_store, convert_to_store, ranks_save_to_store)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    one.__name__: one for one in (*READS, *OF_RANKS, *WRITES_OF_RANKS, *TO_STORES, create)
}


def cases() -> Iterator[tuple[str, str, str]]:
    """Yield the source, the form, and the action of each case."""
    for where in ("disk", "server"):
        for form in _FORMS:
            both: tuple[Callable[..., Any], ...] = (*READS, *OF_RANKS)
            for function in both:
                if function is validate and (where == "server" or isinstance(_paths(form, ""), list)):
                    continue
                yield where, form, function.__name__
    yield "disk", "20 deltas", "create"
    writes: tuple[Callable[..., Any], ...] = (*WRITES_OF_RANKS, *TO_STORES)
    for write in writes:
        yield "disk", "file", write.__name__
    for form in ("dcp, zstd", "20 deltas"):
        yield "disk", form, "convert_to_store"


class Group:
    """A cgroup (version 1 or 2) with a memory limit."""

    def __init__(self, name: str) -> None:
        top = Path("/sys/fs/cgroup")
        self._is_new = (top / "cgroup.controllers").exists()
        self.path = (top if self._is_new else top / "memory") / f"max-weights-{name}"
        self.path.mkdir()

    def add(self, process: int) -> None:
        """Move a process into it."""
        (self.path / "cgroup.procs").write_text(str(process))

    def limit(self, more: float) -> None:
        """Set the limit to this many bytes above its current memory, excluding pages of files."""
        words = (line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        stat = {word[0]: int(word[1]) for word in words}
        used = "memory.current" if self._is_new else "memory.usage_in_bytes"
        most = "memory.max" if self._is_new else "memory.limit_in_bytes"
        files = stat["active_file"] + stat["inactive_file"]
        now = int((self.path / used).read_text()) - files
        (self.path / most).write_text(str(int(now + more)))

    def close(self) -> None:
        """Remove it."""
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.05)


def _group(name: str) -> Group | None:
    try:
        return Group(name)
    except OSError:
        return None


def _own(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    words = [line.split() for line in status.splitlines() if line.startswith("RssAnon")]
    return int(words[0][1]) * 1024 if words else 0


class Failed(harness.BenchError):
    """A case did not do its work."""


def peak(form: str, function: str, where: str, to: Path, *, kills: bool) -> float:
    """Run a case, and return the peak memory of any of its processes above its initial memory."""
    world = RANKS if function.startswith("ranks") else 1
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    command = [sys.executable, str(Path(__file__).resolve()), form, function, where, str(to)]
    processes, groups = [], []
    for rank in range(world):
        more = {"RANK": str(rank), "WORLD_SIZE": str(world), "MEMORY_RENDEZVOUS": f"file://{to}/rendezvous"}
        more["MAX_WEIGHTS_THREADS"] = os.environ.get("MAX_WEIGHTS_THREADS", THREADS)
        errors = (to / f"errors{rank}").open("w+")
        process = subprocess.Popen(
            command, env=os.environ | more, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        processes.append((process, errors))
        group = _group(str(process.pid)) if kills else None
        groups.append(group)
        if group is not None:
            group.add(process.pid)
    try:
        before = list[int]()
        for process, _ in processes:
            assert process.stdout is not None
            process.stdin.write("prepare\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        for process, errors in processes:
            if process.stdout.readline() != "ready\n":  # type: ignore[union-attr]
                process.wait()
                raise Failed(_last(errors))
        for (process, _), group in zip(processes, groups, strict=True):
            before.append(_own(process.pid))
            if group is not None:
                group.limit(BOUND)
        for process, _ in processes:
            process.stdin.write("run\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        most, until = 0, time.monotonic() + WAIT
        while None in [process.poll() for process, _ in processes]:
            for (process, _), own in zip(processes, before, strict=True):
                most = max(most, _own(process.pid) - own)
            if any(process.returncode for process, _ in processes) or time.monotonic() > until:
                break
            time.sleep(0.001)
        for process, errors in processes:
            if process.poll():
                raise Failed("killed" if process.returncode == -9 else _last(errors))
        if time.monotonic() > until:
            raise Failed("it takes too long")
        return float(most)
    finally:
        for process, errors in processes:
            process.kill()
            process.communicate()
            errors.close()
        for group in groups:
            if group is not None:
                group.close()


def _last(errors: Any) -> str:
    errors.seek(0)
    message = [line for line in errors.read().splitlines() if line.strip()]
    return message[-1] if message else "it ended"


def measure(folder: Path, small: bool) -> Report:
    """Run every case in a cgroup; a killed case runs again without one to get its figure."""
    there = folder / "memory"
    there.mkdir(exist_ok=True)
    make(there, 0.05 if small else float(os.environ.get("MEMORY_GB", "1.2")))
    requested = os.environ.get("MEMORY_CASES", "*")
    values: dict[str, dict[str, float]] = {}
    probe = _group("probe")
    if probe is not None:
        probe.close()
    notes, killed = list[str](), list[str]()
    with contextlib.ExitStack() as stack:
        urls = stack.enter_context(servers.web(there, folder / "servers"))
        store = os.environ.get("MEMORY_S3")
        with contextlib.suppress(harness.Unavailable):
            store = store or stack.enter_context(servers.s3(folder / "seaweed"))
        if store is not None:
            os.environ["MEMORY_S3"] = store
        for where, form, function in cases():
            name = f"{form}/{function}/{where}"
            if not fnmatch.fnmatch(name, requested) or (function.endswith("store") and store is None):
                continue
            place = str(there) if where == "disk" else urls["http"]
            try:
                found = peak(form, function, place, folder / "to", kills=probe is not None)
            except Failed as error:
                notes.append(f"{name}: {error}")
                try:
                    found = peak(form, function, place, folder / "to", kills=False)
                    killed.append(name)
                except Failed as failed:
                    print(f"{name}: {failed}", flush=True)
                    continue
            print(f"{name}: {found / 1e6:.0f} MB{' (killed)' if name in killed else ''}", flush=True)
            values.setdefault(f"{function}, {where}", {})[form] = found
    columns = [Column(label, "MB", of, charted=False) for label, of in values.items()]
    most = max((value for of in values.values() for value in of.values()), default=0.0)
    notes.insert(0, "Within a cgroup that kills." if probe is not None else "Sampled; this user may make no cgroup.")
    targets = (
        Target("the most of all", most / 1e6, BOUND / 1e6, "at most", "MB"),
        Target("cases that failed or were killed", len(notes) - 1, 0, "at most", ""),
    )
    return Report("memory_bound", columns, targets=targets, notes=notes)


def _serve(form: str, function: str, where: str, to: str) -> None:
    sys.stdin.readline()  # from here on it is in its cgroup
    import max_weights
    import max_weights.remote

    if function.startswith("ranks"):
        import max_weights.torch  # noqa: F401
    paths = _paths(form, where)
    work: Callable[[], object] = lambda: FUNCTIONS[function](paths, Path(to))  # noqa: E731
    if function.startswith("ranks") or function == "verified":
        made = work()
        assert callable(made)
        work = made
    print("ready", flush=True)
    sys.stdin.readline()
    kept = work()
    del kept


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    _serve(*sys.argv[1:])
