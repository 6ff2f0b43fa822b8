"""Programs over the safetensors package, run with ours and with each version of the real one.

`outcomes` has the result of each in words. Run as a script it prints those of a package as JSON: `python
safetensors_cases.py FOLDER PACKAGE [SITE]`, where SITE comes first on the path.
"""

import copy
import importlib
import io
import json
import pathlib
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from safetensors_arguments import DEVICES, FRAMEWORKS, INDICES, PLANS, TORCH_INDICES, WRONG
from safetensors_files import BROKEN, DTYPES, FINE, entry, file_bytes

Case = Callable[[Any, pathlib.Path], Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Add a program; it gets the package with its modules, and a folder with the files of `write_files`."""
    CASES[function.__name__] = function
    return function


def cases(name: str, programs: dict[str, Case]) -> None:
    """Adds several programs of one subject."""
    CASES.update({f"{name}[{key}]": program for key, program in programs.items()})


def plain(value: Any) -> Any:
    """A value in words: for arrays the dtype, the shape and the bytes."""
    if isinstance(value, torch.Tensor):
        whole = value.detach().contiguous()
        bits = whole.reshape(-1).view(torch.uint8) if whole.numel() else torch.zeros(0, dtype=torch.uint8)
        return [str(value.dtype), list(value.shape), str(value.device), bits.numpy().tobytes().hex()]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), value.flags.writeable, np.ascontiguousarray(value).tobytes().hex()]
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def outcomes(package: Any, folder: pathlib.Path) -> dict[str, Any]:
    """The result of each program: its value, or {"error": kind, "text": message}; and the version."""
    found: dict[str, Any] = {"version": package.__version__}
    for name, program in CASES.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = plain(program(package, folder))
        except Exception as error:
            found[name] = {"error": type(error).__name__, "text": str(error)}
    return found


def modules_of(name: str) -> Any:
    """A package with its modules for torch and NumPy."""
    package = importlib.import_module(name)
    for module in ("torch", "numpy"):
        importlib.import_module(f"{name}.{module}")
    return package


def model(package: Any, folder: pathlib.Path, framework: str = "pt", **options: Any) -> Any:
    return package.safe_open(folder / "model.safetensors", framework, **options)


# The handle.
HANDLE: dict[str, Callable[[Any], Any]] = {
    "keys": lambda f: f.keys(),
    "metadata": lambda f: f.metadata(),
    "offset_keys": lambda f: f.offset_keys()[:3],
    "get_tensor": lambda f: [f.get_tensor(name) for name in sorted(f.offset_keys())],
    "get_tensors": lambda f: sorted(f.get_tensors().items()),
    "order": lambda f: list(f.get_tensors())[:3],
    "shapes": lambda f: [f.get_slice(name).get_shape() for name in sorted(f.offset_keys())],
    "dtypes": lambda f: [f.get_slice(name).get_dtype() for name in sorted(f.offset_keys())],
    "missing tensor": lambda f: f.get_tensor("not there"),
    "missing slice": lambda f: f.get_slice("not there"),
    "set": lambda f: len({f, f}),
    "equal": lambda f: (f == f, f != f),
    "len": lambda f: len(f),
    "contains": lambda f: "scalar" in f,
    "iterate": lambda f: list(f),
    "attribute": lambda f: setattr(f, "more", 1),
    "pickle": lambda f: pickle.dumps(f),
    "copy": lambda f: copy.deepcopy(f),
    "number as name": lambda f: f.get_tensor(3),
}
for framework in ("pt", "np"):
    for backend in ("mmap", "pread"):
        for key, program in HANDLE.items():

            def run(
                package: Any,
                folder: pathlib.Path,
                program: Callable[[Any], Any] = program,
                framework: str = framework,
                backend: str = backend,
            ) -> Any:
                with model(package, folder, framework, backend=backend) as file:
                    return program(file)

            CASES[f"handle[{framework}-{backend}-{key}]"] = run


@case
def after_exit(package: Any, folder: pathlib.Path) -> Any:
    file = model(package, folder)
    with file as same:
        tensor, part = file.get_tensor("a.first"), file.get_slice("z.last")
    found = [
        same is file,
        tensor,
        part[1:3],
        part.get_shape(),
        file.__exit__(None, None, None),
        file.__enter__() is file,
    ]
    for method in ("keys", "metadata", "offset_keys", "get_tensors"):
        try:
            getattr(file, method)()
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


@case
def closed_get_tensor(package: Any, folder: pathlib.Path) -> Any:
    file = model(package, folder)
    file.__exit__(None, None, None)
    return file.get_tensor("a.first")


@case
def closed_get_slice(package: Any, folder: pathlib.Path) -> Any:
    file = model(package, folder)
    file.__exit__(None, None, None)
    return file.get_slice("a.first")


@case
def signature(package: Any, _folder: pathlib.Path) -> Any:
    return "backend" in package.safe_open.__text_signature__


@case
def keyword_arguments(package: Any, folder: pathlib.Path) -> Any:
    return package.safe_open(filename=folder / "model.safetensors", framework="pt", device="cpu").keys()


@case
def positional_backend(package: Any, folder: pathlib.Path) -> Any:
    return package.safe_open(folder / "model.safetensors", "pt", "cpu", "mmap")


@case
def handle_of_a_file_object(package: Any, folder: pathlib.Path) -> Any:
    with (folder / "model.safetensors").open("rb") as file:
        return package._safe_open_handle(file, "pt").keys()


PATHS: dict[str, Callable[[pathlib.Path], Any]] = {
    "str": str,
    "path": lambda path: path,
    "bytes": lambda path: str(path).encode(),
    "descriptor": lambda _: 0,
    "object": lambda _: io.BytesIO(b""),
    "missing": lambda path: path.with_name("missing"),
    "folder": lambda path: path.parent,
}
cases(
    "path",
    {
        key: lambda package, folder, make=make: package.safe_open(make(folder / "model.safetensors"), "pt").keys()
        for key, make in PATHS.items()
    },
)


@case
def missing_file_arguments(package: Any, _folder: pathlib.Path) -> Any:
    try:
        package.safe_open("not/there", "pt")
    except FileNotFoundError as error:
        return [error.args, error.errno]


cases(
    "device",
    {
        str(device) if isinstance(device, str) else repr(device): lambda package, folder, device=device: model(
            package, folder, device=device
        ).keys()
        for device in DEVICES
    },
)
cases(
    "framework",
    {
        str(name): lambda package, folder, name=name: model(package, folder, name).get_tensor("a.first")
        for name in FRAMEWORKS
    },
)
cases(
    "backend",
    {
        str(name): lambda package, folder, name=name: model(package, folder, backend=name).keys()
        for name in ("mmap", "pread", "read", "", 3)
    },
)


# Which of several wrong arguments the error names.
cases(
    "wrong",
    {key: lambda package, _folder, given=given: package.safe_open("absent", **given) for key, given in WRONG.items()},
)


@case
def no_arguments(package: Any, _folder: pathlib.Path) -> Any:
    try:
        package.safe_open()
    except TypeError as error:
        return str(error)


@case
def exit_by_name(package: Any, folder: pathlib.Path) -> Any:
    file = model(package, folder)
    file.__exit__(_exc_type=None, _exc_value=None, _traceback=None)
    return file.keys()


@case
def device_of_numpy(package: Any, folder: pathlib.Path) -> Any:
    return model(package, folder, "np", device="cuda")


# Dtypes.
for framework in ("pt", "np"):
    cases(
        f"dtype-{framework}",
        {
            dtype: lambda package, folder, dtype=dtype, framework=framework: package.safe_open(
                folder / "dtypes.safetensors", framework
            ).get_tensor(dtype)
            for dtype in DTYPES
        },
    )
cases(
    "dtype-slice",
    {
        dtype: lambda package, folder, dtype=dtype: package.safe_open(folder / "dtypes.safetensors", "pt").get_slice(
            dtype
        )[1:3]
        for dtype in DTYPES
    },
)

# Indices.
for framework, indices in (("pt", INDICES | TORCH_INDICES), ("np", INDICES)):
    for backend in ("mmap", "pread"):
        for name in ("z.last", "scalar"):
            cases(
                f"slice-{framework}-{backend}-{name}",
                {
                    key: lambda package, folder, options=(framework, backend, name, index): model(
                        package, folder, options[0], backend=options[1]
                    ).get_slice(options[2])[options[3]]
                    for key, index in indices.items()
                },
            )


# What a tensor is.
@case
def storages(package: Any, folder: pathlib.Path) -> Any:
    tensors = package.torch.load_file(folder / "model.safetensors")
    storages = [tensors[name].untyped_storage() for name in ("z.last", "a.first", "scalar", "Ümlaut")]
    apart = len({storage.data_ptr() for storage in storages}) == len(storages)
    facts = [[storage.nbytes(), storage.resizable(), storage.filename, storage.is_shared()] for storage in storages]
    return [apart, facts, [tensors[name].storage_offset() for name in tensors], [one.is_pinned() for one in storages]]


@case
def writes_stay_private(package: Any, folder: pathlib.Path) -> Any:
    path = folder / "model.safetensors"
    before = path.read_bytes()
    with model(package, folder) as file:
        tensor = file.get_tensor("a.first")
        tensor += 1
        again = file.get_tensor("a.first").clone()
    return [tensor, again, model(package, folder).get_tensor("a.first"), path.read_bytes() == before]


@case
def works_on_tensors(package: Any, folder: pathlib.Path) -> Any:
    tensors = package.torch.load_file(folder / "model.safetensors")
    tensor = tensors["z.last"]
    tensor.more = "kept"
    tensor.untyped_storage().more = "kept"
    shared = copy.deepcopy(tensor).share_memory_()
    file = io.BytesIO()
    torch.save({"a": tensor, "b": tensors["a.first"]}, file)
    saved = file.tell() < 5000
    file.seek(0)
    return [
        shared,
        pickle.loads(pickle.dumps(tensor)),
        saved,
        torch.load(file),
        tensor.numpy(),
        torch.nn.Parameter(tensor).data,
    ]


@case
def inference_mode(package: Any, folder: pathlib.Path) -> Any:
    with torch.inference_mode():
        return model(package, folder).get_tensor("z.last").is_inference()


@case
def meta_device(package: Any, folder: pathlib.Path) -> Any:
    with torch.device("meta"):
        return [
            model(package, folder).get_tensor("z.last"),
            package.torch.load_file(folder / "model.safetensors")["none"],
        ]


@case
def numpy_arrays(package: Any, folder: pathlib.Path) -> Any:
    arrays = package.numpy.load_file(folder / "model.safetensors")
    return [
        arrays,
        [array.flags.owndata for array in arrays.values()],
        [array.flags.aligned for array in arrays.values()],
    ]


@case
def saved_over(package: Any, folder: pathlib.Path) -> Any:
    path = folder / "over.safetensors"
    path.write_bytes((folder / "model.safetensors").read_bytes())
    file = package.safe_open(path, "pt")
    tensors = package.torch.load_file(path)
    new = folder / "new.safetensors"
    new.write_bytes(file_bytes({"a.first": entry("I64", [4], 0, 32)}, b"\7" * 32))
    new.replace(path)
    return [tensors["a.first"], file.get_tensor("a.first"), file.get_slice("z.last")[0], package.torch.load_file(path)]


# Files in memory.
@case
def load_bytes(package: Any, folder: pathlib.Path) -> Any:
    content = (folder / "model.safetensors").read_bytes()
    return [sorted(package.torch.load(content).items()), sorted(package.numpy.load(content).items())]


@case
def load_bytes_is_writable(package: Any, folder: pathlib.Path) -> Any:
    content = (folder / "model.safetensors").read_bytes()
    tensors = package.torch.load(content)
    tensors["a.first"] += 1
    return [tensors["a.first"], package.torch.load(content)["a.first"], tensors["a.first"].untyped_storage().nbytes()]


@case
def deserialize(package: Any, folder: pathlib.Path) -> Any:
    found = package.deserialize((folder / "model.safetensors").read_bytes())
    return [
        type(found).__name__,
        sorted((name, sorted(view.items()), type(view["data"]).__name__) for name, view in found),
    ]


cases(
    "load-dtype",
    {
        dtype: lambda package, _folder, dtype=dtype, bits=bits: package.torch.load(
            file_bytes({"a": entry(dtype, [6, 4], 0, 3 * bits)}, bytes(3 * bits))
        )
        for dtype, bits in DTYPES.items()
    },
)


@case
def load_text(package: Any, _folder: pathlib.Path) -> Any:
    return package.torch.load("text")


cases(
    "meta",
    {
        name: lambda package, folder, name=name: [
            getattr(model(package, folder, backend="pread").get_tensor_meta(name), field)
            for field in ("dtype", "shape", "data_offsets")
        ]
        for name in ("z.last", "a.first", "scalar", "none", "not there")
    },
)

# Plans of `prefetch`, which are validated before the device.
cases(
    "prefetch",
    {
        key: lambda package, folder, plan=plan: model(package, folder, device="cuda").prefetch(plan)
        for key, plan in PLANS.items()
    }
    | {
        "a dtype": lambda package, folder: package.safe_open(folder / "dtypes.safetensors", "pt", "cuda").prefetch(
            {"F6_E2M3": None}
        ),
        "a device": lambda package, folder: model(package, folder).prefetch(device="no"),
        "arrays": lambda package, folder: model(package, folder, "np").prefetch(),
    },
)


# Files that are broken, and files that are not.
cases(
    "broken",
    {
        name: lambda package, folder, name=name: package.safe_open(folder / f"{name}.safetensors", "pt").keys()
        for name in BROKEN
    },
)
cases(
    "broken-bytes",
    {name: lambda package, _folder, data=data: package.torch.load(data) for name, data in BROKEN.items()},
)
cases(
    "fine",
    {
        name: lambda package, folder, name=name: (
            package.torch.load_file(folder / f"{name}.safetensors"),
            package.safe_open(folder / f"{name}.safetensors", "np").metadata(),
        )
        for name in FINE
    },
)


# Models.
class Tied(torch.nn.Module):
    """Two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(3, 3)
        self.two = torch.nn.Linear(3, 3)
        self.two.weight = self.one.weight


def _loaded(package: Any, folder: pathlib.Path, drop: str = "", more: str = "", strict: bool = True) -> Any:
    torch.manual_seed(0)
    saved = {name: tensor + 1 for name, tensor in Tied().state_dict().items() if name not in ("two.weight", drop)}
    if more:
        saved[more] = torch.zeros(1)
    path = folder / "tied.safetensors"
    package.torch.save_file(saved, path)
    target = Tied()
    missing, unexpected = package.torch.load_model(target, path, strict=strict)
    return [set(missing), set(unexpected), target.state_dict()]


cases(
    "load_model",
    {
        "whole": lambda package, folder: _loaded(package, folder),
        "missing": lambda package, folder: _loaded(package, folder, drop="one.bias"),
        "unexpected": lambda package, folder: _loaded(package, folder, more="other"),
        "not strict": lambda package, folder: _loaded(package, folder, drop="one.bias", more="other", strict=False),
    },
)


@case
def helpers(package: Any, _folder: pathlib.Path) -> Any:
    torch.manual_seed(0)
    state, base = Tied().state_dict(), torch.arange(12.0)
    parts = {"a": base[:6], "b": base[6:], "c": base[4:8], "d": torch.zeros(0), "e": torch.empty(3, device="meta")}
    module = package.torch
    whole = {"x": base, "y": base[:3]}
    return [
        module._find_shared_tensors(state),
        module._find_shared_tensors(parts),
        dict(module._remove_duplicate_names(state)),
        dict(module._remove_duplicate_names(state, preferred_names=["two.weight"])),
        dict(module._remove_duplicate_names(state, discard_names=["one.weight"])),
        dict(module._remove_duplicate_names(whole)),
        [module.storage_size(tensor) for tensor in parts.values()],
        module.storage_ptr(parts["b"]) == base.data_ptr(),
        [module._is_complete(tensor) for tensor in (base, base[:3])],
        module._getdtype("BF16"),
        module._to_ndarray(base)[0].tobytes(),
    ]


@case
def no_whole_tensor(package: Any, _folder: pathlib.Path) -> Any:
    base = torch.arange(12.0)
    try:
        package.torch._remove_duplicate_names({"a": base[:6], "b": base[2:8]})
    except RuntimeError as error:
        return str(error)[:100]


@case
def saving(package: Any, folder: pathlib.Path) -> Any:
    tensors, path = {"a": torch.arange(4.0)}, folder / "saved.safetensors"
    package.torch.save_file(tensors, path, metadata={"format": "pt"})
    arrays = {"a": np.arange(4)}
    return [path.read_bytes(), package.torch.save(tensors), package.numpy.save(arrays), package.torch.load_file(path)]


if __name__ == "__main__":
    sys.path[:0] = sys.argv[3:]
    print(json.dumps(outcomes(modules_of(sys.argv[2]), pathlib.Path(sys.argv[1]))))
