"""Saves in processes with injected faults: forks a child for each request of `faults.Saver`, sequentially.

A request is a line of JSON. The child prints its process id and waits for a line before it begins, so that strace can
be attached. All imports are done before, so the system calls are those of the save alone.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

import numpy as np

import max_weights
from max_weights import DType, SafetensorsWriter, delta, load_weights, save_file, save_gguf, save_sharded
from max_weights._core import command_line
from max_weights.graph import DeviceRef, Graph, TensorType, Weight, onnx

# Enough for several writes: one for each large tensor, one for both small ones.
SHAPES = {"layers.0.weight": (300, 256), "layers.1.weight": (280, 256), "layers.2.bias": (7,), "nothing": (0, 3)}
PR_SET_PTRACER, ANY = 0x59616D61, ctypes.c_ulong(-1)


def tensors(value: float, scale: int = 1) -> dict[str, np.ndarray]:
    """Tensors that all have this value."""
    return {name: np.full((shape[0] * scale, *shape[1:]), value, np.float32) for name, shape in SHAPES.items()}


def part_by_part(path: str, value: float, scale: int = 1, **options: Any) -> None:
    """Saves with a SafetensorsWriter, each tensor in two parts."""
    given = tensors(value, scale)
    with SafetensorsWriter(path, {name: (DType.float32, x.shape) for name, x in given.items()}, **options) as writer:
        for name, x in reversed(given.items()):
            half = len(x) // 2
            writer.write_part(name, half * x[:1].nbytes, x[half:])
            writer.write_part(name, 0, x[:half])


def convert(path: str, source: str, **options: Any) -> None:
    """Saves a tree of weights, also over its own file."""
    with load_weights(source) as weights:
        if path.endswith(".safetensors") or "max_shard_size" in options:
            weights.save(path, **options)
        else:  # any other name would be a folder
            save_file(weights, path, **options)


def command(words: list[str], **_: Any) -> None:
    """Run the command line, whose output is discarded."""
    status = command_line(["max-weights", *words])
    if status != 0:
        raise SystemExit(status)


def graph() -> Graph:
    """The product of an input and a weight."""
    weight = Weight("weight", "float32", SHAPES["layers.0.weight"], DeviceRef.CPU())
    return Graph("g", lambda x: x @ weight, [TensorType("float32", ["n", 300], DeviceRef.CPU())])


CALLS = {
    "command": command,
    "delta.apply": lambda path, deltas, **options: delta.apply(path, *deltas, **options),
    "onnx.save": lambda path, value: onnx.save(graph(), path, {"weight": tensors(value)["layers.0.weight"]}),
    "save_file": lambda path, value, scale=1, **options: save_file(tensors(value, scale), path, **options),
    "save_gguf": lambda path, value, scale=1, **options: save_gguf(tensors(value, scale), path, **options),
    "save_sharded": lambda path, value, scale=1, **options: save_sharded(tensors(value, scale), path, **options),
    "weights.save": convert,
    "SafetensorsWriter": part_by_part,
}


def prepared(request: dict[str, Any]) -> None:
    """Apply the request's settings: user, umask, file size limit, and working directory."""
    if request.get("one_thread"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if "folder" in request:
        os.chdir(request["folder"])
    if "umask" in request:
        os.umask(request["umask"])
    if "largest_file" in request:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    if "user" in request:
        os.setgroups([])
        os.setresgid(*[request["user"]] * 3)
        os.setresuid(*[request["user"]] * 3)
    # If only ancestors may trace a process, allow others; elsewhere this fails without effect.
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANY, 0, 0, 0)


def outcome(request: dict[str, Any]) -> dict[str, Any]:
    """The result of the save."""
    try:
        CALLS[request["call"]](**request["arguments"])
    except KeyboardInterrupt:
        return {"error": "KeyboardInterrupt"}
    except OSError as error:
        return {
            "error": type(error).__name__,
            "errno": error.errno,
            "file": error.filename,
            "text": str(error),
        }
    except BaseException as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {}


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(TypeError):  # triggers lazy imports
        save_file({"a": "no tensor"}, "/nonexistent")
    onnx.to_model(graph(), {"weight": tensors(0)["layers.0.weight"]})
    reported = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards prints
    with open(0, "rb", buffering=0) as requests, open(reported, "w", buffering=1, closefd=False) as answers:
        for line in requests:
            request = json.loads(line)
            child = os.fork()
            if child == 0:
                prepared(request)
                os.write(reported, f"{os.getpid()}\n".encode())
                requests.readline()
                os.write(reported, (json.dumps(outcome(request)) + "\n").encode())
                os._exit(0)
            _, status = os.waitpid(child, 0)
            print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), file=answers)


if __name__ == "__main__":
    assert max_weights.__file__ is not None
    sys.exit(main())
