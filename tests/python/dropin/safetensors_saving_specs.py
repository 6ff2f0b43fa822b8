"""Programs for `safetensors_saving_cases`: `serialize`, `serialize_file`, metadata and paths."""

import collections
import ctypes
import os
import pathlib
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Case = Callable[[Any, pathlib.Path], Any]
CASES: dict[str, Case] = {}


def cases(name: str, programs: dict[str, Case]) -> None:
    """Adds several programs of one subject; each gets the package, with its modules, and an empty folder."""
    CASES.update({f"{name}[{key}]": program for key, program in programs.items()})


# What torch has.
TORCH = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
TORCH += ["bool", "float16", "bfloat16", "float32", "float64", "complex64"]
TORCH += ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"]

MEMORY = (ctypes.c_ubyte * 96)(*range(96))
ADDRESS = ctypes.addressof(MEMORY)


def spec(package: Any, **changed: Any) -> Any:
    """A `TensorSpec` of six float32, with other arguments."""
    arguments = {"dtype": "float32", "shape": [2, 3], "data_ptr": ADDRESS, "data_len": 24} | changed
    return package.TensorSpec(**arguments)


def both(package: Any, folder: pathlib.Path, tensors: Any, *metadata: Any) -> Any:
    """The bytes that `serialize` and `serialize_file` make."""
    path = folder / "both.safetensors"
    made = package.serialize(tensors, *metadata)
    assert package.serialize_file(tensors, path, *metadata) is None
    assert path.read_bytes() == made
    return [type(made).__name__, made]


