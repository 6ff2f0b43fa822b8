"""The ranks of the bench `ranks`: N processes over gloo, which load and save together on request.

`python ranks_work.py SOCKET` imports torch once and forks a rank for each connection: importing torch in each rank of
each loader would take minutes. A rank prepares, then runs once per line that it receives. `Ranks` is the other side: a
loader for the harness, whose run ends with that of the last rank.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness

OURS = harness.OURS
READER = "torch: dcp.load, HuggingFaceStorageReader"
BROADCAST = "torch: set_model_state_dict, broadcast_from_rank0"
FAST = "fastsafetensors, get_sharded"
ALONE = "max_weights, each rank reads all"
RUNAI = "runai-model-streamer, distributed"
DCP = "max_weights, dcp.save"
GATHER = "gather to rank 0, and save there"
FULL = "full_tensor(), and save on rank 0"
CONSOLIDATED = "torch: HuggingFaceStorageWriter, consolidated"
PRELOADED = (
    "max_weights.torch",
    "safetensors.torch",
    "torch.distributed.checkpoint.hf_storage",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
)
LIMIT = 300.0
"""Timeout in seconds for an answer of a rank."""
Run = Callable[[], object]


@contextlib.contextmanager
def forks(folder: Path) -> Iterator[None]:
    """Run the process that forks the ranks; `Ranks` finds it in this process and in its children."""
    path = str(folder / "ranks.socket")
    Path(path).unlink(missing_ok=True)  # of a previous run, in a kept folder
    command = [sys.executable, str(Path(__file__).resolve()), path]
    process = subprocess.Popen(command, env=os.environ | harness.RETAINED_HEAP)
    try:
        while not os.path.exists(path):
            if process.poll() is not None:
                raise harness.BenchError("the process that ranks are forked from has ended")
            time.sleep(0.05)
        os.environ["RANKS_SOCKET"] = path
        yield
    finally:
        process.terminate()
        process.wait()


class Ranks:
    """Processes that perform one operation together; calling it performs the operation once.

    Args:
        way: A key of `WAYS`.
        path: Its argument. world: The number of ranks.
    """

    def __init__(self, way: str, path: Path, world: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="max-weights-ranks-")
        self._ranks = list[tuple[socket.socket, Any]]()
        environment = {name: value for name, value in os.environ.items() if name.startswith(("RANKS_", "AWS_"))}
        for rank in range(world):
            one = socket.socket(socket.AF_UNIX)
            one.settimeout(LIMIT)
            one.connect(os.environ["RANKS_SOCKET"])
            file = one.makefile("rw")
            self._ranks.append((one, file))
            rendezvous = f"file://{self._folder.name}/rendezvous"
            request = [way, str(path), rank, world, rendezvous, environment]
            file.write(json.dumps(request) + "\n")
            file.flush()
        self._processes = [int(file.readline()) for _, file in self._ranks]
        self._answers()

    def __call__(self) -> None:
        for _, file in self._ranks:
            file.write("run\n")
            file.flush()
        self._answers()

    def _answers(self) -> None:
        for rank, (_, file) in enumerate(self._ranks):
            try:
                message = file.readline().strip()
            except TimeoutError:
                message = f"it has not answered within {LIMIT:g} s"
            if message != "done":
                for process in self._processes:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                self.close()
                raise harness.BenchError(f"rank {rank}: {message or 'it has ended'}")

    def close(self) -> None:
        """Let the processes end."""
        for one, file in self._ranks:
            with contextlib.suppress(OSError):
                file.close()
            one.close()
        self._ranks = []
        self._folder.cleanup()

    def __del__(self) -> None:
        self.close()


def module_of(tensors: dict[str, Any]) -> Any:
    """Return a module that has these tensors as parameters, by their dotted names."""
    import torch
    from torch import nn

    root = nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
    assert isinstance(root, torch.nn.Module)
    return root


def axis_of(name: str) -> int | None:
    """Return the axis along which tensor parallelism splits a weight of a llama; `None` for none."""
    if "norm" in name:
        return None
    return 1 if name.endswith(("down_proj.weight", "o_proj.weight")) else 0


def _parallel(path: Path, rows: bool = False) -> Any:
    """Return a module of DTensors for this file: tensor parallelism, or all split by rows, as in FSDP."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    import max_weights

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    tensors = {}
    for info in max_weights.infos(max_weights.load_weights(path)):
        axis = 0 if rows else axis_of(info.name)
        placement = Replicate() if axis is None else Shard(axis)
        part = torch.zeros(info.shape, dtype=torch.bfloat16, device="meta")
        if axis is not None:
            part = part.chunk(mesh.size(), axis)[mesh.get_rank()]
        shape, stride = torch.Size(info.shape), torch.empty(info.shape, device="meta").stride()
        own = torch.zeros(part.shape, dtype=torch.bfloat16)
        tensors[info.name] = DTensor.from_local(own, mesh, [placement], run_check=False, shape=shape, stride=stride)
    return module_of(tensors)


def _into(path: Path) -> Run:
    from max_weights.torch import load_into

    module = _parallel(path)
    return lambda: load_into(module, path)


def _reader(path: Path) -> Run:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    state = dict(_parallel(path).named_parameters())
    return lambda: load(state, storage_reader=HuggingFaceStorageReader(str(path.parent)))


def _broadcast(path: Path) -> Run:
    import torch.distributed as dist
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    module = _parallel(path)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)

    def run() -> object:
        state: dict[str, Any] = dict(load_file(path)) if dist.get_rank() == 0 else {}
        return set_model_state_dict(module, state, options=options)

    return run


