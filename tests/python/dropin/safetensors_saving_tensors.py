"""Programs for `safetensors_saving_cases`: tensors of torch, models, and arrays of NumPy."""

import collections
import copy
import pathlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch

from safetensors_saving_specs import TORCH

Case = Callable[[Any, pathlib.Path], Any]
CASES: dict[str, Case] = {}


def cases(name: str, programs: dict[str, Case]) -> None:
    """Adds several programs of one subject; each gets the package, with its modules, and an empty folder."""
    CASES.update({f"{name}[{key}]": program for key, program in programs.items()})


def bits(dtype: str, *shape: int) -> torch.Tensor:
    """A tensor of a dtype whose bytes are 0, 1, 2 and so on; of bool they alternate."""
    item = getattr(torch, dtype).itemsize
    count = int(np.prod(shape, dtype=int)) * item
    counted = torch.arange(count, dtype=torch.int64).remainder(2 if dtype == "bool" else 251).to(torch.uint8)
    return (
        counted.view(getattr(torch, dtype)).reshape(shape) if count else torch.empty(shape, dtype=getattr(torch, dtype))
    )


def saved(package: Any, folder: pathlib.Path, tensors: Any, *metadata: Any) -> Any:
    """The bytes that `save` and `save_file` for torch make."""
    path = folder / "saved.safetensors"
    made = package.torch.save(tensors, *metadata)
    assert package.torch.save_file(tensors, path, *metadata) is None
    assert path.read_bytes() == made
    return [type(made).__name__, made]


cases(
    "torch-dtype",
    {
        f"{dtype}-{shape}": lambda package, folder, dtype=dtype, shape=shape: saved(
            package, folder, {"a": bits(dtype, *shape), "b.c": bits(dtype, 2)}
        )
        for dtype in TORCH
        for shape in ((), (1,), (3, 4), (0,), (2, 0, 3))
    },
)
BASE = torch.arange(24.0).reshape(4, 6)
TENSORS: dict[str, Callable[[], Any]] = {
    "many": lambda: {f"{dtype}.{at}": bits(dtype, 3 + at) for dtype in TORCH for at in range(3)},
    "none": dict,
    "ordered dict": lambda: collections.OrderedDict(b=torch.ones(2), a=torch.zeros(2)),
    "defaultdict": lambda: collections.defaultdict(list, a=torch.ones(2)),
    "parameter": lambda: {"a": torch.nn.Parameter(torch.ones(2, 3))},
    "with a graph": lambda: {"a": torch.ones(3, requires_grad=True) * 2},
    "buffer": lambda: {"a": torch.nn.Buffer(torch.ones(2))},
    "a part": lambda: {"a": BASE[1:3]},
    "parts that are apart": lambda: {"a": BASE[:2], "b": BASE[2:]},
    "a row": lambda: {"a": BASE[1]},
    "one element": lambda: {"a": BASE[1, 2]},
    "turned one row": lambda: {"a": torch.ones(1, 5).T},
    "channels last": lambda: {"a": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)},
    "turned": lambda: {"ok": torch.ones(2), "a": BASE.T},
    "with gaps": lambda: {"a": BASE[:, ::2]},
    "expanded": lambda: {"a": torch.ones(1).expand(5)},
    "the same": lambda: {"a": BASE, "b": BASE},
    "a view of the same": lambda: {"a": BASE, "b": BASE.view(24)},
    "a part beside": lambda: {"a": BASE, "b": BASE[1]},
    "parts that overlap": lambda: {"a": BASE[:3], "b": BASE[2:]},
    "another dtype of the same": lambda: {"a": BASE, "b": BASE.view(torch.int32)},
    "an empty part": lambda: {"a": BASE, "b": BASE[:0]},
    "empty parts": lambda: {"a": BASE[:0], "b": BASE[:0]},
    "empty": lambda: {"a": torch.empty(0), "b": torch.empty(0)},
    "shared memory": lambda: {"a": torch.ones(3).share_memory_()},
    "sparse": lambda: {"ok": torch.ones(2), "a": torch.eye(3).to_sparse(), "b": torch.eye(3).to_sparse_csr()},
    "meta": lambda: {"a": torch.ones(3, device="meta")},
    "complex128": lambda: {"a": torch.ones(3, dtype=torch.complex128)},
    "quantized": lambda: {"a": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)},
    "an array": lambda: {"a": np.ones(3)},
    "a number": lambda: {"a": torch.ones(2), "b": 3},
    "None": lambda: {"a": None},
    "a list": lambda: [torch.ones(3)],
    "a module": lambda: torch.nn.Linear(2, 2),
    "no dict": lambda: collections.UserDict({"a": torch.ones(2)}),
    "name no text": lambda: {3: torch.ones(2)},
    "nested": lambda: {"a": {"b": torch.ones(2)}},
}


def inference_tensor() -> Any:
    """A tensor made in inference mode."""
    with torch.inference_mode():
        return {"a": torch.ones(3)}


TENSORS["inference"] = inference_tensor
cases(
    "torch",
    {name: lambda package, folder, make=make: saved(package, folder, make()) for name, make in TENSORS.items()},
)
cases(
    "torch-fake",
    {"mode": lambda package, folder: in_fake_mode(lambda: saved(package, folder, {"a": torch.ones(3)}))},
)
cases(
    "torch-helpers",
    {
        "evaluate": lambda package, _: package.torch._evaluate_tensors_for_save({"a": BASE}),
        "flatten": lambda package, _: flattened(
            package.torch._flatten_as_ptr, {"a": BASE, "b": bits("float4_e2m1fn_x2", 3)}
        ),
        "flatten arrays": lambda package, _: flattened(
            package.numpy._flatten, {"a": np.ones(3), "b": np.ones((2, 2), ">i4")}
        ),
        "bytes": lambda package, _: [
            np.asarray(package.torch._to_ndarray(BASE[1])[0]).tobytes(),
            package.torch._to_ndarray(BASE)[1] is not None,
        ],
        "names": lambda package, _: [
            hasattr(package.torch, name)
            for name in ("serialize", "serialize_file", "TensorSpec", "_tobytes", "_flatten", "_SIZE", "safe_open")
        ],
    },
)