cases(
    "serialize",
    {
        "one": lambda package, folder: both(package, folder, {"a": spec(package)}),
        "none": lambda package, folder: both(package, folder, {}),
        "ordered": lambda package, folder: both(
            package, folder, collections.OrderedDict(b=spec(package), a=spec(package))
        ),
        "no metadata": lambda package, folder: both(package, folder, {"a": spec(package)}, None),
        "empty metadata": lambda package, folder: both(package, folder, {"a": spec(package)}, {}),
        "nothing but empty metadata": lambda package, folder: both(package, folder, {}, {}),
        "metadata alone": lambda package, folder: both(package, folder, {}, {"a": 'b"\\\n\u00e9\U0001f600\x01'}),
        "metadata named metadata": lambda package, folder: both(
            package, folder, {"a": spec(package)}, {"__metadata__": "x"}
        ),
        "name empty": lambda package, folder: both(package, folder, {"": spec(package)}),
        "names": lambda package, folder: both(
            package,
            folder,
            {name: spec(package) for name in ('a"\\/\t\n\x7f', "\u00e9", "\U0001f600", "a.b", "B", "\x00")},
        ),
        "sizes": lambda package, folder: both(
            package,
            folder,
            {
                dtype: spec(package, dtype=dtype, shape=[24 // width], data_ptr=ADDRESS + at)
                for at, (dtype, width) in enumerate(
                    {"uint8": 1, "bool": 1, "float64": 8, "int64": 8, "bfloat16": 2, "float16": 2, "int16": 2}.items()
                )
            },
        ),
        "packed": lambda package, folder: both(
            package, folder, {"a": spec(package, dtype="float4_e2m1fn_x2", shape=[2, 12])}
        ),
        "scalar": lambda package, folder: both(package, folder, {"a": spec(package, shape=[], data_len=4)}),
        "nothing": lambda package, folder: both(
            package, folder, {"a": spec(package, shape=[3, 0], data_ptr=0, data_len=0)}
        ),
        "huge and nothing": lambda package, folder: both(
            package, folder, {"a": spec(package, shape=[0, 2**62 - 1], data_len=0)}
        ),
    },
)
WRONG_TENSORS: dict[str, Callable[[Any], Any]] = {
    "another size": lambda package: {"a": spec(package, data_len=20)},
    "no address": lambda package: {"a": spec(package, shape=[1], data_ptr=0, data_len=24)},
    "overflow": lambda package: {"a": spec(package, shape=[2**33, 2**33])},
    "overflow of bits": lambda package: {"a": spec(package, shape=[2**61])},
    "half a byte": lambda package: {"a": spec(package, dtype="float4_e2m1fn_x2", shape=[], data_len=0)},
    "name no text": lambda package: {1: spec(package)},
    "name surrogate": lambda package: {"\ud800": spec(package)},
    "no spec": lambda _: {"a": 5},
    "a dict": lambda _: {"a": {"dtype": "float32", "shape": [6], "data": bytes(24)}},
    "a list": lambda package: [spec(package)],
    "None": lambda _: None,
    "a mapping": lambda package: types.MappingProxyType({"a": spec(package)}),
    "a user's dict": lambda package: collections.UserDict({"a": spec(package)}),
}
cases(
    "serialize-wrong",
    {name: lambda package, _, make=make: package.serialize(make(package)) for name, make in WRONG_TENSORS.items()},
)
cases(
    "serialize-file-wrong",
    {
        name: lambda package, folder, make=make: package.serialize_file(make(package), folder / "x")
        for name, make in WRONG_TENSORS.items()
    },
)
METADATA: dict[str, Any] = {
    "value no text": {"a": 1},
    "value None": {"a": None},
    "key no text": {1: "a"},
    "a list": [("a", "b")],
    "text": "ab",
    "a mapping": types.MappingProxyType({"a": "b"}),
    "surrogate": {"a": "\ud800"},
    "too long": {"a": "b" * 100_000_001},
}
cases(
    "metadata-wrong",
    {
        f"{name}-{how}": lambda package, folder, value=value, save=save: save(package, folder, value)
        for name, value in METADATA.items()
        for how, save in {
            "serialize": lambda package, _, value: package.serialize({"a": spec(package)}, value),
            "file": lambda package, folder, value: package.serialize_file({"a": spec(package)}, folder / "x", value),
            "torch": lambda package, _, value: package.torch.save({"a": torch.ones(3)}, metadata=value),
            "numpy": lambda package, _, value: package.numpy.save({"a": np.ones(3)}, metadata=value),
        }.items()
    },
)


class Path:
    """A path type outside the standard library."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def __fspath__(self) -> Any:
        return self.path


def written(package: Any, path: Any, *look: Any) -> Any:
    """The content of a file saved to the path; `look` is its place, if it differs."""
    package.torch.save_file({"a": torch.arange(3)}, path)
    return pathlib.Path(*(look or (path,))).read_bytes()


PATHS: dict[str, Callable[[Any, pathlib.Path], Any]] = {
    "text": lambda package, folder: written(package, str(folder / "x")),
    "path": lambda package, folder: written(package, folder / "x"),
    "another path": lambda package, folder: written(package, Path(str(folder / "x")), folder / "x"),
    "of bytes": lambda package, folder: written(package, os.fsencode(folder / "x")),
    "another of bytes": lambda package, folder: written(package, Path(os.fsencode(folder / "x"))),
    "number": lambda package, _: written(package, 5),
    "nothing": lambda package, _: written(package, None),
    "open file": lambda package, folder: written(package, (folder / "open").open("wb")),
    "empty": lambda package, _: written(package, ""),
    "missing folder": lambda package, folder: written(package, folder / "no" / "x"),
    "folder": lambda package, folder: written(package, folder),
    "below a file": lambda package, folder: [(folder / "f").write_bytes(b""), written(package, folder / "f" / "x")],
    "nul": lambda package, folder: written(package, f"{folder}/a\0b"),
    "long": lambda package, folder: written(package, folder / ("x" * 256)),
    "almost too long": lambda package, folder: written(package, folder / ("x" * 255)),
    "not ascii": lambda package, folder: written(package, folder / "m\u00f6\U0001f600 del"),
    "not utf-8": lambda package, folder: written(package, os.fsdecode(os.fsencode(folder) + b"/a\xff")),
    "link": lambda package, folder: [linked(folder), written(package, folder / "link"), (folder / "link").is_symlink()],
    "dangling link": lambda package, folder: [
        (folder / "link").symlink_to(folder / "nowhere"),
        written(package, folder / "link"),
        (folder / "nowhere").exists(),
    ],
    "there": lambda package, folder: [(folder / "x").write_bytes(b"x" * 9999), written(package, folder / "x")],
    "relative": lambda package, folder: [os.chdir(folder), written(package, "x")],
}


def linked(folder: pathlib.Path) -> None:
    """A file, and a link to it."""
    (folder / "file").write_bytes(b"old")
    (folder / "link").symlink_to(folder / "file")


cases("path", PATHS)