def _fast(path: Path) -> Run:
    import torch
    import torch.distributed as dist
    from fastsafetensors import SafeTensorsFileLoader

    def run() -> object:
        loader = SafeTensorsFileLoader(dist.group.WORLD, torch.device("cpu"), nogds=True)
        loader.add_filenames({0: [str(path)], **{rank: [] for rank in range(1, dist.get_world_size())}})
        files = loader.copy_files_to_device()
        names = list(files.key_to_rank_lidx)
        axes = {name: axis_of(name) for name in names}
        tensors = {name: files.get_sharded(name, -1 if axis is None else axis) for name, axis in axes.items()}
        loader.close()
        return tensors

    return run


def _url(path: Path) -> str:
    return f"{os.environ['RANKS_URL']}/{path.name}"


def _all(path: Path) -> Run:
    import torch.distributed as dist

    import max_weights

    def run() -> object:
        with max_weights.load_weights(_url(path)) as weights:
            return weights.load(group=dist.group.WORLD)

    return run


def _alone(path: Path) -> Run:
    import max_weights

    def run() -> object:
        with max_weights.load_weights(_url(path)) as weights:
            return weights.load(copy=True)

    return run


def _runai(path: Path) -> Run:
    from runai_model_streamer import SafetensorsStreamer

    def run() -> object:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files([_url(path)], is_distributed=True)
            return dict(streamer.get_tensors())

    return run


def saved(path: Path) -> Path:
    """Return the folder that ranks save to."""
    return path.parent.with_name(f"saved-{path.parent.name}")


def _save(path: Path, rows: bool) -> Run:
    import max_weights

    module = _parallel(path, rows)
    return lambda: max_weights.save_sharded(module, saved(path), sync=False)


def _dcp(path: Path, rows: bool) -> Run:
    from torch.distributed.checkpoint.state_dict_saver import save

    from max_weights.integrations import WeightsWriter

    state = dict(_parallel(path, rows).named_parameters())
    return lambda: save(state, storage_writer=WeightsWriter(saved(path), sync=False))


def _gather(path: Path, rows: bool) -> Run:
    import torch
    import torch.distributed as dist

    import max_weights

    tensors = dict(_parallel(path, rows).named_parameters())

    def run() -> None:
        whole = {}
        for name, tensor in tensors.items():
            axis = getattr(tensor.placements[0], "dim", None)
            own = tensor.to_local().detach()
            if axis is None:
                whole[name] = own
                continue
            parts = [torch.empty_like(own) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
            dist.gather(own.contiguous(), parts)
            if parts is not None:
                whole[name] = torch.cat(parts, axis)
        if dist.get_rank() == 0:
            max_weights.save_sharded(whole, saved(path), sync=False)

    return run


def _full(path: Path, rows: bool) -> Run:
    import torch.distributed as dist

    import max_weights

    tensors = dict(_parallel(path, rows).named_parameters())

    def run() -> None:
        whole = {name: tensor.full_tensor() for name, tensor in tensors.items()}
        if dist.get_rank() == 0:
            max_weights.save_sharded(whole, saved(path), sync=False)

    return run


def _consolidated(path: Path, rows: bool) -> Run:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    state = dict(_parallel(path, rows).named_parameters())

    def run() -> None:
        writer = HuggingFaceStorageWriter(str(saved(path)), save_distributed=True, enable_consolidation=True)
        save(state, storage_writer=writer)

    return run


LOCAL: dict[str, Callable[[Path], Run]] = {OURS: _into, READER: _reader, BROADCAST: _broadcast, FAST: _fast}
REMOTE: dict[str, Callable[[Path], Run]] = {OURS: _all, ALONE: _alone, RUNAI: _runai}
SAVES: dict[str, Callable[[Path, bool], Run]] = {
    OURS: _save,
    DCP: _dcp,
    GATHER: _gather,
    FULL: _full,
    CONSOLIDATED: _consolidated,
}
WAYS: dict[str, Callable[[Path], Run]] = {
    **{f"load {name}": load for name, load in LOCAL.items()},
    **{f"all {name}": load for name, load in REMOTE.items()},
    **{f"rows {name}": lambda path, save=save: save(path, True) for name, save in SAVES.items()},  # type: ignore[misc]
    **{f"columns {name}": lambda path, save=save: save(path, False) for name, save in SAVES.items()},  # type: ignore[misc]
}


def _rank(file: Any, way: str, path: str, rank: int, world: int, rendezvous: str) -> None:
    """Run one rank until its connection is closed."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)
    call = WAYS[way](Path(path))
    sys.stdout = sys.stderr
    dist.barrier()
    print("done", file=file, flush=True)
    for _ in file:
        result = call()
        print("done", file=file, flush=True)
        del result
    time.sleep(0 if rank else 0.2)  # rank 0 has the store


def _forked(one: socket.socket) -> None:
    file = one.makefile("rw")
    try:
        way, path, rank, world, rendezvous, environment = json.loads(file.readline())
        os.environ |= environment
        print(os.getpid(), file=file, flush=True)
        _rank(file, way, path, rank, world, rendezvous)
    except BaseException:
        with contextlib.suppress(OSError):
            print(" ".join(traceback.format_exc().strip().splitlines()[-1:]), file=file, flush=True)


def _main(path: str) -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ranks are not waited for
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        listener.listen(16)
        os.rename(f"{path}.new", path)
        while True:
            one, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                _forked(one)
                os._exit(0)
            one.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
