"""Make the pickles of `tests/data/pickle`: `python tools/make_pickle_seeds.py`.

Python and PyTorch write them, in every protocol. Each has a JSON file of what Python and PyTorch read from it, with
which `tests/format/pickle_oracle.rs` compares. A `.pkl` is the pickle of a zip file, a `.pt` a whole file in the legacy
format.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "pickle"
PROTOCOLS = range(6)


def describe(value: Any) -> Any:
    """A value as JSON: a pair of its kind and what it holds."""
    match value:
        case None:
            return ["none"]
        case bool():
            return ["bool", value]
        case int():
            return ["int", str(value)]
        case float():
            return ["float", np.float64(value).tobytes().hex()]
        case complex():
            return ["complex", value.real, value.imag]
        case str():
            return ["text", value]
        case bytes():
            return ["bytes", value.hex()]
        case bytearray():
            return ["bytearray", value.hex()]
        case torch.Size():
            return ["size", list(value)]
        case list():
            return ["list", [describe(element) for element in value]]
        case tuple():
            return ["tuple", [describe(element) for element in value]]
        case set() | frozenset():
            return [type(value).__name__, sorted((describe(element) for element in value), key=json.dumps)]
        case dict():
            entries = [[describe(key), describe(element)] for key, element in value.items()]
            metadata = getattr(value, "_metadata", None)
            return [type(value).__name__, entries, *([] if metadata is None else [describe(metadata)])]
        case torch.dtype():
            return ["dtype", str(value).removeprefix("torch.")]
        case torch.device():
            return ["device", str(value)]
        case np.ndarray():
            return ["array", value.dtype.str, list(value.shape), value.tobytes("A").hex()]
        case np.generic():
            return ["scalar", value.dtype.str, value.tobytes().hex()]
        case torch.Tensor():
            return describe_tensor(value)
    raise TypeError(type(value))


def describe_tensor(tensor: torch.Tensor) -> Any:
    """A tensor by its place in its storage."""
    kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "tensor"
    dtype = str(tensor.dtype).removeprefix("torch.")
    head = [kind, dtype, list(tensor.shape), tensor.requires_grad]
    if tensor.is_sparse:
        return [*head, "sparse"]
    if tensor.device.type == "meta":
        return [*head, "meta", list(tensor.stride())]
    place = [list(tensor.stride()), tensor.storage_offset(), tensor.untyped_storage().nbytes()]
    if tensor.is_quantized:
        return [*head, "quantized", *place]
    return [*head, "flipped" if tensor.is_conj() or tensor.is_neg() else "strided", *place]


def values() -> Any:
    """Plain values of every kind, some of them shared."""
    shared = ["shared", 1]
    numbers = [0, 1, 255, 256, 65535, 65536, -1, -129, 2**31, -(2**31)]
    numbers += [2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**100]
    floats = [0.0, -0.0, 1.5, 1e300, float("inf"), float("-inf"), 5e-324]
    texts = ["", "a", "naïve\n\\u00e9", "模型🦀", "x" * 300]
    return {
        "numbers": numbers,
        "floats": floats,
        "texts": texts,
        "bytes": [b"", b"\x00\xff", b"y" * 300, bytearray(b"ab\xff")],
        "truth": [True, False, None],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        "sets": [{1, "b"}, frozenset([3]), set()],
        "complex": 1.5 - 2j,
        ("tuple", 1): shared,
        7: [shared, shared],
        True: {},
        "dicts": [OrderedDict(b=1, a=2), Counter("hello"), defaultdict(list, {"k": [1]})],
        "numpy": [np.int64(-7), np.float32(0.5), np.arange(6, dtype=">i2").reshape(2, 3), np.asfortranarray(np.eye(2))],
        "strings": [np.array(["ab", "c"]), np.array([b"xyz"])],
    }


def state() -> Any:
    """A training checkpoint: nested dicts, tied weights, views."""
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    weights = OrderedDict([("embed.weight", base), ("head.weight", base), ("view", base[1:, ::2])])
    weights["turned"] = base.t()
    weights["scalar"] = torch.tensor(3)
    weights["empty"] = torch.zeros(0, 5)
    weights["bias"] = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    weights._metadata = OrderedDict([("", {"version": 1})])  # type: ignore[attr-defined]
    optimizer = {"state": {0: {"step": torch.tensor(5.0), "exp_avg": torch.ones(2, 2)}}, "param_groups": [{"lr": 0.1}]}
    return {"model": weights, "optimizer": optimizer, "epoch": 3, "list": [torch.ones(1), "text"], "size": base.shape}


def kinds() -> Any:
    """A tensor of each kind and type."""
    found: dict[str, Any] = {}
    names = "bool complex64 complex128 float16 float64 uint8 int8 int16 int32 int64 uint16 uint32 uint64"
    names += " float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    for name in names.split():
        found[name] = torch.zeros(2, 3, dtype=getattr(torch, name))
    found["sparse"] = torch.eye(3).to_sparse()
    found["meta"] = torch.empty_strided((2, 3), (1, 2), device="meta")
    found["conjugate"] = torch.ones(2, dtype=torch.complex64).conj()
    found["quantized"] = torch.quantize_per_tensor(torch.ones(4), 0.5, 3, torch.quint8)
    channels = torch.tensor([0.5, 0.25]), torch.tensor([0, 1])
    found["channels"] = torch.quantize_per_channel(torch.ones(2, 2), *channels, 0, torch.qint8)
    found["frozen"] = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    found["dtype"] = torch.bfloat16
    found["device"] = torch.device("cuda", 1)
    return found


def save(name: str, content: bytes, value: Any) -> None:
    """Write a pickle and what it holds."""
    (FOLDER / name).write_bytes(content)
    text = json.dumps(describe(value), ensure_ascii=False, separators=(",", ":"))
    (FOLDER / name).with_suffix(".json").write_text(text + "\n", encoding="utf-8")


def zip_pickle(value: Any, protocol: int) -> bytes:
    """The pickle in the zip file that `torch.save` writes."""
    file = io.BytesIO()
    torch.save(value, file, pickle_protocol=protocol)
    with zipfile.ZipFile(file) as archive:
        return next(archive.read(entry) for entry in archive.namelist() if entry.endswith("/data.pkl"))


def read_again(value: Any, legacy: bool) -> Any:
    """The result of PyTorch reading its own output."""
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=not legacy)
    file.seek(0)
    return torch.load(file, weights_only=True)


def distributed() -> bytes:
    """A DTensor of one process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29541", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (1,))
    content = zip_pickle({"w": distribute_tensor(torch.arange(6.0).reshape(2, 3), mesh, [Shard(0)])}, 2)
    torch.distributed.destroy_process_group()
    return content


def main() -> None:
    """Write every file."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for protocol in PROTOCOLS:
        content = pickle.dumps(values(), protocol=protocol)
        save(f"values-{protocol}.pkl", content, values())  # loading would swap big-endian arrays
        save(f"state-{protocol}.pkl", zip_pickle(state(), protocol), read_again(state(), legacy=False))
        save(f"kinds-{protocol}.pkl", zip_pickle(kinds(), protocol), read_again(kinds(), legacy=False))
    file = io.BytesIO()
    torch.save(state(), file, _use_new_zipfile_serialization=False)
    save("state-legacy.pt", file.getvalue(), read_again(state(), legacy=True))
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    (FOLDER / "module.pkl").write_bytes(zip_pickle(model, 2))
    (FOLDER / "module.json").write_text(json.dumps(sorted(model.state_dict())) + "\n", encoding="utf-8")
    (FOLDER / "dtensor.pkl").write_bytes(distributed())


if __name__ == "__main__":
    main()