def in_fake_mode(program: Callable[[], Any]) -> Any:
    """The result of a program under a mode that makes tensors without memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return program()


def flattened(flatten: Any, tensors: Any) -> Any:
    """The arguments for `serialize` without addresses, and whether something keeps the memory alive."""
    kept: list[Any] = []
    return [
        {name: [made.dtype, made.shape, made.data_len] for name, made in flatten(tensors, kept).items()},
        len(kept) > 0,
    ]


class Tied(torch.nn.Module):
    """A model of two layers that share a tensor, and a third with a part of it."""

    def __init__(self, *, part: bool = False) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        if part:
            self.register_buffer("part", self.first.weight.data[:2])
        with torch.no_grad():
            for at, parameter in enumerate(self.parameters()):
                parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) + at)


def turned() -> torch.nn.Module:
    """A model whose weight is not contiguous."""
    model = torch.nn.Linear(3, 5)
    model.weight = torch.nn.Parameter(torch.arange(15.0).reshape(3, 5).T)
    model.bias = torch.nn.Parameter(torch.ones(5))
    return model


def only_parts() -> torch.nn.Module:
    """A model whose tensors are parts of one that it does not have."""
    model, base = torch.nn.Module(), torch.arange(10.0)
    model.register_buffer("a", base[:6])
    model.register_buffer("b", base[4:])
    return model


def with_model(package: Any, folder: pathlib.Path, model: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
    """The bytes of a model's file, and the state after loading it into a copy."""
    path = folder / "model.safetensors"
    assert package.torch.save_model(model, path, *arguments, **options) is None
    other = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.zero_()
    left = package.torch.load_model(other, path)
    return [path.read_bytes(), [sorted(names) for names in left], dict(other.state_dict())]


cases(
    "model",
    {
        "tied": lambda package, folder: with_model(package, folder, Tied()),
        "tied with a part": lambda package, folder: with_model(package, folder, Tied(part=True), {}),
        "noted": lambda package, folder: with_model(package, folder, Tied(), {"second.weight": "mine"}),
        "plain": lambda package, folder: with_model(package, folder, torch.nn.Linear(0, 4)),
        "turned": lambda package, folder: with_model(package, folder, turned()),
        "turned as it is": lambda package, folder: with_model(package, folder, turned(), force_contiguous=False),
        "turned, by position": lambda package, folder: with_model(package, folder, turned(), None, False),
        "only parts": lambda package, folder: with_model(package, folder, only_parts()),
        "no model": lambda package, folder: with_model(package, folder, {"a": torch.ones(2)}),  # type: ignore[arg-type]
        "on meta": lambda package, folder: with_model(package, folder, torch.nn.Linear(2, 2, device="meta")),
        "text": lambda package, folder: [
            package.torch.save_model(torch.nn.Linear(0, 4, bias=False), str(folder / "m")),
            (folder / "m").read_bytes(),
        ],
    },
)


def arrays_saved(package: Any, folder: pathlib.Path, arrays: Any, *metadata: Any) -> Any:
    """The bytes that `save` and `save_file` for NumPy make."""
    path = folder / "arrays.safetensors"
    made = package.numpy.save(arrays, *metadata)
    assert package.numpy.save_file(arrays, path, *metadata) is None
    assert path.read_bytes() == made
    return [type(made).__name__, made]


NUMPY = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
NUMPY += ["bool", "float16", "float32", "float64", "complex64", "complex128"]
NUMPY += ["longdouble", "U3", "S3", "V2", "O", "M8[s]", "m8[s]", ">f4", ">i2", ">c8", "<f8", "|b1", "i4,f8"]
ML = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
ML += ["float8_e3m4", "float4_e2m1fn", "int4"]
cases(
    "numpy-dtype",
    {
        f"{dtype}-{shape}": lambda package, folder, dtype=dtype, shape=shape: arrays_saved(
            package, folder, {"a": np.ones(shape, dtype), "b": np.zeros(3, dtype)}, {"x": "y"}
        )
        for dtype in NUMPY
        for shape in ((), (2, 3), (0, 4))
    }
    | {
        dtype: lambda package, folder, dtype=dtype: arrays_saved(
            package, folder, {"a": np.arange(6).astype(getattr(ml_dtypes, dtype)).reshape(2, 3)}
        )
        for dtype in ML
    },
)
ARRAYS: dict[str, Callable[[], Any]] = {
    "none": dict,
    "read-only": lambda: {"a": np.frombuffer(bytes(range(8)), np.int16)},
    "the same": lambda: {"a": GRID, "b": GRID},
    "a part": lambda: {"a": GRID[1:3]},
    "matrix": lambda: {"a": np.matrix([[1, 2]])},
    "masked": lambda: {"a": np.ma.masked_array([1, 2], [True, False])},
    "scalar": lambda: {"a": np.float32(3)},
    "tensor": lambda: {"a": torch.ones(3)},
    "list": lambda: {"a": [1, 2]},
    "a list": lambda: [np.ones(3)],
    "None": lambda: None,
    "no dict": lambda: collections.UserDict({"a": np.ones(2)}),
    "name no text": lambda: {3: np.ones(2)},
}
GRID = np.arange(24.0).reshape(4, 6)
cases(
    "numpy",
    {name: lambda package, folder, make=make: arrays_saved(package, folder, make()) for name, make in ARRAYS.items()},
)
